"""Lists of requests from the usage ledger: pages, groups by session, and one request with its calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from routecodex.accounting.ledger_file import detailed_since
from routecodex.accounting.ledger_filter import RequestFilter
from routecodex.accounting.ledger_schema import CALL_COLUMNS, REQUEST_COLUMNS, REQUEST_FIGURES
from routecodex.accounting.timestamps import iso_millis

Row: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[int, int, int]
"""Position of a request in the list: the time of its end in milliseconds, its number among the requests that
usage counts, and 0; for others the number of the request in front of it, and its own number."""

_LAST = 1 << 62
END: Place = (_LAST, _LAST, _LAST)
"""The place behind all requests."""


class ListedTable(Struct, frozen=True):
    """A table of requests, and the columns that order the requests of one millisecond."""

    name: str
    order: tuple[str, ...]

    def place(self, time: int, *numbers: int) -> Place:
        """Return the place of a row."""
        return (time, numbers[0], numbers[1] if len(numbers) > 1 else 0)

    def before(self, place: Place) -> tuple[int, ...]:
        """Return the values of the columns at which rows before a place end."""
        time, number, other = place
        return (time, number, other) if len(self.order) > 1 else (time, number + bool(other))


COUNTED = ListedTable("requests", ("rowid",))
UNCOUNTED = ListedTable("uncounted", ("after", "rowid"))
TABLES = (COUNTED, UNCOUNTED)
"""Requests that usage counts, and all others."""

_COLUMNS = ", ".join(f"r.{name}" for name in REQUEST_COLUMNS)


class RequestPage(Struct, frozen=True):
    """Requests, newest last; `has_more`: there are older ones."""

    rows: list[Row]
    has_more: bool


def place_of(connection: sqlite3.Connection, id: str) -> Place | None:
    """Return where a request stands; None if the ledger does not have it."""
    for table in TABLES:
        columns = ", ".join(("time", *table.order))
        found = connection.execute(f"SELECT {columns} FROM {table.name} WHERE id = ?", (id,)).fetchone()
        if found is not None:
            return table.place(*found)
    return None


def page_of(
    connection: sqlite3.Connection, wanted: RequestFilter, *, limit: int, before: Place = END
) -> RequestPage:
    """Return the newest requests before a place, with their details."""
    found: list[tuple[Place, Row]] = []
    width = len(REQUEST_COLUMNS)
    for table in TABLES:
        sql, parameters = page_statement(table, wanted, limit=limit + 1, before=before)
        for values in connection.execute(sql, parameters):
            row = _row(REQUEST_COLUMNS, values[:width])
            found.append((table.place(row["time"], *values[width:]), row))
    found.sort(key=lambda pair: pair[0], reverse=True)
    rows = [row for _, row in found[:limit]][::-1]
    for row in rows:
        row["detail"] = detail_text(connection, row["id"])
    return RequestPage(rows, len(found) > limit)


def page_statement(
    table: ListedTable, wanted: RequestFilter, *, limit: int, before: Place
) -> tuple[str, list[Any]]:
    """Return the statement of a page of one table, newest first: it follows an index up to the limit."""
    where, values = wanted.where()
    order = ", ".join(f"r.{name}" for name in table.order)
    end = table.before(before)
    return (
        f"SELECT {_COLUMNS}, {order} FROM {table.name} r WHERE {where}"
        f" AND (r.time, {order}) < ({', '.join('?' * len(end))}) {_order(table)} LIMIT ?",
        [*values, *end, limit],
    )


def _order(table: ListedTable) -> str:
    return "ORDER BY " + ", ".join(f"r.{name} DESC" for name in ("time", *table.order))


def count(connection: sqlite3.Connection, wanted: RequestFilter) -> int:
    """Return how many requests match."""
    where, values = wanted.where()
    if wanted.is_empty:
        where, values = "1", []
    counts = (
        connection.execute(f"SELECT COUNT(*) FROM {table.name} r WHERE {where}", values).fetchone()[0]
        for table in TABLES
    )
    return sum(counts)


def find(connection: sqlite3.Connection, id: str) -> Row | None:
    """Return one request with its detail, and its calls as the ledger has them; None if it is unknown."""
    for table in TABLES:
        found = connection.execute(f"SELECT {_COLUMNS} FROM {table.name} r WHERE r.id = ?", (id,)).fetchone()
        if found is None:
            continue
        row = _row(REQUEST_COLUMNS, found)
        calls = connection.execute(
            f"SELECT {', '.join(CALL_COLUMNS)} FROM calls WHERE request_id = ? ORDER BY n", (id,)
        )
        row["calls"] = [_row(CALL_COLUMNS, values) for values in calls]
        row["detail"] = detail_text(connection, id)
        return row
    return None


def detail_text(connection: sqlite3.Connection, id: str) -> str | None:
    """Return the JSON of a request's details; None if it is not kept."""
    found = connection.execute("SELECT json FROM details WHERE id = ?", (id,)).fetchone()
    return None if found is None else str(found[0])


