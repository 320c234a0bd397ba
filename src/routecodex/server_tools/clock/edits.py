"""What may happen to the tasks of a session: a state in, the new state and what came of it out.

Nothing here reads a clock or the store, so an edit may be tried again by a store that was raced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routecodex.server_tools.clock import due_rules
from routecodex.server_tools.clock.arguments import ActionRefused, TaskFields
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.reservations import UNKNOWN, SystemUptime, boot_mark, expired_reservations
from routecodex.server_tools.clock.task import LATEST_MS, DeliveryMark, SessionTasks, Task
from routecodex.server_tools.clock.timestamps import utc_text

T = TypeVar("T")
Edit = Callable[[SessionTasks], tuple[SessionTasks, T]]


class EditContext(Struct, frozen=True, kw_only=True):
    """When, in which request, and by which rules something happens; `held` are the marks of this process."""

    now_ms: int
    rules: DueRules
    request_id: str = ""
    up: SystemUptime = UNKNOWN
    held: Container[str] = ()


def add(
    state: SessionTasks, wanted: Sequence[TaskFields], *, ids: Sequence[str], at: EditContext
) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Adds every task, or none; what is there already is the same task, with the hints given last."""
    tasks = list(state.tasks)
    chosen: list[str] = []
    for item, task_id in zip(wanted, ids, strict=True):
        _check_reachable(item.due_at_ms, item.repeat, at)
        index = next((index for index, task in enumerate(tasks) if _is_same(task, item)), None)
        if index is None:
            tasks.append(_made(item, task_id, session=state.session_id, at=at))
            chosen.append(task_id)
        else:
            tasks[index] = _overwritten(tasks[index], item, at)
            chosen.append(tasks[index].task_id)
    by_id = {task.task_id: task for task in tasks}
    return replace(state, tasks=tuple(tasks)), tuple(by_id[task_id] for task_id in dict.fromkeys(chosen))


def cancel(state: SessionTasks, task_id: str) -> tuple[SessionTasks, Task]:
    """Removes one task."""
    task = _found(state, task_id)
    return replace(state, tasks=tuple(other for other in state.tasks if other is not task)), task


def clear(state: SessionTasks) -> tuple[SessionTasks, int]:
    """Removes all tasks; how many there were."""
    return replace(state, tasks=()), len(state.tasks)


def change(
    state: SessionTasks, task_id: str, changes: dict[str, Any], *, at: EditContext
) -> tuple[SessionTasks, Task]:
    """Changes the fields that are named; a task with another time is to be delivered anew."""
    old = _found(state, task_id)
    task = replace(old, **changes, updated_at_ms=at.now_ms)
    if task.repeat == "none":
        task = replace(task, repeat=None)
    if task.repeat is None:
        task = replace(task, max_runs=None)
    if (task.due_at_ms, task.task) != (old.due_at_ms, old.task):
        # Whoever has it reserved is delivering something else.
        task = replace(task, reservation=None)
    if task.due_at_ms != old.due_at_ms:
        _check_reachable(task.due_at_ms, task.repeat, at)
        guard = _guard(task.due_at_ms, at)
        task = replace(task, delivered_at_ms=None, delivery_count=0, not_before_request_id=guard)
    task = _come_again(task, at)
    return _with(state, {task.task_id: task}), task


def prune(state: SessionTasks, at: EditContext) -> tuple[SessionTasks, int]:
    """Drops the tasks that are over; how many."""
    kept = tuple(task for task in state.tasks if not due_rules.is_over(task, at.now_ms, at.rules))
    return replace(state, tasks=kept), len(state.tasks) - len(kept)


def due(state: SessionTasks, at: EditContext) -> tuple[Task, ...]:
    """The tasks that this request may deliver, the earliest first."""
    seen = expired_reservations(state, at.now_ms, up=at.up, lease_ms=at.rules.lease_ms, held=at.held)
    return due_rules.deliverable(seen, at.now_ms, rules=at.rules, request_id=at.request_id)


