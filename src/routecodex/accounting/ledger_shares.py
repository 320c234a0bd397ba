"""Shares of the requests of each route, by target."""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

Shares: TypeAlias = dict[tuple[str, str], float]
"""Share of the requests of a route that a target answered, by route and `provider.key.model`."""


def target_shares(connection: sqlite3.Connection, *, since: float) -> Shares:
    """Return the shares since a time in seconds; a route without requests has none."""
    rows = connection.execute(
        "SELECT route, provider || '.' || key || '.' || target_model, COUNT(*) FROM requests"
        " WHERE time >= ? AND provider <> '' GROUP BY 1, 2",
        (int(since * 1000),),
    ).fetchall()
    totals: dict[str, int] = {}
    for route, _, count in rows:
        totals[route] = totals.get(route, 0) + count
    return {(route, target): count / totals[route] for route, target, count in rows}
