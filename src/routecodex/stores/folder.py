"""One space of a file store: a directory of JSON files, replaced atomically, one writer at a time.

    {"version": 7, "expires": null, "key": "the original key", "value": …}

In a bare space a file is the value alone: the key is read from the value, the modification time is the
version, and values do not expire.

Reading takes no lock, because a rename replaces a file atomically. Writing holds an advisory lock on `.lock`
against other threads and processes; the kernel releases it when its holder dies. The lock file also stores
the last version and the last time stamp, so that neither repeats within a space.

The modification time of the directory shows that the space changed. The kernel sets it with every rename and
deletion, even if the writer is killed right after. Its clock may be coarser than the interval between two
writes, so a writer advances the time before it releases the lock: two writes never leave the same time.

The writes under one lock are synced together, once, before the lock is released. Callers get their outcome
after the sync.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from routecodex.stores import file_format
from routecodex.stores.file_format import Damaged, Envelope, KeyOf, decode_bare, decode_value, encode_value
from routecodex.stores.store import (
    CallRefused,
    Change,
    DamagedValue,
    Place,
    Stored,
    StoreError,
    check_value,
    check_version,
)

TEMPORARY_MAX_AGE = 3600.0
SHORT_KEY = 128

_CACHED_NAMES = 4096
"""Size of the cache of file names; it must exceed the number of active sessions."""
_MOST_NAMELESS = 1000
"""Damaged files with hashed names that are logged."""
_LOCK = ".lock"
_TEMPORARY = ".tmp"

_REMEDIES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some space within the quota",
    errno.EFBIG: "raise the file size limit of the process",
    errno.EACCES: "give the directory and its files to the user the gateway runs as",
    errno.EPERM: "give the directory and its files to the user the gateway runs as",
    errno.EROFS: "choose a directory on a writable disk",
    errno.EMFILE: "raise the limit of open files of the process",
}

_CHECK_CONTENT = b"x" * 4096
"""One block: a disk that is almost full may still take a few bytes."""
_unknown_stamps = count(-1, -1)

logger = logging.getLogger("routecodex.stores")

P = ParamSpec("P")
T = TypeVar("T")


def translated(call: Callable[P, T]) -> Callable[P, T]:
    """Convert an OSError to a StoreError that names the file and the remedy."""

    @functools.wraps(call)
    def translate(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except OSError as exc:
            remedy = _REMEDIES.get(exc.errno or 0)
            reason = f"{exc.strerror or exc}: {exc.filename or args[0]}"
            raise StoreError(f"file store: {reason}" + (f"; {remedy}" if remedy else "")) from exc

    return translate


class File(NamedTuple):
    """An entry of the directory; sorts by the time of writing."""

    mtime_ns: int
    name: str
    size: int


class SpaceLock(NamedTuple):
    """The descriptor of the held lock, and the thread that holds it."""

    thread: int
    descriptor: int


class Folder:
    """The operations of a store on one space; each may block on the disk or on another writer."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float], lock_wait: float, key_of: KeyOf | None = None
    ) -> None:
        self.path = path
        self._key_of = key_of
        self._text = str(path)
        self._name_of = functools.lru_cache(maxsize=_CACHED_NAMES)(file_format.encode_name)
        self._clock = clock
        self._lock_wait = lock_wait
        self._swept = False
        self._held: SpaceLock | None = None
        self._unsynced = False
        self._nameless: set[str] = set()

    def __str__(self) -> str:
        return self._text

    def stamp(self) -> int:
        return mtime_of(self._text)

    def stamp_of(self, key: str) -> int:
        name = self._name_of(key) if len(key) <= SHORT_KEY else file_format.encode_name(key)
        return mtime_of(f"{self._text}/{name}")

    def get(self, key: str) -> Stored | None:
        name = file_format.encode_name(key)
        try:
            return self._unexpired(self._read(name))
        except Damaged:
            return self._unexpired(self._reread(name))

    def get_intact(self, key: str) -> Stored | None:
        name = file_format.encode_name(key)
        try:
            return self._unexpired(self._read(name))
        except Damaged as exc:
            raise DamagedValue(f"file store: {self.path / name} is damaged: {exc}") from exc

    def put(self, key: str, value: bytes, *, ttl: float | None, expected: int | None) -> int:
        check_value(value)
        name = file_format.encode_name(key)
        with self.writing() as lock:
            old = self._read_locked(name)
            check_version(expected, self._unexpired(old), where=f"{self.path.name}/{key[:80]!r}")
            return self._write(lock, key, value, ttl=ttl, old=old)

    def delete(self, key: str) -> bool:
        name = file_format.encode_name(key)
        if not self._exists(name):
            return False
        with self.writing():
            old = self._read_locked(name)
            if old is not None:
                self._remove([name])
            return self._unexpired(old) is not None

    def update(self, key: str, change: Change, *, ttl: float | None) -> bytes | None:
        name = file_format.encode_name(key)
        with self.writing() as lock:
            try:
                old = self._read(name)
            except Damaged as exc:
                return self._replace_damaged(lock, key, change, ttl=ttl, reason=str(exc))
            live = self._unexpired(old)
            value = change(live.value if live is not None else None)
            if value is not None:
                check_value(value)
                self._write(lock, key, value, ttl=ttl, old=old)
            elif old is not None:
                self._remove([name])
            return value

    @translated
    def check(self) -> None:
        """Do what every write does, without a value."""
        with self.writing():
            temporary = self._temporary()
            write_through(temporary, _CHECK_CONTENT, mtime_ns=time.time_ns())
            temporary.unlink()

    def keys(self) -> list[str]:
        return [key for file in self._files() if (key := self._listed_key(file.name)) is not None]

    def recent(self, *, limit: int, before: Place | None = None) -> list[Place]:
        # Files that were copied may share a time: their names decide.
        end = None if before is None else (before.stamp, file_format.encode_name(before.key))
        found: list[Place] = []
        for file in reversed(self._files()):
            if len(found) >= limit:
                break
            if end is not None and (file.mtime_ns, file.name) >= end:
                continue
            key = self._listed_key(file.name)
            if key is not None:
                found.append(Place(file.mtime_ns, key))
        return found

    def surplus(self, *, entries: int, size: int) -> list[File]:
        """Return the files that a trim deletes: expired ones, and the oldest beyond the limits."""
        if not self._exists(""):
            return []
        if self._has_leftovers():
            with self.writing():
                self._sweep()
        files = self._files()
        now = self._clock()
        expired = [
            file
            for file in files
            if file_format.may_have_expired(file.mtime_ns, now) and self._expired(file.name)
        ]
        names = {file.name for file in expired}
        live = [file for file in files if file.name not in names]
        return expired + _over_limits(live, entries=entries, size=size)

    def remove_unchanged(self, files: Sequence[File]) -> int:
        """Delete the files that were not written since they were listed; return their number."""
        with self.writing():
            unchanged = [
                file.name for file in files if mtime_of(f"{self._text}/{file.name}") == file.mtime_ns
            ]
            self._remove(unchanged)
            return len(unchanged)

    def _unexpired(self, envelope: Envelope | None) -> Stored | None:
        if envelope is None or (envelope.expires is not None and envelope.expires <= self._clock()):
            return None
        return Stored(bytes(envelope.value), envelope.version, envelope.expires)

    def _expired(self, name: str) -> bool:
        """Return whether the file exists and its value has expired; that of a damaged file has not."""
        try:
            envelope = self._read(name)
        except Damaged:
            return False
        return envelope is not None and self._unexpired(envelope) is None

    def _listed_key(self, name: str) -> str | None:
        """Return the key of a file unless its value has expired; None for a damaged one with a hashed name.

        A damaged file stays where it is: who reads its key next may know the value and write it back.
        """
        try:
            envelope = self._read(name)
        except Damaged as exc:
            key = file_format.decode_name(name)
            if key is None:
                self._report_nameless(name, reason=str(exc))
            return key
        return envelope.key if envelope is not None and self._unexpired(envelope) is not None else None

    def _report_nameless(self, name: str, *, reason: str) -> None:
        """Log once that a damaged file cannot be listed."""
        if name not in self._nameless and len(self._nameless) < _MOST_NAMELESS:
            self._nameless.add(name)
            logger.warning(
                "damaged file %s stays until its key, which its name does not tell, is read: %s",
                self.path / name,
                reason,
            )

    def _read_locked(self, name: str) -> Envelope | None:
        """Read the file; set it aside if it is damaged. Needs the lock."""
        try:
            return self._read(name)
        except Damaged as exc:
            self._set_aside(name, reason=str(exc))
            return None

    def _reread(self, name: str) -> Envelope | None:
        """Read a damaged file again under the lock; never raises, even if it cannot be set aside."""
        try:
            with self.writing():
                return self._read_locked(name)
        except StoreError as exc:
            logger.warning("damaged file %s could not be set aside: %s", self.path / name, exc)
            return None

    def _write(self, lock: int, key: str, value: bytes, *, ttl: float | None, old: Envelope | None) -> int:
        """Write the next version of the key; needs the lock."""
        if self._key_of is not None:
            return self._write_bare(lock, key, value, ttl=ttl)
        now = self._clock()
        version, moment = self._advance(lock, at_least=old.version if old is not None else 0, now=now)
        content = encode_value(key, Stored(value, version, None if ttl is None else now + ttl))
        self._replace(file_format.encode_name(key), content, mtime_ns=file_format.stamp(moment, ttl))
        return version

    def _replace_damaged(
        self, lock: int, key: str, change: Change, *, ttl: float | None, reason: str
    ) -> bytes | None:
        """Write a value in place of a damaged file, of which a copy is kept; needs the lock.

        Until then readers find the damaged file and not none: they may know the value that it had.
        """
        name = file_format.encode_name(key)
        self._copy_aside(name, reason=reason)
        written = False
        try:
            value = change(None)
            if value is not None:
                check_value(value)
                self._write(lock, key, value, ttl=ttl, old=None)
                written = True
            return value
        finally:
            if not written:
                self._remove([name])

    def _write_bare(self, lock: int, key: str, value: bytes, *, ttl: float | None) -> int:
        """Write a bare value, whose version is the unique time of writing; needs the lock."""
        if ttl is not None:
            raise CallRefused(f"file store: the space {self.path.name} has bare values, which cannot expire")
        _, moment = self._advance(lock, at_least=0, now=self._clock())
        self._replace(file_format.encode_name(key), value, mtime_ns=file_format.stamp(moment, None))
        return moment

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Hold the lock of the space and yield its descriptor; nested calls of one thread share it."""
        thread, held = threading.get_ident(), self._held
        if held is not None and held.thread == thread:
            yield held.descriptor
            return
        lock = self._acquire()
        before = self.stamp()
        self._held = SpaceLock(thread, lock)
        try:
            if not self._swept:
                self._sweep()
                self._swept = True
            yield lock
        finally:
            self._held = None
            if self._unsynced:
                self._unsynced = False
                sync_directory(self.path)
            advance_mtime(self._text, before)
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    @translated
    def _acquire(self) -> int:
        make_directories(self.path)
        deadline = time.monotonic() + self._lock_wait
        pause = 0.0002
        while time.monotonic() < deadline:
            lock = open_locked(self.path / _LOCK)
            if lock is not None:
                return lock
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)
        raise StoreError(
            f"file store: another process has locked {self.path} for more than {self._lock_wait:g} s"
        )

    @translated
    def _advance(self, lock: int, *, at_least: int, now: float) -> tuple[int, int]:
        """Return the next version and time stamp, saved before any other write so that neither repeats."""
        try:
            version, moment = map(int, os.pread(lock, 64, 0).split())
        except ValueError:
            version, moment = 0, 0
        version = max(version, at_least) + 1
        moment = max(moment + 1, int(now * 1e6))
        os.pwrite(lock, b"%20d %20d\n" % (version, moment), 0)
        return version, moment

    @translated
    def _exists(self, name: str) -> bool:
        try:
            (self.path / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @translated
    def _read(self, name: str) -> Envelope | None:
        try:
            with open(self.path / name, "rb") as file:
                content, mtime_ns = file.read(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None
        except IsADirectoryError as exc:
            raise Damaged("it is a directory") from exc
        if self._key_of is None:
            return decode_value(name, content)
        return decode_bare(name, content, key_of=self._key_of, mtime_ns=mtime_ns)

    @translated
    def _replace(self, name: str, content: bytes, *, mtime_ns: int) -> None:
        temporary = self._temporary()
        try:
            write_through(temporary, content, mtime_ns=mtime_ns)
            temporary.rename(self.path / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._unsynced = True

    def _temporary(self) -> Path:
        return self.path / f".{os.getpid()}-{time.monotonic_ns()}{_TEMPORARY}"

    @translated
    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)
        if names:
            self._unsynced = True

    @translated
    def _set_aside(self, name: str, *, reason: str) -> None:
        aside = self._aside(name)
        (self.path / name).rename(aside)
        self._unsynced = True
        logger.warning("damaged file %s set aside as %s: %s", self.path / name, aside.name, reason)

    def _copy_aside(self, name: str, *, reason: str) -> None:
        """Give a damaged file a second name; where that is not possible, only that name."""
        aside = self._aside(name)
        try:
            os.link(self.path / name, aside)
        except OSError:
            self._set_aside(name, reason=reason)
            return
        self._unsynced = True
        logger.warning("damaged file %s set aside as %s: %s", self.path / name, aside.name, reason)

    def _aside(self, name: str) -> Path:
        number = 1
        while os.path.lexists(aside := self.path / f"{name}.corrupt-{number}"):
            number += 1
        return aside

    @translated
    def _files(self) -> list[File]:
        """Return the files of the space, the least recently written first."""
        files = []
        for entry in self._entries():
            if file_format.is_store_file(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    files.append(File(status.st_mtime_ns, entry.name, status.st_size))
        return sorted(files)

    @translated
    def _has_leftovers(self) -> bool:
        return any(_is_temporary(entry.name) for entry in self._entries())

    @translated
    def _sweep(self) -> None:
        """Remove temporary files of killed writers; needs the lock."""
        for entry in self._entries():
            if _is_temporary(entry.name):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < self._clock() - TEMPORARY_MAX_AGE:
                        os.unlink(entry.path)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                return list(entries)
        except FileNotFoundError:
            return []


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(_TEMPORARY)


def _over_limits(files: list[File], *, entries: int, size: int) -> list[File]:
    """Return the oldest files that must be deleted to meet both limits."""
    total = sum(file.size for file in files)
    for at, file in enumerate(files):
        if len(files) - at <= entries and total <= size:
            return files[:at]
        total -= file.size
    return files


def mtime_of(path: str) -> int:
    """Return the modification time in nanoseconds; 0 if the path is missing.

    If that cannot be told, return a negative number that no other call returns.
    """
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError:
        return next(_unknown_stamps)


def advance_mtime(path: str, before: int) -> None:
    """Advance the modification time past `before`; errors are ignored, because the write has succeeded."""
    with suppress(OSError):
        status = os.stat(path)
        os.utime(path, ns=(status.st_atime_ns, max(status.st_mtime_ns, before + 1)))


def open_locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None if it is held elsewhere or the file was replaced."""
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
    """Sync renames and deletions; they have happened already, so a failure is only logged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        logger.warning("changes in %s may not survive a power failure: %s", path, exc.strerror)


def make_directories(path: Path) -> None:
    """Create the directory and its missing parents with access for this user only."""
    if path.is_dir():
        return
    make_directories(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        sync_directory(path.parent)
