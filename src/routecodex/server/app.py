"""The endpoints: from an HTTP request to the gateway and back, with errors in the client's own protocol.

Gemini clients that stream without `alt=sse` get the same stream as one JSON array (Gemini API reference,
streamGenerateContent).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from time import monotonic, time
from typing import Any, Final

from routecodex import __version__
from routecodex.canon.errors import (
    BadRequest,
    GatewayError,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    TooLarge,
    UpgradeRequired,
)
from routecodex.canon.request import ProtocolName
from routecodex.config import Config
from routecodex.gateway import model_list
from routecodex.gateway.answer.writer import SSE, notice_text, refusal_headers, routing_headers
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, Headers, RequestRecord, fresh_id
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.gemini import validate as gemini
from routecodex.protocols.gemini.framing import JsonArray
from routecodex.protocols.messages import validate as messages
from routecodex.protocols.responses import history
from routecodex.server import paths
from routecodex.server.access import ClientAccess
from routecodex.server.admin import AdminApi
from routecodex.server.http import HttpRequest, Reply
from routecodex.server.metrics import CONTENT_TYPE, Metrics
from routecodex.server.origins import OriginAccess, preflight_headers
from routecodex.server.paths import Endpoint
from routecodex.wire import json

_JSON_HEADERS = b"content-type: application/json; charset=utf-8\r\ncache-control: no-cache\r\n"


class JsonArrayReply:
    """A reply whose frames leave as elements of a JSON array."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._array = JsonArray()

    @property
    def started(self) -> bool:
        return self._reply.started

    @property
    def writable(self) -> bool:
        return self._reply.writable

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        await self._reply.send(status, headers, body)

    def start(self, status: int, headers: Headers) -> None:
        self._reply.start(status, [_JSON_HEADERS if field is SSE else field for field in headers])

    async def write(self, data: bytes) -> None:
        await self._reply.write(self._array.wrap(data))

    def write_nowait(self, data: bytes) -> bool:
        return self._reply.write_nowait(self._array.wrap(data))

    async def drain(self) -> None:
        await self._reply.drain()

    async def end(self, data: bytes = b"") -> None:
        await self._reply.end(self._array.wrap(data) + self._array.end())

    def abort(self) -> None:
        self._reply.abort()


class ApiCall:
    """One call that passed the access checks: request, reply, endpoint, client and id.

    `owner` is the client that its state belongs to; empty with one client, or none.
    """

    __slots__ = ("client_name", "endpoint", "id", "owner", "reply", "request")

    def __init__(
        self,
        request: HttpRequest,
        reply: Reply,
        *,
        endpoint: Endpoint,
        id: str,
        client_name: str,
        owner: str,
    ) -> None:
        self.request: Final = request
        self.reply: Final = reply
        self.endpoint: Final = endpoint
        self.id: Final = id
        self.client_name: Final = client_name
        self.owner: Final = owner


_JSON = (b"content-type", b"application/json")

_LISTS: dict[ProtocolName, tuple[str, Callable[[Any], int]]] = {
    "chat": ("messages", lambda wire: wire.count),
    "messages": ("messages", lambda wire: len(wire.messages)),
    "responses": ("input", lambda wire: _entries(wire.typed.input)),
    "gemini": ("contents", lambda wire: _entries(wire.body.contents)),
}
"""The field that grows with a conversation, and its length in the typed view of a request."""
_RETRY_CAP = 60
_RETRY_DEFAULT = 5

_KEYLESS = frozenset({"root", "health", "admin"})
"""Endpoints without a client key, answered under any load; the admin API checks its own token."""

_LINKABLE = frozenset({"root"})
"""Endpoints that a link on any web page may open: they show no data and change nothing."""

_ROUTED = frozenset({"generate", "submit", "count", "embeddings"})
"""Endpoints that call a provider: every response has the routing headers."""
_SHARED = frozenset({"root", "health", "metrics", "models", "model"})


Handle = Callable[[ApiCall], Awaitable[None]]

