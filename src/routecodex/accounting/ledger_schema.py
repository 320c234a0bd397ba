"""The tables of the usage ledger.

| Table           | Rows                                                                                 |
|-----------------|--------------------------------------------------------------------------------------|
| `requests`      | one per request                                                                      |
| `calls`         | one per call of a provider that produced tokens                                      |
| `hours`         | totals by hour, client, team, provider and model; they stay when rows are deleted     |
| `days`          | the same by day, of days that are over                                               |
| `facets`        | one per combination of all names but the session                                     |
| `facet_hours`   | totals by hour and facet, as old as the oldest request                                |
| `facet_days`    | the same by day, of days that are over                                               |
| `session_hours` | totals by hour, session and facet, as old as the oldest request                       |
| `session_days`  | the same by day, of days that are over                                               |
| `details`       | plans, timings and errors of requests, for the console; kept for some days           |
| `uncounted`     | requests that no usage counts, such as refused ones; columns of `requests`, kept as long |
| `first_bytes`   | requests by hour, client, target and bucket of the time to the first byte             |
| `meta`          | facts of the file: its server, its time zone, the last row that is in the totals      |

Times are Unix milliseconds, money is USD, null is unknown. In `requests` the columns `cost_known` and
`cost_estimated` are the parts of the cost that are known, and known but not `reported`; `cost` is null if the
price of one call is unknown. In all totals, `requests` and `errors` are at the target that answered last,
tokens and costs where each call went; `calls`, `call_errors` and `call_unknown` count calls. In `uncounted`,
`after` is the row of `requests` that was written before it: it orders the requests of one millisecond.
"""

from __future__ import annotations

import sqlite3

from msgspec import Struct

from routecodex.accounting.first_bytes import bucket_sql

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
CALL_COUNT_COLUMNS = ("calls", "call_errors", "call_unknown")
FACET_COLUMNS = ("client", "team", "agent", "route", "protocol", "provider", "model", "key")
"""Names of a facet. Of a call, provider, model and key are where it went."""

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


_COUNTS = ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in CALL_COUNT_COLUMNS)


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


def _facet_totals(slot: str) -> str:
    return f"""
CREATE TABLE facet_{slot}s (
    facet INTEGER NOT NULL, {slot} INTEGER NOT NULL, {_FIGURES}, {_COUNTS}, PRIMARY KEY (facet, {slot})
) WITHOUT ROWID;
CREATE TABLE session_{slot}s (
    {slot} INTEGER NOT NULL, session TEXT NOT NULL, facet INTEGER NOT NULL, {_FIGURES}, {_COUNTS},
    PRIMARY KEY ({slot}, session, facet)
) WITHOUT ROWID;
CREATE INDEX session_{slot}s_session ON session_{slot}s (session, {slot});
"""


FACET_SCHEMA = f"""
CREATE TABLE facets (
    id INTEGER PRIMARY KEY, {", ".join(f"{name} TEXT NOT NULL" for name in FACET_COLUMNS)},
    UNIQUE ({", ".join(FACET_COLUMNS)})
);
{_facet_totals("hour")}
{_facet_totals("day")}
"""

_REQUEST_FIELDS = f"""
    id TEXT NOT NULL PRIMARY KEY, time INTEGER NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL DEFAULT ''" for name in _TEXTS)},
    stream INTEGER NOT NULL DEFAULT 0, model TEXT NOT NULL DEFAULT '', route TEXT NOT NULL DEFAULT '',
    provider TEXT NOT NULL DEFAULT '', key TEXT NOT NULL DEFAULT '', target_model TEXT NOT NULL DEFAULT '',
    status INTEGER NOT NULL DEFAULT 0, finish TEXT, error TEXT,
    attempts INTEGER NOT NULL DEFAULT 0, rounds INTEGER NOT NULL DEFAULT 0, {_TOKENS},
    cost REAL, cost_kind TEXT, first_byte_ms REAL, total_ms REAL, cost_known REAL, cost_estimated REAL
"""
SCHEMA = f"""
CREATE TABLE requests ({_REQUEST_FIELDS});
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
CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value);
{FACET_SCHEMA}
PRAGMA user_version = {USER_VERSION};
"""

