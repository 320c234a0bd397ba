"""The life of a turn: hooks around one or more requests, then cleanups, whatever happens.

    on_turn_start → ⟲ [ on_before_request → send → on_message_append, on_stream_data → on_after_request ]
                  → on_turn_end → cleanups, last registered first

An abort interrupts whatever the turn is waiting for up to `on_turn_end`: its task is cancelled, and the
cancellation taken back when the interrupted part has ended, as `asyncio.timeout` does it. An exception
belongs to the abort when the abort came while what raised it was running; every other one is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Generic

from routecodex.turns.append_queue import DONE, AppendQueue, Holder, ParallelWork, PendingAppend
from routecodex.turns.errors import TooManyRequests, TurnAborted, TurnOver
from routecodex.turns.hooks import Hook, HookTable
from routecodex.turns.turn import ChunkT, Host, MessageT, RequestState, RequestT, Turn


class Engine(Generic[RequestT, MessageT, ChunkT]):
    """Plugins and limits, made once for any number of turns."""

    __slots__ = ("hooks", "max_requests")

    def __init__(self, plugins: Iterable[object] = (), *, max_requests: int | None = 50) -> None:
        if max_requests is not None and max_requests < 1:
            raise ValueError(f"max_requests is {max_requests!r}; a turn needs at least one, None is no limit")
        self.hooks = HookTable(plugins)
        self.max_requests = max_requests

    def with_plugin(self, plugin: object) -> Engine[RequestT, MessageT, ChunkT]:
        """An engine with one more plugin, behind the others."""
        return Engine((*self.hooks.plugins, plugin), max_requests=self.max_requests)

    def begin(
        self, host: Host[RequestT, MessageT, ChunkT], queued: Iterable[MessageT] = ()
    ) -> TurnRun[RequestT, MessageT, ChunkT]:
        """A turn ready to `run`; `queued` are the messages that caused it, already in the list."""
        return TurnRun(self.hooks, host, queued=queued, max_requests=self.max_requests)


class TurnRun(Generic[RequestT, MessageT, ChunkT]):
    """One turn, from its first hook to its last cleanup."""

    __slots__ = (
        "_appending",
        "_bell",
        "_cleanups",
        "_data",
        "_deferred",
        "_errors",
        "_interruptible",
        "_interrupts",
        "_max_requests",
        "_outside_before",
        "_siblings",
        "_task",
        "_views",
        "_waiting",
        "aborted",
        "again",
        "answer",
        "chunk",
        "current_turn",
        "extended",
        "hooks",
        "host",
        "last_choice_chunk",
        "message",
        "over",
        "phase",
        "processing_state",
        "request",
        "request_state",
        "requests",
    )

    def __init__(
        self,
        hooks: HookTable,
        host: Host[RequestT, MessageT, ChunkT],
        *,
        queued: Iterable[MessageT],
        max_requests: int | None,
    ) -> None:
        self.hooks = hooks
        self.host = host
        self.current_turn = list(queued)
        self.request_state: RequestState = "processing"
        self.processing_state: str | None = "requesting"
        self.phase = ""
        self.requests = 0
        self.request: RequestT | None = None
        self.message: MessageT | None = None
        self.answer: MessageT | None = None
        self.extended: MessageT | None = None
        self.chunk: ChunkT | None = None
        self.last_choice_chunk: ChunkT | None = None
        self.aborted = self.over = self.again = False
        self._max_requests = max_requests
        self._views = tuple(Turn(self, place) for place in range(len(hooks.plugins)))
        self._appending = AppendQueue(self)
        self._data: dict[int, dict[str, Any]] = {}
        self._cleanups: list[Callable[[], Any]] = []
        self._deferred: list[tuple[float, int, int, MessageT]] = []
        self._errors: list[BaseException] = []
        self._bell: asyncio.Event | None = None
        self._task: asyncio.Task[Any] | None = None
        self._outside_before = self._interrupts = 0
        self._interruptible = False
        self._waiting: Holder | None = None
        self._siblings: ParallelWork | None = None

    async def run(self) -> None:
        """Runs the turn to its end; raises its error, or all of them in one group, the main one first."""
        task = self._task = asyncio.current_task()
        assert task is not None
        self._outside_before = task.cancelling()
        self._interruptible = True
        try:
            await self._flow()
        except BaseException as error:
            self.note(error)
        self._interruptible = False
        while self._interrupts:
            self._interrupts -= 1
            task.uncancel()
        if self.hooks.on_turn_end and not self._errors:
            await self._end()
        if self._cleanups:
            await self._clean()
        self._seal()
        if self._errors:
            self._raise()

    def abort(self) -> None:
        """Aborts the turn; nothing happens when it is over or aborted already."""
        if self.aborted or self.over:
            return
        current = asyncio.current_task()
        self.aborted = True
        if self._bell is not None:
            self._bell.set()
        if not self._interruptible or self._task is None:
            return
        if self._siblings is not None:
            self._siblings.interrupt()
        elif self._task is not current and not (self._waiting is not None and self._waiting.minding):
            self._interrupts += 1
            self._task.cancel()

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the task is one of the turn's own, so that waiting there for its end would be in vain."""
        return task is self._task or (self._siblings is not None and self._siblings.has(task))

    async def wait_aborted(self) -> None:
        """Returns at the abort; raises TurnOver when the turn ends without one."""
        if not self.aborted and not self.over:
            self._bell = self._bell or asyncio.Event()
            await self._bell.wait()
        if not self.aborted:
            raise TurnOver("the turn ended without being aborted")

    def set_processing_state(self, state: str) -> None:
        self.processing_state = state
        self.host.processing(state)

    def data_of(self, place: int) -> dict[str, Any]:
        """The data that the plugin at this place keeps for the turn."""
        return self._data.setdefault(place, {})

    def add(self, messages: Sequence[MessageT], place: int, *, priority: float | None) -> PendingAppend:
        """Appends messages of a plugin now, or with a priority when every plugin is done."""
        if priority is None:
            assert self._siblings is not None
            return self._appending.put(messages, self._siblings)
        for message in messages:
            self._deferred.append((-priority, place, len(self._deferred), message))
        return DONE

    def note(self, error: BaseException, *, after_abort: bool = False) -> bool:
        """Keeps an error of the turn; one that belongs to the abort is dropped, and the answer is False.

        `after_abort` says that what raised it began when the turn was aborted already.
        """
        if any(error is known for known in self._errors):
            return True
        if isinstance(error, asyncio.CancelledError) and self._is_cancelled_from_outside():
            self._errors.append(error)
            return True
        if self.aborted and (not after_abort or isinstance(error, TurnAborted)):
            return False
        self._errors.append(error)
        return True

    async def awaited(self, result: Awaitable[Any], holder: Holder) -> Any:
        """Return the result of the hook's awaitable, while an abort knows whom it would interrupt."""
        self._waiting = holder
        try:
            return await result
        finally:
            self._waiting = None

    def _is_cancelled_from_outside(self) -> bool:
        assert self._task is not None
        return self._task.cancelling() - self._interrupts > self._outside_before

    def _check(self) -> None:
        if self.aborted:
            raise TurnAborted("the turn was aborted")

    async def _call(self, hook: Hook, place: int) -> Any:
        view = self._views[place]
        view.minding = False
        result = hook(view)
        return await self.awaited(result, view) if isawaitable(result) else result

    async def _flow(self) -> None:
        if self.hooks.on_turn_start:
            await self._start()
        self.again = True
        while self.again:
            await self._ask()
            self.again = False
            if self.hooks.on_after_request:
                await self._follow_up()

    async def _start(self) -> None:
        self.phase = "on_turn_start"
        for place, hook in self.hooks.on_turn_start:
            self._check()
            cleanup = await self._call(hook, place)
            if cleanup is None:
                continue
            if not callable(cleanup):
                raise TypeError(f"on_turn_start returned {cleanup!r}; it returns a function or nothing")
            self._cleanups.append(cleanup)

    async def _ask(self) -> None:
        """One request with everything around it up to the end of its stream."""
        self._check()
        if self._max_requests is not None and self.requests >= self._max_requests:
            raise TooManyRequests(f"the turn has made {self.requests} requests and may make no more")
        self.requests += 1
        self.set_processing_state("requesting")
        request = self.request = self.host.build_request()
        if self.hooks.on_before_request:
            self.phase = "on_before_request"
            for place, hook in self.hooks.on_before_request:
                self._check()
                await self._call(hook, place)
            self._check()
            request = self.request
        self.phase = "on_stream_data"
        await self._stream(self.host.send(request))
        self._check()

    async def _stream(self, chunks: AsyncIterator[ChunkT]) -> None:
        extended, self.extended = self.extended, None
        self.message = self.host.new_message() if extended is None else extended
        self.last_choice_chunk = None
        try:
            await self._receive(chunks, self.message, placed=extended is not None)
        except BaseException as error:
            self.note(error)
            raise
        finally:
            await self._close(chunks)

    async def _receive(self, chunks: AsyncIterator[ChunkT], message: MessageT, *, placed: bool) -> None:
        """Merges the chunks into the message; `placed` says that it is in the list already."""
        merge, hooks, views = self.host.merge, self.hooks.on_stream_data, self._views
        begun = False
        async for chunk in chunks:
            if self.aborted:
                return
            self.chunk = chunk
            if merge(message, chunk):
                self.last_choice_chunk = chunk
                if not begun:
                    begun = True
                    await self._begin_answer(message, placed=placed)
            for place, hook in hooks:
                self._check()
                view = views[place]
                view.minding = False
                result = hook(view)
                if result is not None and isawaitable(result):
                    await self.awaited(result, view)
            if self.aborted:
                return

    async def _begin_answer(self, message: MessageT, *, placed: bool) -> None:
        self.answer = message
        self.set_processing_state("streaming")
        if placed:
            return
        if self.hooks.on_message_append:
            await self._appending.deliver(message)
        else:
            self.host.place(message)
            self.current_turn.append(message)

    async def _close(self, chunks: AsyncIterator[ChunkT]) -> None:
        """Closes the stream however it ended; what fails then is one more error of the turn."""
        aclose = getattr(chunks, "aclose", None)
        if aclose is None:
            return
        self._interruptible = False
        try:
            await aclose()
        except BaseException as error:
            self.note(error)
            raise
        finally:
            self._interruptible = True

    async def _follow_up(self) -> None:
        """Every plugin's `on_after_request`, then the deferred messages."""
        self.phase = "on_after_request"
        self._deferred.clear()
        self.extended = None
        self._siblings = siblings = ParallelWork(self.note)
        try:
            self._start_siblings(siblings)
        except BaseException as error:
            siblings.fail(error)
        try:
            await siblings.settle()
        finally:
            self._siblings = None
        if self._errors:
            raise self._errors[0]
        for *_, message in sorted(self._deferred, key=lambda deferred: deferred[:3]):
            self._check()
            await self._appending.deliver(message)
        self._check()

    def _start_siblings(self, siblings: ParallelWork) -> None:
        """Calls leading sync hooks at once; from the first async one on each runs in its own task.

        So plugins start in their order, and sync ones cost no task.
        """
        beside = False
        for place, hook in self.hooks.on_after_request:
            self._check()
            view = self._views[place]
            view.minding = False
            if beside:
                siblings.spawn(partial(_settled, hook, view), view)
                continue
            result = hook(view)
            if isawaitable(result):
                beside = True
                siblings.spawn(partial(_itself, result), view, never_started=partial(_discard, result))

    async def _end(self) -> None:
        self.phase = "on_turn_end"
        for place, hook in self.hooks.on_turn_end:
            aborted = self.aborted
            self._siblings = siblings = ParallelWork(partial(self.note, after_abort=aborted))
            try:
                await self._call(hook, place)
            except BaseException as error:
                self.note(error, after_abort=aborted)
            try:
                await siblings.settle()
            except asyncio.CancelledError as error:
                self.note(error)
            if self._errors:
                break
        self._siblings = None

    async def _clean(self) -> None:
        self.phase = "cleanup"
        while self._cleanups:
            cleanup = self._cleanups.pop()
            aborted = self.aborted
            try:
                result = cleanup()
                if isawaitable(result):
                    await result
            except BaseException as error:
                self.note(error, after_abort=aborted)

    def _seal(self) -> None:
        failed = any(not isinstance(error, asyncio.CancelledError) for error in self._errors)
        aborted = self.aborted or bool(self._errors)
        self.request_state = "error" if failed else "aborted" if aborted else "completed"
        self.processing_state = None
        self.phase = ""
        self.over = True
        # What refers back to this turn: without these it goes as soon as nobody looks at it any more.
        self._views = ()
        del self._appending
        if self._bell is not None:
            self._bell.set()

    def _raise(self) -> None:
        """Raises the one error, or all; a cancellation always stays one, with the rest as its cause."""
        errors, self._errors = self._errors, []
        try:
            fatal = next((error for error in errors if not isinstance(error, Exception)), None)
            if fatal is None and len(errors) > 1:
                raise BaseExceptionGroup("the turn failed, and so did what came after it", errors)
            others = [error for error in errors if isinstance(error, Exception)]
            if fatal is not None and others:
                raise fatal from ExceptionGroup("the turn was cancelled, and more failed", others)
            raise errors[0]
        finally:
            del errors


async def _settled(hook: Hook, view: Any) -> None:
    result = hook(view)
    if isawaitable(result):
        await result


async def _itself(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _discard(awaitable: Awaitable[Any]) -> None:
    """Ends a hook that was never begun, so that nothing complains about it."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()
