"""The tasks of every session, in the store: written through, shared by processes.

A session without tasks has no value. What is in memory is used only as long as the store's stamp of the
session says that nobody has written it since.

The tasks of all sessions, for the people who run the gateway.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

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
from routecodex.stores.store import Store

SPACE = "clock"
CORRUPT_SPACE = "clock.corrupt"

BARE = {SPACE: session_tasks_name}
"""What a file store is to be told, so that a session's file is its state and nothing else."""
CACHED = 10_000
MANY_TASKS = 1000

T = TypeVar("T")

log = logging.getLogger("routecodex.clock")


class Cached(NamedTuple):
    """A state and the stamp under which it was read."""

    stamp: int
    state: SessionTasks


class Corrupt(Exception):
    """A stored value is not the tasks of the session."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw


class Unchanged(Exception):
    """Ends an update that has nothing to write."""


class Step(Generic[T]):
    """One try at an edit; `state` and `outcome` are what came of it."""

    state: SessionTasks
    outcome: T

    def __init__(self, session: str, edit: Edit[T], *, now_ms: int, aside: bytes | None) -> None:
        self._session = session
        self._edit = edit
        self._now_ms = now_ms
        self._aside = aside

    def __call__(self, raw: bytes | None) -> bytes | None:
        """The new value; Unchanged when it is the old one, Corrupt when something else is in its place."""
        spoiled = raw is not None and raw == self._aside
        before = no_tasks(self._session) if spoiled else read(self._session, raw)
        after, self.outcome = self._edit(before)
        self.state = after if after.tasks == before.tasks else replace(after, updated_at_ms=self._now_ms)
        if not after.tasks and raw is not None:
            return None
        if after.tasks == before.tasks:
            raise Unchanged
        return encode(self.state)


class TaskStore:
    """Typed access to the store; a StoreError from it means that nothing was changed."""

    def __init__(self, store: Store, *, now_ms: Callable[[], int], cached: int = CACHED) -> None:
        self._store = store
        self._now_ms = now_ms
        self._cache: OrderedDict[str, Cached] = OrderedDict()
        self._most = cached
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[str], None]) -> None:
        """Calls the listener with the session after every change made here."""
        self._listeners.append(listener)

    def stamp(self) -> int:
        """Changes whenever anyone changes the tasks of any session."""
        return self._store.stamp(SPACE)

    def stamp_of(self, session: str) -> int:
        """Changes whenever anyone changes the tasks of the session; 0 when it has none."""
        return self._store.stamp_of(SPACE, session)

    def peek(self, session: str) -> SessionTasks | None:
        """The tasks, when they are known without reading; None means that they have to be loaded."""
        stamp = self.stamp_of(session)
        found = self._cache.get(session)
        if stamp == 0 and found is None:
            return no_tasks(session)
        if found is None or found.stamp != stamp:
            return None
        self._cache.move_to_end(session)
        return found.state

    async def load(self, session: str) -> SessionTasks:
        """The tasks of the session."""
        known = self.peek(session)
        return known if known is not None else await self._read(session)

    async def edit(self, session: str, edit: Edit[T]) -> T:
        """Applies `edit` as one step no other writer can come between; stored when it returns."""
        aside: bytes | None = None
        while True:
            step = Step(session, edit, now_ms=self._now_ms(), aside=aside)
            try:
                await self._store.update(SPACE, session, step)
            except Unchanged:
                return step.outcome
            except Corrupt as found:
                aside = found.raw
                await self._set_aside(session, aside)
                continue
            self._changed(session, step.state)
            return step.outcome

    async def sessions(self) -> list[str]:
        """Every session that has tasks; a file store sets damaged files aside on the way."""
        return await self._store.keys(SPACE)

    async def _read(self, session: str) -> SessionTasks:
        """What the store has; the stamp is taken first, so that it is never newer than the state."""
        stamp = self.stamp_of(session)
        stored = await self._store.get(SPACE, session)
        try:
            state = read(session, stored.value if stored is not None else None)
        except Corrupt:
            return await self.edit(session, lambda state: (state, state))
        if stored is None:
            self._cache.pop(session, None)
        else:
            self._remember(session, Cached(stamp, state))
        return state

    async def _set_aside(self, session: str, raw: bytes) -> None:
        """Copies the value under a name made of its content: nothing set aside before is overwritten."""
        name = f"{session}#{blake2b(raw, digest_size=8).hexdigest()}"
        await self._store.put(CORRUPT_SPACE, name, raw)
        log.warning("%s/%.80r is not the tasks of a session; set aside in %s", SPACE, session, CORRUPT_SPACE)

    def _changed(self, session: str, state: SessionTasks) -> None:
        self._cache.pop(session, None)
        if len(state.tasks) > MANY_TASKS:
            log.warning(
                "session %.80r has %d tasks; every request of it looks at all", session, len(state.tasks)
            )
        for listener in self._listeners:
            listener(session)

    def _remember(self, session: str, cached: Cached) -> None:
        self._cache[session] = cached
        self._cache.move_to_end(session)
        if len(self._cache) > self._most:
            self._cache.popitem(last=False)


def read(session: str, raw: bytes | None) -> SessionTasks:
    """The state in a stored value; Corrupt when it is something else."""
    if raw is None:
        return no_tasks(session)
    try:
        state = decode(raw)
    except ValueError as exc:
        raise Corrupt(raw) from exc
    if state.session_id != session:
        raise Corrupt(raw)
    return state


class TaskOverview:
    """Looks at every session, and cancels a task whose session is not known; StoreError passes through."""

    def __init__(self, shelf: TaskStore, *, rules: DueRules, now_ms: Callable[[], int]) -> None:
        self._shelf = shelf
        self._rules = rules
        self._now_ms = now_ms

    async def sessions(self, limit: int) -> list[SessionTasks]:
        """The sessions that have tasks, the one written last first; tasks that are over are left out."""
        found: list[SessionTasks] = []
        for session in reversed(await self._shelf.sessions()):
            if len(found) >= limit:
                break
            state = await self._shelf.load(session)
            tasks = live_tasks(state, self._now_ms(), self._rules)
            found += [replace(state, tasks=tasks)] if tasks else []
        return found

    async def cancel(self, task_id: str) -> Task | None:
        """Removes the task, whosever it is; None when there is no such task."""
        for session in await self._shelf.sessions():
            state = await self._shelf.load(session)
            if any(task.task_id == task_id for task in state.tasks):
                return await self._shelf.edit(session, lambda state: _without(state, task_id))
        return None


def _without(state: SessionTasks, task_id: str) -> tuple[SessionTasks, Task | None]:
    if all(task.task_id != task_id for task in state.tasks):
        return state, None
    return edits.cancel(state, task_id)
