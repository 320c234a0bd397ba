"""The clock tasks of every session, kept in the store: written through, shared by processes.

A session without tasks has no value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.due_rules import DueRules, live_tasks
from routecodex.server_tools.clock.edits import Edit
from routecodex.server_tools.clock.task import (
    SessionTasks,
    Task,
    decode,
    encode,
    no_tasks,
    session_tasks_name,
)
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.owned_keys import plain_key
from routecodex.stores.store import Store
from routecodex.stores.uptime import SystemUptime

SPACE = "clock"

BARE = {SPACE: session_tasks_name}
"""For a file store, so that the file of a session holds its tasks without an envelope."""
CACHED = 10_000
MANY_TASKS = 1000

T = TypeVar("T")

log = logging.getLogger("routecodex.clock")


def _decode(session: str, raw: bytes) -> SessionTasks:
    state = decode(raw)
    if state.session_id != session:
        raise ValueError("it holds the tasks of another session")
    return state


FORMAT = CellFormat(
    space=SPACE,
    empty=no_tasks,
    encode=lambda session, state: encode(state),
    decode=_decode,
    noun="the tasks of a session",
    outage="clock tasks cannot be read",
    log=log,
)


class TaskStore:
    """Typed access to the store; on a StoreError nothing has changed."""

    def __init__(self, store: Store, *, now_ms: Callable[[], int], cached: int = CACHED) -> None:
        self._store = store
        self._now_ms = now_ms
        self._cell = Cell(store, FORMAT, cached=cached, ttl=None)
        self._listeners: list[Callable[[str], None]] = []
        self._edits: dict[str, set[asyncio.Future[None]]] = {}
        """Edits under way, by session."""

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call the listener with the session after every change made by this process."""
        self._listeners.append(listener)

    def stamp(self) -> int:
        """Return a number that changes with the tasks of any session."""
        return self._store.stamp(SPACE)

    def stamp_of(self, session: str) -> int:
        """Return a number that changes with the tasks of the session; 0 when it has none."""
        return self._store.stamp_of(SPACE, session)

    def uptime(self) -> SystemUptime:
        """Return the clock by which reservations end."""
        return self._store.uptime()

    def was_back_within(self, ms: int) -> bool:
        """Return whether the store came back from an outage less than so long ago."""
        return self._store.was_back_within(ms / 1000)

    def peek(self, session: str) -> SessionTasks | None:
        """Return the tasks if they are known without IO; None means that they have to be loaded."""
        return self._cell.peek(session)

    async def load(self, session: str) -> SessionTasks:
        """Return the tasks; StoreError while the store is down, because outdated tasks may be delivered."""
        known = self._cell.peek(session)
        return known if known is not None else await self._cell.read(session)

    async def settled(self, session: str) -> SessionTasks:
        """Return the tasks after the edits of this process that are under way, such as a commit."""
        running = self._edits.get(session)
        if running:
            await asyncio.wait(running)
        return await self.load(session)

    async def edit(self, session: str, edit: Edit[T]) -> T:
        """Apply `edit` in one atomic step; its result is stored when this returns."""
        done = asyncio.get_running_loop().create_future()
        running = self._edits.setdefault(session, set())
        running.add(done)
        try:
            return await self._edit(session, edit)
        finally:
            done.set_result(None)
            running.discard(done)
            if not running:
                self._edits.pop(session, None)

    async def _edit(self, session: str, edit: Edit[T]) -> T:
        now_ms = self._now_ms()

        def change(before: SessionTasks) -> tuple[SessionTasks, tuple[T, int | None]]:
            after, result = edit(before)
            count = len(after.tasks) if after.tasks != before.tasks else None
            if not after.tasks:
                return no_tasks(session), (result, count)
            return (before if count is None else replace(after, updated_at_ms=now_ms)), (result, count)

        result, count = await self._cell.edit(session, change)
        if count is not None:
            self._changed(session, count)
        return result

    async def sessions(self) -> list[str]:
        """List the sessions that have tasks, those with a damaged file too."""
        return await self._store.keys(SPACE)

    def _changed(self, session: str, count: int) -> None:
        if count > MANY_TASKS:
            log.warning(
                "session %.80r has %d tasks; every request of it looks at all", plain_key(session), count
            )
        for listener in self._listeners:
            listener(session)


class TaskOverview:
    """The tasks of all sessions, for operators; StoreError passes through."""

    def __init__(self, store: TaskStore, *, rules: DueRules, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._now_ms = now_ms

    async def sessions(self, limit: int, only: Sequence[str] | None = None) -> list[SessionTasks]:
        """List the sessions that have tasks, the one written last first; finished tasks are left out.

        `only` names the sessions to look at; without it, all.
        """
        found: list[SessionTasks] = []
        for session in reversed(await self._store.sessions()) if only is None else only:
            if len(found) >= limit:
                break
            state = await self._store.settled(session)
            tasks = live_tasks(state, self._now_ms(), self._rules)
            found += [replace(state, tasks=tasks)] if tasks else []
        return found

    async def cancel(self, task_id: str) -> Task | None:
        """Remove a task of any session; None when there is no such task."""
        for session in await self._store.sessions():
            state = await self._store.load(session)
            if any(task.task_id == task_id for task in state.tasks):
                return await self._store.edit(session, lambda state: _without(state, task_id))
        return None


def _without(state: SessionTasks, task_id: str) -> tuple[SessionTasks, Task | None]:
    if all(task.task_id != task_id for task in state.tasks):
        return state, None
    return edits.cancel(state, task_id)
