"""One space of a file store: a directory of JSON files, each replaced whole, one writer at a time.

    {"version": 7, "expires": null, "key": "the key as given", "value": …}

A space may be bare instead: then a file is the value and nothing else. The value itself tells its key, the
modification time serves as the version, and nothing expires.

Reading takes no lock: a file is always the old one or the new one. Writing holds an advisory lock on `.lock`,
against other threads and other processes alike; the kernel lets go of it when its holder dies. The lock file
also keeps the last version given and the last moment stamped, which is why neither ever repeats within a
space.

The modification time of the directory tells that something in it has changed. The operating system sets it
with every rename and deletion, even those of a writer that is killed right after; since its clock may tick
slower than we write, a writer moves it on before it lets go of the lock, and no two writes leave the same.

What is written under one lock is made to last together: the directory is synced once, before the lock is let
go of. Whoever is told that something is written is told so after that.

What the operating system does for a file store, and its errors with the way out.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from routecodex.stores import file_format
from routecodex.stores.file_format import Damaged, Envelope, KeyOf, decode_bare, decode_value, encode_value
from routecodex.stores.store import Change, Stored, StoreError, check_value, check_version

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


TEMPORARY_LIFE = 3600.0
SHORT_KEY = 128

_NAMES = 16_384
"""How many names of keys are remembered: more than there are sessions, or they push each other out."""
_LOCK = ".lock"
_TEMPORARY = ".tmp"


class File(NamedTuple):
    """What listing the directory tells of a file; sorts by the time it was written."""

    mtime_ns: int
    name: str
    size: int


class Held(NamedTuple):
    """The lock of a space, and the thread that has it."""

    thread: int
    lock: int


class Folder:
    """The calls of a store on one space; every one of them may block on the disk or on another writer."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float], lock_wait: float, key_of: KeyOf | None = None
    ) -> None:
        self.path = path
        self._key_of = key_of
        self._text = str(path)
        self._name_of = functools.lru_cache(maxsize=_NAMES)(file_format.encode_name)
        self._clock = clock
        self._lock_wait = lock_wait
        self._swept = False
        self._held: Held | None = None
        self._unsynced = False

    def __str__(self) -> str:
        return self._text

    def stamp(self) -> int:
        return modified(self._text)

    def stamp_of(self, key: str) -> int:
        name = self._name_of(key) if len(key) <= SHORT_KEY else file_format.encode_name(key)
        return modified(f"{self._text}/{name}")

    def get(self, key: str) -> Stored | None:
        name = file_format.encode_name(key)
        try:
            return self._unexpired(self._read(name))
        except Damaged:
            return self._unexpired(self._look_again(name))

    def put(self, key: str, value: bytes, *, ttl: float | None, expected: int | None) -> int:
        check_value(value)
        name = file_format.encode_name(key)
        with self.writing() as lock:
            old = self._settled(name)
            check_version(expected, self._unexpired(old), where=f"{self.path.name}/{key[:80]!r}")
            return self._write(lock, key, value, ttl=ttl, old=old)

    def delete(self, key: str) -> bool:
        name = file_format.encode_name(key)
        if not self._exists(name):
            return False
        with self.writing():
            old = self._settled(name)
            if old is not None:
                self._remove([name])
            return self._unexpired(old) is not None

    def update(self, key: str, change: Change, *, ttl: float | None) -> bytes | None:
        name = file_format.encode_name(key)
        with self.writing() as lock:
            old = self._settled(name)
            live = self._unexpired(old)
            value = change(live.value if live is not None else None)
            if value is not None:
                check_value(value)
                self._write(lock, key, value, ttl=ttl, old=old)
            elif old is not None:
                self._remove([name])
            return value

    def keys(self) -> list[str]:
        return [envelope.key for file in self._files() if (envelope := self._listed(file.name)) is not None]

    def trim(self, *, entries: int, size: int) -> int:
        if not self._exists(""):
            return 0
        with self.writing():
            self._sweep()
            files = self._files()
            now = self._clock()
            doomed = [
                file
                for file in files
                if file_format.may_have_expired(file.mtime_ns, now) and self._expired(file.name)
            ]
            gone = {file.name for file in doomed}
            left = [file for file in files if file.name not in gone]
            doomed += _past_limits(left, entries=entries, size=size)
            self._remove([file.name for file in doomed])
            return len(doomed)

    def _unexpired(self, envelope: Envelope | None) -> Stored | None:
        if envelope is None or (envelope.expires is not None and envelope.expires <= self._clock()):
            return None
        return Stored(bytes(envelope.value), envelope.version, envelope.expires)

    def _expired(self, name: str) -> bool:
        """Under the lock: whether the file is there and its value has expired."""
        envelope = self._settled(name)
        return envelope is not None and self._unexpired(envelope) is None

    def _listed(self, name: str) -> Envelope | None:
        try:
            envelope = self._read(name)
        except Damaged:
            envelope = self._look_again(name)
        return envelope if self._unexpired(envelope) is not None else None

    def _settled(self, name: str) -> Envelope | None:
        """Under the lock: what the file holds, after setting it aside if it is damaged."""
        try:
            return self._read(name)
        except Damaged as exc:
            self._set_aside(name, reason=str(exc))
            return None

    def _look_again(self, name: str) -> Envelope | None:
        """What a reader that met a damaged file gets: never an error, even where nothing can be renamed."""
        try:
            with self.writing():
                return self._settled(name)
        except StoreError as exc:
            logger.warning("damaged file %s could not be set aside: %s", self.path / name, exc)
            return None

    def _write(self, lock: int, key: str, value: bytes, *, ttl: float | None, old: Envelope | None) -> int:
        """Under the lock: gives the key its next version."""
        if self._key_of is not None:
            return self._write_bare(lock, key, value, ttl=ttl)
        now = self._clock()
        version, moment = self._advance(lock, at_least=old.version if old is not None else 0, now=now)
        content = encode_value(key, Stored(value, version, None if ttl is None else now + ttl))
        self._replace(file_format.encode_name(key), content, mtime_ns=file_format.stamp(moment, ttl))
        return version

    def _write_bare(self, lock: int, key: str, value: bytes, *, ttl: float | None) -> int:
        """Under the lock: the moment of writing is the version, since no two writes share one."""
        if ttl is not None:
            raise StoreError(f"file store: {self.path.name} keeps bare values, which cannot expire")
        _, moment = self._advance(lock, at_least=0, now=self._clock())
        self._replace(file_format.encode_name(key), value, mtime_ns=file_format.stamp(moment, None))
        return moment

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Holds the lock of the space, once for all that this thread writes; gives its descriptor."""
        thread, held = threading.get_ident(), self._held
        if held is not None and held.thread == thread:
            yield held.lock
            return
        lock = self._acquire()
        before = self.stamp()
        self._held = Held(thread, lock)
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
            move_on(self._text, before)
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
            f"file store: {self.path} was kept locked for {self._lock_wait:g} s by another process"
        )

    @translated
    def _advance(self, lock: int, *, at_least: int, now: float) -> tuple[int, int]:
        """The next version and moment, written down before anything else so that neither is given twice."""
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
        temporary = self.path / f".{os.getpid()}-{time.monotonic_ns()}{_TEMPORARY}"
        try:
            write_through(temporary, content, mtime_ns=mtime_ns)
            temporary.rename(self.path / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._unsynced = True

    @translated
    def _remove(self, doomed: list[str]) -> None:
        for name in doomed:
            (self.path / name).unlink(missing_ok=True)
        if doomed:
            self._unsynced = True

    @translated
    def _set_aside(self, name: str, *, reason: str) -> None:
        number = 1
        while os.path.lexists(aside := self.path / f"{name}.corrupt-{number}"):
            number += 1
        (self.path / name).rename(aside)
        self._unsynced = True
        logger.warning("damaged file %s set aside as %s: %s", self.path / name, aside.name, reason)

    @translated
    def _files(self) -> list[File]:
        """The files of the space, the least recently written first."""
        files = []
        for entry in self._entries():
            if file_format.is_ours(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    files.append(File(status.st_mtime_ns, entry.name, status.st_size))
        return sorted(files)

    @translated
    def _sweep(self) -> None:
        """Under the lock: removes what writers that were killed left behind."""
        for entry in self._entries():
            if entry.name.startswith(".") and entry.name.endswith(_TEMPORARY):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < self._clock() - TEMPORARY_LIFE:
                        os.unlink(entry.path)

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                return list(entries)
        except FileNotFoundError:
            return []


def _past_limits(files: list[File], *, entries: int, size: int) -> list[File]:
    """The oldest files, as many as have to go for both limits to hold."""
    total = sum(file.size for file in files)
    for at, file in enumerate(files):
        if len(files) - at <= entries and total <= size:
            return files[:at]
        total -= file.size
    return files
