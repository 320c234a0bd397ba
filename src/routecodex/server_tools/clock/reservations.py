"""Expires reservations by a clock that nobody can set.

The time of day may jump, by hand or with the first NTP response; a reservation must neither end early nor
last for ever because of that. All processes of a machine share its uptime, so a mark stores that too. Only
marks of another machine, or from before a restart, expire by the time of day.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec.structs import replace

from routecodex.server_tools.clock.task import DeliveryMark, SessionTasks, Task
from routecodex.stores.uptime import SystemUptime


def delivery_mark(id: str, now_ms: int, *, up: SystemUptime, lease_ms: int) -> DeliveryMark:
    """Return a mark that lasts for one lease from now."""
    if not up.start:
        return DeliveryMark(id, now_ms + lease_ms)
    return DeliveryMark(id, now_ms + lease_ms, up.start, up.ms + lease_ms)


def effective_reservations(
    state: SessionTasks,
    now_ms: int,
    *,
    up: SystemUptime,
    lease_ms: int,
    held: Container[str] = (),
    none_ends: bool = False,
) -> SessionTasks:
    """Return the state with the actual end of each mark as time of day; marks in `held` do not end.

    With `none_ends` no mark does: after an outage of the store its holder could not renew it before.
    """
    if not any(task.reservation for task in state.tasks):
        return state

    def effective(task: Task) -> Task:
        mark = task.reservation
        if mark is None:
            return task
        if none_ends or mark.id in held:
            return replace(task, reservation=replace(mark, until_ms=now_ms + lease_ms))
        if not up.start or mark.start != up.start:
            return task
        remaining = min(mark.until_up_ms - up.ms, lease_ms)
        return replace(task, reservation=replace(mark, until_ms=now_ms + remaining))

    return replace(state, tasks=tuple(map(effective, state.tasks)))
