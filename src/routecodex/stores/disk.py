"""What the operating system does for a file store, and its errors with the way out."""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from routecodex.stores.store import StoreError

_WAYS_OUT = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space within the quota",
    errno.EFBIG: "raise the file size limit of the process",
    errno.EACCES: "give the directory and its files to the user the gateway runs as",
    errno.EPERM: "give the directory and its files to the user the gateway runs as",
    errno.EROFS: "choose a directory on a writable disk",
    errno.EMFILE: "raise the limit of open files of the process",
}

logger = logging.getLogger("routecodex.stores")

P = ParamSpec("P")
T = TypeVar("T")


def translated(call: Callable[P, T]) -> Callable[P, T]:
    """Turns what the operating system raises into a StoreError that names the file and the way out."""

    @functools.wraps(call)
    def translate(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OSError as exc:
            way_out = _WAYS_OUT.get(exc.errno or 0)
            reason = f"{exc.strerror or exc}: {exc.filename or args[0]}"
            raise StoreError(f"file store: {reason}" + (f"; {way_out}" if way_out else "")) from exc

    return translate


def modified(path: str) -> int:
    """The modification time in nanoseconds; 0 when there is nothing, or nothing we may look at."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def move_on(path: str, before: int) -> None:
    """Gives the directory a later modification time than it had; what was to be done is done already."""
    with suppress(OSError):
        status = os.stat(path)
        os.utime(path, ns=(status.st_atime_ns, max(status.st_mtime_ns, before + 1)))


def open_locked(path: Path) -> int | None:
    """A descriptor that holds the lock, or None when another one does or the file was replaced meanwhile."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def write_through(path: Path, content: bytes, *, mtime_ns: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Makes renames and deletions last; they have happened already, so a failure is told and not raised."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        logger.warning("changes in %s may not survive a power failure: %s", path, exc.strerror)


def make_directories(path: Path) -> None:
    """Creates the directory and its missing parents, for our user alone."""
    if path.is_dir():
        return
    make_directories(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        sync_directory(path.parent)
