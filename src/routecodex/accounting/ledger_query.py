"""Figures of the usage ledger, by any of its names and over any time.

Whole hours and days come from the totals, the rest of a time range from the rows. Provider, model and key
count calls, by where each went; all other names count requests.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeAlias

from msgspec import Struct

from routecodex.accounting.figures import Figures
from routecodex.accounting.ledger_file import first_not_rolled_up
from routecodex.accounting.ledger_schema import (
    CALL_FIGURES,
    DAY,
    FIGURE_COLUMNS,
    GROUPED_NAMES,
    HOUR,
    REQUEST_FIGURES,
)

GROUPS = (
    "client",
    "team",
    "provider",
    "model",
    "key",
    "route",
    "session",
    "agent",
    "protocol",
    "day",
    "hour",
)
"""Names by which figures can be grouped."""
FILTERS = ("client", "team", "provider", "model", "session")
"""Names by which requests can be selected."""

_TIMES = ("day", "hour")
_HOURLY = frozenset(("client", "team", "provider", "model"))
_CALLED = frozenset(("provider", "model", "key"))
_NO_SLOT = "0"
_QUARTER = 900
"""Seconds: the offset of every time zone is a multiple of a quarter of an hour."""

Values: TypeAlias = tuple[Any, ...]
Sums: TypeAlias = dict[Values, Figures]


class UsageQuery(Struct, frozen=True, kw_only=True):
    """A question: figures by these names, of requests that ended in this time, with these values.

    Times are in seconds; without `until` everything since counts. Days are those of `zone`.
    """

    by: tuple[str, ...] = ()
    since: float = 0.0
    until: float | None = None
    filters: Mapping[str, str] = {}
    zone: tzinfo = UTC

    @property
    def counts_calls(self) -> bool:
        """Whether calls are counted, by where they went, and not requests."""
        return not _CALLED.isdisjoint((*self.by, *self.filters))


def figures(connection: sqlite3.Connection, query: UsageQuery) -> Sums:
    """Return the figures by the values of the names, in the order of `query.by`."""
    sums: Sums = {}
    for statement in statements(connection, query):
        for *values, slot in connection.execute(statement.sql, statement.values):
            found = Figures(*values[-len(FIGURE_COLUMNS) :])
            label = _label(query, values[: -len(FIGURE_COLUMNS)], slot)
            sums[label] = sums[label] + found if label in sums else found
    return sums


class Statement(Struct, frozen=True):
    """SQL and the values of its parameters; the columns are those of names and figures, then the time."""

    sql: str
    values: Sequence[Any]


def statements(connection: sqlite3.Connection, query: UsageQuery) -> Iterator[Statement]:
    """Yield the statements that answer a query."""
    spans: list[Span] = [(query.since, query.until)]
    for table in _tables_of(query):
        end = _end_of_totals(connection, table)
        parts = [_split(query, span, table.seconds, end) for span in spans]
        for whole, _ in parts:
            if whole is not None:
                yield table.statement(query, *whole)
        spans = [span for _, rest in parts for span in rest]
    for since, until in spans:
        yield _of_rows(query, since, until)


class TotalsTable(Struct, frozen=True):
    """A table of totals: its name, the length of its slots, and its own column of each name."""

    name: str
    slot: str
    seconds: int
    columns: Mapping[str, str]
    figures: tuple[str, ...]
    condition: str = "1"

    def statement(self, query: UsageQuery, since: int, until: int | None) -> Statement:
        names = [self.columns[name] for name in query.by if name not in _TIMES]
        slot = self.slot if _has_time(query) else _NO_SLOT
        conditions, values = [self.condition, f"{self.slot} >= ?"], list[Any]([since])
        if until is not None:
            conditions.append(f"{self.slot} < ?")
            values.append(until)
        for name, value in query.filters.items():
            conditions.append(f"{self.columns[name]} = ?")
            values.append(value)
        skipped = _broken_slots(query, self.seconds, since, until)
        if skipped:
            conditions.append(f"{self.slot} NOT IN ({', '.join(map(str, skipped))})")
        return Statement(
            _grouped(names, self.figures, slot, source=self.name, where=" AND ".join(conditions)), values
        )


_CLIENT_COLUMNS = {"client": "client", "team": "team"}
_SUMS = tuple(f"SUM({name})" for name in FIGURE_COLUMNS)
_CALL_SUMS = (
    "SUM(COALESCE(calls, requests))",
    "SUM(COALESCE(call_errors, errors))",
    *_SUMS[2:8],
    "SUM(COALESCE(call_unknown, cost_unknown))",
    _SUMS[9],
)


def _tables_of(query: UsageQuery) -> list[TotalsTable]:
    """Return the totals that have all names of a query, the coarsest first; none if only the rows do."""
    names = {name for name in query.by if name not in _TIMES} | set(query.filters)
    if "session" in query.filters:
        return []
    by_day = "hour" not in query.by and ("day" not in query.by or query.zone == UTC)
    if names <= _HOURLY:
        columns = {name: name for name in _HOURLY}
        sums = _CALL_SUMS if query.counts_calls else _SUMS
        hours = TotalsTable("hours", "hour", HOUR, columns, sums)
        return [TotalsTable("days", "day", DAY, columns, sums), hours] if by_day else [hours]
    others = names - _CLIENT_COLUMNS.keys()
    other = next(iter(others))
    if len(others) > 1 or other not in GROUPED_NAMES or not by_day:
        return []
    columns = {**_CLIENT_COLUMNS, other: "value"}
    return [TotalsTable("day_groups", "day", DAY, columns, _SUMS, f"name = '{other}'")]


def _end_of_totals(connection: sqlite3.Connection, table: TotalsTable) -> int | None:
    """Return the slot from which on rows are not in the totals, because another program wrote them."""
    since = first_not_rolled_up(connection)
    return None if since is None else since // table.seconds * table.seconds


Span: TypeAlias = tuple[float, float | None]


def _split(
    query: UsageQuery, span: Span, size: int, end: int | None
) -> tuple[tuple[int, int | None] | None, list[Span]]:
    """Return the whole slots of a span, and the spans of it that must be read from finer totals or rows."""
    since, until = span
    first = -int(-since // size) * size
    last = None if until is None else int(until // size) * size
    if end is not None:
        last = end if last is None else min(last, end)
    if last is not None and first >= last:
        return None, [span]
    rest: list[Span] = [(since, first)] if since < first else []
    rest += [(slot, slot + size) for slot in _broken_slots(query, size, first, last)]
    if last is not None and last != until:
        rest.append((last, until))
    return (first, last), rest


def _broken_slots(query: UsageQuery, size: int, since: int, until: int | None) -> list[int]:
    """Return the slots in which a day of the time zone ends: India's begins at half past."""
    if "day" not in query.by or query.zone == UTC:
        return []
    end = datetime.now(UTC).timestamp() if until is None else until
    found: list[int] = []
    moment = _midnight(datetime.fromtimestamp(since, query.zone))
    while moment.timestamp() < end:
        at = int(moment.timestamp())
        if at % size and since <= at - at % size:
            found.append(at - at % size)
        moment = _midnight(moment + timedelta(hours=36))
    return found


