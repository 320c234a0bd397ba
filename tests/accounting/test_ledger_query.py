"""Figures of the ledger: the totals say what the rows say, for every name, filter, time and time zone."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from routecodex.accounting.figures import Figures, total
from routecodex.accounting.ledger_file import reading
from routecodex.accounting.ledger_query import FILTERS, GROUPS, Sums, UsageQuery, figures, statements
from tests.accounting.ledger_rows import MIDNIGHT, batch, call, ledger_file, request

HOUR, DAY = 3600, 86_400
CALLED = ("provider", "model", "key")
ZONES = {"UTC": UTC, "Oslo": ZoneInfo("Europe/Oslo"), "Kolkata": ZoneInfo("Asia/Kolkata")}
Row = dict[str, Any]


def made_rows(seed: int, count: int) -> tuple[list[Row], list[Row]]:
    """Return requests over ten days, some with an attempt before their round, an error, or no price."""
    chance = random.Random(seed)
    requests, calls = [], []
    for number in range(count):
        provider, model = chance.choice([("glm", "glm-4.7"), ("claude", "opus"), ("claude", "haiku")])
        row = request(
            f"req_{seed}_{number:05d}",
            MIDNIGHT + chance.uniform(0, 10 * DAY),
            client=chance.choice(["laptop", "ci", ""]),
            team=chance.choice(["core", ""]),
            session=chance.choice(["s1", "s2", "s3", ""]),
            agent=chance.choice(["reviewer", ""]),
            route=chance.choice(["default", "tools"]),
            protocol=chance.choice(["chat", "messages"]),
            provider=provider,
            target_model=model,
            key=chance.choice(["primary", "spare"]),
            status=chance.choice([200, 200, 200, 499, 502]),
            input_tokens=chance.randrange(1000),
            cost=chance.choice([0.25, 0.5, None]),
            cost_kind=chance.choice(["reported", "observed"]),
        )
        made = [call(row)]
        if chance.random() < 0.3:
            made = [call(row, 1, kind="attempt", provider="glm", model="glm-4.7"), call(row, 2)]
            doubled = {name: value * 2 for name, value in row.items() if name.endswith("_tokens")}
            row.update(doubled)
            if row["cost"] is not None:
                row["cost"] *= 2
                row["cost_known"], row["cost_estimated"] = row["cost"], row["cost_estimated"] * 2
        requests.append(row)
        calls += made
    return requests, calls


def label_of(row: Row, one: Row, query: UsageQuery) -> tuple[Any, ...]:
    """Return the values by which a row is grouped: those of the call, where calls are counted."""
    at = row["time"] / 1000
    values: Row = {
        **row,
        "model": row["target_model"],
        "day": datetime.fromtimestamp(at, query.zone).date().isoformat(),
        "hour": datetime.fromtimestamp(at // HOUR * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **({name: one[name] for name in CALLED} if query.counts_calls else {}),
    }
    return tuple(values[name] for name in query.by)


def figures_of(row: Row) -> Figures:
    failed = bool(row.get("error")) or (row["status"] >= 400 and row["status"] != 499)
    known = row["cost"] or 0.0
    return Figures(
        1,
        int(failed),
        row["input_tokens"],
        row["output_tokens"],
        row["cache_read_tokens"],
        row["cache_write_tokens"],
        row["reasoning_tokens"],
        known,
        int(row["cost"] is None),
        known if row["cost_kind"] != "reported" else 0.0,
    )


def expected(requests: list[Row], calls: list[Row], query: UsageQuery) -> Sums:
    """Compute the answer one row at a time."""
    by_id = {row["id"]: row for row in requests}
    pairs = [(by_id[one["request_id"]], one) for one in calls]
    if not query.counts_calls:
        pairs = [(row, row) for row in requests]
    sums: Sums = {}
    for row, one in pairs:
        values = {**row, "model": row["target_model"]}
        values |= {name: one[name] for name in CALLED} if query.counts_calls else {}
        at = row["time"] / 1000
        in_time = query.since <= at and (query.until is None or at < query.until)
        if in_time and all(values[name] == value for name, value in query.filters.items()):
            label = label_of(row, one, query)
            sums[label] = sums.get(label, Figures()) + figures_of(one)
    return sums


@pytest.fixture(scope="module")
def made() -> tuple[list[Row], list[Row]]:
    return made_rows(7, 1500)


@pytest.fixture(scope="module")
def ledger(
    made: tuple[list[Row], list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sqlite3.Connection]:
    """A ledger that was written in several batches."""
    path = tmp_path_factory.mktemp("ledger") / "usage.sqlite"
    file = ledger_file(path)
    requests, calls = made
    for begin in range(0, len(requests), 400):
        some = requests[begin : begin + 400]
        ids = {row["id"] for row in some}
        file.write(batch(some, [one for one in calls if one["request_id"] in ids]))
    file.close()
    with reading(path) as connection:
        yield connection


TIMES = {
    "all": (0.0, None),
    "whole days": (MIDNIGHT + DAY, MIDNIGHT + 4 * DAY),
    "whole hours": (MIDNIGHT + 5 * HOUR, MIDNIGHT + 3 * DAY + 7 * HOUR),
    "any time": (MIDNIGHT + 1234.5, MIDNIGHT + 5 * DAY + 777.25),
    "less than an hour": (MIDNIGHT + 90_000.0, MIDNIGHT + 90_900.0),
    "open end": (MIDNIGHT + 3 * DAY + 100, None),
}
SINGLE = [(), *((name,) for name in GROUPS)]
PAIRS = [*itertools.combinations(GROUPS, 2), ("route", "model", "session"), ("day", "hour", "agent")]


@pytest.mark.parametrize("zone", ZONES.values(), ids=ZONES)
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("by", SINGLE, ids="-".join)
def test_an_answer_is_the_sum_of_its_rows(
    ledger: sqlite3.Connection,
    made: tuple[list[Row], list[Row]],
    by: tuple[str, ...],
    times: tuple[float, float | None],
    zone: tzinfo,
) -> None:
    query = UsageQuery(by=by, since=times[0], until=times[1], zone=zone)
    assert_same(figures(ledger, query), expected(*made, query))


@pytest.mark.parametrize("zone", ZONES.values(), ids=ZONES)
@pytest.mark.parametrize("by", PAIRS, ids="-".join)
def test_an_answer_by_several_names_is_the_sum_of_its_rows(
    ledger: sqlite3.Connection, made: tuple[list[Row], list[Row]], by: tuple[str, ...], zone: tzinfo
) -> None:
    for since, until in (TIMES["any time"], TIMES["open end"]):
        query = UsageQuery(by=by, since=since, until=until, zone=zone)
        assert_same(figures(ledger, query), expected(*made, query))


@pytest.mark.parametrize(
    "by", [*SINGLE, ("route", "key"), ("session", "model"), ("hour", "agent")], ids="-".join
)
@pytest.mark.parametrize(
    "filters",
    [
        {"client": "laptop"},
        {"team": "core", "client": ""},
        {"provider": "claude"},
        {"model": "opus", "team": "core"},
        {"session": "s1"},
        {"session": "s1", "provider": "glm"},
        {"client": "nobody"},
    ],
    ids=str,
)
def test_an_answer_has_only_what_was_selected(
    ledger: sqlite3.Connection,
    made: tuple[list[Row], list[Row]],
    by: tuple[str, ...],
    filters: dict[str, str],
) -> None:
    query = UsageQuery(by=by, since=MIDNIGHT + 4321.0, until=MIDNIGHT + 8 * DAY, filters=filters)
    assert set(filters) <= set(FILTERS)
    assert_same(figures(ledger, query), expected(*made, query))


def assert_same(found: Sums, wanted: Sums) -> None:
    assert {label: row.as_dict() for label, row in found.items()} == {
        label: row.as_dict() for label, row in wanted.items()
    }


def test_rows_of_another_program_count_at_once(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT + 60)]))
    add_as_another_program(path, "req_2", MIDNIGHT + 120)
    query = UsageQuery(by=("client",))
    with reading(path) as connection:
        assert figures(connection, query)["laptop",].requests == 2
    # The writer adds them to the totals with its next batch.
    file.write(batch([request("req_3", MIDNIGHT + 180)]))
    with reading(path) as connection:
        for by in (("client",), ("session",), ("model",)):
            found = figures(connection, UsageQuery(by=by))
            assert sum(row.requests for row in found.values()) == 3
        assert connection.execute("SELECT SUM(requests) FROM hours").fetchone() == (3,)
    file.close()


def add_as_another_program(path: Path, id: str, at: float) -> None:
    connection = sqlite3.connect(path)
    row = request(id, at)
    names = [name for name in row if not name.startswith("cost_")]
    with connection:
        connection.execute(
            f"INSERT INTO requests ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            [row[name] for name in names],
        )
        columns = call(row)
        connection.execute(
            f"INSERT INTO calls ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
            list(columns.values()),
        )
    connection.close()


MILLION = 1_000_000


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A ledger with a million requests of 90 days, 20 clients and 20 000 sessions."""
    path = tmp_path_factory.mktemp("million") / "usage.sqlite"
    file = ledger_file(path)
    file.write(batch([]))
    connection = sqlite3.connect(path)
    with connection:
        connection.executescript(_FILL)
    connection.close()
    # The next batch brings the totals up to date.
    file.write(batch([]))
    file.close()
    with reading(path) as read:
        yield read


