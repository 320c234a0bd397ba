"""Where an answer comes from: bytes over HTTP through a pipe, or events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from routecodex.canon.events import Event
from routecodex.protocols import failures
from routecodex.protocols.codec import Pipe
from routecodex.protocols.translation import Translation
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream


class Source(Protocol):
    """Where an answer comes from."""

    @property
    def pipe(self) -> Pipe: ...
    async def pull(self) -> bytes:
        """The next client bytes; the pipe tells when there will be no more."""
        ...

    def redacted(self, data: bytes) -> bytes:
        """Bytes that tell of a failure, without secrets of ours."""
        ...


class HttpSource:
    """An answer that comes over HTTP, through a pipe."""

    def __init__(self, response: HttpResponse, pipe: Pipe, upstream: Upstream) -> None:
        self.pipe = pipe
        self._response = response
        self.redacted = upstream.redacted

    async def pull(self) -> bytes:
        pipe = self.pipe
        while True:
            data = await self._response.chunk()
            out = pipe.close() if data is None else pipe.feed(data)
            if out or data is None or pipe.ended or pipe.started:
                return out


class EventSource:
    """An answer that comes as events."""

    def __init__(self, events: AsyncGenerator[Event, None], pipe: Translation) -> None:
        self.pipe = pipe
        self._events = events

    async def pull(self) -> bytes:
        event = await anext(self._events, None)
        if event is not None:
            return self.pipe.tell((event,))
        if self.pipe.started:
            return self.pipe.fail(failures.truncated())
        raise failures.truncated()

    def redacted(self, data: bytes) -> bytes:
        return data