_CONSOLE_SCHEMA = f"""
CREATE TABLE details (id TEXT NOT NULL PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE uncounted ({_REQUEST_FIELDS}, after INTEGER NOT NULL DEFAULT 0);
CREATE INDEX uncounted_time ON uncounted (time, after);
CREATE TABLE first_bytes (
    hour INTEGER NOT NULL, client TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
    bucket INTEGER NOT NULL, requests INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, client, provider, model, bucket)
) WITHOUT ROWID
"""
"""Tables of the console; a file that was made before them gets them when it is opened."""


ROWS_AT_ONCE = 64


class TableInsert(Struct, frozen=True):
    """Statements that insert one row of a table, and `ROWS_AT_ONCE` of them."""

    one: str
    many: str


def _insert(table: str, *columns: str, rows: int = 1) -> str:
    marks = f"({', '.join('?' * len(columns))})"
    return f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES {', '.join([marks] * rows)}"


def _inserts(table: str, *columns: str) -> TableInsert:
    return TableInsert(_insert(table, *columns), _insert(table, *columns, rows=ROWS_AT_ONCE))


REQUESTS = _inserts("requests", *REQUEST_COLUMNS)
CALLS = _inserts("calls", *CALL_COLUMNS)
INSERT_UNCOUNTED = _insert("uncounted", *REQUEST_COLUMNS, "after")
INSERT_DETAIL = _insert("details", "id", "json")


def add_first_bytes(where: str) -> str:
    """Return the statement that counts the times to the first byte of the requests of a condition on `r`."""
    return (
        "INSERT INTO first_bytes (hour, client, provider, model, bucket, requests)"
        f" SELECT r.time / {HOUR * 1000} * {HOUR}, r.client, r.provider, r.target_model,"
        f" {bucket_sql('r.first_byte_ms')}, COUNT(*) FROM requests r"
        f" WHERE {where} AND r.first_byte_ms IS NOT NULL GROUP BY 1, 2, 3, 4, 5"
        " ON CONFLICT DO UPDATE SET requests = first_bytes.requests + excluded.requests"
    )


class UnknownLedgerVersion(Exception):
    """The file was written by a later version of the gateway."""


def create(connection: sqlite3.Connection, *, now: float) -> None:
    """Create the tables in a new file; another process may do the same at once."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > USER_VERSION:
        raise UnknownLedgerVersion(f"the file has version {version}, this gateway knows {USER_VERSION}")
    if version == USER_VERSION and _has(connection, "facets") and _has(connection, "first_bytes"):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            _run(connection, SCHEMA)
        elif not _has(connection, "facets"):
            _add_facets(connection, int(now))
        if not _has(connection, "first_bytes"):
            _run(connection, _CONSOLE_SCHEMA)
            connection.execute(add_first_bytes("1"))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _add_facets(connection: sqlite3.Connection, now: int) -> None:
    """Add the tables that a file of an earlier gateway lacks; `ledger_totals.backfill` fills them.

    Requests from the next day on are in them; that day follows today and every request.
    """
    _run(connection, FACET_SCHEMA)
    newest = connection.execute("SELECT MAX(time) FROM requests").fetchone()[0] or 0
    tomorrow = (max(now, newest // 1000) // DAY + 1) * DAY
    rolled_up = connection.execute("SELECT value FROM meta WHERE name = 'rolled_up'").fetchone()
    facts = {"facets": rolled_up[0] if rolled_up else 0, "facets_since": tomorrow, "days_until": tomorrow}
    connection.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", facts.items())


def _has(connection: sqlite3.Connection, table: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        connection.execute(statement)
