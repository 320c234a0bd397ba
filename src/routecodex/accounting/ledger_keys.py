"""Figures of keys over a recent time: attempts, failures, time to the first byte, cost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from routecodex.accounting.first_bytes import bucket_sql, percentile

KeyName: TypeAlias = tuple[str, str]
"""Provider and key."""

_MOST_FAILED = 5000
_FAILED = "COALESCE(r.error, '') <> '' OR (r.status >= 400 AND r.status <> 499)"


class KeyFigures(Struct):
    """Attempts at a key; those that failed before another target answered are among them."""

    requests: int = 0
    errors: int = 0
    cost: float | None = None
    first_bytes: Counter[int] = field(default_factory=Counter)

    @property
    def first_byte_p50(self) -> float | None:
        """Median of the seconds to the first byte."""
        return percentile(self.first_bytes, 0.5)


class _FailedCall(Struct):
    target: str
    kind: str = ""
    error: str | None = None


class _Calls(Struct):
    calls: list[_FailedCall] = []


_calls = msgspec.json.Decoder(_Calls)


def key_figures(connection: sqlite3.Connection, *, since: float) -> dict[KeyName, KeyFigures]:
    """Return the figures of every key that was used since a time in seconds."""
    found: dict[KeyName, KeyFigures] = {}
    start = (int(since * 1000),)
    for provider, key, requests, errors in connection.execute(
        f"SELECT r.provider, r.key, COUNT(*), SUM({_FAILED}) FROM requests r"
        " WHERE r.time >= ? AND r.provider <> '' GROUP BY 1, 2",
        start,
    ):
        found[provider, key] = KeyFigures(requests, errors)
    for provider, key, cost in connection.execute(
        "SELECT c.provider, c.key, SUM(c.cost) FROM requests r CROSS JOIN calls c ON c.request_id = r.id"
        " WHERE r.time >= ? GROUP BY 1, 2",
        start,
    ):
        found.setdefault((provider, key), KeyFigures()).cost = cost
    for provider, key, bucket, requests in connection.execute(
        f"SELECT r.provider, r.key, {bucket_sql('r.first_byte_ms')}, COUNT(*) FROM requests r"
        " WHERE r.time >= ? AND r.first_byte_ms IS NOT NULL GROUP BY 1, 2, 3",
        start,
    ):
        found.setdefault((provider, key), KeyFigures()).first_bytes[bucket] += requests
    _add_failed_attempts(connection, start, found)
    return found


def _add_failed_attempts(
    connection: sqlite3.Connection, start: tuple[int], found: dict[KeyName, KeyFigures]
) -> None:
    """Add attempts that failed and were followed by another one: only details name them."""
    rows = connection.execute(
        "SELECT d.json FROM requests r JOIN details d ON d.id = r.id"
        " WHERE r.time >= ? AND r.attempts > 1 ORDER BY r.time DESC LIMIT ?",
        (*start, _MOST_FAILED),
    )
    for (text,) in rows:
        try:
            calls = _calls.decode(text).calls
        except msgspec.MsgspecError:
            continue
        # The last one is that of the request itself.
        for call in calls[:-1]:
            provider, _, rest = call.target.partition(".")
            if call.kind == "attempt" and call.error is not None:
                figures = found.setdefault((provider, rest.partition(".")[0]), KeyFigures())
                figures.requests += 1
                figures.errors += 1
