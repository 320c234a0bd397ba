"""Figures of the usage ledger over time: points of equal length, by one name or for all requests.

Whole hours inside a point come from the totals, the rest of it from the rows. Requests count at the target
that answered last, tokens and costs where each call went. Percentiles come from counts in buckets
(`first_bytes`), which can be added up.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from routecodex.accounting.first_bytes import bucket_sql, percentile
from routecodex.accounting.ledger_file import first_not_rolled_up
from routecodex.accounting.ledger_filter import RequestFilter
from routecodex.accounting.ledger_schema import CALL_FIGURES, HOUR, REQUEST_FIGURES
from routecodex.accounting.timestamps import iso_millis

NAMES = ("provider", "client", "model", "route")
"""Names by which points can be grouped."""
MOST_POINTS = 500
MOST_SERIES = 12
ALL, OTHER = "all", "other"

_HOURLY = frozenset(("client", "provider", "model"))
"""Names that the totals by hour have."""
_CALLED = frozenset(("provider", "model"))
_ROW_COLUMNS = {"client": "r.client", "provider": "r.provider", "model": "r.target_model", "route": "r.route"}
_CALL_COLUMNS = {**_ROW_COLUMNS, "provider": "c.provider", "model": "c.model"}
_COUNTS = (*REQUEST_FIGURES[:2], REQUEST_FIGURES[8])
_USED = (2, 3, 4, 7)
"""Places of the figures input, output, cache read and cost."""

Span: TypeAlias = tuple[int, int]
"""Beginning and end in milliseconds."""
Where: TypeAlias = tuple[str, list[Any]]


class SeriesQuery(Struct, frozen=True, kw_only=True):
    """Points of `step` seconds from `since` to `until`, by a name or for all, of the requests of a filter."""

    since: float
    until: float
    step: int
    by: str | None = None
    wanted: RequestFilter = RequestFilter()

    @property
    def span(self) -> Span:
        """The whole time; a request that ended in the last millisecond is in it."""
        # Rounded first: a time in whole milliseconds may be a little more or less as a float.
        return int(round(self.since * 1000, 3)), math.ceil(round(self.until * 1000, 3))

    @property
    def points(self) -> int:
        """Number of points."""
        since, until = self.span
        return max(1, math.ceil((until - since) / (self.step * 1000)))

    @property
    def is_hourly(self) -> bool:
        """Whether the totals by hour have all of its names."""
        names = {*self.wanted.names, *([self.by] if self.by else [])}
        return names <= _HOURLY and not self.wanted.q

    @property
    def counts_calls(self) -> bool:
        """Whether tokens and costs are those of calls, by where each went, and not of requests."""
        names = {*self.wanted.names, *([self.by] if self.by else [])}
        return not names.isdisjoint(_CALLED) and names.isdisjoint(("target", "status")) and not self.wanted.q


class Point(Struct):
    """Figures of one point; `first_bytes` counts requests by bucket."""

    requests: int = 0
    errors: int = 0
    unpriced: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost: float = 0.0
    first_bytes: Counter[int] = field(default_factory=Counter)

    def count(self, requests: int, errors: int, unpriced: int) -> None:
        self.requests += requests
        self.errors += errors
        self.unpriced += unpriced

    def use(self, input: int, output: int, cache_read: int, cost: float) -> None:
        self.input_tokens += input
        self.output_tokens += output
        self.cache_read_tokens += cache_read
        self.cost += cost

    def add(self, other: Point) -> None:
        self.count(other.requests, other.errors, other.unpriced)
        self.use(other.input_tokens, other.output_tokens, other.cache_read_tokens, other.cost)
        self.first_bytes += other.first_bytes

    def shown(self, at: int) -> dict[str, Any]:
        """Return the point as the admin API shows it; a cost of which nothing is known is null."""
        is_unknown = not self.cost and self.unpriced > 0 and self.unpriced >= self.requests
        return {
            "t": iso_millis(at),
            "requests": self.requests,
            "errors": self.errors,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cost": None if is_unknown else self.cost,
            "first_byte_p50": percentile(self.first_bytes, 0.5),
            "first_byte_p95": percentile(self.first_bytes, 0.95),
        }


Points: TypeAlias = dict[str, dict[int, Point]]
"""Points that have requests, by name and number."""


def series(
    connection: sqlite3.Connection, query: SeriesQuery, *, counted: bool = False
) -> list[dict[str, Any]]:
    """Return the series with all their points, the one with the most requests first.

    With `counted` a point has the counts of its times to the first byte by bucket, as `first_bytes`.
    """
    found: Points = {}
    hours, rest = _split(connection, query)
    if hours is not None:
        _add_hours(connection, query, hours, found)
    for span in rest:
        _add_rows(connection, query, span, found)
    if query.by is None and not found:
        found[ALL] = {}
    since, _ = query.span
    times = [since + number * query.step * 1000 for number in range(query.points)]
    return [
        {"name": name, "points": [_shown(points.get(n, _NOTHING), at, counted) for n, at in enumerate(times)]}
        for name, points in _largest(found)
    ]


def _shown(point: Point, at: int, counted: bool) -> dict[str, Any]:
    return point.shown(at) | ({"first_bytes": dict(point.first_bytes)} if counted else {})


_NOTHING = Point()


def _largest(found: Points) -> list[tuple[str, dict[int, Point]]]:
    """Return the series with the most requests, and the sum of all others as the last one."""
    ranked = sorted(found.items(), key=lambda item: (-_requests(item[1]), item[0]))
    if len(ranked) <= MOST_SERIES:
        return ranked
    others: dict[int, Point] = {}
    for _, points in ranked[MOST_SERIES - 1 :]:
        for number, point in points.items():
            others.setdefault(number, Point()).add(point)
    return [*ranked[: MOST_SERIES - 1], (OTHER, others)]


def _requests(points: Mapping[int, Point]) -> int:
    return sum(point.requests for point in points.values())


def _split(connection: sqlite3.Connection, query: SeriesQuery) -> tuple[Span | None, list[Span]]:
    """Return the time that totals can answer, and the spans that only rows can: hours with two points."""
    since, until = query.span
    size = HOUR * 1000
    first, last = -(-since // size) * size, until // size * size
    others = first_not_rolled_up(connection)
    if others is not None:
        last = min(last, others // HOUR * size)
    if not query.is_hourly or query.step < HOUR or first >= last:
        return None, [(since, until)]
    rest = [(since, first), (last, until)]
    for number in range(1, query.points):
        edge = since + number * query.step * 1000
        hour = edge // size * size
        if edge % size and first <= hour < last:
            rest.append((hour, hour + size))
    return (first, last), [(begin, end) for begin, end in sorted(set(rest)) if begin < end]


def _add_hours(connection: sqlite3.Connection, query: SeriesQuery, hours: Span, found: Points) -> None:
    since, _ = query.span
    length = query.step * 1000
    begin, end = (f"(hour * 1000 + {more} - {since}) / {length}" for more in (0, HOUR * 1000 - 1))
    conditions = [f"hour >= {hours[0] // 1000}", f"hour < {hours[1] // 1000}", f"{begin} = {end}"]
    conditions += [f"{name} = ?" for name in query.wanted.names]
    where, values = " AND ".join(conditions), list(query.wanted.names.values())
    name = query.by or f"'{ALL}'"
    sums = ", ".join(
        f"SUM({column})"
        for column in (
            "requests",
            "errors",
            "cost_unknown",
            "input_tokens",
            "output_tokens",
            "cache_read_tokens",
            "cost",
        )
    )
    for label, number, *figures in connection.execute(
        f"SELECT {name}, {begin}, {sums} FROM hours WHERE {where} GROUP BY 1, 2", values
    ):
        point = _point(found, label, number)
        point.count(*figures[:3])
        point.use(*figures[3:])
    _add_buckets(
        connection,
        f"SELECT {name}, {begin}, bucket, SUM(requests) FROM first_bytes WHERE {where} GROUP BY 1, 2, 3",
        values,
        found=found,
    )


def _add_rows(connection: sqlite3.Connection, query: SeriesQuery, span: Span, found: Points) -> None:
    for sql, values, place in _row_statements(query, span):
        for label, number, *figures in connection.execute(sql, values):
            point = _point(found, label, number)
            if place != "used":
                point.count(*figures[:3])
            if place != "counts":
                point.use(*figures[-len(_USED) :])
    where, values = _where(query, span, _ROW_COLUMNS)
    name, number = _labels(query, _ROW_COLUMNS)
    _add_buckets(
        connection,
        f"SELECT {name}, {number}, {bucket_sql('r.first_byte_ms')}, COUNT(*) FROM requests r"
        f" WHERE {where} AND r.first_byte_ms IS NOT NULL GROUP BY 1, 2, 3",
        values,
        found=found,
    )


def _row_statements(query: SeriesQuery, span: Span) -> Iterator[tuple[str, list[Any], str]]:
    """Yield the statements that read the rows of a span: counts and use at once, unless calls differ."""
    name, number = _labels(query, _ROW_COLUMNS)
    where, values = _where(query, span, _ROW_COLUMNS)
    used = [] if query.counts_calls else [REQUEST_FIGURES[place] for place in _USED]
    columns = ", ".join((*_COUNTS, *used))
    place = "counts" if query.counts_calls else "all"
    yield f"SELECT {name}, {number}, {columns} FROM requests r WHERE {where} GROUP BY 1, 2", values, place
    if not query.counts_calls:
        return
    name, number = _labels(query, _CALL_COLUMNS)
    where, values = _where(query, span, _CALL_COLUMNS)
    columns = ", ".join(CALL_FIGURES[place] for place in _USED)
    yield (
        f"SELECT {name}, {number}, {columns} FROM requests r CROSS JOIN calls c ON c.request_id = r.id"
        f" WHERE {where} GROUP BY 1, 2",
        values,
        "used",
    )


def _labels(query: SeriesQuery, columns: Mapping[str, str]) -> tuple[str, str]:
    """Return the expressions for the name of a series, and the number of a point."""
    since, _ = query.span
    name = f"'{ALL}'" if query.by is None else columns[query.by]
    return name, f"(r.time - {since}) / {query.step * 1000}"


def _where(query: SeriesQuery, span: Span, columns: Mapping[str, str]) -> Where:
    """Return the condition on rows of a span; a model is that of the target, as in the totals."""
    own = {name: value for name, value in query.wanted.names.items() if name in _CALLED}
    others = {name: value for name, value in query.wanted.names.items() if name not in own}
    where, values = replace(query.wanted, names=others, since=None, until=None).where()
    conditions = [where, *(f"{columns[name]} = ?" for name in own), f"r.time >= {span[0]}"]
    return " AND ".join([*conditions, f"r.time < {span[1]}"]), [*values, *own.values()]


def _add_buckets(connection: sqlite3.Connection, sql: str, values: Sequence[Any], *, found: Points) -> None:
    for label, number, bucket, requests in connection.execute(sql, values):
        _point(found, label, number).first_bytes[bucket] += requests


def _point(found: Points, label: str, number: int) -> Point:
    return found.setdefault(label, {}).setdefault(number, Point())
