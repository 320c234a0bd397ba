"""Appends messages in order, each past every `on_message_append` hook.

A plugin appends from sync and async hooks alike. If every hook that sees a message is sync, the message is in
the list when the call returns. The first async hook moves the rest of the queue into a separate task.

`ParallelWork` runs those tasks and the concurrent hooks: the first failure stops the others, and all are
awaited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, Generic, Protocol

from routecodex.turns.turn import Append, ChunkT, MessageT, RequestT, Turn

if TYPE_CHECKING:
    from routecodex.turns.engine import TurnRun


class PendingAppend:
    """The result of an append; awaiting it, which is optional, waits until the message is in the list."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None] | None) -> None:
        self._task = task

    def __await__(self) -> Generator[Any, None, None]:
        if self._task is not None and not self._task.done():
            yield from asyncio.wait({self._task}).__await__()


DONE = PendingAppend(None)


class AppendQueue(Generic[RequestT, MessageT, ChunkT]):
    """Messages of one turn that are not in the list yet."""

    __slots__ = ("_queue", "_run", "_task")

    def __init__(self, run: TurnRun[RequestT, MessageT, ChunkT]) -> None:
        self._run = run
        self._queue: deque[Append[MessageT]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def minding(self) -> bool:
        """Whether the hook that sees the message now handles an abort itself."""
        return bool(self._queue) and self._queue[0].minding

    async def deliver(self, message: MessageT) -> None:
        """Pass one message through the hooks into the list, in the caller's task."""
        append = self._append(message)
        await self._await_hooks(append, self._call_hooks(append))

    def put(self, messages: Iterable[MessageT], siblings: ParallelWork) -> PendingAppend:
        """Queue the messages and append as many as sync hooks allow."""
        self._queue.extend(self._append(message) for message in messages)
        if self._task is None:
            self._advance(siblings)
        return DONE if self._task is None else PendingAppend(self._task)

    def _append(self, message: MessageT) -> Append[MessageT]:
        return Append(message, self._run.hooks.on_message_append)

    def _advance(self, siblings: ParallelWork) -> None:
        while self._queue:
            try:
                pending = self._call_hooks(self._queue[0])
            except BaseException as error:
                self._clear()
                self._run.note(error)
                raise
            if pending is not None:
                self._continue_in_task(pending, siblings)
                return
            self._queue.popleft()

    def _continue_in_task(self, pending: Awaitable[Any], siblings: ParallelWork) -> None:
        def never_started() -> None:
            if iscoroutine(pending):
                pending.close()
            if self._run.aborted:
                self._place(self._queue[0])
            self._task = None
            self._clear()

        self._task = siblings.spawn(lambda: self._drain(pending), self, never_started=never_started)

    async def _drain(self, pending: Awaitable[Any] | None) -> None:
        try:
            while self._queue:
                await self._await_hooks(self._queue[0], pending)
                self._queue.popleft()
                pending = self._call_hooks(self._queue[0]) if self._queue else None
        except BaseException:
            self._clear()
            raise
        finally:
            self._task = None

    def _clear(self) -> None:
        """Empty the queue after its first message failed; the rest is appended only after an abort."""
        rest = list(self._queue)[1:]
        self._queue.clear()
        if self._run.aborted:
            for append in rest:
                self._place(append)

    async def _await_hooks(self, append: Append[MessageT], pending: Awaitable[Any] | None) -> None:
        while pending is not None:
            try:
                await self._run.awaited(pending, append)
            except BaseException:
                if self._run.aborted:
                    self._place(append)
                raise
            pending = self._call_hooks(append)

    def _call_hooks(self, append: Append[MessageT]) -> Awaitable[Any] | None:
        """Call the remaining hooks until one must be awaited; append the message after the last."""
        run = self._run
        for place, hook in append.left:
            if run.aborted:
                break
            append.minding = False
            try:
                result = hook(Turn(run, place, append=append))
            except BaseException:
                if run.aborted:
                    self._place(append)
                raise
            if result is not None and isawaitable(result):
                return result
        self._place(append)
        return None

    def _place(self, append: Append[MessageT]) -> None:
        if not append.prevented:
            self._run.host.place(append.message)
        self._run.current_turn.append(append.message)


class Holder(Protocol):
    """The owner of a task; while `minding` is set it handles an abort itself and is not interrupted."""

    @property
    def minding(self) -> bool: ...


class _Member:
    __slots__ = ("holder", "started", "stopped", "task")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.started = self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        # asyncio never runs a task that is cancelled before its first step, so it could not clean up.
        self.stopped = True
        if self.started and self.task is not None:
            self.task.cancel()


class ParallelWork:
    """A group of tasks; `failed` gets every exception and returns whether it stops the group."""

    __slots__ = ("_failed", "_members")

    def __init__(self, failed: Callable[[BaseException], bool]) -> None:
        self._failed = failed
        self._members: list[_Member] = []

    def spawn(
        self,
        work: Callable[[], Awaitable[Any]],
        holder: Holder,
        *,
        never_started: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Start the work in a task; call `never_started` if it is stopped before its first step."""
        member = _Member(holder)
        self._members.append(member)
        member.task = asyncio.create_task(self._run(member, work, never_started))
        return member.task

    async def _run(
        self, member: _Member, work: Callable[[], Awaitable[Any]], never_started: Callable[[], None] | None
    ) -> None:
        member.started = True
        if member.stopped:
            if never_started is not None:
                never_started()
            return
        try:
            await work()
        except asyncio.CancelledError as error:
            if not member.stopped:
                self.fail(error)
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Record an exception of one task and stop the others if it is an error."""
        if self._failed(error):
            self.stop()

    def stop(self) -> None:
        """Cancel every task except the caller's."""
        for member in self._others():
            member.stop()

    def interrupt(self) -> None:
        """Cancel every task except the caller's and those that handle the abort themselves."""
        for member in self._others():
            if not (member.started and member.holder.minding):
                member.stop()

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the task belongs to the group."""
        return any(member.task is task for member in self._members)

    def _others(self) -> list[_Member]:
        current = asyncio.current_task()
        return [m for m in self._members if m.task is not current and not (m.task and m.task.done())]

    async def settle(self) -> None:
        """Wait for all tasks; a cancellation from outside stops them and still waits for their end."""
        cancelled: asyncio.CancelledError | None = None
        while pending := [m.task for m in self._members if m.task is not None and not m.task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop()
        self._members.clear()
        if cancelled is not None:
            raise cancelled
