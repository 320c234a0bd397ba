"""Actions of the clock tool, and its declaration."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn
from uuid import uuid4

from routecodex.canon.request import Tool
from routecodex.server_tools.clock import arguments, edits
from routecodex.server_tools.clock.arguments import (
    SCHEMA,
    ActionRefused,
    CancelTask,
    ClearTasks,
    ClockCommand,
    GetTime,
    ListTasks,
    ScheduleTasks,
    UpdateTask,
    encode_result,
    read_arguments,
    refusal_result,
)
from routecodex.server_tools.clock.due_rules import DueRules, live_tasks
from routecodex.server_tools.clock.edits import Edit, EditContext
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task import SessionTasks, Task
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.server_tools.clock.timestamps import Zone, local_text, utc_text
from routecodex.stores.owned_keys import plain_key
from routecodex.stores.store import StoreError

NAMES = ("clock", "routecodex_clock")
"""Names of the tool; the second is used if the client has a tool or a namespace of the first."""
DESCRIPTION = (
    "Time and alarms for this session. get: the current time. schedule: remember tasks and be reminded of "
    "them when they are due. list: the tasks. cancel: forget the task taskId. clear: forget all tasks. "
    "update: change the task taskId. Fill fields an action does not need with [] or an empty string."
)

log = logging.getLogger("routecodex.clock")

Result = dict[str, Any]


def declare(name: str) -> Tool:
    """Return the tool under this name."""
    return Tool(name, description=DESCRIPTION, parameters=SCHEMA, strict=True)


class ClockActions:
    """Runs calls of the tool; a failure becomes a result for the model."""

    def __init__(
        self,
        store: TaskStore,
        *,
        time: NetworkTime,
        rules: DueRules,
        zone: Zone,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._store = store
        self._time = time
        self._rules = rules
        self._zone = zone
        self._new_id = new_id

    async def call(
        self,
        arguments: str,
        *,
        session: str | None,
        request_id: str,
        on_refusal: Callable[[str], None] | None = None,
    ) -> str:
        """Run one call and return its result as JSON; `request_id` is the id of the client's request.

        `on_refusal` gets the code of an action that is refused.
        """
        try:
            command = read_arguments(arguments)
            return encode_result(await self._run(command, session, request_id))
        except ActionRefused as exc:
            log.info(
                "%s: clock refused (%s) for session %.80r",
                request_id,
                exc.code,
                session and plain_key(session),
            )
            if on_refusal is not None:
                on_refusal(exc.code)
            return encode_result(refusal_result(exc))

    async def clear(self, session: str, *, request_id: str) -> int:
        """Delete all tasks of the session, for the instruction `clock:clear`; StoreError if that fails."""
        count = await self._store.edit(session, edits.clear)
        log.info(
            "%s: clock clear for session %.80r: %d tasks removed, saved",
            request_id,
            plain_key(session),
            count,
        )
        return count

    async def tasks(self, session: str) -> tuple[Task, ...]:
        """Return the live tasks of the session."""
        return live_tasks(await self._store.settled(session), self._time.now_ms(), self._rules)

    async def _run(self, command: ClockCommand, session: str | None, request_id: str) -> Result:
        if isinstance(command, GetTime):
            return self._get()
        if session is None:
            if isinstance(command, ListTasks):
                return arguments.list_result(())
            raise ActionRefused(
                "missing_session", "this request does not belong to a session, so tasks cannot be stored"
            )
        return await _ACTIONS[type(command)](self, command, session, request_id)

    def _get(self) -> Result:
        now_ms = self._time.now_ms()
        return {
            "ok": True,
            "action": "get",
            "active": True,
            "nowMs": now_ms,
            "utc": utc_text(now_ms),
            "local": local_text(now_ms, self._zone),
            "timezone": self._zone.name,
            "ntp": self._time.report(),
        }

    async def _schedule(self, command: ScheduleTasks, session: str, request_id: str) -> Result:
        ids = [self._new_id() for _ in command.items]
        at = self._at(request_id)
        change = partial(edits.add, items=command.items, ids=ids, at=at)
        tasks = await self._edit(session, change, request_id=request_id, action="schedule", at=at)
        for task in tasks:
            log.debug(
                "%s: task %s of session %.80r: %r", request_id, task.task_id, plain_key(session), task.task
            )
        return arguments.schedule_result(tasks)

    async def _list(self, command: ListTasks, session: str, request_id: str) -> Result:
        try:
            tasks = await self.tasks(session)
        except StoreError as exc:
            _fail(exc, request_id, "read")
        log.debug("%s: clock list for session %.80r: %d tasks", request_id, plain_key(session), len(tasks))
        return arguments.list_result(sorted(tasks, key=lambda task: task.due_at_ms))

    async def _cancel(self, command: CancelTask, session: str, request_id: str) -> Result:
        change = partial(edits.cancel, task_id=command.task_id)
        await self._edit(session, change, request_id=request_id, action="cancel")
        return arguments.cancel_result(command.task_id)

    async def _clear(self, command: ClearTasks, session: str, request_id: str) -> Result:
        return arguments.clear_result(
            await self._edit(session, edits.clear, request_id=request_id, action="clear")
        )

    async def _update(self, command: UpdateTask, session: str, request_id: str) -> Result:
        at = self._at(request_id)
        change = partial(edits.change, task_id=command.task_id, changes=command.changes, at=at)
        return arguments.update_result(
            await self._edit(session, change, request_id=request_id, action="update", at=at)
        )

    async def _edit(
        self,
        session: str,
        change: Edit[Any],
        *,
        request_id: str,
        action: str,
        at: EditContext | None = None,
    ) -> Any:
        """Delete expired tasks and apply the change atomically; log the new state."""
        at = at or self._at(request_id)

        def pruned(state: SessionTasks) -> tuple[SessionTasks, tuple[Any, SessionTasks]]:
            state, _ = edits.prune(state, at)
            after, outcome = change(state)
            return after, (outcome, after)

        try:
            outcome, after = await self._store.edit(session, pruned)
        except StoreError as exc:
            _fail(exc, request_id, "saved")
        _log_state(action, after, request_id=request_id)
        return outcome

    def _at(self, request_id: str) -> EditContext:
        return EditContext(now_ms=self._time.now_ms(), rules=self._rules, request_id=request_id)


_ACTIONS: dict[type, Callable[..., Awaitable[Result]]] = {
    ScheduleTasks: ClockActions._schedule,
    ListTasks: ClockActions._list,
    CancelTask: ClockActions._cancel,
    ClearTasks: ClockActions._clear,
    UpdateTask: ClockActions._update,
}


def _log_state(action: str, state: SessionTasks, *, request_id: str) -> None:
    open_tasks = [task.due_at_ms for task in state.tasks if task.delivered_at_ms is None]
    earliest = utc_text(min(open_tasks)) if open_tasks else "none"
    log.info(
        "%s: clock %s for session %.80r: %d tasks, earliest due %s, saved",
        request_id,
        action,
        plain_key(state.session_id),
        len(state.tasks),
        earliest,
    )


def _fail(exc: StoreError, request_id: str, operation: str) -> NoReturn:
    log.debug("%s: tasks could not be %s: %s", request_id, operation, exc)
    raise ActionRefused(
        "store_unavailable", f"the tasks could not be {operation}; nothing was changed"
    ) from exc
