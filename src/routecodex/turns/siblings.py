"""Pieces of work that run side by side: the first failure stops the others, and all are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class Holder(Protocol):
    """Whoever runs in a task; one that minds the abort itself is not interrupted by it."""

    @property
    def minding(self) -> bool: ...


class _Member:
    __slots__ = ("holder", "started", "stopped", "task")

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.started = self.stopped = False
        self.task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        # A task that is cancelled before its first step never runs at all, and could not tidy up.
        self.stopped = True
        if self.started and self.task is not None:
            self.task.cancel()


class ParallelWork:
    """A group of tasks; `failed` is asked about every exception and says whether it stops the group."""

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
        """Starts the work beside the others; one that is stopped before it could start is told so."""
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
        """Takes an exception of one of the group and stops the others if it is an error."""
        if self._failed(error):
            self.stop()

    def stop(self) -> None:
        """Cancels everyone but the caller."""
        for member in self._others():
            member.stop()

    def interrupt(self) -> None:
        """Cancels everyone but the caller and those that mind the abort themselves."""
        for member in self._others():
            if not (member.started and member.holder.minding):
                member.stop()

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the task is one of the group."""
        return any(member.task is task for member in self._members)

    def _others(self) -> list[_Member]:
        current = asyncio.current_task()
        return [m for m in self._members if m.task is not current and not (m.task and m.task.done())]

    async def settle(self) -> None:
        """Returns when everyone is done; a cancellation from outside stops them all and still waits."""
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