_FILL = f"""
CREATE TEMP TABLE numbers AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT {MILLION})
    SELECT i, i / 50 AS s, (i / 50) % 20 AS c, i % 3 AS m FROM n;
INSERT INTO requests (id, time, client, team, session, protocol, route, provider, key, target_model, status,
                      input_tokens, output_tokens, cache_read_tokens, cost, cost_kind)
    SELECT printf('req_%024x', i), ({MIDNIGHT} - 90 * {DAY}) * 1000 + i * 7776,
           'client' || c, 'team' || (c % 4), 's' || s, 'chat', 'default', 'p' || m, 'primary', 'm' || m, 200,
           1000, 100, 800, 0.01, 'reported'
    FROM numbers;
INSERT INTO calls (request_id, n, kind, provider, key, model, status, input_tokens, output_tokens,
                   cache_read_tokens, cost, cost_kind)
    SELECT printf('req_%024x', i), 1, 'round', 'p' || m, 'primary', 'm' || m, 200, 1000, 100, 800, 0.01,
           'reported'
    FROM numbers;
DROP TABLE numbers;
"""


def rows_visited(connection: sqlite3.Connection, query: UsageQuery) -> tuple[int, Sums]:
    """Return the steps of SQLite's machine for an answer, in thousands, and the answer."""
    steps = itertools.count()
    connection.set_progress_handler(lambda: next(steps) < 0, 1000)
    found = figures(connection, query)
    connection.set_progress_handler(None, 0)
    return next(steps), found


