"""CPU time and memory of processes and of the machine, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
# Fields of the "cpu" line of /proc/stat: user nice system idle iowait irq softirq steal.
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name, which may contain spaces and brackets."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def family(root: int) -> list[int]:
    """Return the process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            parent = int(_stat(int(entry))[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the user and system time of the processes and of their reaped children."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(int(field) for field in _stat(pid)[11:15])
        except OSError:
            continue
    return ticks * TICK_SECONDS


def rss_mb(pids: Iterable[int]) -> float:
    """Return the total resident memory of the processes."""
    pages = 0
    for pid in pids:
        try:
            pages += int(_stat(pid)[21])
        except OSError:
            continue
    return pages * PAGE_MB


def open_files(pid: int) -> int:
    """Count the open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def machine_busy_seconds() -> float:
    """Return the busy time of all cores, including time taken by the hypervisor."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[i]) for i in BUSY_FIELDS) * TICK_SECONDS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """CPU time so far: of the gateway, of the whole benchmark, of the machine."""

    at: float
    gateway: float
    benchmark: float
    machine: float

    def foreign_share_since(self, start: Snapshot) -> float:
        """Share of the machine used by processes outside of the benchmark."""
        elapsed = (self.at - start.at) * (os.cpu_count() or 1)
        foreign = (self.machine - start.machine) - (self.benchmark - start.benchmark)
        return max(0.0, foreign / elapsed) if elapsed > 0 else 0.0


def snapshot(at: float, *, gateway: Iterable[int], others: Iterable[int]) -> Snapshot:
    """Read all counters now; `at` is the caller's clock."""
    gateway_seconds = cpu_seconds(gateway)
    return Snapshot(at, gateway_seconds, gateway_seconds + cpu_seconds(others), machine_busy_seconds())
