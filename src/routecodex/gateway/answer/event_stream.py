"""An upstream's answer as events, read as far as its first content: until then another can be tried.

Streams of events: made of a list, heard to their end, closed whatever becomes of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import Event, Failed
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.protocols import upstream_errors
from routecodex.protocols.translation import is_content
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import ANSWER_LIMIT

EventBatch = Sequence[Event]
"""Events that came together: they are told together."""


class FirstContentBuffer:
    """An answer that has begun: what has been heard of it, and the rest as it comes."""

    def __init__(self, heard: EventBatch, rest: AsyncGenerator[EventBatch, None]) -> None:
        self._heard = heard
        self._rest = rest

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """All events; a break-off is told as Failed at the end of a batch, never raised."""
        async with aclosing(self._rest):
            yield self._heard
            try:
                async for batch in self._rest:
                    yield batch
            except UpstreamError as error:
                yield (Failed(error.detached()),)

    async def close(self) -> None:
        await self._rest.aclose()


async def read_first_content(batches: AsyncGenerator[EventBatch, None]) -> FirstContentBuffer:
    """Reads until there is content; what fails before is raised."""
    heard: list[Event] = []
    try:
        async for batch in batches:
            heard.extend(batch)
            first = next((event for event in batch if is_content(event) or isinstance(event, Failed)), None)
            if isinstance(first, Failed):
                raise first.error
            if first is not None:
                return FirstContentBuffer(heard, batches)
        raise upstream_errors.stream_truncated()
    except BaseException:
        await batches.aclose()
        raise


async def single_event_batches(events: AsyncGenerator[Event, None]) -> AsyncGenerator[EventBatch, None]:
    """The events of a built-in provider, each as it comes."""
    async with aclosing(events):
        async for event in events:
            yield (event,)


async def response_batches(response: HttpResponse, lane: PreparedTarget) -> AsyncGenerator[EventBatch, None]:
    """The events of an answer over HTTP, streamed or whole; it is closed with the generator."""
    kind = response.header(b"content-type") or b""
    try:
        if not 200 <= response.status < 300:
            raise await lane.upstream.error_of(response)
        if kind.startswith(b"application/json"):
            yield lane.codec.decode_response(await response.read(ANSWER_LIMIT))
            return
        decoder = lane.codec.stream_decoder()
        while (data := await response.chunk()) is not None:
            batch = decoder.feed(data)
            if batch:
                if isinstance(batch[-1], Failed):
                    lane.upstream.redact_error(batch[-1].error)
                yield batch
        yield decoder.close()
    except UpstreamError as error:
        lane.upstream.sanitize(error)
        raise
    finally:
        response.close()


async def told(events: Sequence[Event]) -> AsyncGenerator[Event, None]:
    """One after the other."""
    for event in events:
        yield event


async def collect_events(events: AsyncGenerator[Event, None]) -> list[Event]:
    """All of them."""
    try:
        return [event async for event in events]
    finally:
        await events.aclose()


async def closing(events: AsyncGenerator[Event, None], work: Awaitable[None]) -> None:
    """Does the work with them, and closes them after it."""
    try:
        await work
    finally:
        await events.aclose()
