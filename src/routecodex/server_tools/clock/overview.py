"""The tasks of all sessions, for the people who run the gateway."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.rules import DueRules, kept
from routecodex.server_tools.clock.shelf import TaskStore
from routecodex.server_tools.clock.task import SessionTasks, Task


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
            tasks = kept(state, self._now_ms(), self._rules)
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
