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
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from msgspec import Struct

from routecodex.accounting import ledger_schema, ledger_totals
from routecodex.accounting.ledger_schema import ROWS_AT_ONCE, TableInsert
from routecodex.accounting.ledger_sums import LedgerSums

if TYPE_CHECKING:
    from routecodex.config import Config

log = logging.getLogger("routecodex.accounting")

LedgerRow: TypeAlias = tuple[Any, ...]
"""The values of a row, in the order of its columns."""

_BUSY_SECONDS = 1.0
_PRUNED_AT_ONCE = 2000
_VACUUMED_PAGES = 2000
_MOST_UNCOUNTED = 20_000
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
    return home / "usage" / f"{config.identity}.sqlite"


class LedgerBatch(Struct, frozen=True):
    """Rows that are written together.

    The last value of a row of `uncounted` is the number of rows of `requests` in front of it.
    """

    requests: Sequence[LedgerRow]
    calls: Sequence[LedgerRow]
    uncounted: Sequence[LedgerRow] = ()
    details: Sequence[LedgerRow] = ()


def is_locked(error: sqlite3.Error) -> bool:
    """Return whether another process holds the file: it may be free the next time."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _LOCKED


def _is_damaged(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _DAMAGED


class LedgerFile:
    """The writer of one process; all methods run in one thread. `pause` is called between statements."""

    def __init__(
        self,
        path: Path,
        *,
        server: str,
        timezone: str,
        now: Callable[[], float] = time.time,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._pause = pause or _no_pause
        self._now = now
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
            closed = _close_days(connection, int(self._now()))
            _roll_up_others(connection, before, closed)
            inserted = _insert(connection, ledger_schema.REQUESTS, batch.requests, self._pause)
            _insert(connection, ledger_schema.CALLS, batch.calls, self._pause)
            connection.executemany(
                ledger_schema.INSERT_UNCOUNTED, [(*row, before + number) for *row, number in batch.uncounted]
            )
            connection.executemany(ledger_schema.INSERT_DETAIL, batch.details)
            if inserted == len(batch.requests):
                sums = LedgerSums(batch.requests, batch.calls)
                ledger_totals.add_sums(connection, sums, closed=closed)
            else:
                # Some were there before, and are counted.
                ledger_totals.add_new(connection, before, closed=closed)
            last = _last_row(connection)
            for name in _ROLLED_UP:
                _put(connection, name, last)

    def open(self) -> None:
        """Open the file, and create what it lacks; sqlite3.Error or OSError if that is not possible."""
        self._opened()

    def prune(self, *, oldest: float, max_mb: int, details_since: float = 0.0) -> bool:
        """Delete some rows that ended before `oldest`, or that exceed the size; return whether more are left.

        Their hourly totals stay. Details of requests that began before `details_since` are deleted too.
        """
        connection = self._opened()
        with _transaction(connection):
            more = _delete_details(connection, details_since)
        return self._prune_rows(connection, oldest, max_mb) or more

    def _prune_rows(self, connection: sqlite3.Connection, oldest: float, max_mb: int) -> bool:
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

    def backfill(self) -> bool:
        """Add a day to the totals that a file of an earlier gateway lacks; return whether more are left."""
        connection = self._opened()
        if not _get(connection, "facets_since"):
            return False
        with _transaction(connection):
            # Another worker may have done it meanwhile.
            since = _get(connection, "facets_since")
            if since:
                since = ledger_totals.backfill(connection, since, closed=days_until(connection))
                _put(connection, "facets_since", since)
        return bool(since)

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
            ledger_schema.create(connection, now=self._now())
            ledger_totals.prepare(connection)
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


def _no_pause() -> None:
    """Do nothing."""


def _insert(
    connection: sqlite3.Connection,
    table: TableInsert,
    rows: Sequence[LedgerRow],
    pause: Callable[[], None],
) -> int:
    """Insert rows, many with each statement; return how many were not there before.

    Every statement gives up the GIL and must wait for it: one for each row makes requests wait too.
    """
    before, end = connection.total_changes, len(rows) // ROWS_AT_ONCE * ROWS_AT_ONCE
    for first in range(0, end, ROWS_AT_ONCE):
        connection.execute(table.many, tuple(chain.from_iterable(rows[first : first + ROWS_AT_ONCE])))
        pause()
    connection.executemany(table.one, rows[end:])
    return connection.total_changes - before


_ROLLED_UP = ("rolled_up", "facets")
"""Facts with the last row that is in the totals; an earlier gateway knows the first only."""


def _roll_up_others(connection: sqlite3.Connection, last: int, closed: int) -> None:
    """Compute the totals anew from the first day with rows that another program has added."""
    since = first_not_rolled_up(connection, last)
    if since is not None:
        ledger_totals.compute_since(connection, since, closed=closed)


def _close_days(connection: sqlite3.Connection, now: int) -> int:
    """Compute the totals of the days that have ended, and return the time up to which days have totals."""
    closed, today = days_until(connection), now // ledger_schema.DAY * ledger_schema.DAY
    if closed >= today:
        return closed
    ledger_totals.close_days(connection, closed=closed, until=today)
    _put(connection, "days_until", today)
    return today


def days_until(connection: sqlite3.Connection) -> int:
    """Return the time in seconds up to which days have totals."""
    return int(_get(connection, "days_until") or 0)


def first_not_rolled_up(connection: sqlite3.Connection, last: int | None = None) -> int | None:
    """Return the time in seconds of the first request that is not in the totals; None if all are."""
    facts = [_get(connection, name) for name in _ROLLED_UP]
    done = min((fact for fact in facts if fact is not None), default=0)
    last = _last_row(connection) if last is None else last
    if last <= done:
        return None
    first = connection.execute("SELECT MIN(time) FROM requests WHERE rowid > ?", (done,)).fetchone()[0]
    return None if first is None else int(first) // 1000


def detailed_since(connection: sqlite3.Connection) -> int | None:
    """Return the time in seconds from which on facets and sessions have totals; None if there are none."""
    if _get(connection, "facets") is None:
        return None
    return int(_get(connection, "facets_since") or 0)


def _delete_oldest(connection: sqlite3.Connection, before: int | None) -> None:
    condition, values = ("", ()) if before is None else ("WHERE time < ? ", (before,))
    rows = connection.execute(
        f"SELECT id FROM requests {condition}ORDER BY time LIMIT {_PRUNED_AT_ONCE}", values
    ).fetchall()
    connection.executemany("DELETE FROM calls WHERE request_id = ?", rows)
    connection.executemany("DELETE FROM requests WHERE id = ?", rows)
    connection.executemany("DELETE FROM details WHERE id = ?", rows)
    left = connection.execute("SELECT MIN(time) FROM requests").fetchone()[0]
    seconds = int(time.time()) if left is None else left // 1000
    day = seconds // ledger_schema.DAY * ledger_schema.DAY
    ledger_totals.delete_before(connection, day)


def _delete_details(connection: sqlite3.Connection, since: float) -> bool:
    """Delete some details of requests that began before a time; the time is the beginning of their ids."""
    first = f"req_{int(since):08x}"
    deleted = connection.execute(
        "DELETE FROM details WHERE id IN (SELECT id FROM details WHERE id < ? ORDER BY id LIMIT ?)",
        (first, _PRUNED_AT_ONCE),
    ).rowcount
    connection.execute(
        "DELETE FROM uncounted WHERE rowid IN (SELECT rowid FROM uncounted WHERE time < ?"
        " OR rowid <= (SELECT MAX(rowid) FROM uncounted) - ? ORDER BY time LIMIT ?)",
        (int(since * 1000), _MOST_UNCOUNTED, _PRUNED_AT_ONCE),
    )
    return deleted == _PRUNED_AT_ONCE


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


def has_request(path: Path, id: str) -> bool:
    """Return whether a ledger has a request of this id."""
    with reading(path) as connection:
        return connection.execute("SELECT 1 FROM requests WHERE id = ?", (id,)).fetchone() is not None


def read_fact(connection: sqlite3.Connection, name: str) -> str:
    """Return a fact of the file, such as `timezone`; empty if it is not there."""
    return str(_get(connection, name) or "")
