"""Whether a process runs, and whether it is the one that was meant: pids are used again."""

from __future__ import annotations

import os
from pathlib import Path

_TOLERANCE = 2.0
"""The kernel tells the time of boot in whole seconds, and clocks are set."""


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended but was not collected yet does not run."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = _fields(pid)
    return fields is None or fields[0] != "Z"


def is_gateway_since(pid: int, at: float) -> bool:
    """Whether the process is a gateway that ran at that moment already; False when it cannot be told."""
    fields, booted = _fields(pid), _booted()
    if fields is None or booted is None:
        return False
    started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started <= at + _TOLERANCE and any("routecodex" in word for word in arguments_of(pid))


def arguments_of(pid: int) -> list[str]:
    """The words a process was started with; none when the system does not tell."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")[:-1]


def directory_of(pid: int) -> str | None:
    """The directory a process works in."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def _fields(pid: int) -> list[str] | None:
    """What the kernel tells of a process from its state on; the name before may hold anything."""
    text = _read(f"/proc/{pid}/stat").decode(errors="replace")
    return text.rpartition(")")[2].split() or None


def _booted() -> float | None:
    lines = _read("/proc/stat").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(b"btime ")), None)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
