"""Expires reservations by a clock that nobody can set.

The time of day may jump, by hand or with the first NTP response; a reservation must neither end early nor
last for ever because of that. All processes of a machine share its uptime, so a mark stores that too. Only
marks of another machine, or from before a restart, expire by the time of day.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from routecodex.server_tools.clock.task import DeliveryMark, SessionTasks, Task

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_TIME_NAMESPACE = "/proc/self/ns/time"
"""Time namespace: containers may have their own uptime (time_namespaces(7))."""


class SystemUptime(NamedTuple):
    """Milliseconds since a start of the machine; comparable only if `start` is equal."""

    start: str
    ms: int


UNKNOWN = SystemUptime("", 0)


def uptime() -> SystemUptime:
    """Return the uptime without suspend time, in which no process could renew a reservation."""
    return SystemUptime(_start_id(), time.monotonic_ns() // 1_000_000)


@cache
def _start_id() -> str:
    """Return an id of this start of the machine, or of the process if the machine has none."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return f"process {uuid4().hex}"
    try:
        return f"{boot} {os.readlink(_TIME_NAMESPACE)}"
    except OSError:
        return boot


def delivery_mark(id: str, now_ms: int, *, up: SystemUptime, lease_ms: int) -> DeliveryMark:
    """Return a mark that lasts for one lease from now."""
    if not up.start:
        return DeliveryMark(id, now_ms + lease_ms)
    return DeliveryMark(id, now_ms + lease_ms, up.start, up.ms + lease_ms)


def effective_reservations(
    state: SessionTasks, now_ms: int, *, up: SystemUptime, lease_ms: int, held: Container[str] = ()
) -> SessionTasks:
    """Return the state with the actual end of each mark as time of day; marks in `held` do not end."""
    if not any(task.reservation for task in state.tasks):
        return state

    def effective(task: Task) -> Task:
        mark = task.reservation
        if mark is None:
            return task
        if mark.id in held:
            return replace(task, reservation=replace(mark, until_ms=now_ms + lease_ms))
        if not up.start or mark.start != up.start:
            return task
        remaining = min(mark.until_up_ms - up.ms, lease_ms)
        return replace(task, reservation=replace(mark, until_ms=now_ms + remaining))

    return replace(state, tasks=tuple(map(effective, state.tasks)))
