"""Error responses in the client's own protocol, and records of responses without a provider."""

from __future__ import annotations

import math
from time import monotonic
from typing import Any

from routecodex.canon.errors import (
    GatewayError,
    LimitExceeded,
    MethodNotAllowed,
    NotFound,
    UpgradeRequired,
)
from routecodex.gateway.answer.writer import header_text, notice_text, refusal_headers
from routecodex.gateway.context.gateway_replies import GATEWAY_ROUTE
from routecodex.gateway.request import RequestRecord, client_request_id
from routecodex.protocols.codecs import CODECS
from routecodex.server import paths
from routecodex.server.console_pages import error_headers
from routecodex.server.http import HttpRequest
from routecodex.server.paths import Endpoint
from routecodex.wire import json

ErrorReply = tuple[int, list[tuple[bytes, bytes] | bytes], bytes]
"""Status, headers and body of an error response."""

ROUTED = frozenset({"generate", "submit", "count", "embeddings"})
"""Endpoints that call a provider: every response has the routing headers."""
SERVICE = frozenset({"root", "health", "metrics", "admin", "ui"})
"""Endpoints for operators and probes, of no protocol: answered under any load, logged only when refused."""

GONE = 499
"""Status in the record of a request whose client disconnected before it got a response."""

_SHARED = SERVICE | {"models", "model"}
_RETRY_CAP = 60
_RETRY_DEFAULT = 5
_JSON = (b"content-type", b"application/json")
_MAX_PATH = 200


NO_STORE = (b"cache-control", b"no-store")
"""Header of all answers of the admin API."""


def json_headers(request_id: str) -> list[tuple[bytes, bytes] | bytes]:
    """Return the headers of a JSON response."""
    return [_JSON, (b"x-request-id", request_id.encode())]


def protocol_of(request: HttpRequest, endpoint: Endpoint | None) -> str:
    """Return the client's protocol, by the path or, where several share it, by its headers."""
    if endpoint is not None and (endpoint.protocol != "chat" or endpoint.name not in _SHARED):
        return endpoint.protocol
    if "anthropic-version" in request.headers:
        return "messages"
    if "x-goog-api-client" in request.headers or (endpoint is None and "/v1beta" in request.path):
        return "gemini"
    return "chat"


def error_reply(error: GatewayError, request: HttpRequest | None, request_id: str) -> ErrorReply:
    """Encode an error as a response in the client's own protocol."""
    endpoint = paths.find(request.path) if request is not None else None
    protocol = protocol_of(request, endpoint) if request is not None else "chat"
    status, envelope = CODECS[protocol].encode_error(error)
    headers = json_headers(request_id)
    if endpoint is not None and endpoint.name == "admin":
        envelope = _admin_error(error)
        headers.append(NO_STORE)
    elif endpoint is not None and endpoint.name == "ui":
        headers.extend(error_headers())
    if endpoint is not None and endpoint.name in ROUTED:
        headers.extend(refusal_headers(error.message, error.routed))
        if error.role:
            headers.append((b"x-routecodex-role", error.role.encode()))
    if status in (429, 503, 529):
        wait = _RETRY_DEFAULT if error.retry_after is None else error.retry_after
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(min(wait, _RETRY_CAP)))))
    if error.never_retry:
        headers.append((b"x-should-retry", b"false"))
    if status == 405 and endpoint is not None:
        headers.append((b"allow", ", ".join(sorted(endpoint.methods)).encode()))
    if error.header_lines:
        headers.append(error.header_lines)
    if protocol == "responses" and isinstance(error, LimitExceeded):
        # Codex hides the text of a 429, and prints this header.
        headers.append((b"x-codex-promo-message", header_text(error.message)))
    if error.notices:
        headers.append((b"x-routecodex-notice", notice_text(error.notices)))
    envelope.setdefault("code", error.kind)
    envelope.setdefault("details", {})
    return status, headers, json.encode(envelope)


def _admin_error(error: GatewayError) -> dict[str, Any]:
    """Return the error of an admin call, in the same form for every caller."""
    _, envelope = CODECS["chat"].encode_error(error)
    code = error.code or error.kind
    return {**envelope, "error": {**envelope["error"], "code": code}, "code": code}


def local_record(
    request: HttpRequest | None,
    *,
    id: str,
    status: int,
    client_name: str = "",
    error: GatewayError | None = None,
) -> RequestRecord:
    """Return the record of a response that no provider had a part in: a refusal, a list, a probe."""
    endpoint = paths.find(request.path) if request is not None else None
    name = endpoint.name if endpoint is not None else "unknown"
    record = RequestRecord(
        id=id,
        protocol=protocol_of(request, endpoint) if request is not None and name not in SERVICE else "",
        model="",
        stream=False,
        client_name=client_name,
        route=GATEWAY_ROUTE,
        arrived=monotonic(),
    )
    record.status, record.error, record.gone = status, error, status == GONE
    record.endpoint = name
    if request is not None:
        record.client_request_id = client_request_id(request.headers)
        record.call = f"{request.method} {request.path[:_MAX_PATH]}"
        record.address = request.client[0] if request.client is not None else ""
    return record


def unknown_path(request: HttpRequest) -> GatewayError:
    """Return the error for a path that does not exist."""
    return NotFound(f"{request.method} {request.path[:200]} does not exist; check the base URL")


def wrong_method(request: HttpRequest, endpoint: Endpoint) -> GatewayError:
    """Return the error for a method that a path does not accept, or what it stands for."""
    if "upgrade" in request.headers and endpoint.protocol == "responses":
        return UpgradeRequired("WebSockets are not supported; POST to the same path instead")
    # OpenAI has more endpoints below /responses (compact, input_tokens); its response ids begin with resp_.
    if endpoint.name == "response" and not endpoint.argument.startswith("resp_"):
        return unknown_path(request)
    verb = paths.verb_of(request.path) if endpoint.name == "model" and request.method == "POST" else ""
    if verb:
        known = ", ".join(paths.VERBS)
        return NotFound(f"{verb[:80]!r} is not supported, only {known}; for embeddings POST /v1/embeddings")
    allowed = ", ".join(sorted(endpoint.methods))
    return MethodNotAllowed(f"{request.path} accepts {allowed}, not {request.method}")
