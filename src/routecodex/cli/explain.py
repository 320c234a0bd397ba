"""`routecodex explain`: the plan of a request with every reason, without a call to a provider.

A running server plans it; without one, a gateway built from the configuration alone, with an empty store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from routecodex.canon.errors import GatewayError
from routecodex.cli import views
from routecodex.cli.admin_client import AdminClient, AdminRefused, AnnouncedServer, Unreachable, user_dir
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    complete_id,
    exit_without_server,
    json_option,
    not_empty,
    print_json,
    select_servers,
)
from routecodex.cli.tables import print_problem
from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, new_request_id
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.stores.memory import MemoryStore
from routecodex.wire import json

PROTOCOLS = ("chat", "messages", "responses", "gemini")


def _headers(_context: click.Context, _parameter: click.Parameter, lines: tuple[str, ...]) -> dict[str, str]:
    """Parse headers written as `name: value`."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{line!r} does not have the form `name: value`")
        headers[name.strip().lower()] = value.strip()
    return headers


@click.command(epilog=EXIT_CODES)
@click.option(
    "--file",
    "-f",
    "file",
    type=click.File("rb"),
    required=True,
    metavar="FILE",
    help="Body of the request; `-` reads stdin.",
)
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    help="Protocol of the body; guessed from its fields when absent.",
)
@click.option("--model", help="Model, instead of the body's; required for Gemini, whose bodies have none.")
@click.option("--session", metavar="ID", callback=not_empty, help="Session of the request.")
@click.option(
    "--client", metavar="NAME", callback=not_empty, help="Client of the request, if there are several."
)
@click.option(
    "--header",
    "headers",
    callback=_headers,
    multiple=True,
    metavar="NAME:VALUE",
    help="Header of the request; may repeat.",
)
@click.option(
    "--server",
    "server_id",
    metavar="ID",
    shell_complete=complete_id,
    help="Server to ask, if several are running.",
)
@click.option(
    "--config",
    "-c",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Explain by this configuration file instead of a running server.",
)
@json_option
def explain(
    *,
    file: BinaryIO,
    protocol: str | None,
    model: str | None,
    session: str | None,
    client: str | None,
    headers: dict[str, str],
    server_id: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Show where a request would go and why: the targets in order, and those left out.

    Asks the running server, which knows the health of its keys and the state of its sessions. If no server is
    running, only the configuration file is used.

    \b
    Examples:
      routecodex explain --file request.json
      routecodex explain --file - --protocol messages --session 7f0c1a < request.json
      routecodex explain --file request.json --config new.toml --json
    """
    if config is not None and server_id is not None:
        raise click.UsageError("--config works without a server; leave out --server")
    explain_request = _explain_request(_body(file), protocol, model)
    explain_request["headers"] = {**headers, **_session_header(session)}
    if client is not None:
        explain_request["client"] = client
    server = None if config is not None else _running(server_id)
    if server is None and server_id is not None:
        exit_without_server()
    try:
        plan = _plan_by_server(explain_request, server) if server else _plan_by_file(explain_request, config)
    except (GatewayError, AdminRefused, Unreachable) as exc:
        print_problem(str(exc))
        raise SystemExit(FAILED) from exc
    if as_json:
        print_json(plan)
    else:
        views.show_explained(plan)


_SESSION_HEADERS = {"session": "x-session-id", "conversation": "x-conversation-id"}


def _session_header(session: str | None) -> dict[str, str]:
    if session is None:
        return {}
    kind, colon, rest = session.partition(":")
    if colon and kind == "chain":
        raise click.UsageError("--session does not take a chain; set previous_response_id in FILE instead")
    name = _SESSION_HEADERS.get(kind) if colon else None
    id = session if name is None else rest
    # The server decodes headers as latin-1; on the wire an id is UTF-8.
    return {name or "x-session-id": id.encode("utf-8", "surrogateescape").decode("latin-1")}


def _body(file: BinaryIO) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(file.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--file") from exc
    if not isinstance(body, dict):
        raise click.BadParameter("not a JSON object", param_hint="--file")
    return body


def _explain_request(body: dict[str, Any], protocol: str | None, model: str | None) -> dict[str, Any]:
    protocol = protocol or guess_protocol(body)
    if protocol != "gemini":
        return {"protocol": protocol, "body": {**body, "model": model} if model else body}
    if not model:
        raise click.UsageError("a Gemini request has its model in the path; set it with --model")
    return {"protocol": protocol, "body": body, "path": f"/v1beta/models/{model}:generateContent"}


def guess_protocol(body: Mapping[str, Any]) -> str:
    """Return the protocol of a body, by fields that only one protocol has."""
    if "contents" in body:
        return "gemini"
    if "messages" not in body:
        return "responses" if {"input", "previous_response_id", "prompt"} & body.keys() else "chat"
    return "messages" if _is_anthropic(body) else "chat"


_MESSAGES_FIELDS = {"system", "thinking", "top_k", "stop_sequences", "anthropic_version"}
_CHAT_FIELDS = {"max_completion_tokens", "n", "stop", "response_format", "stream_options", "reasoning_effort"}
_MESSAGES_PART_TYPES = {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    if _MESSAGES_FIELDS & body.keys():
        return True
    messages = [row for row in _list(body["messages"]) if isinstance(row, dict)]
    if _CHAT_FIELDS & body.keys() or any(row.get("role") not in ("user", "assistant") for row in messages):
        return False
    parts = [part for row in messages for part in _list(row.get("content")) if isinstance(part, dict)]
    tools = [tool for tool in _list(body.get("tools")) if isinstance(tool, dict)]
    marked = any(part.get("type") in _MESSAGES_PART_TYPES or "cache_control" in part for part in parts)
    return marked or any("input_schema" in tool for tool in tools) or _named_claude(body)


def _named_claude(body: Mapping[str, Any]) -> bool:
    return "max_tokens" in body and str(body.get("model", "")).startswith("claude")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _running(server_id: str | None) -> AnnouncedServer | None:
    """Return the running server; None if there is none."""
    alive = []
    for server in select_servers(server_id):
        try:
            AdminClient(server).status()
        except Unreachable as exc:
            print_problem(f"{server.id} is dead: {exc}", severity="warning")
        except AdminRefused as exc:
            print_problem(f"{server.id}: {exc.message}")
            raise SystemExit(FAILED) from exc
        else:
            alive.append(server)
    if len(alive) > 1:
        names = ", ".join(server.id for server in alive)
        raise click.UsageError(f"several servers are running; choose one with --server: {names}")
    return alive[0] if alive else None


def _plan_by_server(explain_request: dict[str, Any], server: AnnouncedServer) -> dict[str, Any]:
    return AdminClient(server).post("/admin/explain", explain_request)


def _plan_by_file(explain_request: dict[str, Any], config: Path | None) -> dict[str, Any]:
    from routecodex.cli.config import config_path, load_or_exit

    loaded = load_or_exit(config)
    if config is None:
        click.echo(f"no server is running; explained by {config_path(None)} only", err=True)
    import asyncio

    return asyncio.run(plan_offline(loaded, explain_request))


async def plan_offline(config: Config, explain_request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `/admin/explain` of a new server with this configuration."""
    gateway = Gateway(config, store=MemoryStore(), user_dir=user_dir())
    name = explain_request.get("client")
    try:
        await gateway.open()
        client = gateway.clients.table.clients.get(name) if name is not None else None
        request = ClientRequest(
            id=new_request_id(),
            codec=CODECS[explain_request["protocol"]],
            wire=_wire_request(explain_request),
            headers=explain_request["headers"],
            arrived=time.monotonic(),
            created=int(time.time()),
            client=client,
            owner="" if client is None else client.owner,
        )
        plan: dict[str, Any] = msgspec.to_builtins(await gateway.explain(request))
        return plan
    finally:
        await gateway.close()


def _wire_request(explain_request: dict[str, Any]) -> WireRequest:
    codec, body = CODECS[explain_request["protocol"]], json.encode(explain_request["body"])
    if explain_request["protocol"] != "gemini":
        return codec.validate(body)
    model = explain_request["path"].rpartition("/models/")[2].rpartition(":")[0]
    return codec.validate(body, model=model, stream=False)
