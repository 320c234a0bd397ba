"""The tables of the usage ledger, and how they are filled.

| Table        | Rows                                                                                 |
|--------------|--------------------------------------------------------------------------------------|
| `requests`   | one per request                                                                      |
| `calls`      | one per call of a provider that produced tokens                                      |
| `hours`      | totals by hour, client, team, provider and model; they stay when rows are deleted     |
| `days`       | the same by day                                                                      |
| `day_groups` | totals by day, client, team and one further name: session, agent, route, protocol, key |
| `meta`       | facts of the file: its server, its time zone, the last row that is in the totals      |

Times are Unix milliseconds, money is USD, null is unknown. In `requests` the columns `cost_known` and
`cost_estimated` are the parts of the cost that are known, and known but not `reported`; `cost` is null if the
price of one call is unknown. In `hours`, `requests` and `errors` are at the target that answered last, tokens
and costs where each call went; `calls`, `call_errors` and `call_unknown` count calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

USER_VERSION = 1
HOUR, DAY = 3600, 86_400

TOKEN_COLUMNS = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)
REQUEST_COLUMNS = (
    "id",
    "time",
    "server",
    "client",
    "team",
    "session",
    "agent",
    "role",
    "protocol",
    "stream",
    "model",
    "route",
    "provider",
    "key",
    "target_model",
    "status",
    "finish",
    "error",
    "attempts",
    "rounds",
    *TOKEN_COLUMNS,
    "cost",
    "cost_kind",
    "first_byte_ms",
    "total_ms",
    "cost_known",
    "cost_estimated",
)
CALL_COLUMNS = (
    "request_id",
    "n",
    "kind",
    "provider",
    "key",
    "model",
    "status",
    *TOKEN_COLUMNS,
    "cost",
    "cost_kind",
    "price_source",
    "ms",
)
FIGURE_COLUMNS = (
    "requests",
    "errors",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "cost",
    "cost_unknown",
    "cost_estimated",
)
"""Sums; `cache_hit_rate` follows from them."""
GROUPED_NAMES = ("session", "agent", "route", "protocol", "key")
"""Names with totals by day, each beside client and team."""

REQUEST_FIGURES = (
    "COUNT(*)",
    "SUM(COALESCE(r.error, '') <> '' OR (r.status >= 400 AND r.status <> 499))",
    "SUM(r.input_tokens)",
    "SUM(r.output_tokens)",
    "SUM(r.cache_read_tokens)",
    "SUM(r.cache_write_tokens)",
    "SUM(r.reasoning_tokens)",
    "SUM(COALESCE(r.cost_known, r.cost, 0))",
    "SUM(r.cost IS NULL)",
    "SUM(COALESCE(r.cost_estimated, CASE WHEN r.cost_kind <> 'reported' THEN r.cost END, 0))",
)
"""The figures of requests, in the order of `FIGURE_COLUMNS`."""
CALL_FIGURES = (
    "COUNT(*)",
    "SUM(c.status >= 400 AND c.status <> 499)",
    "SUM(c.input_tokens)",
    "SUM(c.output_tokens)",
    "SUM(c.cache_read_tokens)",
    "SUM(c.cache_write_tokens)",
    "SUM(c.reasoning_tokens)",
    "SUM(COALESCE(c.cost, 0))",
    "SUM(c.cost IS NULL)",
    "SUM(CASE WHEN c.cost_kind <> 'reported' THEN COALESCE(c.cost, 0) ELSE 0 END)",
)
"""The figures of calls, in the same order."""

_TOKENS = ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in TOKEN_COLUMNS)
_TEXTS = ("server", "client", "team", "session", "agent", "role", "protocol")
_FIGURES = """\
    requests INTEGER NOT NULL DEFAULT 0, errors INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0,
    cost_unknown INTEGER NOT NULL DEFAULT 0, cost_estimated REAL NOT NULL DEFAULT 0
"""


def _totals(slot: str) -> str:
    return f"""