_SPANS = {"all": (0.0, UTC), "30 days": (MIDNIGHT - 30 * DAY - 1234.5, UTC), "Asia": (0.0, ZONES["Kolkata"])}


@pytest.mark.parametrize(("since", "zone"), _SPANS.values(), ids=_SPANS)
@pytest.mark.parametrize("by", [*SINGLE, *PAIRS], ids="-".join)
def test_a_million_rows_are_answered_from_totals(
    million: sqlite3.Connection, by: tuple[str, ...], since: float, zone: tzinfo
) -> None:
    query = UsageQuery(by=by, since=since, zone=zone)
    steps, found = rows_visited(million, query)
    counted = total(found.values())
    if not since:
        assert (counted.requests, counted.input_tokens) == (MILLION, MILLION * 1000)
    assert counted.cache_hit_rate == 0.8
    # A scan of all rows takes more than forty million steps.
    assert steps < 10_000
    assert_no_row_is_scanned(million, query)


@pytest.mark.parametrize("by", [(), ("session",), ("route",), ("model", "key")], ids="-".join)
@pytest.mark.parametrize(
    "filters",
    [{"client": "client3"}, {"model": "m1"}, {"provider": "p2", "team": "team1"}, {"session": "s1234"}],
    ids=str,
)
def test_what_is_selected_among_a_million_rows_is_answered_from_totals(
    million: sqlite3.Connection, by: tuple[str, ...], filters: dict[str, str]
) -> None:
    query = UsageQuery(by=by, since=MIDNIGHT - 80 * DAY - 99.0, filters=filters)
    steps, _ = rows_visited(million, query)
    assert steps < 6000
    assert_no_row_is_scanned(million, query)


def assert_no_row_is_scanned(connection: sqlite3.Connection, query: UsageQuery) -> None:
    """Check that rows are found by an index, and those of less than an hour at either end only."""
    for statement in statements(connection, query):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.values)]
        reads = [line for line in plan if line.startswith(("SCAN", "SEARCH"))]
        assert all(("requests" not in line and " r " not in line) or "USING" in line for line in reads), plan
        if "requests r" in statement.sql:
            since, until = statement.values[:2]
            assert until - since <= HOUR * 1000


@pytest.mark.parametrize("by", [("hour",), ("client", "hour"), ("day", "hour"), ("day",)], ids="-".join)
def test_totals_are_grouped_by_their_time_without_sorting(
    million: sqlite3.Connection, by: tuple[str, ...]
) -> None:
    first = next(statements(million, UsageQuery(by=by, since=MIDNIGHT - 80 * DAY)))
    plan = [row[3] for row in million.execute(f"EXPLAIN QUERY PLAN {first.sql}", first.values)]
    assert "USE TEMP B-TREE FOR GROUP BY" not in plan


def test_a_session_among_a_million_rows_is_found_by_its_index(million: sqlite3.Connection) -> None:
    steps, found = rows_visited(million, UsageQuery(by=("model",), filters={"session": "s1234"}))
    assert total(found.values()).requests == 50
    assert steps < 20
