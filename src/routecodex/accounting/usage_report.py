"""Reports of usage: the question as people and scripts put it, and its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from routecodex.accounting.figures import Figures, figures_of, total
from routecodex.accounting.ledger_file import read_fact, reading
from routecodex.accounting.ledger_query import FILTERS, GROUPS, Sums, UsageQuery, Values, figures
from routecodex.accounting.timestamps import iso_time, parse_duration
from routecodex.config import parse_time

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_DAY = 86_400
_TIMES = frozenset(("day", "hour"))


class InvalidUsageQuery(Exception):
    """A part of a question is wrong; `parameter` names it."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.message = message


class UsageQuestion:
    """A question as it was put; times and days depend on the time zone of each ledger."""

    def __init__(
        self,
        *,
        by: Sequence[str] = (),
        since: str | None = None,
        until: str | None = None,
        filters: Mapping[str, str | None] | None = None,
        now: float,
    ) -> None:
        self.by = tuple(dict.fromkeys(by))
        self.now = now
        self.filters = {name: value for name, value in (filters or {}).items() if value is not None}
        self._since = since
        self._until = until
        for name in self.by:
            if name not in GROUPS:
                raise InvalidUsageQuery("by", f"{name[:80]!r} is not one of {', '.join(GROUPS)}")
        assert set(self.filters) <= set(FILTERS)
        self.query(UTC)

    def query(self, zone: tzinfo) -> UsageQuery:
        """Return the query for a ledger of this time zone; the default is today."""
        since = self._moment("since", self._since, zone)
        until = self._moment("until", self._until, zone)
        if since is None:
            since = _midnight(self.now, zone)
        if since > self.now + _DAY:
            # A date may have begun in the time zone of a ledger, and not yet in others.
            raise InvalidUsageQuery("since", "is in the future")
        if until is not None and until < since:
            raise InvalidUsageQuery("until", "is before since")
        open_end = None if until is not None and until > self.now else until
        return UsageQuery(by=self.by, since=since, until=open_end, filters=self.filters, zone=zone)

    def times(self, zone: tzinfo) -> tuple[str, str]:
        """Return the beginning and the end of the time in ISO 8601."""
        query = self.query(zone)
        end = max(self.now, query.since) if query.until is None else query.until
        return iso_time(query.since), iso_time(end)

    def _moment(self, name: str, text: str | None, zone: tzinfo) -> float | None:
        return None if text is None else past_moment(name, text, zone=zone, now=self.now)


def past_moment(name: str, text: str, *, zone: tzinfo, now: float) -> float:
    """Return the time that a parameter names: a duration before now, a day, or an ISO 8601 time."""
    duration = parse_duration(text)
    if duration is not None:
        return max(0.0, now - duration)
    if _DATE.match(text.strip()):
        try:
            return datetime.fromisoformat(text.strip()).replace(tzinfo=zone).timestamp()
        except ValueError:
            pass
    found = parse_time(text)
    if found is None:
        raise InvalidUsageQuery(
            name, f"{text[:80]!r} is not a time; write 7d, 24h, 2026-11-18 or 2026-11-18T12:00:00Z"
        )
    return found


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name; UTC if it is unknown."""
    try:
        return UTC if name in ("", "UTC") else ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return UTC


def read_usage(path: Path, question: UsageQuestion, zone: tzinfo | None = None) -> dict[str, Any]:
    """Answer from a ledger; its time zone is that of its server, unless `zone` is given."""
    with reading(path) as connection:
        zone = zone or zone_of(read_fact(connection, "timezone"))
        found = figures(connection, question.query(zone))
    return report(question, [found], zone)


def report(question: UsageQuestion, parts: Iterable[Sums], zone: tzinfo) -> dict[str, Any]:
    """Return the answer: the sum of these figures, by the values of the names."""
    first, *others = [*parts] or [{}]
    sums: dict[Values, Figures] = dict(first) if others else first
    for part in others:
        for label, row in part.items():
            sums[label] = sums[label] + row if label in sums else row
    ordered = sorted(sums.items(), key=_order(question.by))
    since, until = question.times(zone)
    names = question.by
    return {
        "since": since,
        "until": until,
        "by": list(question.by),
        "rows": [row.as_dict(zip(names, label, strict=True)) for label, row in ordered],
        "total": total(sums.values()).as_dict(),
    }


def merge(question: UsageQuestion, answers: Sequence[Mapping[str, Any]], zone: tzinfo) -> dict[str, Any]:
    """Return the answer of several servers."""
    parts: list[Sums] = [
        {tuple(row[name] for name in question.by): figures_of(row) for row in answer["rows"]}
        for answer in answers
    ]
    merged = report(question, parts, zone)
    if answers:
        merged["since"] = min(answer["since"] for answer in answers)
    return merged


def _order(by: Sequence[str]) -> Callable[[tuple[Values, Figures]], tuple[Any, ...]]:
    """Return the key that sorts by time, then the dearest first."""
    places = [place for place, name in enumerate(by) if name in _TIMES]
    if not places:
        return lambda item: (-item[1].cost, -item[1].requests, item[0])
    return lambda item: (*(item[0][place] for place in places), -item[1].cost, -item[1].requests, item[0])


def _midnight(now: float, zone: tzinfo) -> float:
    # Where clocks go back over midnight there are two of them; the day begins with the first.
    today = datetime.fromtimestamp(now, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    return today.timestamp()