ErrorReply = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers and body of an error response."""


class App:
    """All endpoints of one server."""

    def __init__(
        self, gateway: Gateway, config: Config, *, metrics: Metrics, draining: Callable[[], bool]
    ) -> None:
        self.adopt(gateway, config)
        self._metrics = metrics
        self._draining = draining
        self.admin: AdminApi | None = None
        self.active = 0
        self._handlers: dict[str, Handle] = {
            "generate": self._generate,
            "count": self._count,
            "response": self._response,
            "submit": self._submit,
            "input_items": self._input_items,
            "embeddings": self._embeddings,
            "models": self._models,
            "model": self._model,
            "health": self._health,
            "metrics": self._show_metrics,
            "admin": self._admin,
            "root": self._root,
        }

    def adopt(self, gateway: Gateway, config: Config) -> None:
        """Use this gateway and these limits from now on; requests in flight keep theirs."""
        self._gateway = gateway
        self._access = ClientAccess(config)
        self._origins = OriginAccess(config)
        self._max_concurrent = config.server.max_concurrent
        self._max_messages = config.server.max_messages

    async def __call__(self, request: HttpRequest, reply: Reply) -> None:
        request_id = f"req_{fresh_id()}"
        refusal: ErrorReply | None = None
        try:
            endpoint = paths.find(request.path)
            self._access.check_host(request.headers)
            cors_lines = self._origins.check(
                request, linkable=endpoint is not None and endpoint.name in _LINKABLE
            )
            if cors_lines:
                reply.extra_lines = cors_lines
                if request.method == "OPTIONS":
                    await reply.send(204, preflight_headers(request.headers), b"")
                    return
            if endpoint is None:
                raise _unknown_path(request)
            client_name = "" if endpoint.name in _KEYLESS else self._access.client_name(request)
            if request.method not in endpoint.methods:
                raise _wrong_method(request, endpoint)
            if self.active >= self._max_concurrent and endpoint.name not in _KEYLESS:
                raise Overloaded(f"{self._max_concurrent} requests are in flight already; retry shortly")
            self.active += 1
            try:
                await self._handlers[endpoint.name](
                    ApiCall(
                        request,
                        reply,
                        endpoint=endpoint,
                        id=request_id,
                        client_name=client_name,
                        owner=client_name if self._access.isolates else "",
                    )
                )
            finally:
                self.active -= 1
        except GatewayError as error:
            if reply.started:
                reply.abort()
                return
            refusal = error_answer(error.detached(), request, request_id)
        if refusal is not None:
            await reply.send(*refusal)

    async def _generate(self, call: ApiCall) -> None:
        codec = CODECS[call.endpoint.protocol]
        if call.endpoint.protocol == "gemini":
            stream = call.endpoint.verb == "streamGenerateContent"
            wire_request = codec.validate(call.request.body, model=call.endpoint.argument, stream=stream)
        else:
            stream = False
            wire_request = codec.validate(call.request.body)
        request = self._client_request(codec, wire_request, call)
        if stream and call.request.query_param("alt") != "sse":
            await self._gateway.answer(request, JsonArrayReply(call.reply))
        else:
            await self._gateway.answer(request, call.reply)

    def _client_request(self, codec: Codec, wire_request: WireRequest, call: ApiCall) -> ClientRequest:
        self._check_entries(wire_request)
        return ClientRequest(
            id=call.id,
            codec=codec,
            wire=wire_request,
            headers=call.request.headers,
            arrived=monotonic(),
            created=int(time()),
            query=call.request.query,
            client_name=call.client_name,
            owner=call.owner,
        )

    def _check_entries(self, wire_request: WireRequest) -> None:
        field, length_of = _LISTS[wire_request.protocol]
        entries = length_of(wire_request.view)
        if entries > self._max_messages:
            raise TooLarge(
                f"{field}: {entries} entries are more than the {self._max_messages} allowed", param=field
            )

    async def _count(self, call: ApiCall) -> None:
        codec = CODECS[call.endpoint.protocol]
        if call.endpoint.protocol == "gemini":
            wire_request = gemini.validate_count(call.request.body, model=call.endpoint.argument)
        else:
            wire_request = messages.validate_count(call.request.body)
        request = self._client_request(codec, wire_request, call)
        record = _record(call, route="count_tokens", model=wire_request.model)
        with self._gateway.services.recorded(record):
            counted = await self._gateway.count_tokens(request, record)
        field = "totalTokens" if call.endpoint.protocol == "gemini" else "input_tokens"
        headers = [*_headers(call.id), *routing_headers(record)]
        await call.reply.send(200, headers, json.encode({field: counted}))

    async def _response(self, call: ApiCall) -> None:
        response_id = call.endpoint.argument
        if call.request.method == "GET":
            _reject_stream(call.request)
            entry = await self._gateway.history.get(response_id, call.owner)
            await call.reply.send(200, _headers(call.id), bytes(entry.response))
            return
        await self._gateway.history.delete(response_id, call.owner)
        await _send(call.reply, {"id": response_id, "object": "response", "deleted": True}, call.id)

    async def _input_items(self, call: ApiCall) -> None:
        items = await self._gateway.history.input_items(call.endpoint.argument, call.owner)
        parameters = {name: call.request.query_param(name) for name in ("limit", "order", "after")}
        await _send(call.reply, history.page(items, parameters), call.id)

    async def _submit(self, call: ApiCall) -> None:
        entry = await self._gateway.history.get(call.endpoint.argument, call.owner)
        codec = CODECS["responses"]
        wire_request = codec.validate(history.submit(entry.turn, call.request.body))
        await self._gateway.answer(self._client_request(codec, wire_request, call), call.reply)

    async def _embeddings(self, call: ApiCall) -> None:
        record = _record(call, route="embeddings", model="")
        with self._gateway.services.recorded(record):
            body = await self._gateway.embed(
                call.request.body, headers=call.request.headers, record=record, owner=call.owner
            )
        await call.reply.send(200, [*_headers(call.id), *routing_headers(record)], body)

    async def _models(self, call: ApiCall) -> None:
        protocol = _protocol_of(call.request, call.endpoint)
        await _send(call.reply, model_list.list_models(self._gateway.registry, protocol), call.id)

    async def _model(self, call: ApiCall) -> None:
        protocol = _protocol_of(call.request, call.endpoint)
        found = model_list.one_model(self._gateway.registry, protocol, call.endpoint.argument)
        await _send(call.reply, found, call.id)

    async def _health(self, call: ApiCall) -> None:
        ready = not self._draining() or call.request.path.endswith("/live")
        state = "ok" if ready else "draining"
        await call.reply.send(200 if ready else 503, _headers(call.id), json.encode({"status": state}))

    async def _show_metrics(self, call: ApiCall) -> None:
        await call.reply.send(200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())

    async def _admin(self, call: ApiCall) -> None:
        if self.admin is None:
            raise NotFound("the admin API is off; set server.admin_token")
        await _send(call.reply, await self.admin.answer(call.endpoint.argument, call.request), call.id)

    async def _root(self, call: ApiCall) -> None:
        about = {
            "name": "routecodex",
            "version": __version__,
            "models": "/v1/models",
            "health": "/health/ready",
        }
        await _send(call.reply, about, call.id)


def _entries(value: Any) -> int:
    """Count the entries; a single text or object counts as one, where the protocol allows it for a list."""
    return len(value) if isinstance(value, list) else 1


def _reject_stream(request: HttpRequest) -> None:
    if request.query_param("stream") == "true":
        raise BadRequest(
            "stream: a stored response cannot be streamed; leave this parameter out",
            param="stream",
            code="unsupported_value",
        )


def _record(call: ApiCall, *, route: str, model: str) -> RequestRecord:
    return RequestRecord(
        id=call.id,
        protocol=call.endpoint.protocol,
        model=model,
        stream=False,
        client_name=call.client_name,
        route=route,
        arrived=monotonic(),
    )


def _unknown_path(request: HttpRequest) -> GatewayError:
    return NotFound(f"{request.method} {request.path[:200]} does not exist; check the base URL")


def _wrong_method(request: HttpRequest, endpoint: Endpoint) -> GatewayError:
    if "upgrade" in request.headers and endpoint.protocol == "responses":
        return UpgradeRequired("WebSockets are not supported; POST to the same path instead")
    # OpenAI has more endpoints below /responses (compact, input_tokens); its response ids begin with resp_.
    if endpoint.name == "response" and not endpoint.argument.startswith("resp_"):
        return _unknown_path(request)
    verb = paths.verb_of(request.path) if endpoint.name == "model" and request.method == "POST" else ""
    if verb:
        known = ", ".join(paths.VERBS)
        return NotFound(f"{verb[:80]!r} is not supported, only {known}; for embeddings POST /v1/embeddings")
    allowed = ", ".join(sorted(endpoint.methods))
    return MethodNotAllowed(f"{request.path} accepts {allowed}, not {request.method}")


def _protocol_of(request: HttpRequest, endpoint: Endpoint | None) -> str:
    """Return the client's protocol, by the path or, where several share it, by its headers."""
    if endpoint is not None and (endpoint.protocol != "chat" or endpoint.name not in _SHARED):
        return endpoint.protocol
    if "anthropic-version" in request.headers:
        return "messages"
    if "x-goog-api-client" in request.headers or (endpoint is None and "/v1beta" in request.path):
        return "gemini"
    return "chat"


