"""Decides when a task is due, expired or repeated.

Tasks that come again: daily, weekly, or every so many minutes.

A day is 24 hours, since a due time carries an offset and no time zone. Occurrences that nobody was there for
are passed over, not made up for.

When a task is due, expired and worth delivering: pure functions of the task and the time.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from routecodex.server_tools.clock.task import LATEST_MS, SessionTasks, Task

MINUTE_MS = 60_000
MOST_MINUTES = 525_600

_FIXED = {"daily": 24 * 60 * MINUTE_MS, "weekly": 7 * 24 * 60 * MINUTE_MS}
_EVERY = re.compile(r"every\s+0*([1-9][0-9]{0,5})\s+minutes?")


def normalize(text: str) -> str | None:
    """How a rhythm is stored; None for `none`; ValueError when it is no rhythm."""
    said = text.strip().lower()
    if said == "none":
        return None
    if said in _FIXED:
        return said
    match = _EVERY.fullmatch(said)
    if match is None or int(match[1]) > MOST_MINUTES:
        raise ValueError(
            f"{text[:80]!r} is no rhythm; use none, daily, weekly, or every N minutes "
            f"(N from 1 to {MOST_MINUTES})"
        )
    return f"every {match[1]} minutes"


def period_ms(rhythm: str) -> int:
    """The time from one occurrence to the next."""
    return _FIXED.get(rhythm) or int(rhythm.split()[1]) * MINUTE_MS


def first_after(due_ms: int, rhythm: str, *, moment_ms: int) -> int:
    """The first occurrence after both the given one and the moment."""
    period = period_ms(rhythm)
    steps = max(1, (moment_ms - due_ms) // period + 1)
    return due_ms + steps * period


def last_until(due_ms: int, rhythm: str, *, moment_ms: int) -> int:
    """The last occurrence that is not after the moment, or the given one when all are."""
    period = period_ms(rhythm)
    return due_ms + max(0, (moment_ms - due_ms) // period) * period


DAY_MS = 86_400_000


class DueRules(Struct, frozen=True, kw_only=True):
    """The times that matter.

    `lease_ms` is how long a reservation holds without being renewed; `idle_ms` how long a task that comes
    again is kept while nobody is there for it.
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
    """Whether the task was set, or last delivered, in the same chain of requests."""
    first = task.not_before_request_id
    return first is not None and (request_id == first or request_id.startswith(first + ":"))


def is_reserved(task: Task, now_ms: int, rules: DueRules) -> bool:
    """Whether somebody is delivering it; a mark from far in the future tells of a clock that was wrong."""
    mark = task.reservation
    return mark is not None and now_ms < mark.until_ms <= now_ms + 2 * rules.lease_ms


def mark_prefix(request_id: str) -> str:
    """How the ids of all reservations of a request begin."""
    return f"{request_id}:clock:"


def is_delivering(task: Task, request_id: str) -> bool:
    """Whether the request has the task reserved itself."""
    return task.reservation is not None and task.reservation.id.startswith(mark_prefix(request_id))


def opens_at(due_at_ms: int, rules: DueRules) -> int:
    """The moment from which a task may be delivered."""
    return due_at_ms - rules.due_window_ms


def guard(due_at_ms: int, now_ms: int, *, rules: DueRules, request_id: str) -> str | None:
    """What keeps a task out of the chain of requests that set it, when it is due already."""
    return request_id if opens_at(due_at_ms, rules) <= now_ms else None


def current(task: Task, now_ms: int, rules: DueRules) -> Task:
    """The task at the occurrence that matters now."""
    if task.repeat is None or task.delivered_at_ms is not None or not is_expired(task, now_ms, rules):
        return task
    moved = replace(
        task, due_at_ms=last_until(task.due_at_ms, task.repeat, moment_ms=now_ms), reservation=None
    )
    if not is_expired(moved, now_ms, rules):
        return moved
    later = first_after(moved.due_at_ms, task.repeat, moment_ms=now_ms)
    return replace(moved, due_at_ms=later) if later <= LATEST_MS else task


def is_over(task: Task, now_ms: int, rules: DueRules) -> bool:
    """Whether the task can be forgotten."""
    return now_ms > drop_at(task, rules)


def drop_at(task: Task, rules: DueRules) -> int:
    """The last moment at which the task is kept."""
    if task.repeat is None or task.delivered_at_ms is not None:
        return task.due_at_ms + rules.retention_ms
    return max(task.due_at_ms, task.updated_at_ms) + max(rules.idle_ms, rules.retention_ms)


def kept(state: SessionTasks, now_ms: int, rules: DueRules) -> tuple[Task, ...]:
    """The tasks that are not over, each at the occurrence that matters now."""
    return tuple(current(task, now_ms, rules) for task in state.tasks if not is_over(task, now_ms, rules))


def deliverable(state: SessionTasks, now_ms: int, *, rules: DueRules, request_id: str) -> tuple[Task, ...]:
    """The tasks that this request may deliver now, the earliest first."""
    found = (
        task
        for task in kept(state, now_ms, rules)
        if should_inject(task, now_ms, rules)
        and not is_held_back(task, request_id)
        and not is_reserved(task, now_ms, rules)
    )
    return tuple(sorted(found, key=lambda task: (task.due_at_ms, task.created_at_ms, task.task_id)))


def wake_at(state: SessionTasks, now_ms: int, *, rules: DueRules, request_id: str) -> int | None:
    """When this request may first have something to deliver; now or earlier when it has already."""
    moments = [
        opens_at(task.due_at_ms, rules)
        for task in kept(state, now_ms, rules)
        if task.delivered_at_ms is None
        and not is_expired(task, now_ms, rules)
        and not is_held_back(task, request_id)
        and not is_delivering(task, request_id)
        # Another request tells of it: this one's client is not to wait for the end of that.
        and not is_reserved(task, now_ms, rules)
    ]
    return min(moments, default=None)