class SessionGroups(Struct, frozen=True):
    """Sessions of clients with their figures, newest last; `next` is the last request of the oldest group."""

    groups: list[Row]
    next: str | None
    total: int


def groups_of(
    connection: sqlite3.Connection,
    wanted: RequestFilter,
    *,
    limit: int,
    before: Place = END,
    counted: bool = True,
) -> SessionGroups:
    """Return the sessions whose last request is before a place; `counted`: with the number of all.

    Only requests that usage counts are in a group.
    """
    groups: list[Row] = []
    last, has_more = "", False
    for session, client, id in _latest(connection, wanted, before):
        if len(groups) == limit:
            has_more = True
            break
        groups.append(group_of(connection, wanted, session, client))
        last = id
    total = _group_count(connection, wanted) if counted else 0
    return SessionGroups(groups[::-1], last if has_more else None, total)


def _latest(
    connection: sqlite3.Connection, wanted: RequestFilter, before: Place
) -> Iterator[tuple[str, str, str]]:
    """Yield each session of a client once, by its last request, newest first.

    Every step continues behind the last one, so that all of them together pass each row once.
    """
    where, values = wanted.where()
    place = COUNTED.before(before)
    seen: list[str] = []
    while True:
        known = ", ".join(["(?, ?)"] * (len(seen) // 2))
        others = f" AND (r.session, r.client) NOT IN (VALUES {known})" if seen else ""
        found = connection.execute(
            f"SELECT r.session, r.client, r.time, r.id, r.rowid FROM requests r WHERE {where}"
            f" AND (r.time, r.rowid) < (?, ?){others} {_order(COUNTED)} LIMIT 1",
            (*values, *place, *seen),
        ).fetchone()
        if found is None:
            return
        session, client, time, id, number = found
        place = (time, number)
        seen += (session, client)
        if before == END or not _has_later(connection, wanted, session, client, before):
            yield session, client, id


def _has_later(
    connection: sqlite3.Connection, wanted: RequestFilter, session: str, client: str, place: Place
) -> bool:
    where, values = wanted.where()
    found = connection.execute(
        f"SELECT 1 FROM requests r WHERE {where} AND r.session = ? AND r.client = ?"
        " AND (r.time, r.rowid) >= (?, ?) LIMIT 1",
        (*values, session, client, *COUNTED.before(place)),
    ).fetchone()
    return found is not None


_GROUP_FIGURES = ("requests", "errors", "input_tokens", "output_tokens", "cache_read_tokens")


def group_of(
    connection: sqlite3.Connection, wanted: RequestFilter, session: str, client: str | None = None
) -> Row:
    """Return the figures of a session, of one client or of all; times are null without requests."""
    where, values = wanted.where()
    figures = ", ".join(f"COALESCE({sum}, 0)" for sum in REQUEST_FIGURES[: len(_GROUP_FIGURES)])
    if client is not None:
        where, values = f"{where} AND r.client = ?", [*values, client]
    found: Sequence[Any] = connection.execute(
        f"SELECT {figures}, SUM(COALESCE(r.cost_known, r.cost)), COUNT(r.cost), MIN(r.time), MAX(r.time),"
        f" MAX(r.client) FROM requests r WHERE {where} AND r.session = ?",
        (*values, session),
    ).fetchone()
    *sums, cost, priced, first, last, some_client = found
    return {
        "session": session,
        "client": some_client or "",
        **dict(zip(_GROUP_FIGURES, sums, strict=True)),
        "cost": cost if priced or cost else None,
        "first": None if first is None else iso_millis(first),
        "last": None if last is None else iso_millis(last),
    }


def _group_count(connection: sqlite3.Connection, wanted: RequestFilter) -> int:
    where, values = wanted.where()
    source = f"SELECT DISTINCT r.session, r.client FROM requests r WHERE {where}"
    if wanted.is_empty and detailed_since(connection) == 0:
        # Far fewer rows than requests.
        source = "SELECT DISTINCT s.session, f.client FROM session_hours s JOIN facets f ON f.id = s.facet"
    return int(connection.execute(f"SELECT COUNT(*) FROM ({source})", values).fetchone()[0])


def _row(columns: Sequence[str], values: Sequence[Any]) -> Row:
    return dict(zip(columns, values, strict=True))
