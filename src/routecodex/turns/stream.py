"""`TurnStream`: the events of a running turn as an async iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from routecodex.turns.chat_host import ChatHost, ChatRun
from routecodex.turns.events import TurnEnded, TurnEvent
from routecodex.turns.structured_output import OutputCheck


class EventFeed:
    """Events between the turn and its reader.

    It holds no reference to the reader, so that dropping the reader aborts the turn. More data is read from
    the model only while the reader waits: a slow reader pauses it, and one that leaves has missed nothing.
    """

    def __init__(self) -> None:
        self.events: deque[TurnEvent] = deque()
        self._changed = asyncio.Event()
        self._reader_waits = asyncio.Event()

    def emit(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._reader_waits.clear()
        self._changed.set()

    async def wait_ready(self) -> None:
        """Wait until the reader has read all events and waits for more."""
        await self._reader_waits.wait()

    def wake(self, _: object = None) -> None:
        self._changed.set()

    async def wait_event(self) -> None:
        """Wait for the next event or for `wake`."""
        self._changed.clear()
        self._reader_waits.set()
        await self._changed.wait()


class RunningTurn:
    """A turn with the task it runs in; `abandon` tells the conversation that the reader left."""

    __slots__ = ("abandon", "check", "host", "loop", "run", "task")

    def __init__(
        self,
        run: ChatRun,
        host: ChatHost,
        *,
        work: Coroutine[Any, Any, None],
        abandon: Callable[[], None],
        check: OutputCheck[Any] | None = None,
    ) -> None:
        self.check = check
        self.run = run
        self.host = host
        self.abandon = abandon
        self.loop = asyncio.get_running_loop()
        self.task = self.loop.create_task(work)

    def ended(self) -> TurnEnded:
        output = None if self.check is None else self.check.output
        return TurnEnded(self.run.answer, self.run.request_state, self.host.usage, output)


class TurnStream:
    """The events of one turn, which starts when the first event is requested.

    Leaving an `async for` over it aborts the turn; its cleanups then run in the background, and the next
    `send` waits for them. `await aclose()` and the end of an `async with` abort it and wait.
    """

    def __init__(self, start: Callable[[EventFeed], Coroutine[Any, Any, RunningTurn]]) -> None:
        self._start = start
        self._feed = EventFeed()
        self._started: RunningTurn | None = None
        self._finished = False

    def __aiter__(self) -> TurnStream:
        return self

    async def __anext__(self) -> TurnEvent:
        if self._finished:
            raise StopAsyncIteration
        if self._started is None:
            self._started = await self._start(self._feed)
            self._started.task.add_done_callback(self._feed.wake)
        task = self._started.task
        while not self._feed.events:
            if task.done():
                return self._end(self._started)
            await self._wait_event(task)
        return self._feed.events.popleft()

    async def _wait_event(self, task: asyncio.Task[None]) -> None:
        try:
            await self._feed.wait_event()
        except asyncio.CancelledError:
            # The reader was cancelled: cancel the turn and wait for its cleanups.
            self._finished = True
            task.cancel()
            await _until_done(task)
            raise

    def _end(self, started: RunningTurn) -> TurnEnded:
        self._finished = True
        started.task.result()
        return started.ended()

    async def aclose(self) -> None:
        """Abort the turn if it runs and wait for its end; raise the error it ended with."""
        if self._finished:
            return
        self._finished = True
        if self._started is None:
            return
        self._started.run.abort()
        await _until_done(self._started.task)
        self._started.task.result()

    async def __aenter__(self) -> TurnStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        started = self._started
        if started is None or started.task.done() or started.loop.is_closed():
            return
        started.abandon()
        started.loop.call_soon_threadsafe(started.run.abort)


async def _until_done(task: asyncio.Task[None]) -> None:
    """Wait until the task is done; re-raise a cancellation afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            task.cancel()
    if cancelled is not None:
        raise cancelled