def _midnight(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


_REQUEST_NAMES = {
    "client": "r.client",
    "team": "r.team",
    "provider": "r.provider",
    "model": "r.target_model",
    "key": "r.key",
    "route": "r.route",
    "session": "r.session",
    "agent": "r.agent",
    "protocol": "r.protocol",
}
_CALL_NAMES = {**_REQUEST_NAMES, "provider": "c.provider", "model": "c.model", "key": "c.key"}


def _of_rows(query: UsageQuery, since: float, until: float | None) -> Statement:
    """Return the statement that reads the rows of a time."""
    columns, sums, source = _REQUEST_NAMES, REQUEST_FIGURES, "requests r"
    if query.counts_calls:
        columns, sums = _CALL_NAMES, CALL_FIGURES
        source = "requests r CROSS JOIN calls c ON c.request_id = r.id"
    conditions, values = ["r.time >= ?"], list[Any]([int(since * 1000)])
    if until is not None:
        conditions.append("r.time < ?")
        values.append(int(until * 1000))
    for name, value in query.filters.items():
        conditions.append(f"{columns[name]} = ?")
        values.append(value)
    names = [columns[name] for name in query.by if name not in _TIMES]
    slot = f"r.time / {_QUARTER * 1000} * {_QUARTER}" if _has_time(query) else _NO_SLOT
    return Statement(_grouped(names, sums, slot, source=source, where=" AND ".join(conditions)), values)


def _grouped(names: Sequence[str], sums: Iterable[str], slot: str, *, source: str, where: str) -> str:
    keys = [*names, *([slot] if slot != _NO_SLOT else [])] or ["NULL"]
    return (
        f"SELECT {', '.join((*names, *sums, slot))} FROM {source} WHERE {where}"
        f" GROUP BY {', '.join(keys)} HAVING COUNT(*) > 0"
    )


def _has_time(query: UsageQuery) -> bool:
    return not set(query.by).isdisjoint(_TIMES)


def _label(query: UsageQuery, values: Sequence[Any], slot: int) -> Values:
    """Return the values of the names, with day and hour in words."""
    rest = iter(values)
    return tuple(_time_label(name, slot, query.zone) if name in _TIMES else next(rest) for name in query.by)


def _time_label(name: str, slot: int, zone: tzinfo) -> str:
    if name == "day":
        return datetime.fromtimestamp(slot, zone).date().isoformat()
    return datetime.fromtimestamp(slot // HOUR * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
