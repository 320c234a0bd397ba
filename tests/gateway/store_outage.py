"""Outages of a file store that a test can begin and end while the gateway runs, also as root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

SPACES = (
    "sessions",
    "server",
    "health",
    "health.probes",
    "responses",
    "responses.items",
    "clock",
    "store",
    "thoughts",
)


@contextmanager
def down(folder: Path) -> Iterator[None]:
    """Let every call fail: a file stands where the directory was."""
    folder.mkdir(exist_ok=True)
    moved = folder.with_name(f"{folder.name}.moved")
    folder.rename(moved)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        moved.rename(folder)


@contextmanager
def read_only(folder: Path, *spaces: str) -> Iterator[None]:
    """Let every write to these spaces, or to all, fail: a directory stands where the lock file was."""
    locks = [folder / space / ".lock" for space in spaces or SPACES]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        replace_by_directory(lock)
    try:
        yield
    finally:
        for lock in locks:
            lock.rmdir()


def replace_by_directory(lock: Path) -> None:
    """Put a directory where the lock file was; a writer may create the file again in between."""
    while not lock.is_dir():
        lock.unlink(missing_ok=True)
        with suppress(FileExistsError):
            lock.mkdir()


Outage = Callable[[Path], AbstractContextManager[None]]
OUTAGES: dict[str, Outage] = {"down": down, "read_only": read_only}
