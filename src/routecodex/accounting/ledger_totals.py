"""The totals of the usage ledger: how requests are added, computed anew, and deleted.

The requests of a batch are summed up before they are written (ledger_sums.py). The sums by hour, session and
facet are in a table of the connection, from which every table of totals takes them. Totals by day are
computed from those by hour when the day is over, which makes a batch cheap; later requests of such a day are
added to both. All functions run inside a transaction of the caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from routecodex.accounting.ledger_schema import (
    CALL_COUNT_COLUMNS,
    CALL_FIGURES,
    DAY,
    FACET_COLUMNS,
    FIGURE_COLUMNS,
    HOUR,
    REQUEST_FIGURES,
    add_first_bytes,
)
from routecodex.accounting.ledger_sums import LedgerSums

_SUMMED = (*FIGURE_COLUMNS, *CALL_COUNT_COLUMNS)
_OF_REQUESTS = ("requests", "errors", "cost_unknown")
_OF_CALLS = tuple(name for name in FIGURE_COLUMNS if name not in _OF_REQUESTS)

_BATCH = f"""
CREATE TEMP TABLE IF NOT EXISTS batch_totals (
    hour INTEGER NOT NULL, session TEXT NOT NULL, facet INTEGER NOT NULL,
    {", ".join(f"{name} NOT NULL DEFAULT 0" for name in _SUMMED)}
)
"""
_NAMED = f"""
CREATE TEMP TABLE IF NOT EXISTS batch_sums (
    hour INTEGER NOT NULL, session TEXT NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL" for name in FACET_COLUMNS)},
    {", ".join(f"{name} NOT NULL" for name in _SUMMED)}
)
"""
_NAMED_COLUMNS = ("hour", "session", *FACET_COLUMNS, *_SUMMED)
_INSERT_NAMED = (
    f"INSERT INTO batch_sums ({', '.join(_NAMED_COLUMNS)}) VALUES ({', '.join('?' * len(_NAMED_COLUMNS))})"
)
_FACETS_OF_SUMS = (
    f"INSERT OR IGNORE INTO facets ({', '.join(FACET_COLUMNS)})"
    f" SELECT DISTINCT {', '.join(FACET_COLUMNS)} FROM batch_sums"
)
_TOTALS_OF_SUMS = (
    f"INSERT INTO batch_totals (hour, session, facet, {', '.join(_SUMMED)})"
    f" SELECT b.hour, b.session, f.id, {', '.join(f'b.{name}' for name in _SUMMED)}"
    f" FROM batch_sums b CROSS JOIN facets f"
    f" ON {' AND '.join(f'f.{name} = b.{name}' for name in FACET_COLUMNS)}"
)
_INSERT_FIRST_BYTES = (
    "INSERT INTO first_bytes (hour, client, provider, model, bucket, requests) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET requests = requests + excluded.requests"
)
_FACET_OF_REQUEST = tuple(f"r.{'target_model' if name == 'model' else name}" for name in FACET_COLUMNS)
_FACET_OF_CALL = tuple(
    f"{'c' if name in ('provider', 'model', 'key') else 'r'}.{name}" for name in FACET_COLUMNS
)
_CALLS_OF_REQUESTS = "requests r CROSS JOIN calls c ON c.request_id = r.id"


def _facets(names: Sequence[str], source: str, where: str) -> str:
    """Return the statement that adds the facets of these rows."""
    return (
        f"INSERT OR IGNORE INTO facets ({', '.join(FACET_COLUMNS)})"
        f" SELECT DISTINCT {', '.join(names)} FROM {source} WHERE {where}"
    )


def _sums(columns: Sequence[str], sums: Sequence[str], names: Sequence[str], source: str, where: str) -> str:
    """Return the statement that sums up these rows by hour, session and facet."""
    same = " AND ".join(f"f.{name} = {value}" for name, value in zip(FACET_COLUMNS, names, strict=True))
    return (
        f"INSERT INTO batch_totals (hour, session, facet, {', '.join(columns)})"
        f" SELECT r.time / {HOUR * 1000} * {HOUR}, r.session, f.id, {', '.join(sums)}"
        f" FROM {source} CROSS JOIN facets f ON {same} WHERE {where} GROUP BY 1, 2, 3"
    )


def _pick(figures: Sequence[str], names: Iterable[str]) -> list[str]:
    return [figures[FIGURE_COLUMNS.index(name)] for name in names]


def _collecting(where: str) -> tuple[str, ...]:
    """Return the statements that sum up the requests of a condition on `r`."""
    counted = (*_OF_CALLS, *CALL_COUNT_COLUMNS)
    return (
        _facets(_FACET_OF_REQUEST, "requests r", where),
        _facets(_FACET_OF_CALL, _CALLS_OF_REQUESTS, where),
        _sums(_OF_REQUESTS, _pick(REQUEST_FIGURES, _OF_REQUESTS), _FACET_OF_REQUEST, "requests r", where),
        _sums(
            counted,
            _pick(CALL_FIGURES, (*_OF_CALLS, *_OF_REQUESTS)),
            _FACET_OF_CALL,
            _CALLS_OF_REQUESTS,
            where,
        ),
    )


class TotalsPair(Struct, frozen=True):
    """Two tables of the same totals, by hour and by day, and the columns of their key beside the time."""

    prefix: str
    key: tuple[str, ...]

    def table(self, slot: str) -> str:
        return f"{self.prefix}{slot}s"

    def adding(self, slot: str) -> str:
        """Return the statement that adds the sums of a batch up to an hour."""
        columns = [_BATCH_COLUMNS.get(name, f"f.{name}") for name in self.key]
        has_names = not set(self.key) <= _BATCH_COLUMNS.keys()
        source = "batch_totals b" + (" CROSS JOIN facets f ON f.id = b.facet" if has_names else "")
        return self._upsert(slot, "b.", columns, f"{source} WHERE b.hour < ?")

    def closing(self) -> str:
        """Return the statement that adds the totals by hour between two times to those by day."""
        return self._upsert("day", "", self.key, f"{self.table('hour')} WHERE hour >= ? AND hour < ?")

    def _upsert(self, slot: str, prefix: str, columns: Sequence[str], source: str) -> str:
        table, size = self.table(slot), HOUR if slot == "hour" else DAY
        grouped = (f"{prefix}hour / {size} * {size}", *columns)
        sums = (f"SUM(COALESCE({prefix}{name}, 0))" for name in _SUMMED)
        added = ", ".join(f"{name} = COALESCE({table}.{name}, 0) + excluded.{name}" for name in _SUMMED)
        return (
            f"INSERT INTO {table} ({', '.join((slot, *self.key, *_SUMMED))})"
            f" SELECT {', '.join((*grouped, *sums))} FROM {source} GROUP BY {', '.join(grouped)}"
            f" ON CONFLICT ({', '.join((slot, *self.key))}) DO UPDATE SET {added}"
        )


_BATCH_COLUMNS = {"session": "b.session", "facet": "b.facet"}
_KEPT = (TotalsPair("", ("client", "team", "provider", "model")),)
"""Totals that stay when their rows are deleted."""
_DETAILED = (TotalsPair("facet_", ("facet",)), TotalsPair("session_", ("session", "facet")))
_ALL = (*_KEPT, *_DETAILED)
_ADDING = {pair.table(slot): pair.adding(slot) for pair in _ALL for slot in ("hour", "day")}
_CLOSING = tuple(pair.closing() for pair in _ALL)
_NEVER = 1 << 60

_NEW = _collecting("r.rowid > ?")
_SINCE = _collecting("r.time >= 1000 * ?")
_FIRST_BYTES_NEW = add_first_bytes("r.rowid > ?")
_FIRST_BYTES_SINCE = add_first_bytes("r.time >= 1000 * ?")
_WITHIN = _collecting("r.time >= 1000 * ? AND r.time < 1000 * ?")


def prepare(connection: sqlite3.Connection) -> None:
    """Create the table of sums of a connection that will add requests."""
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(_BATCH)
    connection.execute(_NAMED)


def add_sums(connection: sqlite3.Connection, sums: LedgerSums, *, closed: int) -> None:
    """Add the sums of a batch; the days before `closed`, in seconds, have totals."""
    connection.executemany(_INSERT_NAMED, sums.rows())
    _add(connection, (_FACETS_OF_SUMS, _TOTALS_OF_SUMS), (), _ALL, closed)
    connection.execute("DELETE FROM batch_sums")
    connection.executemany(_INSERT_FIRST_BYTES, sums.first_bytes())


def add_new(connection: sqlite3.Connection, after: int, *, closed: int) -> None:
    """Add the requests behind a row, from their rows."""
    _add(connection, _NEW, (after,), _ALL, closed)
    connection.execute(_FIRST_BYTES_NEW, (after,))


def compute_since(connection: sqlite3.Connection, since: int, *, closed: int) -> None:
    """Compute the totals anew from the beginning of the day of a time, in seconds."""
    day = since // DAY * DAY
    _delete(connection, _ALL, day, _NEVER)
    _add(connection, _SINCE, (day,), _ALL, closed)
    connection.execute("DELETE FROM first_bytes WHERE hour >= ?", (day,))
    connection.execute(_FIRST_BYTES_SINCE, (day,))


def close_days(connection: sqlite3.Connection, *, closed: int, until: int) -> None:
    """Compute the totals of the days between two times from those of their hours."""
    for statement in _CLOSING:
        connection.execute(statement, (closed, until))


def backfill(connection: sqlite3.Connection, before: int, *, closed: int) -> int:
    """Compute the detailed totals of the last day before this one, and return it; 0 if no requests are left.

    A file of an earlier gateway gets them day by day, the latest first: no other worker waits long.
    """
    last = connection.execute("SELECT MAX(time) FROM requests WHERE time < 1000 * ?", (before,)).fetchone()[0]
    if last is None:
        connection.execute("DROP TABLE IF EXISTS day_groups")
        return 0
    day = int(last) // 1000 // DAY * DAY
    _delete(connection, _DETAILED, day, before)
    _add(connection, _WITHIN, (day, day + DAY), _DETAILED, closed)
    return day


def delete_before(connection: sqlite3.Connection, day: int) -> None:
    """Delete the detailed totals of earlier days, and the facets that only they had."""
    if connection.execute("SELECT 1 FROM session_hours WHERE hour < ? LIMIT 1", (day,)).fetchall():
        _delete(connection, _DETAILED, 0, day)
        connection.execute("DELETE FROM first_bytes WHERE hour < ?", (day,))
        connection.execute("DELETE FROM facets WHERE id NOT IN (SELECT facet FROM facet_hours)")


def _delete(connection: sqlite3.Connection, pairs: Iterable[TotalsPair], since: int, until: int) -> None:
    for pair in pairs:
        for slot in ("hour", "day"):
            connection.execute(
                f"DELETE FROM {pair.table(slot)} WHERE {slot} >= ? AND {slot} < ?", (since, until)
            )


def _add(
    connection: sqlite3.Connection,
    collecting: Iterable[str],
    values: tuple[Any, ...],
    pairs: Sequence[TotalsPair],
    closed: int,
) -> None:
    for statement in collecting:
        connection.execute(statement, values)
    for pair in pairs:
        connection.execute(_ADDING[pair.table("hour")], (_NEVER,))
    if connection.execute("SELECT 1 FROM batch_totals WHERE hour < ? LIMIT 1", (closed,)).fetchall():
        for pair in pairs:
            connection.execute(_ADDING[pair.table("day")], (closed,))
    connection.execute("DELETE FROM batch_totals")
