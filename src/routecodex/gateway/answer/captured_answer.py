"""Keeps the content of answers for traces, where `telemetry.content` is on: a copy of what passes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event, Usage
from routecodex.protocols.codec import AnswerOutcome, Pipe
from routecodex.telemetry.request_trace import CapturedContent


class CapturingPipe:
    """A Pipe that keeps the bytes of the provider on their way through another one."""

    def __init__(self, pipe: Pipe, content: CapturedContent) -> None:
        self._pipe = pipe
        self._content = content

    @property
    def started(self) -> bool:
        return self._pipe.started

    @property
    def ended(self) -> bool:
        return self._pipe.ended

    @property
    def outcome(self) -> AnswerOutcome:
        return self._pipe.outcome

    def feed(self, data: bytes) -> bytes:
        self._content.add(data)
        return self._pipe.feed(data)

    def close(self) -> bytes:
        return self._pipe.close()

    def fail(self, error: GatewayError) -> bytes:
        return self._pipe.fail(error)

    def observed(self) -> Usage:
        return self._pipe.observed()


async def captured_events(
    events: AsyncGenerator[Event, None], content: CapturedContent
) -> AsyncGenerator[Event, None]:
    """Yield events, and keep them."""
    kept: list[Event] = []
    content.events = kept
    async with aclosing(events):
        async for event in events:
            kept.append(event)
            yield event
