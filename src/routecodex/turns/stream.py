"""A turn followed live: its events as an async iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from routecodex.turns.chat_host import ChatHost, ChatRun
from routecodex.turns.events import TurnEnded, TurnEvent


class EventFeed:
    """Events between the turn and its reader; it must not know the reader, who ends the turn by going.

    The model is asked for more only while the reader waits: a slow reader pauses it, and one who goes has
    seen all there is.
    """

    def __init__(self) -> None:
        self.events: deque[TurnEvent] = deque()
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()

    def tell(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._wanted.clear()
        self._news.set()

    async def keep_up(self) -> None:
        """Returns when the reader has read everything and wants more."""
        await self._wanted.wait()

    def wake(self, _: object = None) -> None:
        self._news.set()

    async def news(self) -> None:
        self._news.clear()
        self._wanted.set()
        await self._news.wait()


class RunningTurn:
    """A turn under way: the task it runs in, and what is asked when it is over."""

    __slots__ = ("abandon", "host", "loop", "run", "task")

    def __init__(
        self,
        run: ChatRun,
        host: ChatHost,
        *,
        work: Coroutine[Any, Any, None],
        abandon: Callable[[], None],
    ) -> None:
        self.run = run
        self.host = host
        self.abandon = abandon
        self.loop = asyncio.get_running_loop()
        self.task = self.loop.create_task(work)

    def ended(self) -> TurnEnded:
        return TurnEnded(self.run.answer, self.run.request_state, self.host.usage)


class TurnStream:
    """The events of one turn, which begins when the first is asked for.

    Leaving an `async for` over it aborts the turn; its cleanups then run on their own, and the next `send`
    waits for them. `await aclose()` does the same and waits, and so does the end of an `async with`.
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
                return self._last(self._started)
            await self._news(task)
        return self._feed.events.popleft()

    async def _news(self, task: asyncio.Task[None]) -> None:
        try:
            await self._feed.news()
        except asyncio.CancelledError:
            # Whoever reads was cancelled: so is the turn, and its cleanups are waited for.
            self._finished = True
            task.cancel()
            await _until_done(task)
            raise

    def _last(self, started: RunningTurn) -> TurnEnded:
        self._finished = True
        started.task.result()
        return started.ended()

    async def aclose(self) -> None:
        """Aborts the turn if it is under way and returns when it is over; raises what it ended with."""
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
    """Returns when the task is done; being cancelled meanwhile is passed on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            task.cancel()
    if cancelled is not None:
        raise cancelled
