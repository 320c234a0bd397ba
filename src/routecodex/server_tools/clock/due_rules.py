"""Decides when a task is due, expired or repeated; pure functions of the task and the time.

Tasks repeat daily, weekly, or every N minutes. A day is 24 hours, because a due time has an offset but no
time zone. Missed occurrences are skipped, not delivered later.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from routecodex.server_tools.clock.task import LATEST_MS, SessionTasks, Task

DAY_MS = 86_400_000


class DueRules(Struct, frozen=True, kw_only=True):
    """Time limits of the clock.

    A reservation expires `lease_ms` after its last renewal; a repeated task that is not
    delivered is deleted `idle_ms` after its due time or last change.
    """

    due_window_ms: int = 60_000
    retention_ms: int = 20 * 60_000
    lease_ms: int = 60_000
    idle_ms: int = 30 * DAY_MS


def is_due(task: Task, now_ms: int, rules: DueRules) -> bool:
    return now_ms >= task.due_at_ms - rules.due_window_ms


def is_expired(task: Task, now_ms: int, rules: DueRules) -> bool:
    return now_ms > task.due_at_ms + rules.retention_ms


def should_inject(task: Task, now_ms: int, rules: DueRules) -> bool:
    return (
        is_due(task, now_ms, rules) and not is_expired(task, now_ms, rules) and task.delivered_at_ms is None
    )


def is_held_back(task: Task, request_id: str) -> bool:
    """Return whether the task was created or last delivered in the same chain of requests."""
    first = task.not_before_request_id
    return first is not None and (request_id == first or request_id.startswith(first + ":"))


def is_reserved(task: Task, now_ms: int, rules: DueRules) -> bool:
    """Return whether a request is delivering the task; a mark far in the future came from a wrong clock."""
    mark = task.reservation
    return mark is not None and now_ms < mark.until_ms <= now_ms + 2 * rules.lease_ms


def mark_prefix(request_id: str) -> str:
    """Return the prefix of the ids of a request's reservations."""
    return f"{request_id}:clock:"


def is_delivering(task: Task, request_id: str) -> bool:
    """Return whether this request has reserved the task."""
    return task.reservation is not None and task.reservation.id.startswith(mark_prefix(request_id))


def opens_at(due_at_ms: int, rules: DueRules) -> int:
    """Return the time from which a task may be delivered."""
    return due_at_ms - rules.due_window_ms


def chain_guard(due_at_ms: int, now_ms: int, *, rules: DueRules, request_id: str) -> str | None:
    """Return the `not_before_request_id` of a new task: this request if the task is due already."""
    return request_id if opens_at(due_at_ms, rules) <= now_ms else None


def current(task: Task, now_ms: int, rules: DueRules) -> Task:
    """Return the task at its current occurrence; one in delivery stays at that which is delivered.

    The delivery may last beyond the retention. Moving the task would drop the reservation, and a second
    request would deliver the task.
    """
    if task.repeat is None or task.delivered_at_ms is not None or not is_expired(task, now_ms, rules):
        return task
    if is_reserved(task, now_ms, rules):
        return task
    moved = replace(
        task, due_at_ms=last_until(task.due_at_ms, task.repeat, moment_ms=now_ms), reservation=None
    )
    if not is_expired(moved, now_ms, rules):
        return moved
    later = first_after(moved.due_at_ms, task.repeat, moment_ms=now_ms)
    return replace(moved, due_at_ms=later) if later <= LATEST_MS else task


def is_over(task: Task, now_ms: int, rules: DueRules) -> bool:
    """Return whether the task can be deleted."""
    return now_ms > drop_at(task, rules)


def drop_at(task: Task, rules: DueRules) -> int:
    """Return the time after which the task is deleted."""
    if task.repeat is None or task.delivered_at_ms is not None:
        return task.due_at_ms + rules.retention_ms
    return max(task.due_at_ms, task.updated_at_ms) + max(rules.idle_ms, rules.retention_ms)


def live_tasks(state: SessionTasks, now_ms: int, rules: DueRules) -> tuple[Task, ...]:
    """Return the tasks that are not over, each at its current occurrence."""
    return tuple(current(task, now_ms, rules) for task in state.tasks if not is_over(task, now_ms, rules))


def deliverable(state: SessionTasks, now_ms: int, *, rules: DueRules, request_id: str) -> tuple[Task, ...]:
    """Return the tasks that this request may deliver now, the earliest first."""
    found = (
        task
        for task in live_tasks(state, now_ms, rules)
        if should_inject(task, now_ms, rules)
        and not is_held_back(task, request_id)
        and not is_reserved(task, now_ms, rules)
    )
    return tuple(sorted(found, key=lambda task: (task.due_at_ms, task.created_at_ms, task.task_id)))


def wake_at(state: SessionTasks, now_ms: int, *, rules: DueRules, request_id: str) -> int | None:
    """Return the earliest time at which this request may deliver a task; None if there is none."""
    moments = [
        opens_at(task.due_at_ms, rules)
        for task in live_tasks(state, now_ms, rules)
        if task.delivered_at_ms is None
        and not is_expired(task, now_ms, rules)
        and not is_held_back(task, request_id)
        and not is_delivering(task, request_id)
        # Another request delivers it; this one must not wait for that.
        and not is_reserved(task, now_ms, rules)
    ]
    return min(moments, default=None)


MINUTE_MS = 60_000
MAX_MINUTES = 525_600

_FIXED = {"daily": 24 * 60 * MINUTE_MS, "weekly": 7 * 24 * 60 * MINUTE_MS}
_EVERY = re.compile(r"every\s+0*([1-9][0-9]{0,5})\s+minutes?")


def normalize_recurrence(text: str) -> str | None:
    """Return the stored form of a recurrence; None for `none`; ValueError if it is invalid."""
    value = text.strip().lower()
    if value == "none":
        return None
    if value in _FIXED:
        return value
    match = _EVERY.fullmatch(value)
    if match is None or int(match[1]) > MAX_MINUTES:
        raise ValueError(
            f"{text[:80]!r} is not a valid repeat; use none, daily, weekly, or every N minutes "
            f"(N from 1 to {MAX_MINUTES})"
        )
    return f"every {match[1]} minutes"


def period_ms(recurrence: str) -> int:
    """Return the time between two occurrences."""
    return _FIXED.get(recurrence) or int(recurrence.split()[1]) * MINUTE_MS


def first_after(due_ms: int, recurrence: str, *, moment_ms: int) -> int:
    """Return the first occurrence after both `due_ms` and the moment."""
    period = period_ms(recurrence)
    steps = max(1, (moment_ms - due_ms) // period + 1)
    return due_ms + steps * period


def last_until(due_ms: int, recurrence: str, *, moment_ms: int) -> int:
    """Return the last occurrence up to the moment; `due_ms` if there is none."""
    period = period_ms(recurrence)
    return due_ms + max(0, (moment_ms - due_ms) // period) * period
