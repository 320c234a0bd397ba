"""A clock that nobody can set: the uptime of the machine.

The time of day may jump, by hand or with the first NTP response. All processes of a machine share its uptime;
processes on several machines share the clock of their store.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_TIME_NAMESPACE = "/proc/self/ns/time"
"""Time namespace: containers may have their own uptime (time_namespaces(7))."""


class SystemUptime(NamedTuple):
    """Milliseconds since a start of the machine; comparable only if `start` is equal."""

    start: str
    ms: int


STORE_CLOCK = "store:"
"""Beginning of the `start` of a clock that is the store's own, shared by several machines."""

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
