"""The endpoints: from an HTTP request to the gateway and back, with errors in the client's own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

from routecodex import __version__
from routecodex.accounting.clients import Client
from routecodex.canon.errors import (
    BadRequest,
    ClientDisconnected,
    ClientError,
    GatewayError,
    NotFound,
    TooLarge,
)
from routecodex.canon.request import ProtocolName
from routecodex.config import ANONYMOUS, Config
from routecodex.gateway import model_list
from routecodex.gateway.answer.writer import cost_lines, routing_headers
from routecodex.gateway.codex_catalog import base_instructions, codex_models
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import (
    ClientConnection,
    ClientRequest,
    Headers,
    RequestRecord,
    interruption,
    new_request_id,
)
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.gemini import validate as gemini
from routecodex.protocols.messages import validate as messages
from routecodex.protocols.responses import history
from routecodex.server import paths
from routecodex.server.access import ClientAccess
from routecodex.server.admin_service import AdminService
from routecodex.server.admission import Admission, turn_of
from routecodex.server.captured_calls import capturing
from routecodex.server.captures import Captures
from routecodex.server.console_pages import ConsolePages
from routecodex.server.console_requests import ConsoleRequest
from routecodex.server.error_replies import (
    GONE,
    ROUTED,
    SERVICE,
    ErrorReply,
    error_reply,
    json_headers,
    local_record,
    protocol_of,
    unknown_path,
    wrong_method,
)
from routecodex.server.http import HttpRequest, Reply
from routecodex.server.json_array_reply import JsonArrayReply
from routecodex.server.metrics import CONTENT_TYPE, Metrics
from routecodex.server.origins import OriginAccess, preflight_headers
from routecodex.server.paths import Endpoint
from routecodex.telemetry.request_trace import RequestTrace, Tracer
from routecodex.wire import json

log = logging.getLogger("routecodex.server")


class ApiCall:
    """One call that passed the access checks: request, reply, endpoint, client and id.

    `client` is None on a gateway without clients. `recorded`: the gateway records this call, however it ends.
    `queued_at` is the time at which it began to wait for a place, else 0. A captured call has another
    `reply`, which records what passes through it.
    """

    __slots__ = ("client", "endpoint", "id", "queued_at", "recorded", "reply", "request")

    def __init__(
        self,
        request: HttpRequest,
        reply: ClientConnection,
        *,
        endpoint: Endpoint,
        id: str,
        client: Client | None,
    ) -> None:
        self.request: Final = request
        self.reply: ClientConnection = reply
        self.endpoint: Final = endpoint
        self.id: Final = id
        self.client: Final = client
        self.recorded = False
        self.queued_at = 0.0

    @property
    def team(self) -> str:
        """Team of the client; empty without one."""
        return "" if self.client is None else self.client.team

    @property
    def client_name(self) -> str:
        """Name of the client; empty on a gateway without clients."""
        return "" if self.client is None else self.client.name

    @property
    def owner(self) -> str:
        """Client that the state of the call belongs to; empty with one client, or none."""
        return "" if self.client is None else self.client.owner


_LISTS: dict[ProtocolName, tuple[str, Callable[[Any], int]]] = {
    "chat": ("messages", lambda wire: wire.count),
    "messages": ("messages", lambda wire: len(wire.messages)),
    "responses": ("input", lambda wire: _entries(wire.typed.input)),
    "gemini": ("contents", lambda wire: _entries(wire.body.contents)),
}
"""The field that grows with a conversation, and its length in the typed view of a request."""

_UNCOUNTED = frozenset({"count", "models", "model", "response", "input_items"})
"""Endpoints for which no limit counts; their answers show what is left of the client's."""

_KEYLESS = frozenset({"root", "health", "admin", "ui"})
"""Endpoints without a client key; the admin API checks its own token, the console's page has no data."""

Handle = Callable[[ApiCall], Awaitable[None]]


