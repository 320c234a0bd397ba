"""Figures of the usage ledger, by any of its names and over any time.

Whole hours and days come from the smallest totals that have all names of a query, the rest of a time from the
rows. Provider, model and key count calls, by where each went; all other names count requests.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from operator import itemgetter
from typing import Any, TypeAlias

from msgspec import Struct

from routecodex.accounting.figures import Figures
from routecodex.accounting.ledger_file import days_until, detailed_since, first_not_rolled_up
from routecodex.accounting.ledger_schema import (
    CALL_FIGURES,
    DAY,
    FACET_COLUMNS,
    FIGURE_COLUMNS,
    HOUR,
    REQUEST_FIGURES,
)
from routecodex.accounting.local_days import DayOffsets, day_offsets
from routecodex.accounting.timestamps import iso_time

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
    count = len(FIGURE_COLUMNS)
    label_of = _labels(query)
    for statement in statements(connection, query):
        for row in connection.execute(statement.sql, statement.values):
            found = Figures(*row[-count - 1 : -1])
            label = label_of(row)
            sums[label] = sums[label] + found if label in sums else found
    if not query.counts_calls:
        return sums
    # A request that ended without a call is in the totals of its target.
    return {label: found for label, found in sums.items() if found.requests}


class Statement(Struct, frozen=True):
    """SQL and the values of its parameters; the columns are those of names and figures, then the time."""

    sql: str
    values: Sequence[Any]


def statements(connection: sqlite3.Connection, query: UsageQuery) -> Iterator[Statement]:
    """Yield the statements that answer a query."""
    days = _day_offsets(connection, query)
    spans: list[Span] = [(query.since, query.until)]
    for table in _tables_of(query):
        limits = _limits_of(connection, table)
        parts = [_split(span, table.seconds, limits, days) for span in spans]
        for whole, _ in parts:
            if whole is not None:
                yield table.statement(query, whole, days)
        spans = [span for _, rest in parts for span in rest]
    for since, until in spans:
        yield _of_rows(query, since, until, days)


Span: TypeAlias = tuple[float, float | None]
Slots: TypeAlias = tuple[int, int | None]
"""The first slot, and the one behind the last."""


class TotalsTable(Struct, frozen=True):
    """A table of totals: where it is read, the length of its slots, and its own column of each name."""

    source: str
    slot: str
    seconds: int
    columns: Mapping[str, str]
    figures: tuple[str, ...]
    is_detailed: bool = True
    """Whether its totals are as old as the rows, and may be missing in a file of an earlier gateway."""

    def statement(self, query: UsageQuery, slots: Slots, days: DayOffsets | None) -> Statement:
        names = [self.columns[name] for name in query.by if name not in _TIMES]
        since, until = slots
        conditions, values = [f"{self.slot} >= ?"], list[Any]([since])
        if until is not None:
            conditions.append(f"{self.slot} < ?")
            values.append(until)
        for name, value in query.filters.items():
            conditions.append(f"{self.columns[name]} = ?")
            values.append(value)
        skipped = [] if days is None else days.broken_slots(self.seconds, since, until)
        if skipped:
            conditions.append(f"{self.slot} NOT IN ({', '.join(map(str, skipped))})")
        slot = self.slot if self._is_grouped_by_slots(query) else _slot(query, self.slot, days)
        where = " AND ".join(conditions)
        return Statement(_grouped(names, self.figures, slot, source=self.source, where=where), values)

    def _is_grouped_by_slots(self, query: UsageQuery) -> bool:
        """Whether its slots are the times of the answer, so that nothing is computed and little sorted."""
        return "hour" in query.by or ("day" in query.by and self.seconds == DAY)


_SUMS = tuple(f"SUM({name})" for name in FIGURE_COLUMNS)
_CALL_SUMS = (
    "SUM(COALESCE(calls, requests))",
    "SUM(COALESCE(call_errors, errors))",
    *_SUMS[2:8],
    "SUM(COALESCE(call_unknown, cost_unknown))",
    _SUMS[9],
)
_TARGET_COLUMNS = {name: name for name in _HOURLY}
_FACET_COLUMNS = {name: f"f.{name}" for name in FACET_COLUMNS}
_SESSION_COLUMNS = {**_FACET_COLUMNS, "session": "t.session"}


def _tables_of(query: UsageQuery) -> list[TotalsTable]:
    """Return the smallest totals that have all names of a query, the coarsest first."""
    names = {name for name in query.by if name not in _TIMES} | set(query.filters)
    has_days = "hour" not in query.by and ("day" not in query.by or query.zone == UTC)
    slots = (("day", DAY), ("hour", HOUR)) if has_days else (("hour", HOUR),)
    sums = _CALL_SUMS if query.counts_calls else _SUMS
    if names <= _HOURLY:
        return [TotalsTable(f"{slot}s", slot, size, _TARGET_COLUMNS, sums, False) for slot, size in slots]
    if "session" not in names:
        sources = "facets f CROSS JOIN facet_{}s t ON t.facet = f.id"
        return [
            TotalsTable(sources.format(slot), f"t.{slot}", size, _FACET_COLUMNS, sums) for slot, size in slots
        ]
    sources = "session_{}s t" + ("" if names == {"session"} else " CROSS JOIN facets f ON f.id = t.facet")
    return [
        TotalsTable(sources.format(slot), f"t.{slot}", size, _SESSION_COLUMNS, sums) for slot, size in slots
    ]


def _limits_of(connection: sqlite3.Connection, table: TotalsTable) -> tuple[int, int | None]:
    """Return the times between which all rows are in the totals.

    Rows that another program wrote are not, nor are, for a while, those of an earlier gateway. Totals by day
    have the days that are over.
    """
    begin = detailed_since(connection) if table.is_detailed else 0
    if begin is None:
        return 0, 0
    ends = [first_not_rolled_up(connection), days_until(connection) if table.seconds == DAY else None]
    return begin, min((end for end in ends if end is not None), default=None)


def _split(
    span: Span, size: int, limits: tuple[int, int | None], days: DayOffsets | None
) -> tuple[Slots | None, list[Span]]:
    """Return the whole slots of a span, and the spans of it that must be read from finer totals or rows."""
    since, until = span
    begin, end = limits
    first = -int(-max(since, begin) // size) * size
    last = None if until is None else int(until // size) * size
    if end is not None:
        end = end // size * size
        last = end if last is None else min(last, end)
    if last is not None and first >= last:
        return None, [span]
    rest: list[Span] = [(since, first)] if since < first else []
    rest += [] if days is None else [(slot, slot + size) for slot in days.broken_slots(size, first, last)]
    if last is not None and last != until:
        rest.append((last, until))
    return (first, last), rest


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


def _of_rows(query: UsageQuery, since: float, until: float | None, days: DayOffsets | None) -> Statement:
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
    slot = _slot(query, "r.time / 1000", days)
    return Statement(_grouped(names, sums, slot, source=source, where=" AND ".join(conditions)), values)


def _grouped(names: Sequence[str], sums: Iterable[str], slot: str, *, source: str, where: str) -> str:
    # The plus keeps SQLite from reading an index in the order of the groups, which reads all times. A table
    # of totals is in the order of its slots: grouped by them first, it need not be sorted.
    keys = [f"+{name}" for name in names] or ["NULL"]
    if slot != _NO_SLOT:
        keys = [slot, *names] if slot.isidentifier() else [*keys, slot]
    return (
        f"SELECT {', '.join((*names, *sums, slot))} FROM {source} WHERE {where}"
        f" GROUP BY {', '.join(keys)} HAVING COUNT(*) > 0"
    )


def _slot(query: UsageQuery, seconds: str, days: DayOffsets | None) -> str:
    """Return the expression by which times are grouped."""
    if "hour" in query.by:
        size = _QUARTER if "day" in query.by else HOUR
        return f"{seconds} / {size} * {size}"
    if "day" not in query.by:
        return _NO_SLOT
    local = seconds if days is None else f"({seconds} + {days.expression(seconds)})"
    return f"{local} / {DAY} * {DAY}"


def _day_offsets(connection: sqlite3.Connection, query: UsageQuery) -> DayOffsets | None:
    """Return the offsets of a query by days that are not those of UTC."""
    if "day" not in query.by or query.zone == UTC:
        return None
    # Each in a statement of its own: only a single minimum or maximum is read from an index.
    bounds = ("MIN(hour) FROM hours", "MIN(time) / 1000 FROM requests", "MAX(time) / 1000 FROM requests")
    hour, first, last = (connection.execute(f"SELECT {bound}").fetchone()[0] or 0 for bound in bounds)
    end = max(hour, last) + DAY if query.until is None else query.until
    return day_offsets(query.zone, max(query.since, min(hour, first) or hour or first), end)


def _labels(query: UsageQuery) -> Callable[[Values], Values]:
    """Return the function that takes the values of the names from a row, with day and hour in words."""
    names = [name for name in query.by if name not in _TIMES]
    if len(names) == len(query.by):
        return lambda row: row[: len(names)]
    times = [name for name in query.by if name in _TIMES]
    words: dict[int, Values] = {}
    # Times first, then the other names: one call in C puts them in order for each of thousands of rows.
    places = [[*times, *names].index(name) for name in query.by]
    ordered: Callable[[Values], Values] = itemgetter(*places)

    def label(row: Values) -> Values:
        slot = row[-1]
        if slot not in words:
            words[slot] = tuple(_time_label(name, query, slot) for name in times)
        return ordered(words[slot] + row)

    return label if len(places) > 1 else lambda row: (label(row),)


def _time_label(name: str, query: UsageQuery, slot: int) -> str:
    if name == "hour":
        return iso_time(slot // HOUR * HOUR)
    zone = query.zone if "hour" in query.by else UTC
    return datetime.fromtimestamp(slot, zone).date().isoformat()
