"""Built-in providers that record the events they yield: they have no bytes on a wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.gateway.answer.prepared_target import BuiltinProvider
from routecodex.gateway.capture import RequestCapture, UpstreamExchange, current_capture
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.routing.registry import Target

_BUILT_IN = b"(built in)"


def recorded_builtin(target: Target, provider: BuiltinProvider) -> BuiltinProvider:
    """Return a built-in provider that records its request and its events."""

    def answer(request: Request) -> AsyncGenerator[Event, None]:
        events = provider(request)
        capture = current_capture()
        if capture is None:
            return events
        capture.target = str(target)
        exchange = capture.call(path=_BUILT_IN, headers=b"", body=_body(request, target))
        return events if exchange is None else _record(events, capture, exchange)

    return answer


async def _record(
    events: AsyncGenerator[Event, None], capture: RequestCapture, exchange: UpstreamExchange
) -> AsyncGenerator[Event, None]:
    exchange.status = 200
    try:
        async for event in events:
            if capture.is_open:
                named = {"event": type(event).__name__, **msgspec.to_builtins(event, enc_hook=_shown)}
                exchange.response.add(capture.ms, b"data: " + _encoded(named) + b"\n\n")
            yield event
    finally:
        await events.aclose()


def _body(request: Request, target: Target) -> bytes:
    """Return the request in the client's protocol, as far as it can be written there."""
    try:
        options = EncodeOptions(model=request.model, provider=target.provider)
        return CODECS[request.source].encode_request(request, options).body
    except GatewayError:
        return _encoded(request)


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=_shown)


def _shown(value: Any) -> Any:
    """Return a value that JSON does not know as text."""
    return value.message if isinstance(value, GatewayError) else str(value)
