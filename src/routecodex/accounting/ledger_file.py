"""The file of the usage ledger: written by one thread of each worker, read by anyone.

SQLite in WAL mode: several processes write, each one transaction per batch, and readers wait for nobody. A
batch that was committed survives the end of the process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from routecodex.accounting import ledger_schema
from routecodex.config import Config

log = logging.getLogger("routecodex.accounting")

LedgerRow: TypeAlias = tuple[Any, ...]
"""The values of a row, in the order of its columns."""

_BUSY_SECONDS = 1.0
_PRUNED_AT_ONCE = 2000
_VACUUMED_PAGES = 2000
_MEGABYTE = 1024 * 1024
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PRIMARY_CODE = 0xFF


def ledger_path(config: Config, home: Path) -> Path | None:
    """Return the file of a configuration, by default in the user dir `home`; None if there is no ledger."""
    if not config.usage.enabled:
        return None
    if config.usage.file:
        return home / Path(config.usage.file).expanduser()
    return home / "usage" / f"{config.server.identity}.sqlite"


class LedgerBatch(Struct, frozen=True):
    """Rows that are written together."""

    requests: Sequence[LedgerRow]
    calls: Sequence[LedgerRow]


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process holds the file: it may be free the next time."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _LOCKED


def _is_damaged(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGED


class LedgerFile:
    """The writer of one process; all methods run in one thread."""

    def __init__(self, path: Path, *, server: str, timezone: str) -> None:
        self.path = path
        self._facts = {"server": server, "timezone": timezone}
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def write(self, batch: LedgerBatch) -> None:
        """Write the rows and add them to the totals; sqlite3.Error or OSError if that is not possible.

        A damaged file is set aside, and the rows go to a new one.
        """
        try:
            self._write(batch)
        except sqlite3.DatabaseError as error:
            self.close()
            if not _is_damaged(error):
                raise
            self._set_aside(error)
            self._write(batch)

    def _write(self, batch: LedgerBatch) -> None:
        connection = self._opened()
        with _transaction(connection):
            before = _last_row(connection)
            _roll_up_others(connection, before)
            connection.executemany(ledger_schema.INSERT_REQUEST, batch.requests)
            connection.executemany(ledger_schema.INSERT_CALL, batch.calls)
            for statement in _ROLL_UP_NEW:
                connection.execute(statement, (before,))
            _put(connection, "rolled_up", _last_row(connection))

    def prune(self, *, oldest: float, max_mb: int) -> bool:
        """Delete some rows that ended before `oldest`, or that exceed the size; return whether more are left.

        Their hourly totals stay.
        """
        connection = self._opened()
        used = _used_bytes(connection)
        limit = int(oldest * 1000)
        first = connection.execute("SELECT MIN(time) FROM requests").fetchone()[0]
        too_large = used > max_mb * _MEGABYTE
        if first is None or (first >= limit and not too_large):
            return False
        with _transaction(connection):
            _delete_oldest(connection, None if too_large else limit)
        # Not `execute`, which takes one step only: each step frees one page.
        connection.executescript(f"PRAGMA incremental_vacuum({_VACUUMED_PAGES})")
        return True

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _opened(self) -> sqlite3.Connection:
        """Return the connection; a file that was removed or replaced is opened anew."""
        if self._connection is not None and self._inode != _inode(self.path):
            self.close()
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its other files the mode of this one.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._inode = _inode(self.path)
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            ledger_schema.create(connection)
            if any(_get(connection, name) != value for name, value in self._facts.items()):
                with _transaction(connection):
                    for name, value in self._facts.items():
                        _put(connection, name, value)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Rename a damaged file; of several workers that find it, one does."""
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _inode(self.path) != self._inode:
                return
            aside = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
            for end in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{end}", f"{aside}{end}")
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, aside)
            log.warning("the usage ledger is damaged (%s); kept as %s, a new one begins", error, aside)
        finally:
            os.close(lock)


_ROLL_UP_NEW = ledger_schema.roll_up("r.rowid > ?")
_ROLL_UP_SINCE = ledger_schema.roll_up("r.time >= 1000 * ?")


def _roll_up_others(connection: sqlite3.Connection, last: int) -> None:
    """Compute the totals anew from the first hour with rows that another program has added."""
    since = first_not_rolled_up(connection, last)
    if since is None:
        return
    day = since // ledger_schema.DAY * ledger_schema.DAY
    connection.execute("DELETE FROM hours WHERE hour >= ?", (day,))
    connection.execute("DELETE FROM days WHERE day >= ?", (day,))
    connection.execute("DELETE FROM day_groups WHERE day >= ?", (day,))
    for statement in _ROLL_UP_SINCE:
        connection.execute(statement, (day,))


def first_not_rolled_up(connection: sqlite3.Connection, last: int | None = None) -> int | None:
    """Return the time in seconds of the first request that is not in the totals; None if all are."""
    done = _get(connection, "rolled_up") or 0
    last = _last_row(connection) if last is None else last
    if last <= done:
        return None
    first = connection.execute("SELECT MIN(time) FROM requests WHERE rowid > ?", (done,)).fetchone()[0]
    return None if first is None else int(first) // 1000


def _delete_oldest(connection: sqlite3.Connection, before: int | None) -> None:
    condition, values = ("", ()) if before is None else ("WHERE time < ? ", (before,))
    rows = connection.execute(
        f"SELECT id FROM requests {condition}ORDER BY time LIMIT {_PRUNED_AT_ONCE}", values
    ).fetchall()
    connection.executemany("DELETE FROM calls WHERE request_id = ?", rows)
    connection.executemany("DELETE FROM requests WHERE id = ?", rows)
    left = connection.execute("SELECT MIN(time) FROM requests").fetchone()[0]
    seconds = int(time.time()) if left is None else left // 1000
    day = seconds // ledger_schema.DAY * ledger_schema.DAY
    connection.execute("DELETE FROM day_groups WHERE day < ?", (day,))


def _used_bytes(connection: sqlite3.Connection) -> int:
    size, pages, free = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_size", "page_count", "freelist_count")
    )
    return size * (pages - free)


def _last_row(connection: sqlite3.Connection) -> int:
    return connection.execute("SELECT MAX(rowid) FROM requests").fetchone()[0] or 0


def _get(connection: sqlite3.Connection, name: str) -> Any:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def _put(connection: sqlite3.Connection, name: str, value: Any) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


class UnreadableLedger(Exception):
    """The file is not a usage ledger that this version can read; its message says why."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one state of the file; FileNotFoundError or UnreadableLedger."""
    if not path.exists():
        raise FileNotFoundError(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = _connect_to_read(path)
        connection.execute("BEGIN")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
            # A server is about to create the tables.
            raise FileNotFoundError(path)
        if version != ledger_schema.USER_VERSION:
            known = ledger_schema.USER_VERSION
            raise UnreadableLedger(f"{path} has version {version} of the ledger; this command knows {known}")
        yield connection
    except sqlite3.Error as exc:
        raise UnreadableLedger(f"{path} cannot be read: {exc}") from exc
    finally:
        if connection is not None:
            connection.close()


def _connect_to_read(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    # Nobody can write where the other files of a database cannot be created.
    fixed = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    connection = sqlite3.connect(
        address + ("&immutable=1" if fixed else ""),
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def read_fact(connection: sqlite3.Connection, name: str) -> str:
    """Return a fact of the file, such as `timezone`; empty if it is not there."""
    return str(_get(connection, name) or "")
