"""An upstream's answer as events, read as far as its first content: until then another can be tried."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import (
    ArgumentsAdded,
    Event,
    Failed,
    Finished,
    PartStarted,
    ReasoningAdded,
    TextAdded,
)
from routecodex.canon.parts import ToolCall
from routecodex.gateway.lane import Lane
from routecodex.protocols import failures
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import ANSWER_LIMIT

_CONTENT = (TextAdded, ReasoningAdded, ArgumentsAdded, Finished)


class Opened:
    """An answer that has begun: what has been heard of it, and the rest as it comes."""

    def __init__(self, heard: Sequence[Event], rest: AsyncGenerator[Event, None]) -> None:
        self._heard = heard
        self._rest = rest

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events; a break-off is told as Failed, never raised."""
        async with aclosing(self._rest):
            for event in self._heard:
                yield event
            try:
                async for event in self._rest:
                    yield event
            except UpstreamError as error:
                yield Failed(error)

    async def close(self) -> None:
        await self._rest.aclose()


async def opened(events: AsyncGenerator[Event, None]) -> Opened:
    """Reads until there is content; what fails before is raised."""
    heard: list[Event] = []
    try:
        async for event in events:
            if isinstance(event, Failed):
                raise event.error
            heard.append(event)
            if _is_content(event):
                return Opened(heard, events)
        raise failures.truncated()
    except BaseException:
        await events.aclose()
        raise


def _is_content(event: Event) -> bool:
    if isinstance(event, PartStarted):
        return isinstance(event.part, ToolCall)
    return isinstance(event, _CONTENT)


async def heard(response: HttpResponse, lane: Lane) -> AsyncGenerator[Event, None]:
    """The events of an answer over HTTP, streamed or whole; it is closed with the generator."""
    kind = response.header(b"content-type") or b""
    try:
        if not 200 <= response.status < 300:
            raise await lane.upstream.refusal(response)
        if kind.startswith(b"application/json"):
            for event in lane.codec.decode_response(await response.read(ANSWER_LIMIT)):
                yield event
            return
        decoder = lane.codec.stream_decoder()
        while (data := await response.chunk()) is not None:
            for event in decoder.feed(data):
                yield event
        for event in decoder.close():
            yield event
    except UpstreamError as error:
        lane.upstream.discreet(error)
        raise
    finally:
        response.close()