class App:
    """All endpoints of one server."""

    def __init__(
        self,
        gateway: Gateway,
        config: Config,
        *,
        metrics: Metrics,
        draining: Callable[[], bool],
        captures: Captures | None = None,
    ) -> None:
        self.active = 0
        self.tracer: Tracer | None = None
        """Begins the traces of requests; None if traces are off."""
        self._captures = captures
        self._admission = Admission(leave=self._leave, worker=metrics.worker)
        metrics.add(self._admission)
        self._metrics = metrics
        self._draining = draining
        self.admin: AdminService | None = None
        self.pages: Final = ConsolePages()
        self._sent: set[str] = set()
        """Ids of requests that the console has sent and that have their record."""
        self._plain_handlers: dict[str, Handle] = {
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
            "ui": self._ui,
            "root": self._root,
        }
        self.adopt(gateway, config)

    def adopt(self, gateway: Gateway, config: Config) -> None:
        """Use this gateway and these limits from now on; requests in flight keep theirs."""
        self._gateway = gateway
        self._access = ClientAccess(config, gateway.clients)
        self._client_use = gateway.clients.use
        self._origins = OriginAccess(config)
        self._max_concurrent = config.server.max_concurrent
        self._admission.configure(config.server)
        while self.active < self._max_concurrent and self._admission.pass_on():
            self.active += 1
        self._max_messages = config.server.max_messages
        self._has_console = config.console.enabled
        self._handlers = self._plain_handlers
        if self._captures is not None and config.capture.is_on:
            captured = {name: capturing(self._handlers[name], self._captures) for name in ROUTED}
            self._handlers = self._handlers | captured

    async def __call__(self, request: HttpRequest, reply: Reply) -> None:
        request_id = new_request_id()
        client: Client | None = None
        call: ApiCall | None = None
        refusal: ErrorReply | None = None
        try:
            if self._is_preflight(request, reply):
                await reply.send(204, preflight_headers(request.headers), b"")
                self._record(request, id=request_id, status=204)
                return
            endpoint, client = self._admit(request)
            call = ApiCall(request, reply, endpoint=endpoint, id=request_id, client=client)
            if self.active >= self._max_concurrent and endpoint.name not in SERVICE:
                call.queued_at = monotonic()
                # Clients without a key take turns by their addresses, as where there are no keys.
                name = "" if call.client_name == ANONYMOUS else call.client_name
                await self._admission.wait(*turn_of(request, name))
            else:
                self.active += 1
            if client is not None:
                self._client_use.enter(client.name)
                if endpoint.name in _UNCOUNTED:
                    reply.extra_lines += self._limit_lines(request, client)
            try:
                await self._handlers[endpoint.name](call)
            finally:
                if client is not None:
                    self._client_use.leave(client.name)
                self._leave()
            if not call.recorded:
                self._record_call(call, status=reply.status)
        except GatewayError as error:
            if reply.started:
                reply.abort()
                return
            reply.extra_lines = self._origins.headers_of(request)
            if client is not None and not error.header_lines:
                error.header_lines = self._limit_lines(request, client)
            refusal = error_reply(error.detached(), request, request_id)
            if call is None:
                self._record(request, id=request_id, status=refusal[0], error=error)
            elif not call.recorded:
                self._record_call(call, status=refusal[0], error=error)
        except (ClientDisconnected, asyncio.CancelledError):
            if call is not None and not call.recorded:
                refusal = self._cut_off(call)
            if refusal is None:
                raise
        except Exception:
            if call is None:
                self._record(request, id=request_id, status=500)
            elif not call.recorded:
                self._record_call(call, status=500)
            raise
        if refusal is not None:
            await reply.send(*refusal)

    def _limit_lines(self, request: HttpRequest, client: Client) -> bytes:
        """Return the headers of a client's limits, for a response that no provider had a part in."""
        protocol = protocol_of(request, paths.find(request.path))
        return self._gateway.services.limit_lines(client, protocol)

    def _cut_off(self, call: ApiCall) -> ErrorReply | None:
        """Record a call that ended without a response; return a refusal for it if the server stops."""
        stopped = None if call.reply.started else interruption(call.reply)
        if stopped is None:
            self._record_call(call, status=GONE)
            return None
        refusal = error_reply(stopped, call.request, call.id)
        self._record_call(call, status=refusal[0], error=stopped)
        return refusal

    def _is_preflight(self, request: HttpRequest, reply: Reply) -> bool:
        """Check Host and Origin; prepare the reply to a page, and return whether it asks for permission."""
        self._access.check_host(request.headers)
        cors_lines = self._origins.check(request)
        if not cors_lines:
            return False
        reply.extra_lines = cors_lines
        return request.method == "OPTIONS"

    def _admit(self, request: HttpRequest) -> tuple[Endpoint, Client | None]:
        """Return the endpoint of a request and its client; raise if it may not be called."""
        endpoint = paths.find(request.path)
        if endpoint is None:
            raise unknown_path(request)
        client = None if endpoint.name in _KEYLESS else self._access.client_of(request)
        if request.method not in endpoint.methods:
            raise wrong_method(request, endpoint)
        return endpoint, client

    def check_head(self, request: HttpRequest) -> ErrorReply | None:
        """Check a request whose body has not arrived; return the refusal, so that the body is never read."""
        try:
            self._access.check_host(request.headers)
            self._origins.check(request)
            endpoint, _ = self._admit(request)
            if endpoint.name == "admin" and self.admin is not None:
                self.admin.check_access(request, endpoint.argument)
        except GatewayError as error:
            return self._refusal(error.detached(), request)
        return None

    def is_essential(self, request: HttpRequest) -> bool:
        """Return whether a request is answered under any load: a probe, a scrape, a call of an operator."""
        endpoint = paths.find(request.path)
        return endpoint is not None and endpoint.name in SERVICE

    def on_protocol_error(
        self, status: int, message: str, request: HttpRequest | None
    ) -> tuple[list[tuple[bytes, bytes] | bytes], bytes]:
        """Return headers and body for an error of the HTTP layer, in the client's protocol."""
        error = ClientError(message, status=status, code=f"http_{status}")
        _, headers, body = self._refusal(error, request)
        return headers, body

    def _refusal(self, error: GatewayError, request: HttpRequest | None) -> ErrorReply:
        request_id = new_request_id()
        status, headers, body = error_reply(error, request, request_id)
        cors_lines = self._origins.headers_of(request)
        if cors_lines:
            headers.append(cors_lines)
        # An unexpected error in a handler is recorded where it was raised.
        if status != 500:
            self._record(request, id=request_id, status=status, error=error)
        return status, headers, body

    def _record(
        self,
        request: HttpRequest | None,
        *,
        id: str,
        status: int,
        error: GatewayError | None = None,
    ) -> None:
        """Record a response that no provider had a part in."""
        record = local_record(request, id=id, status=status, error=error)
        if self.tracer is not None and request is not None and record.protocol:
            record.trace = self._begin_trace(request, paths.find(request.path))
        self._gateway.services.finish(record)

    def _record_call(self, call: ApiCall, *, status: int, error: GatewayError | None = None) -> None:
        """Record the end of a call that no provider had a part in, with its time in the queue."""
        record = local_record(
            call.request, id=call.id, status=status, client_name=call.client_name, error=error
        )
        record.team = call.team
        if call.queued_at:
            record.arrived = call.queued_at
        if self.tracer is not None and record.protocol:
            record.trace = self._begin_trace(call.request, call.endpoint)
        self._gateway.services.finish(record)

    def _begin_trace(self, request: HttpRequest, endpoint: Endpoint | None) -> RequestTrace | None:
        """Return the trace of a request; None if traces are off."""
        if self.tracer is None:
            return None
        name = "" if endpoint is None else endpoint.name
        return self.tracer.begin(request.headers, method=request.method, path=request.path, endpoint=name)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Free the place of a call that only listens, so that it keeps no request waiting."""
        self._leave()
        try:
            yield
        finally:
            self.active += 1

    def _leave(self) -> None:
        """Pass the place of a request that has ended to one that waits, or free it."""
        admission = self._admission
        if admission.waiting and self.active <= self._max_concurrent and admission.pass_on():
            return
        self.active -= 1

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
        call.recorded = True
        request = ClientRequest(
            id=call.id,
            codec=codec,
            wire=wire_request,
            headers=call.request.headers,
            arrived=call.queued_at or monotonic(),
            created=int(time()),
            query=call.request.query,
            client=call.client,
            owner=call.owner,
        )
        if self.tracer is not None:
            request.trace = self._begin_trace(call.request, call.endpoint)
        return request

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
        record = _call_record(call, route="count_tokens", model=wire_request.model)
        record.trace = request.trace
        with self._gateway.services.recorded(record, call.reply):
            counted = await self._gateway.count_tokens(request, record)
        field = "totalTokens" if call.endpoint.protocol == "gemini" else "input_tokens"
        headers: Headers = [*json_headers(call.id), *routing_headers(record)]
        await call.reply.send(200, headers, json.encode({field: counted}))

    async def _response(self, call: ApiCall) -> None:
        response_id = call.endpoint.argument
        if call.request.method == "GET":
            _reject_stream(call.request)
            entry = await self._gateway.history.get(response_id, call.owner)
            await call.reply.send(200, json_headers(call.id), bytes(entry.response))
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
        record = _call_record(call, route="embeddings", model="")
        record.is_priced = self._gateway.services.counts_calls
        record.trace = self._begin_trace(call.request, call.endpoint)
        with self._gateway.services.recorded(record, call.reply):
            body = await self._gateway.embed(
                call.request.body,
                headers=call.request.headers,
                record=record,
                client=call.client,
                owner=call.owner,
            )
        headers: Headers = [*json_headers(call.id), *routing_headers(record), *cost_lines(record)]
        if record.limits is not None:
            headers = [*headers, record.limits.header_lines(record.protocol)]
        await call.reply.send(200, headers, body)

    async def _models(self, call: ApiCall) -> None:
        protocol = protocol_of(call.request, call.endpoint)
        await self._gateway.model_lists.follow()
        registry = self._gateway.services.router_for(call.client).registry
        listed = model_list.list_models(registry, protocol, via=_is_claude_code(call.request))
        if protocol == "chat" and call.request.query_param("client_version") is not None:
            listed["models"] = codex_models(registry, await self._codex_instructions())
        await _send(call.reply, listed, call.id)

    async def _codex_instructions(self) -> str:
        """Return the configured instructions for Codex; the gateway's own if they are gone."""
        file = self._gateway.config.codex.instructions_file
        if file is None:
            return base_instructions()
        try:
            text = await asyncio.to_thread(Path(file).read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            log.warning("codex.instructions_file cannot be read, the gateway's own text is used: %s", exc)
            return base_instructions()
        return text if text.strip() else base_instructions()

    async def _model(self, call: ApiCall) -> None:
        protocol = protocol_of(call.request, call.endpoint)
        await self._gateway.model_lists.follow()
        registry = self._gateway.services.router_for(call.client).registry
        found = model_list.one_model(registry, protocol, call.endpoint.argument)
        await _send(call.reply, found, call.id)

    async def _health(self, call: ApiCall) -> None:
        if call.request.path.endswith("/live"):
            await _send(call.reply, {"status": "ok"}, call.id)
        elif self._draining():
            await call.reply.send(503, json_headers(call.id), json.encode({"status": "draining"}))
        else:
            store = self._gateway.store.report
            status = "ok" if store.status == "up" else "degraded"
            await _send(call.reply, {"status": status, "store": store}, call.id)

    async def _show_metrics(self, call: ApiCall) -> None:
        await self._gateway.health.read_latest()
        await call.reply.send(200, [(b"content-type", CONTENT_TYPE)], self._metrics.text())

    async def _admin(self, call: ApiCall) -> None:
        if self.admin is None:
            raise NotFound("the admin API is off; set server.admin_token")
        reply = call.reply
        assert isinstance(reply, Reply)
        try:
            await self.admin.serve(call.endpoint.argument, call.request, reply=reply, id=call.id)
        finally:
            call.recorded = call.id in self._sent
            self._sent.discard(call.id)

    async def _ui(self, call: ApiCall) -> None:
        if not self._has_console:
            raise NotFound("the console is off; set console.enabled", code="console_off")
        if self.admin is not None:
            self.admin.check_place(call.request)
        await call.reply.send(*self.pages.answer(call.request.path, call.request.headers))

    async def answer_console(self, sent: ConsoleRequest, reply: Reply, id: str) -> None:
        """Answer a request of the console as that of any client; it has the id of the admin call."""
        refusal: ErrorReply | None = None
        reply.extra_lines += b"cache-control: no-store\r\n"
        call = ApiCall(sent.request, reply, endpoint=sent.endpoint, id=id, client=sent.client)
        try:
            await self._handlers[sent.endpoint.name](call)
        except GatewayError as error:
            if reply.started:
                raise
            refusal = error_reply(error.detached(), sent.request, id)
            if not call.recorded:
                self._record_call(call, status=refusal[0], error=error)
            call.recorded = True
        finally:
            if call.recorded:
                self._sent.add(id)
        if refusal is not None:
            await reply.send(*refusal)

    async def _root(self, call: ApiCall) -> None:
        about = {
            "name": "routecodex",
            "version": __version__,
            "models": "/v1/models",
            "health": "/health/ready",
        }
        await _send(call.reply, about, call.id)


def _is_claude_code(request: HttpRequest) -> bool:
    """Return whether Claude Code asks for the models of its picker (2.1.326: `claude-code/2.1.326`)."""
    asks = request.headers.get("user-agent", "").startswith("claude-code/")
    return asks and request.query_param("limit") == "1000"


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


def _call_record(call: ApiCall, *, route: str, model: str) -> RequestRecord:
    """Return the record of a call that is not a generation; it must be finished."""
    call.recorded = True
    return RequestRecord(
        id=call.id,
        protocol=call.endpoint.protocol,
        model=model,
        stream=False,
        client_name=call.client_name,
        team=call.team,
        route=route,
        arrived=call.queued_at or monotonic(),
    )


async def _send(reply: ClientConnection, value: dict[str, Any], request_id: str) -> None:
    await reply.send(200, json_headers(request_id), json.encode(value))
