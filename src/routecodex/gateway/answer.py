"""How an answer reaches the client.

A Source gives client bytes; `stream` carries them on, one awaited write after the other, so that a client
that reads slowly pauses the upstream. Until a source has content its failure is raised, and the next target
can be tried; afterwards it ends the stream with the protocol's own error event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import Event
from routecodex.gateway.ask import Client, Headers
from routecodex.protocols import failures
from routecodex.protocols.codec import Outcome, Pipe
from routecodex.protocols.translation import Translation
from routecodex.providers.http import HttpResponse


class Source(Protocol):
    """Where an answer comes from."""

    @property
    def pipe(self) -> Pipe: ...
    async def pull(self) -> bytes:
        """The next client bytes; the pipe tells when there will be no more."""
        ...

    async def close(self) -> None: ...


class HttpSource:
    """An answer that comes over HTTP, through a pipe."""

    def __init__(self, response: HttpResponse, pipe: Pipe) -> None:
        self.pipe = pipe
        self._response = response

    async def pull(self) -> bytes:
        pipe = self.pipe
        while True:
            data = await self._response.chunk()
            out = pipe.close() if data is None else pipe.feed(data)
            if out or data is None or pipe.ended or pipe.started:
                return out

    async def close(self) -> None:
        self._response.close()


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

    async def close(self) -> None:
        await self._events.aclose()


class KeepAlive:
    """Sends a comment when nothing was written for a while; begins the answer if it must."""

    def __init__(
        self, client: Client, *, seconds: float, comment: bytes, head: Callable[[], Headers]
    ) -> None:
        self._client = client
        self._seconds = seconds
        self._comment = comment
        self._head = head
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(seconds, self._tick) if seconds and comment else None

    def touch(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        wait = self._last + self._seconds - self._loop.time()
        if wait <= 0:
            wait = self._seconds
            if not self._client.started:
                self._client.start(200, self._head())
            self._client.write_nowait(self._comment)
            self.touch()
        self._timer = self._loop.call_later(wait, self._tick)


async def stream(
    source: Source,
    client: Client,
    *,
    head: Callable[[], Headers],
    keep_alive: KeepAlive,
    settle: Callable[[Outcome], Awaitable[None]],
    abort_after_error: bool,
) -> None:
    """Carries the source to the client; raises UpstreamError while another target may still be tried."""
    pipe = source.pipe
    out = b""
    while not (pipe.started or pipe.ended):
        out = await source.pull()
    if not client.started:
        client.start(200, head())
    try:
        while not pipe.ended:
            if out:
                await client.write(out)
                keep_alive.touch()
            out = await source.pull()
    except UpstreamError as error:
        out = pipe.fail(error)
    await settle(pipe.outcome)
    if pipe.outcome.error is not None and abort_after_error:
        await client.write(out)
        client.abort()
    else:
        await client.end(out)
