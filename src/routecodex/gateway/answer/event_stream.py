"""Answers as events: of built-in providers, of whole bodies, and of rounds with server tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from routecodex.canon.errors import GatewayError, UpstreamError
from routecodex.canon.events import Event, Failed, Finished, Usage
from routecodex.canon.response import ResponseBuilder
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.request import ClientConnection
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.protocols.codec import StreamDecoder
from routecodex.protocols.translation import Translation, is_content, observed_usage, output_estimate
from routecodex.protocols.upstream_errors import stream_truncated
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import ANSWER_LIMIT

EventBatch: TypeAlias = Sequence[Event]
"""Events that came together; they are written together."""


class EventStream:
    """An answer that comes as events."""

    def __init__(
        self, events: AsyncGenerator[Event, None], pipe: Translation, recorder: ReasoningRecorder
    ) -> None:
        self.pipe = pipe
        self.recorder: ReasoningRecorder | None = recorder
        self.first = b""
        self._events = events
        self._is_open = True

    async def open(self) -> None:
        """Read up to the first content; UpstreamError: another target may be tried."""
        try:
            while not (self.pipe.started or self.pipe.ended):
                self.first = await self._pull()
        finally:
            if self.pipe.ended or not self.pipe.started:
                await self._close()

    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        out = self.first
        try:
            while not self.pipe.ended:
                if out:
                    await client.write(out)
                    keep_alive.touch()
                out = await self._pull()
            return out
        finally:
            await self._close()

    async def _pull(self) -> bytes:
        event = await anext(self._events, None)
        if event is not None:
            return self.pipe.encode((event,))
        if self.pipe.started:
            return self.pipe.fail(stream_truncated())
        raise stream_truncated()

    async def _close(self) -> None:
        self._is_open = False
        await self._events.aclose()

    def redacted(self, data: bytes) -> bytes:
        return data

    def hide(self, error: GatewayError) -> None:
        """Built-in providers have no secrets."""

    def close(self) -> None:
        """Close the events of an answer that was never carried, because its client disconnected."""
        if self._is_open:
            self._is_open = False
            asyncio.ensure_future(self._events.aclose())  # noqa: RUF006 (the loop holds it until it is done)


class FirstContentBuffer:
    """Events read up to the first content, and the rest as it comes."""

    def __init__(
        self,
        first: EventBatch,
        rest: AsyncGenerator[EventBatch, None],
        *,
        provider: str,
        reported: Callable[[], Usage | None],
    ) -> None:
        self.provider = provider
        self.reported = reported
        """Returns the counts that the provider has reported and that no event has had yet."""
        self._first = first
        self._rest = rest

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        """Yield all events; a stream that breaks ends with Failed at the end of a batch, never raised."""
        async with aclosing(self._rest):
            yield self._first
            try:
                async for batch in self._rest:
                    yield batch
            except UpstreamError as error:
                yield (Failed(error.detached()),)


def no_report() -> Usage | None:
    """Return no counts: those of a built-in provider come as events."""
    return None


async def read_first_content(
    batches: AsyncGenerator[EventBatch, None],
    *,
    provider: str,
    reported: Callable[[], Usage | None] = no_report,
) -> FirstContentBuffer:
    """Read up to the first content; a failure before it is raised."""
    first: list[Event] = []
    try:
        async for batch in batches:
            first.extend(batch)
            found = next((event for event in batch if is_content(event) or isinstance(event, Failed)), None)
            if isinstance(found, Failed):
                raise found.error
            if found is not None:
                return FirstContentBuffer(first, batches, provider=provider, reported=reported)
        raise stream_truncated()
    except BaseException:
        await batches.aclose()
        raise


async def single_event_batches(events: AsyncGenerator[Event, None]) -> AsyncGenerator[EventBatch, None]:
    """Yield the events of a built-in provider, each as it comes."""
    async with aclosing(events):
        async for event in events:
            yield (event,)


async def response_batches(
    response: HttpResponse, prepared: PreparedTarget, decoder: StreamDecoder | None = None
) -> AsyncGenerator[EventBatch, None]:
    """Yield the events of a response, streamed or whole; it is closed with the generator."""
    content_type = response.header(b"content-type") or b""
    decoder = decoder or prepared.codec.stream_decoder()
    try:
        if not 200 <= response.status < 300:
            raise await prepared.upstream.error_of(response)
        if content_type.startswith(b"application/json"):
            yield prepared.codec.decode_response(await response.read(ANSWER_LIMIT))
            return
        while (data := await response.chunk()) is not None:
            batch = decoder.feed(data)
            if batch:
                if isinstance(batch[-1], Failed):
                    prepared.upstream.redact_error(batch[-1].error)
                yield batch
                if isinstance(batch[-1], Finished):
                    # The upstream may keep the connection open, or break it.
                    return
        yield decoder.close()
    except UpstreamError as error:
        prepared.upstream.sanitize(error)
        last = decoder.fail(error)
        if not last or isinstance(last[-1], Failed):
            raise
        yield last
    finally:
        response.close()


def observed_in(events: Sequence[Event], reported: Usage | None, *, input_tokens: int) -> Usage:
    """Return the usage of an answer from the events so far, of one that was cut off or reported none."""
    builder = ResponseBuilder()
    for event in events:
        if not isinstance(event, Failed):
            builder.add(event)
    answer = builder.response()
    return observed_usage(
        reported or answer.usage,
        input_tokens=input_tokens,
        output_tokens=output_estimate(answer.written),
    )


async def iterate(events: Sequence[Event]) -> AsyncGenerator[Event, None]:
    """Yield events that were all read before."""
    for event in events:
        yield event


async def collect_events(events: AsyncGenerator[Event, None]) -> list[Event]:
    """Read events to their end, and close them."""
    async with aclosing(events):
        return [event async for event in events]
