"""A test of one target: a small real request, sent to it whatever its health is."""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct

from routecodex.canon.errors import GatewayError, UpstreamError, UpstreamTimeout
from routecodex.canon.events import Event
from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request
from routecodex.canon.response import fold
from routecodex.gateway.answer.event_stream import collect_events, response_batches
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.request import RequestRecord, new_request_id
from routecodex.gateway.services import GatewayServices
from routecodex.protocols.translation import estimated_usage
from routecodex.routing.registry import Target
from routecodex.routing.tokens import estimate_by_size

CLIENT = "console"
"""Client in the record of a test."""
ROUTE = "test"
_TEXT = "Reply with OK."
_MAX_TOKENS = 16
_SECONDS = 60.0


class TrialResult(Struct, frozen=True, kw_only=True):
    """Outcome of a test; `status` is that of the provider, null if it did not answer."""

    ok: bool
    status: int | None
    first_byte_ms: float | None
    total_ms: float
    error: str | None = None


async def try_target(services: GatewayServices, target: Target, *, seconds: float = _SECONDS) -> TrialResult:
    """Send one small request to a target, and record its outcome in the health of its key."""
    began = time.monotonic()
    record = RequestRecord(
        id=new_request_id(),
        protocol="chat",
        model=target.model,
        stream=False,
        client_name=CLIENT,
        route=ROUTE,
        arrived=began,
    )
    record.is_priced = services.counts_calls
    record.target, record.attempts, record.began = target, 1, began
    record.reason = "an operator tests this target"
    services.begin_counting(record)
    error: GatewayError | None = None
    try:
        with services.recorded(record):
            await _ask(services, target, record, seconds)
        services.health.succeeded(target)
    except GatewayError as exc:
        error = exc.detached()
        if isinstance(exc, UpstreamError):
            services.health.failed(target, exc)
    await services.health.flush()
    return _result(record, error, began)


async def _ask(services: GatewayServices, target: Target, record: RequestRecord, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await _attempt(services, target, record)
    except TimeoutError as exc:
        raise UpstreamTimeout(f"no answer after {seconds:g} seconds", provider=target.provider) from exc


async def _attempt(services: GatewayServices, target: Target, record: RequestRecord) -> None:
    prepared = services.prepare(target)
    request = Request(
        model=target.model,
        messages=(Message("user", (Text(_TEXT),)),),
        source="chat",
        max_tokens=_MAX_TOKENS,
    )
    size, events = 0, list[Event]()
    if isinstance(prepared, PreparedTarget):
        record.protocol = prepared.codec.name
        encoded = prepared.codec.encode_request(request, prepared.options)
        size = estimate_by_size(encoded.body)
        sent = await prepared.send(encoded.body, stream=False, headers=None)
        record.first_byte = time.monotonic()
        async for batch in response_batches(sent, prepared):
            events.extend(batch)
    else:
        events = await collect_events(prepared(request))
        record.first_byte = time.monotonic()
    response = fold(events)
    record.rounds, record.finish = 1, response.finish.reason
    services.count_call(record, target, response.usage or estimated_usage(size, response.written))


def _result(record: RequestRecord, error: GatewayError | None, began: float) -> TrialResult:
    first = record.first_byte
    status = 200 if error is None else getattr(error, "upstream_status", None)
    return TrialResult(
        ok=error is None,
        status=status,
        first_byte_ms=round((first - began) * 1000.0, 3) if first else None,
        total_ms=round((record.finished - began) * 1000.0, 3),
        error=None if error is None else _error_text(error),
    )


def _error_text(error: GatewayError) -> str:
    """Return the message, with the words of the provider where the gateway has replaced them."""
    words = error.provider_message if isinstance(error, UpstreamError) else None
    return error.message if not words or words in error.message else f"{error.message}: {words}"
