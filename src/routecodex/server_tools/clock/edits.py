"""Changes to the tasks of a session: each takes the state and returns the new state and a result.

Edits are pure functions, so that the store may run one again when another process wrote in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routecodex.server_tools.clock import due_rules
from routecodex.server_tools.clock.arguments import ActionRefused, TaskFields
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.reservations import delivery_mark, effective_reservations
from routecodex.server_tools.clock.task import LATEST_MS, DeliveryMark, SessionTasks, Task
from routecodex.server_tools.clock.timestamps import utc_text
from routecodex.stores.uptime import UNKNOWN, SystemUptime

T = TypeVar("T")
Edit = Callable[[SessionTasks], tuple[SessionTasks, T]]


class EditContext(Struct, frozen=True, kw_only=True):
    """Time, request and rules of an edit; `held` are the reservations of this process.

    `none_ends`: no reservation has expired, because the store has just come back.
    """

    now_ms: int
    rules: DueRules
    request_id: str = ""
    up: SystemUptime = UNKNOWN
    held: Container[str] = ()
    none_ends: bool = False


def add(
    state: SessionTasks, items: Sequence[TaskFields], *, ids: Sequence[str], at: EditContext
) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Add all tasks or none; an existing equal task is updated with the new hints."""
    tasks = list(state.tasks)
    chosen: list[str] = []
    for item, task_id in zip(items, ids, strict=True):
        _check_reachable(item.due_at_ms, item.repeat, at)
        index = next((index for index, task in enumerate(tasks) if _is_same(task, item)), None)
        if index is None:
            tasks.append(_new_task(item, task_id, session=state.session_id, at=at))
            chosen.append(task_id)
        else:
            tasks[index] = _overwritten(tasks[index], item, at)
            chosen.append(tasks[index].task_id)
    by_id = {task.task_id: task for task in tasks}
    return replace(state, tasks=tuple(tasks)), tuple(by_id[task_id] for task_id in dict.fromkeys(chosen))


def cancel(state: SessionTasks, task_id: str) -> tuple[SessionTasks, Task]:
    """Remove one task and return it."""
    task = _task(state, task_id)
    return replace(state, tasks=tuple(other for other in state.tasks if other is not task)), task


def clear(state: SessionTasks) -> tuple[SessionTasks, int]:
    """Remove all tasks and return their number."""
    return replace(state, tasks=()), len(state.tasks)


def change(
    state: SessionTasks, task_id: str, changes: dict[str, Any], *, at: EditContext
) -> tuple[SessionTasks, Task]:
    """Change fields of a task; a task with a new time is delivered again."""
    old = _task(state, task_id)
    task = replace(old, **changes, updated_at_ms=at.now_ms)
    if task.repeat == "none":
        task = replace(task, repeat=None)
    if task.repeat is None:
        task = replace(task, max_runs=None)
    if (task.due_at_ms, task.task) != (old.due_at_ms, old.task):
        # A running delivery has the old time or text; its reservation ends.
        task = replace(task, reservation=None)
    if task.due_at_ms != old.due_at_ms:
        _check_reachable(task.due_at_ms, task.repeat, at)
        chain_guard = _chain_guard(task.due_at_ms, at)
        task = replace(task, delivered_at_ms=None, delivery_count=0, not_before_request_id=chain_guard)
    task = _next_occurrence(task, at)
    return _with(state, {task.task_id: task}), task


def prune(state: SessionTasks, at: EditContext) -> tuple[SessionTasks, int]:
    """Remove the tasks that are over and return their number."""
    live = tuple(task for task in state.tasks if not due_rules.is_over(task, at.now_ms, at.rules))
    return replace(state, tasks=live), len(state.tasks) - len(live)


def due(state: SessionTasks, at: EditContext) -> tuple[Task, ...]:
    """Return the tasks that this request may deliver, the earliest first."""
    effective = effective_reservations(
        state,
        at.now_ms,
        up=at.up,
        lease_ms=at.rules.lease_ms,
        held=at.held,
        none_ends=at.none_ends,
    )
    return due_rules.deliverable(effective, at.now_ms, rules=at.rules, request_id=at.request_id)


