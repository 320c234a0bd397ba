"""Totals of the ledger: days that end, late rows, files of an earlier gateway, and what pruning leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from routecodex.accounting.ledger import Ledger, LedgerOptions
from routecodex.accounting.ledger_file import LedgerBatch, reading
from routecodex.accounting.ledger_query import Sums, UsageQuery, figures, statements
from routecodex.accounting.ledger_schema import CALL_COUNT_COLUMNS, FIGURE_COLUMNS
from tests.accounting.ledger_rows import DAY, MIDNIGHT, batch, ledger_file, request

HOUR = 3600
QUERIES = [
    UsageQuery(by=("client",)),
    UsageQuery(by=("route", "key")),
    UsageQuery(by=("session", "model"), since=MIDNIGHT + HOUR),
    UsageQuery(by=("day", "agent")),
    UsageQuery(by=("hour",), filters={"session": "s1"}),
]
DETAILED = ("facet_hours", "facet_days", "session_hours", "session_days")


class Today:
    """A clock that the test sets."""

    def __init__(self, at: float = MIDNIGHT) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.sqlite"


def some_requests(day: int, *, count: int = 6) -> LedgerBatch:
    """Return requests of a day, all different."""
    rows = [
        request(
            f"req_{day}_{number}",
            MIDNIGHT + day * DAY + number * 3 * HOUR + 5,
            client=f"client{number % 2}",
            session=f"s{number % 3}",
            route=f"route{number % 2}",
            key=f"key{number % 3}",
        )
        for number in range(count)
    ]
    return batch(rows)


def answers(path: Path) -> list[Sums]:
    with reading(path) as connection:
        return [figures(connection, query) for query in QUERIES]


def counted(path: Path, sql: str) -> int:
    with reading(path) as connection:
        return int(connection.execute(sql).fetchone()[0] or 0)


def answers_without_totals(path: Path) -> list[Sums]:
    """Return the answers from the rows alone: nothing says that the totals have them."""
    connection = sqlite3.connect(path)
    with connection:
        facts = connection.execute("SELECT name, value FROM meta").fetchall()
        connection.execute("DELETE FROM meta WHERE name IN ('facets', 'rolled_up')")
    found = answers(path)
    with connection:
        connection.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", facts)
    connection.close()
    return found


def test_a_day_has_totals_when_it_is_over(path: Path) -> None:
    today = Today()
    file = ledger_file(path, now=today)
    file.write(some_requests(0))
    assert counted(path, "SELECT SUM(requests) FROM hours") == 6
    assert counted(path, "SELECT COUNT(*) FROM days") == 0
    assert answers(path) == answers_without_totals(path)
    today.at += DAY
    file.write(some_requests(1))
    for table in ("days", "facet_days", "session_days"):
        assert counted(path, f"SELECT SUM(requests) FROM {table}") == 6
    assert answers(path) == answers_without_totals(path)
    file.close()


def test_late_requests_of_a_day_are_in_its_totals(path: Path) -> None:
    today = Today(MIDNIGHT + DAY)
    file = ledger_file(path, now=today)
    file.write(some_requests(1))
    file.write(batch([request("req_late", MIDNIGHT + DAY - 1, session="s1")]))
    for table in ("hours", "facet_hours", "session_hours"):
        assert counted(path, f"SELECT SUM(requests) FROM {table}") == 7
    for table in ("days", "facet_days", "session_days"):
        assert counted(path, f"SELECT SUM(requests) FROM {table}") == 1
    assert answers(path) == answers_without_totals(path)
    file.close()


def test_days_that_nobody_wrote_in_are_closed_together(path: Path) -> None:
    today = Today()
    file = ledger_file(path, now=today)
    file.write(some_requests(0))
    today.at += 5 * DAY
    file.write(batch([]))
    assert counted(path, "SELECT SUM(requests) FROM days") == 6
    today.at -= 3 * DAY
    file.write(some_requests(2))
    today.at += 10 * DAY
    file.write(batch([]))
    assert counted(path, "SELECT SUM(requests) FROM days") == 12
    assert answers(path) == answers_without_totals(path)
    file.close()


def make_earlier(path: Path) -> None:
    """Turn a ledger into one of a gateway without facets."""
    connection = sqlite3.connect(path)
    with connection:
        for table in ("facets", *DETAILED):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DELETE FROM meta WHERE name IN ('facets', 'facets_since', 'days_until')")
        connection.execute("CREATE TABLE day_groups (day INTEGER, name TEXT, value TEXT)")
        connection.execute("DELETE FROM days")
        columns = (*FIGURE_COLUMNS, *CALL_COUNT_COLUMNS)
        connection.execute(
            f"INSERT INTO days (day, client, team, provider, model, {', '.join(columns)})"
            f" SELECT hour / {DAY} * {DAY}, client, team, provider, model,"
            f" {', '.join(f'SUM({name})' for name in columns)} FROM hours GROUP BY 1, 2, 3, 4, 5"
        )
    connection.close()


@pytest.fixture
def earlier(path: Path) -> Path:
    """A ledger of an earlier gateway with four days, the last of which is today."""
    file = ledger_file(path, now=Today(MIDNIGHT + 3 * DAY))
    for day in range(4):
        file.write(some_requests(day))
    file.close()
    make_earlier(path)
    return path


def test_a_file_of_an_earlier_gateway_answers_before_it_is_written(earlier: Path) -> None:
    assert answers(earlier) == answers_without_totals(earlier)


def test_a_file_of_an_earlier_gateway_gets_its_totals_day_by_day(earlier: Path) -> None:
    file = ledger_file(earlier, now=Today(MIDNIGHT + 3 * DAY + 20 * HOUR))
    file.write(batch([request("req_new", MIDNIGHT + 3 * DAY + 20 * HOUR, session="s1")]))
    steps = 0
    while file.backfill():
        steps += 1
        assert answers(earlier) == answers_without_totals(earlier)
    assert steps == 4
    for table in DETAILED:
        assert counted(earlier, f"SELECT SUM(requests) FROM {table}") == 25
    assert counted(earlier, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'day_groups'") == 0
    assert answers(earlier) == answers_without_totals(earlier)
    with reading(earlier) as connection:
        assert not any("requests r" in one.sql for one in statements(connection, QUERIES[1]))
    file.close()


def test_two_workers_complete_a_file_of_an_earlier_gateway(earlier: Path) -> None:
    workers = [ledger_file(earlier, now=Today(MIDNIGHT + 3 * DAY)) for _ in range(2)]
    for worker in workers:
        worker.write(batch([]))
    while workers[0].backfill() or workers[1].backfill():
        workers[1].backfill()
        workers[1].write(batch([]))
    for table in DETAILED:
        assert counted(earlier, f"SELECT SUM(requests) FROM {table}") == 24
    assert answers(earlier) == answers_without_totals(earlier)
    for worker in workers:
        worker.close()


async def test_a_running_ledger_completes_a_file_of_an_earlier_gateway(earlier: Path) -> None:
    def rows(items: object) -> LedgerBatch:
        return batch([request("req_new", MIDNIGHT + 4 * DAY)])

    to_rows: Callable[..., LedgerBatch] = rows
    ledger = Ledger[str](LedgerOptions(path=earlier, server="main", keep_days=100_000), to_rows)
    ledger.add("a request")
    await ledger.flush()
    assert counted(earlier, "SELECT SUM(requests) FROM session_hours") == 25
    await ledger.close()


def test_pruning_removes_detailed_totals_with_their_rows(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_old", MIDNIGHT, route="gone")]))
    file.write(some_requests(2))
    while file.prune(oldest=MIDNIGHT + DAY, max_mb=1024):
        pass
    for table in DETAILED:
        assert counted(path, f"SELECT SUM(requests) FROM {table}") == 6
    assert counted(path, "SELECT COUNT(*) FROM facets WHERE route = 'gone'") == 0
    assert counted(path, "SELECT SUM(requests) FROM days") == 7
    file.close()


def test_a_request_without_a_call_has_no_row_by_model(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT), request("req_2", MIDNIGHT, target_model="dead")], []))
    file.write(batch([request("req_3", MIDNIGHT)]))
    with reading(path) as connection:
        by_model = figures(connection, UsageQuery(by=("model",)))
        by_key = figures(connection, UsageQuery(by=("key", "model")))
        by_route = figures(connection, UsageQuery(by=("route",)))
    assert [(label, row.requests) for label, row in by_model.items()] == [(("glm-4.7",), 1)]
    assert [(label, row.requests) for label, row in by_key.items()] == [(("primary", "glm-4.7"), 1)]
    assert by_route["default",].requests == 3
    file.close()
