"""Expires reservations by a clock that nobody can set.

How long a reservation lasts: by a clock that nobody sets, as far as that one reaches.

The time of day may jump, by hand or when network time is first heard of; a reservation must neither end nor
last for ever by that. All processes of a machine share the time since it was started, so a mark bears that
too. Only marks of another machine, or from before a restart, are judged by the time of day.
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

_TIME_SPACE = "/proc/self/ns/time"
"""Containers may have a time since start of their own."""


class SystemUptime(NamedTuple):
    """Milliseconds since a start of a machine; two of them compare only when the start is the same."""

    start: str
    ms: int


UNKNOWN = SystemUptime("", 0)


def uptime() -> SystemUptime:
    """Now; time in which the machine slept does not count, for then nobody could renew anything."""
    return SystemUptime(_start(), time.monotonic_ns() // 1_000_000)


@cache
def _start() -> str:
    """What names this start of the machine, or of this process where the machine does not tell."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return f"process {uuid4().hex}"
    try:
        return f"{boot} {os.readlink(_TIME_SPACE)}"
    except OSError:
        return boot


def boot_mark(id: str, now_ms: int, *, up: SystemUptime, lease_ms: int) -> DeliveryMark:
    """A mark that lasts for one lease from now."""
    if not up.start:
        return DeliveryMark(id, now_ms + lease_ms)
    return DeliveryMark(id, now_ms + lease_ms, up.start, up.ms + lease_ms)


def expired_reservations(
    state: SessionTasks, now_ms: int, *, up: SystemUptime, lease_ms: int, held: Container[str] = ()
) -> SessionTasks:
    """The state with marks that end when they really do, as times of day; those held here never end."""
    if not any(task.reservation for task in state.tasks):
        return state

    def seen(task: Task) -> Task:
        found = task.reservation
        if found is None:
            return task
        if found.id in held:
            return replace(task, reservation=replace(found, until_ms=now_ms + lease_ms))
        if not up.start or found.start != up.start:
            return task
        left = min(found.until_up_ms - up.ms, lease_ms)
        return replace(task, reservation=replace(found, until_ms=now_ms + left))

    return replace(state, tasks=tuple(map(seen, state.tasks)))
