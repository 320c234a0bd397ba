"""Reaps processes that others left behind, where the gateway is process 1 as in a container.

The kernel gives orphans to process 1, and a dead one stays in the process table until that waits for it. The
event loop waits for the gateway's own children within moments of their end: only a process that was dead at
the last look too is an orphan.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 2.0


def start_reaping(loop: asyncio.AbstractEventLoop) -> None:
    """Reap orphans from now on, if this process is the one that gets them: only Linux has such containers."""
    if os.getpid() == 1:
        loop.call_later(_SECONDS, _look, loop, set[int]())


def _look(loop: asyncio.AbstractEventLoop, before: set[int]) -> None:
    loop.call_later(_SECONDS, _look, loop, reap(before))


def reap(before: set[int]) -> set[int]:
    """Reap the children that are dead and were dead `before`; return those that are new."""
    if not _has_dead_child():
        return set()
    found = set(_dead_children())
    for pid in found & before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found - before


def _has_dead_child() -> bool:
    """Return whether a child is dead, without reaping it."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _dead_children() -> Iterator[int]:
    """Yield the dead children of this process (proc_pid_stat(5): the name in brackets may hold anything)."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            state, parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                yield int(folder.name)
