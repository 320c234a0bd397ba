"""Past use of a limit, from the usage ledger: counters whose file was lost begin with it.

Whole hours of long windows are read from the totals, everything else from the rows of requests and calls.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from routecodex.accounting.cost import NANOS
from routecodex.accounting.ledger_file import UnreadableLedger, reading
from routecodex.accounting.limits import CountedUnit, Limit
from routecodex.accounting.windows import MICROS
from routecodex.config import TEAM_PREFIX

log = logging.getLogger("routecodex.limits")

_HOUR: Final = 3600
_LONG: Final = 3 * 24 * _HOUR * MICROS
_PARTS: Final = 240
"""Times that the rows of a window are grouped into: four for each bucket."""
_MILLI: Final = MICROS // 1000
_COLUMNS: Final[dict[CountedUnit, str]] = {
    "input": "{0}.input_tokens",
    "output": "{0}.output_tokens",
    "tokens": "{0}.input_tokens + {0}.output_tokens",
    "uncached": "MAX({0}.input_tokens - {0}.cache_read_tokens, 0) + {0}.output_tokens",
}


class LedgerUse:
    """Reads past use from a ledger; one that is missing or cannot be read has none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, limit: Limit, since: int) -> list[tuple[int, int]]:
        """Return time and amount of what the limit counts since a time, in microseconds."""
        if limit.owner.startswith("key:"):
            return []
        try:
            with reading(self._path) as connection:
                return list(_use(connection, limit, since))
        except FileNotFoundError:
            return []
        except (UnreadableLedger, sqlite3.Error, OSError) as exc:
            log.warning("the use of %s is not known: the usage ledger cannot be read: %s", limit.name, exc)
            return []


def _use(connection: sqlite3.Connection, limit: Limit, since: int) -> Iterator[tuple[int, int]]:
    if limit.window.length < _LONG:
        yield from _of_rows(connection, limit, since, None)
        return
    first = -(-since // (_HOUR * MICROS)) * _HOUR
    yield from _of_rows(connection, limit, since, first * MICROS)
    yield from _of_hours(connection, limit, first)


def _owner(limit: Limit, alias: str) -> tuple[str, str]:
    """Return condition and value for the rows of the limit's owner."""
    kind, _, name = limit.owner.partition(":")
    return f"{alias}.{'team' if f'{kind}:' == TEAM_PREFIX else 'client'} = ?", name


def _of_rows(
    connection: sqlite3.Connection, limit: Limit, since: int, until: int | None
) -> Iterator[tuple[int, int]]:
    owner, name = _owner(limit, "r")
    slot = max(limit.window.length // _PARTS // _MILLI, 1)
    source, target = "requests r", "'', ''"
    if limit.models:
        source, target = "requests r JOIN calls c ON c.request_id = r.id", "c.provider, c.model"
    statement = (
        f"SELECT MAX(r.time), {target}, {_sum(limit.unit, calls=bool(limit.models))} FROM {source}"
        f" WHERE r.time >= ? AND r.time < ? AND {owner} GROUP BY r.time / {slot}, 2, 3"
    )
    end = (1 << 62) if until is None else until // _MILLI
    for time, provider, model, amount in connection.execute(statement, (since // _MILLI, end, name)):
        if limit.covers(provider, model):
            yield time * _MILLI, _amount(limit.unit, amount)


def _sum(unit: CountedUnit, *, calls: bool) -> str:
    if unit == "requests":
        return "COUNT(DISTINCT r.id)" if calls else "COUNT(*)"
    if unit == "usd":
        return "SUM(COALESCE(c.cost, 0))" if calls else "SUM(COALESCE(r.cost_known, r.cost, 0))"
    return f"SUM({_COLUMNS[unit].format('c' if calls else 'r')})"


def _of_hours(connection: sqlite3.Connection, limit: Limit, first: int) -> Iterator[tuple[int, int]]:
    owner, name = _owner(limit, "h")
    column = {"requests": "h.requests", "usd": "h.cost"}.get(limit.unit) or _COLUMNS[limit.unit].format("h")
    statement = (
        f"SELECT h.hour, h.provider, h.model, COALESCE({column}, 0)"
        f" FROM hours h WHERE h.hour >= ? AND {owner}"
    )
    for hour, provider, model, amount in connection.execute(statement, (first, name)):
        if limit.covers(provider, model):
            # The end of the hour: what is placed in the future counts as used now.
            yield (hour + _HOUR) * MICROS - 1, _amount(limit.unit, amount)


def _amount(unit: CountedUnit, amount: float) -> int:
    return round(amount * NANOS) if unit == "usd" else int(amount)
