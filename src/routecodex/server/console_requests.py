"""Requests that the console makes as a client: the playground, and a captured request that is sent again.

Each becomes an ordinary request of the client `console`, so that routing, records and costs are those of any
other, and the page gets the answer that a client would get.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.accounting.clients import Client
from routecodex.canon.errors import BadRequest, ClientError
from routecodex.gateway.context.identity import FORCED_TARGET, ID_HEADERS, PATH_SESSION
from routecodex.server import paths
from routecodex.server.capture_redaction import REDACTED, is_credential
from routecodex.server.error_replies import ROUTED
from routecodex.server.http import HttpRequest
from routecodex.wire import json

CONSOLE = "console"
"""Name of the client in records of the console's own requests."""
_AGENT = "routecodex-console"
_LONGEST = 256
_GEMINI_MODEL = re.compile(r"(/models/)[^?]+(:[A-Za-z]+(?:\?.*)?)\Z")

_OF_CONNECTION = frozenset(
    (
        *("accept-encoding", "connection", "content-length", "expect", "forwarded", "host", "keep-alive"),
        *("origin", "referer", "te", "trailer", "transfer-encoding", "upgrade", "via", "x-request-id"),
    )
)
"""Headers that belong to the connection or the page of the first request."""


class PlaygroundRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as a client would send it; `body` is the JSON object itself or its text."""

    protocol: Literal["chat", "responses", "messages", "gemini"]
    path: str
    body: Raw
    session: str | None = None


class ReplayRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Destination of a captured request that is sent again: a target, or a model as a client names it."""

    target: str | None = None
    model: str | None = None


class ConsoleRequest(Struct, frozen=True):
    """A request of the console, its endpoint, and the client that it is made as."""

    request: HttpRequest
    endpoint: paths.Endpoint
    client: Client


_playground = Decoder(PlaygroundRequest)
_replays = Decoder(ReplayRequest)
_texts = Decoder(str)


def playground_request(call: HttpRequest) -> ConsoleRequest:
    """Return the request that a call of the playground describes."""
    asked = json.read(call.body or b"{}", _playground)
    body = bytes(asked.body)
    if body.startswith(b'"'):
        body = json.read(body, _texts, at="body").encode()
    headers = {"content-type": "application/json", "user-agent": _AGENT}
    if asked.session is not None:
        if not asked.session.strip() or len(asked.session) > _LONGEST:
            raise BadRequest(
                f"session: must have 1 to {_LONGEST} characters, or be left out", param="session"
            )
        # As the bytes of a header would be read.
        headers["x-session-id"] = asked.session.encode("utf-8", "replace").decode("latin-1")
    sent = _request(call, path=asked.path, headers=headers, body=body)
    if sent.endpoint.protocol != asked.protocol:
        message = f"path: {asked.path[:200]!r} is a path of {sent.endpoint.protocol}, not of {asked.protocol}"
        raise BadRequest(message, param="path")
    return sent


def replay_request(call: HttpRequest, captured: dict[str, Any]) -> ConsoleRequest:
    """Return a captured request, to be sent to the target or the model that a call names.

    It runs in a session of its own: what it changes and what is set there concern no client. Credentials in
    its headers were not captured.
    """
    asked = json.read(call.body or b"{}", _replays)
    if (asked.target is None) == (asked.model is None) or "" in (asked.target, asked.model):
        raise BadRequest('name either a target or a model: {"target": "provider.model"} or {"model": "name"}')
    client = captured["client"]
    if client["body_missing"]:
        raise ClientError(
            f"{client['body_missing']} bytes of the request were not captured; raise capture.max_body_kb",
            status=409,
            code="capture_incomplete",
        )
    headers = {
        name: value
        for name, value in client["headers"].items()
        if name not in ID_HEADERS and name not in _OF_CONNECTION and not _is_dropped(name, value)
    }
    path, body = client["path"], client["body"].encode()
    if asked.model is not None:
        path, body = _with_model(path, body, asked.model)
    sent = _request(call, path=path, headers=headers, body=body, owner=captured["owner"])
    headers[PATH_SESSION] = f"replay of {captured['request']}"
    if asked.target is not None:
        headers[FORCED_TARGET] = asked.target
    return sent


def _is_dropped(name: str, value: str) -> bool:
    return name.startswith("sec-") or (is_credential(name) and value.endswith(REDACTED))


def _with_model(path: str, body: bytes, model: str) -> tuple[str, bytes]:
    """Return path and body of a request with another model; Gemini names it in the path."""
    if _GEMINI_MODEL.search(path):
        return _GEMINI_MODEL.sub(lambda found: f"{found[1]}{model}{found[2]}", path), body
    fields = json.read_fields(body)
    fields["model"] = Raw(json.encode(model))
    return path, json.encode(fields)


def _request(
    call: HttpRequest, *, path: str, headers: dict[str, str], body: bytes, owner: str = ""
) -> ConsoleRequest:
    try:
        if not path.startswith("/"):
            raise ValueError("it must begin with /")
        request = HttpRequest("POST", path.encode(), headers=headers, body=body, client=call.client)
    except ValueError as exc:
        raise BadRequest(f"path: {path[:200]!r} cannot be used: {exc}", param="path") from exc
    endpoint = paths.find(request.path)
    if endpoint is None or endpoint.name not in ROUTED:
        message = f"path: {path[:200]!r} does not answer requests for a model, as /v1/messages does"
        raise BadRequest(message, param="path")
    return ConsoleRequest(request, endpoint, Client(name=CONSOLE, source="file", owner=owner))