def _headers(request_id: str) -> list[tuple[bytes, bytes]]:
    return [_JSON, (b"x-request-id", request_id.encode())]


async def _send(reply: Reply, value: dict[str, Any], request_id: str) -> None:
    await reply.send(200, _headers(request_id), json.encode(value))


def error_answer(error: GatewayError, request: HttpRequest | None, request_id: str) -> ErrorReply:
    """Encode an error as a response in the client's own protocol."""
    endpoint = paths.find(request.path) if request is not None else None
    protocol = _protocol_of(request, endpoint) if request is not None else "chat"
    status, envelope = CODECS[protocol].encode_error(error)
    headers = _headers(request_id)
    if endpoint is not None and endpoint.name in _ROUTED:
        headers.extend(refusal_headers(error.message, error.routed))
    if status in (429, 503, 529):
        wait = _RETRY_DEFAULT if error.retry_after is None else error.retry_after
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(min(wait, _RETRY_CAP)))))
    if error.never_retry:
        headers.append((b"x-should-retry", b"false"))
    if status == 405 and endpoint is not None:
        headers.append((b"allow", ", ".join(sorted(endpoint.methods)).encode()))
    if error.notices:
        headers.append((b"x-routecodex-notice", notice_text(error.notices)))
    return status, headers, json.encode(envelope)
