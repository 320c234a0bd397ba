"""`routecodex explain`: the plan of a request and every reason, without asking a provider.

A gateway that is built only to be asked: nothing is sent, kept or remembered.
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
    json_option,
    meant,
    nobody,
    not_empty,
    print_json,
)
from routecodex.cli.tables import complain
from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, fresh_id
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.stores.memory import MemoryStore
from routecodex.wire import json

PROTOCOLS = ("chat", "messages", "responses", "gemini")


def _headers(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Headers written as `name: value`."""
    headers = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"{line!r} is not `name: value`")
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
    help="The body of the request; `-` reads stdin.",
)
@click.option(
    "--protocol",
    type=click.Choice(PROTOCOLS),
    help="What it is written in; guessed from the body when absent.",
)
@click.option("--model", help="The model, in place of the body's; Gemini bodies name none.")
@click.option("--session", metavar="ID", callback=not_empty, help="The session it belongs to.")
@click.option(
    "--header",
    "headers",
    callback=_headers,
    multiple=True,
    metavar="NAME:VALUE",
    help="A header; may repeat.",
)
@click.option(
    "--server", "server_id", metavar="ID", shell_complete=complete_id, help="The server to ask, of several."
)
@click.option(
    "--config",
    "-c",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Explain by this configuration file, whatever runs.",
)
@json_option
def explain(
    *,
    file: BinaryIO,
    protocol: str | None,
    model: str | None,
    session: str | None,
    headers: dict[str, str],
    server_id: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Say where a request would go and why: the targets in order, and what was left out.

    Asks the running server, which knows the health of its keys and the state of its sessions. When none
    runs, the configuration file alone decides.

    \b
    Examples:
      routecodex explain --file request.json
      routecodex explain --file - --protocol messages --session 7f0c1a < request.json
      routecodex explain --file request.json --config new.toml --json
    """
    if config is not None and server_id is not None:
        raise click.UsageError("--config explains without a server: leave out --server")
    question = _question(_body(file), protocol, model)
    question["headers"] = {**headers, **_session_header(session)}
    server = None if config is not None else _running(server_id)
    if server is None and server_id is not None:
        nobody()
    try:
        told = _by_server(question, server) if server else _by_file(question, config)
    except (GatewayError, AdminRefused, Unreachable) as exc:
        complain(str(exc))
        raise SystemExit(FAILED) from exc
    if as_json:
        print_json(told)
    else:
        views.show_explained(told)


_KINDS = {"session": "x-session-id", "conversation": "x-conversation-id"}


def _session_header(session: str | None) -> dict[str, str]:
    if session is None:
        return {}
    kind, colon, rest = session.partition(":")
    if colon and kind == "chain":
        raise click.UsageError("a chain is known by what it goes on from: give previous_response_id in FILE")
    name = _KINDS.get(kind) if colon else None
    id = session if name is None else rest
    # Headers come one character a byte; on the wire an id is UTF-8.
    return {name or "x-session-id": id.encode("utf-8", "surrogateescape").decode("latin-1")}


def _body(file: BinaryIO) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(file.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise click.BadParameter(f"not JSON: {exc}", param_hint="--file") from exc
    if not isinstance(body, dict):
        raise click.BadParameter("not a JSON object", param_hint="--file")
    return body


def _question(body: dict[str, Any], protocol: str | None, model: str | None) -> dict[str, Any]:
    protocol = protocol or guess(body)
    if protocol != "gemini":
        return {"protocol": protocol, "body": {**body, "model": model} if model else body}
    if not model:
        raise click.UsageError("a Gemini request names its model in the path: give it with --model")
    return {"protocol": protocol, "body": body, "path": f"/v1beta/models/{model}:generateContent"}


def guess(body: Mapping[str, Any]) -> str:
    """The protocol a request is written in, by the fields that only one of them has."""
    if "contents" in body:
        return "gemini"
    if "messages" not in body:
        return "responses" if {"input", "previous_response_id", "prompt"} & body.keys() else "chat"
    return "messages" if _is_anthropic(body) else "chat"


_OF_MESSAGES = {"system", "thinking", "top_k", "stop_sequences", "anthropic_version"}
_OF_CHAT = {"max_completion_tokens", "n", "stop", "response_format", "stream_options", "reasoning_effort"}
_PARTS_OF_MESSAGES = {"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"}


def _is_anthropic(body: Mapping[str, Any]) -> bool:
    if _OF_MESSAGES & body.keys():
        return True
    messages = [row for row in _list(body["messages"]) if isinstance(row, dict)]
    if _OF_CHAT & body.keys() or any(row.get("role") not in ("user", "assistant") for row in messages):
        return False
    parts = [part for row in messages for part in _list(row.get("content")) if isinstance(part, dict)]
    tools = [tool for tool in _list(body.get("tools")) if isinstance(tool, dict)]
    marked = any(part.get("type") in _PARTS_OF_MESSAGES or "cache_control" in part for part in parts)
    return marked or any("input_schema" in tool for tool in tools) or _named_claude(body)


def _named_claude(body: Mapping[str, Any]) -> bool:
    return "max_tokens" in body and str(body.get("model", "")).startswith("claude")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _running(server_id: str | None) -> AnnouncedServer | None:
    """The server to ask; None when none runs."""
    alive = []
    for server in meant(server_id):
        try:
            AdminClient(server).status()
        except Unreachable as exc:
            complain(f"{server.id} is dead: {exc}", severity="warning")
        except AdminRefused as exc:
            complain(f"{server.id}: {exc.message}")
            raise SystemExit(FAILED) from exc
        else:
            alive.append(server)
    if len(alive) > 1:
        names = ", ".join(server.id for server in alive)
        raise click.UsageError(f"several servers run; name one with --server: {names}")
    return alive[0] if alive else None


def _by_server(question: dict[str, Any], server: AnnouncedServer) -> dict[str, Any]:
    return AdminClient(server).post("/admin/explain", question)


def _by_file(question: dict[str, Any], config: Path | None) -> dict[str, Any]:
    from routecodex.cli.config import config_path, load_or_exit

    loaded = load_or_exit(config)
    if config is None:
        click.echo(f"no server is running; explained by {config_path(None)} alone", err=True)
    import asyncio

    return asyncio.run(explained(loaded, question))


async def explained(config: Config, question: dict[str, Any]) -> dict[str, Any]:
    """What `/admin/explain` of a fresh server with this configuration would answer."""
    gateway = Gateway(config, store=MemoryStore(), user_dir=user_dir())
    try:
        await gateway.open()
        ask = ClientRequest(
            id=f"req_{fresh_id()}",
            codec=CODECS[question["protocol"]],
            inbound=_inbound(question),
            headers=question["headers"],
            arrived=time.monotonic(),
            created=int(time.time()),
        )
        told: dict[str, Any] = msgspec.to_builtins(await gateway.explain(ask))
        return told
    finally:
        await gateway.close()


def _inbound(question: dict[str, Any]) -> WireRequest:
    codec, body = CODECS[question["protocol"]], json.encode(question["body"])
    if question["protocol"] != "gemini":
        return codec.validate(body)
    model = question["path"].rpartition("/models/")[2].rpartition(":")[0]
    return codec.validate(body, model=model, stream=False)
