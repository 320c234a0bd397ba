"""Targets that record what they send and receive, for a gateway that captures requests.

They take the place of the plain ones when the gateway is built, so that one that captures nothing does no
work for it. Subclasses of compiled classes must be compiled too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

from msgspec.json import Decoder

from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.capture import NamedModel, RequestCapture, UpstreamExchange, current_capture
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream
from routecodex.wire import json

_named_models = Decoder(NamedModel)


class RecordedTarget(PreparedTarget):
    """A target that names itself to the capture before it sends."""

    def send(
        self,
        body: bytes,
        *,
        stream: bool,
        headers: Mapping[str, str] | None,
        query: str = "",
        trace: bytes = b"",
    ) -> Awaitable[HttpResponse]:
        capture = current_capture()
        if capture is not None:
            # The provider's `open` reads it before anything else can run.
            capture.target = str(self.target)
        return super().send(body, stream=stream, headers=headers, query=query, trace=trace)


class RecordedUpstream(Upstream):
    """A provider that records every call into the capture of the request in progress."""

    def open(
        self, body: bytes, headers: bytes, path: bytes, *, trace: bytes = b""
    ) -> Awaitable[HttpResponse]:
        sending = super().open(body, headers, path, trace=trace)
        capture = current_capture()
        if capture is None:
            return sending
        exchange = capture.call(path=path, headers=headers + trace, body=body)
        return sending if exchange is None else _record(sending, capture, exchange)

    async def call(
        self,
        body: bytes,
        *,
        key: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        trace: bytes = b"",
    ) -> bytes:
        capture = current_capture()
        if capture is not None:
            capture.target = f"{self.name}.{key}.{_model_of(body, path)}"
        return await Upstream.call(self, body, key=key, path=path, headers=headers, trace=trace)


def _model_of(body: bytes, path: str) -> str:
    """Return the model that a call names, in its path as Gemini does or in its body."""
    _, mark, named = path.partition("/models/")
    if mark:
        return unquote(named.rpartition(":")[0])
    found = json.try_read(body, _named_models)
    return "" if found is None else found.model


async def _record(
    sending: Awaitable[HttpResponse], capture: RequestCapture, exchange: UpstreamExchange
) -> HttpResponse:
    response = await sending
    exchange.status = response.status
    return RecordedResponse(response, capture, exchange)


class RecordedResponse(HttpResponse):
    """A response whose body is recorded as it is read."""

    __slots__ = ("_capture", "_exchange", "_pouring")

    def __init__(self, response: HttpResponse, capture: RequestCapture, exchange: UpstreamExchange) -> None:
        self.status = response.status
        self.headers = response.headers
        self.ended = response.ended
        self._peer = response._peer
        self._conn = response._conn
        self._idle = response._idle
        self._release = response._release
        self._decoder = response._decoder
        self._capture = capture
        self._exchange = exchange
        self._pouring = False

    def take(self) -> bytes:
        data = super().take()
        if data and not self._pouring:
            self._add(data)
        return data

    async def pour(self, sink: Callable[[bytes], bool]) -> None:
        # Every piece goes through the sink, also those that are taken without waiting.
        def recorded(data: bytes) -> bool:
            self._add(data)
            return sink(data)

        self._pouring = True
        await HttpResponse.pour(self, recorded)
        self._pouring = False

    def _add(self, data: bytes) -> None:
        capture = self._capture
        if capture.is_open:
            self._exchange.response.add(capture.ms, data)