def reserve(state: SessionTasks, mark_id: str, *, at: EditContext) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Reserve every task that this request may deliver, until the lease expires."""
    mark = _mark(mark_id, at)
    marked = tuple(replace(task, reservation=mark) for task in due(state, at))
    return _with(state, {task.task_id: task for task in marked}), marked


def renew(state: SessionTasks, mark_id: str, *, at: EditContext) -> tuple[SessionTasks, int]:
    """Renew a reservation and return the number of its tasks."""
    mark = _mark(mark_id, at)
    reserved = {
        task.task_id: replace(task, reservation=mark) for task in state.tasks if _is_marked(task, mark_id)
    }
    return _with(state, reserved), len(reserved)


def roll_back(state: SessionTasks, mark_id: str) -> tuple[SessionTasks, int]:
    """Release the tasks of a reservation and return their number."""
    reserved = {
        task.task_id: replace(task, reservation=None) for task in state.tasks if _is_marked(task, mark_id)
    }
    return _with(state, reserved), len(reserved)


def commit(
    state: SessionTasks, reserved: Collection[Task], *, at: EditContext
) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Mark these tasks as delivered, unless another request holds them now; return the newly marked ones.

    A task that changed since the reservation was not delivered and stays open.
    """
    delivered = {(task.task_id, task.due_at_ms, task.task): _mark_id(task) for task in reserved}
    done = {
        task.task_id: _delivered(task, at)
        for task in state.tasks
        if task.delivered_at_ms is None
        and (owner := delivered.get((task.task_id, task.due_at_ms, task.task))) is not None
        and _mark_id(task) in ("", owner)
    }
    return _with(state, done), tuple(done.values())


def _mark_id(task: Task) -> str:
    return "" if task.reservation is None else task.reservation.id


def _delivered(task: Task, at: EditContext) -> Task:
    done = replace(
        task,
        delivered_at_ms=at.now_ms,
        delivery_count=task.delivery_count + 1,
        updated_at_ms=at.now_ms,
        reservation=None,
    )
    return _next_occurrence(done, at)


def _next_occurrence(task: Task, at: EditContext) -> Task:
    """Move a delivered task to its next occurrence, if there is one."""
    if task.repeat is None or task.delivered_at_ms is None:
        return task
    if task.max_runs is not None and task.delivery_count >= task.max_runs:
        return task
    later = due_rules.first_after(task.due_at_ms, task.repeat, moment_ms=at.now_ms)
    if later > LATEST_MS:
        return task
    return replace(task, due_at_ms=later, delivered_at_ms=None, not_before_request_id=_chain_guard(later, at))


def _new_task(item: TaskFields, task_id: str, *, session: str, at: EditContext) -> Task:
    return Task(
        task_id=task_id,
        session_id=session,
        due_at_ms=item.due_at_ms,
        created_at_ms=at.now_ms,
        updated_at_ms=at.now_ms,
        task=item.task,
        tool=item.tool,
        arguments=item.arguments,
        delivery_count=0,
        not_before_request_id=_chain_guard(item.due_at_ms, at),
        repeat=item.repeat,
        max_runs=item.max_runs,
    )


def _overwritten(task: Task, item: TaskFields, at: EditContext) -> Task:
    hints = {"tool": item.tool, "arguments": item.arguments, "repeat": item.repeat, "max_runs": item.max_runs}
    changed = replace(task, **hints)
    return task if changed == task else _next_occurrence(replace(changed, updated_at_ms=at.now_ms), at)


def _is_same(task: Task, item: TaskFields) -> bool:
    """Return whether time and text are equal; a repeated task also equals a later occurrence."""
    if task.task != item.task:
        return False
    if task.due_at_ms == item.due_at_ms:
        return True
    if task.repeat is None or task.repeat != item.repeat or task.delivered_at_ms is not None:
        return False
    return (task.due_at_ms - item.due_at_ms) % due_rules.period_ms(task.repeat) == 0


def _check_reachable(due_at_ms: int, repeat: str | None, at: EditContext) -> None:
    if repeat is None and at.now_ms > due_at_ms + at.rules.retention_ms:
        raise ActionRefused(
            "already_expired",
            f"{utc_text(due_at_ms)} is too long ago to be delivered; it is {utc_text(at.now_ms)} now",
        )


def _chain_guard(due_at_ms: int, at: EditContext) -> str | None:
    return due_rules.chain_guard(due_at_ms, at.now_ms, rules=at.rules, request_id=at.request_id)


def _task(state: SessionTasks, task_id: str) -> Task:
    task = next((task for task in state.tasks if task.task_id == task_id), None)
    if task is None:
        raise ActionRefused(
            "unknown_task", f"this session has no task {task_id[:80]!r}; use list to see the tasks"
        )
    return task


def _mark(mark_id: str, at: EditContext) -> DeliveryMark:
    return delivery_mark(mark_id, at.now_ms, up=at.up, lease_ms=at.rules.lease_ms)


def _is_marked(task: Task, mark_id: str) -> bool:
    return task.reservation is not None and task.reservation.id == mark_id


def _with(state: SessionTasks, tasks: dict[str, Task]) -> SessionTasks:
    return replace(state, tasks=tuple(tasks.get(task.task_id, task) for task in state.tasks))