def reserve(state: SessionTasks, mark_id: str, *, at: EditContext) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Marks every task that this request may deliver; nobody else gets them until the lease is up."""
    mark = _mark(mark_id, at)
    marked = tuple(replace(task, reservation=mark) for task in due(state, at))
    return _with(state, {task.task_id: task for task in marked}), marked


def renew(state: SessionTasks, mark_id: str, *, at: EditContext) -> tuple[SessionTasks, int]:
    """Makes a reservation last; how many tasks it still holds."""
    mark = _mark(mark_id, at)
    ours = {
        task.task_id: replace(task, reservation=mark) for task in state.tasks if _is_marked(task, mark_id)
    }
    return _with(state, ours), len(ours)


def roll_back(state: SessionTasks, mark_id: str) -> tuple[SessionTasks, int]:
    """Gives back what was reserved; how many tasks."""
    ours = {
        task.task_id: replace(task, reservation=None) for task in state.tasks if _is_marked(task, mark_id)
    }
    return _with(state, ours), len(ours)


def commit(
    state: SessionTasks, reserved: Collection[Task], *, at: EditContext
) -> tuple[SessionTasks, tuple[Task, ...]]:
    """Writes down that these were delivered, whoever holds them by now; those it was the first to write.

    A task that was changed since is not the one that was delivered, and stays to be.
    """
    delivered = {(task.task_id, task.due_at_ms, task.task) for task in reserved}
    done = {
        task.task_id: _delivered(task, at)
        for task in state.tasks
        if task.delivered_at_ms is None and (task.task_id, task.due_at_ms, task.task) in delivered
    }
    return _with(state, done), tuple(done.values())


def _delivered(task: Task, at: EditContext) -> Task:
    done = replace(
        task,
        delivered_at_ms=at.now_ms,
        delivery_count=task.delivery_count + 1,
        updated_at_ms=at.now_ms,
        reservation=None,
    )
    return _come_again(done, at)


def _come_again(task: Task, at: EditContext) -> Task:
    """A delivered task at its next occurrence; as it is when there is none."""
    if task.repeat is None or task.delivered_at_ms is None:
        return task
    if task.max_runs is not None and task.delivery_count >= task.max_runs:
        return task
    later = due_rules.first_after(task.due_at_ms, task.repeat, moment_ms=at.now_ms)
    if later > LATEST_MS:
        return task
    return replace(task, due_at_ms=later, delivered_at_ms=None, not_before_request_id=_guard(later, at))


def _made(item: TaskFields, task_id: str, *, session: str, at: EditContext) -> Task:
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
        not_before_request_id=_guard(item.due_at_ms, at),
        repeat=item.repeat,
        max_runs=item.max_runs,
    )


def _overwritten(task: Task, item: TaskFields, at: EditContext) -> Task:
    hints = {"tool": item.tool, "arguments": item.arguments, "repeat": item.repeat, "max_runs": item.max_runs}
    changed = replace(task, **hints)
    return task if changed == task else _come_again(replace(changed, updated_at_ms=at.now_ms), at)


def _is_same(task: Task, item: TaskFields) -> bool:
    """Same time and text; a repeated task is also the same at a later occurrence."""
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
            f"{utc_text(due_at_ms)} is too long past to be delivered; it is {utc_text(at.now_ms)} now",
        )


def _guard(due_at_ms: int, at: EditContext) -> str | None:
    return due_rules.guard(due_at_ms, at.now_ms, rules=at.rules, request_id=at.request_id)


def _found(state: SessionTasks, task_id: str) -> Task:
    task = next((task for task in state.tasks if task.task_id == task_id), None)
    if task is None:
        raise ActionRefused("unknown_task", f"this session has no task {task_id[:80]!r}; list names them")
    return task


def _mark(mark_id: str, at: EditContext) -> DeliveryMark:
    return boot_mark(mark_id, at.now_ms, up=at.up, lease_ms=at.rules.lease_ms)


def _is_marked(task: Task, mark_id: str) -> bool:
    return task.reservation is not None and task.reservation.id == mark_id


def _with(state: SessionTasks, tasks: dict[str, Task]) -> SessionTasks:
    return replace(state, tasks=tuple(tasks.get(task.task_id, task) for task in state.tasks))