CREATE TABLE {slot}s (
    {slot} INTEGER NOT NULL, client TEXT NOT NULL DEFAULT '', team TEXT NOT NULL DEFAULT '',
    provider TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '', {_FIGURES},
    calls INTEGER, call_errors INTEGER, call_unknown INTEGER,
    cache_hit_rate REAL AS (CASE WHEN input_tokens > 0 THEN 1.0 * cache_read_tokens / input_tokens END),
    PRIMARY KEY ({slot}, client, team, provider, model)
) WITHOUT ROWID;
"""


SCHEMA = f"""
CREATE TABLE requests (
    id TEXT NOT NULL PRIMARY KEY, time INTEGER NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL DEFAULT ''" for name in _TEXTS)},
    stream INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL DEFAULT '', route TEXT NOT NULL DEFAULT '',
    provider TEXT NOT NULL DEFAULT '', key TEXT NOT NULL DEFAULT '', target_model TEXT NOT NULL DEFAULT '',
    status INTEGER NOT NULL DEFAULT 0, finish TEXT, error TEXT,
    attempts INTEGER NOT NULL DEFAULT 0, rounds INTEGER NOT NULL DEFAULT 0, {_TOKENS},
    cost REAL, cost_kind TEXT, first_byte_ms REAL, total_ms REAL, cost_known REAL, cost_estimated REAL
);
CREATE INDEX requests_time ON requests (time);
CREATE INDEX requests_session ON requests (session, time);
CREATE TABLE calls (
    request_id TEXT NOT NULL, n INTEGER NOT NULL, kind TEXT NOT NULL,
    provider TEXT NOT NULL DEFAULT '', key TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '',
    status INTEGER NOT NULL DEFAULT 0, {_TOKENS},
    cost REAL, cost_kind TEXT, price_source TEXT, ms REAL,
    PRIMARY KEY (request_id, n)
) WITHOUT ROWID;
{_totals("hour")}
{_totals("day")}
CREATE TABLE day_groups (
    day INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, client TEXT NOT NULL, team TEXT NOT NULL,
    {_FIGURES},
    PRIMARY KEY (name, day, value, client, team)
) WITHOUT ROWID;
CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value);
PRAGMA user_version = {USER_VERSION};
"""

INSERT_REQUEST = (
    f"INSERT OR IGNORE INTO requests ({', '.join(REQUEST_COLUMNS)})"
    f" VALUES ({', '.join('?' * len(REQUEST_COLUMNS))})"
)
INSERT_CALL = (
    f"INSERT OR IGNORE INTO calls ({', '.join(CALL_COLUMNS)}) VALUES ({', '.join('?' * len(CALL_COLUMNS))})"
)

_USED = tuple(name for name in FIGURE_COLUMNS if name not in ("requests", "errors", "cost_unknown"))
_CALL_COUNTS = ("calls", "call_errors", "call_unknown")
_CALLS_OF_REQUESTS = "requests r JOIN calls c ON c.request_id = r.id"
_TARGET_KEY = ("client", "team", "provider", "model")
_GROUP_KEY = ("name", "day", "value", "client", "team")


def _upsert(table: str, key: tuple[str, ...], columns: tuple[str, ...], select: str) -> str:
    sums = ", ".join(f"{name} = COALESCE({table}.{name}, 0) + excluded.{name}" for name in columns)
    return (
        f"INSERT INTO {table} ({', '.join((*key, *columns))}) {select}"
        f" GROUP BY {', '.join(str(place + 1) for place in range(len(key)))}"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sums}"
    )


def _slot(seconds: int) -> str:
    return f"r.time / {seconds * 1000} * {seconds}"


def roll_up(where: str) -> list[str]:
    """Return the statements that add the requests of a condition on `r` to the totals."""
    return [
        *_roll_up_targets("hour", HOUR, where),
        *_roll_up_targets("day", DAY, where),
        *(_roll_up_group(name, where) for name in GROUPED_NAMES),
    ]


def _roll_up_targets(slot: str, seconds: int, where: str) -> Iterator[str]:
    """Yield the statements for `hours` or `days`: requests at their last target, calls where they went."""
    key = (slot, *_TARGET_KEY)
    yield _upsert(
        f"{slot}s",
        key,
        ("requests", "errors", "cost_unknown", *_CALL_COUNTS),
        f"SELECT {_slot(seconds)}, r.client, r.team, r.provider, r.target_model,"
        f" {', '.join(_figures(REQUEST_FIGURES, 'requests', 'errors', 'cost_unknown'))}, 0, 0, 0"
        f" FROM requests r WHERE {where}",
    )
    yield _upsert(
        f"{slot}s",
        key,
        (*_USED, *_CALL_COUNTS),
        f"SELECT {_slot(seconds)}, r.client, r.team, c.provider, c.model,"
        f" {', '.join(_figures(CALL_FIGURES, *_USED, 'requests', 'errors', 'cost_unknown'))}"
        f" FROM {_CALLS_OF_REQUESTS} WHERE {where}",
    )


def _roll_up_group(name: str, where: str) -> str:
    figures, source, column = REQUEST_FIGURES, "requests r", f"r.{name}"
    if name == "key":
        figures, source, column = CALL_FIGURES, _CALLS_OF_REQUESTS, "c.key"
    return _upsert(
        "day_groups",
        _GROUP_KEY,
        FIGURE_COLUMNS,
        f"SELECT '{name}', {_slot(DAY)}, {column}, r.client, r.team, {', '.join(figures)}"
        f" FROM {source} WHERE {where}",
    )


def _figures(figures: tuple[str, ...], *names: str) -> list[str]:
    return [figures[FIGURE_COLUMNS.index(name)] for name in names]


class UnknownLedgerVersion(Exception):
    """The file was written by a later version of the gateway."""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file; another process may do the same at once."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > USER_VERSION:
        raise UnknownLedgerVersion(f"the file has version {version}, this gateway knows {USER_VERSION}")
    if version == USER_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
