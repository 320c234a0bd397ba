"""Lists of requests from the ledger: pages and groups by brute force, and the work that they cause."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routecodex.accounting.ledger_file import LedgerBatch, reading
from routecodex.accounting.ledger_filter import RequestFilter
from routecodex.accounting.ledger_requests import (
    COUNTED,
    END,
    TABLES,
    UNCOUNTED,
    Place,
    count,
    find,
    group_of,
    groups_of,
    page_of,
    page_statement,
    place_of,
)
from routecodex.accounting.ledger_schema import REQUEST_COLUMNS
from tests.accounting.ledger_rows import MIDNIGHT, batch, ledger_file, request

Row = dict[str, Any]


def made(count: int, seed: int = 3) -> list[Row]:
    """Return requests of many sessions, several in the same millisecond."""
    chance = random.Random(seed)
    return [
        request(
            f"req_{number:08x}",
            MIDNIGHT + number // 3 / 1000,
            client=chance.choice(["laptop", "ci"]),
            session=chance.choice(["a", "b", "c", ""]),
            provider=chance.choice(["glm", "claude"]),
            status=chance.choice([200, 200, 429]),
            model=chance.choice(["asked", "50%_off"]),
        )
        for number in range(count)
    ]


@pytest.fixture
def rows() -> list[Row]:
    return made(300)


@pytest.fixture
def connection(tmp_path: Path, rows: list[Row]) -> Iterator[sqlite3.Connection]:
    """A ledger whose every fifth request usage does not count."""
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    counted = [row for number, row in enumerate(rows) if number % 5]
    whole = batch(counted)
    uncounted, before = [], 0
    for number, row in enumerate(rows):
        if number % 5:
            before += 1
        else:
            uncounted.append((*(row[name] for name in REQUEST_COLUMNS), before))
    file.write(LedgerBatch(whole.requests, whole.calls, uncounted, [(rows[1]["id"], '{"error":"hot"}')]))
    file.close()
    with reading(path) as found:
        yield found


FILTERS: dict[str, tuple[RequestFilter, Callable[[Row], bool]]] = {
    "all": (RequestFilter(), lambda row: True),
    "client": (RequestFilter(names={"client": "ci"}), lambda row: row["client"] == "ci"),
    "session": (RequestFilter(names={"session": "a"}), lambda row: row["session"] == "a"),
    "error": (RequestFilter(names={"status": "error"}), lambda row: row["status"] == 429),
    "ok": (RequestFilter(names={"status": "ok"}), lambda row: row["status"] == 200),
    "wild": (RequestFilter(q="0%_o"), lambda row: row["model"] == "50%_off"),
    "time": (
        RequestFilter(since=MIDNIGHT + 0.02, until=MIDNIGHT + 0.05),
        lambda row: 20 <= row["time"] - MIDNIGHT * 1000 < 50,
    ),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_pages_have_every_request_once_in_order(
    connection: sqlite3.Connection, rows: list[Row], name: str, limit: int
) -> None:
    wanted, matches = FILTERS[name]
    expected = [row["id"] for row in rows if matches(row)]
    seen: list[str] = []
    place: Place = END
    while True:
        page = page_of(connection, wanted, limit=limit, before=place)
        seen = [row["id"] for row in page.rows] + seen
        if not page.has_more:
            break
        found = place_of(connection, page.rows[0]["id"])
        assert found is not None
        place = found
    assert seen == expected
    assert count(connection, wanted) == len(expected)


def test_an_error_is_found_by_its_text_and_a_damaged_detail_is_no_error(
    tmp_path: Path, connection: sqlite3.Connection, rows: list[Row]
) -> None:
    is_error = rows[1]["status"] == 429
    assert count(connection, RequestFilter(q="HOT")) == (1 if is_error else 0)
    assert find(connection, "nothing") is None
    one = find(connection, rows[1]["id"])
    assert one is not None
    assert (one["detail"], [call["n"] for call in one["calls"]]) == ('{"error":"hot"}', [1])


def test_groups_are_sessions_of_clients_by_their_last_request(
    connection: sqlite3.Connection, rows: list[Row]
) -> None:
    counted = [row for number, row in enumerate(rows) if number % 5]
    latest: dict[tuple[str, str], int] = {}
    for number, row in enumerate(counted):
        latest[row["session"], row["client"]] = number
    expected = sorted(latest, key=lambda key: latest[key])
    for limit in (1, 3, 100):
        seen: list[tuple[str, str]] = []
        place: Place = END
        while True:
            found = groups_of(connection, RequestFilter(), limit=limit, before=place)
            seen = [(one["session"], one["client"]) for one in found.groups] + seen
            assert found.total == len(expected)
            if found.next is None:
                break
            next_place = place_of(connection, found.next)
            assert next_place is not None
            place = next_place
        assert seen == expected
    mine = [row for row in counted if (row["session"], row["client"]) == ("a", "ci")]
    group = group_of(connection, RequestFilter(), "a", "ci")
    assert (group["requests"], group["errors"]) == (len(mine), sum(row["status"] == 429 for row in mine))
    assert group["cost"] == pytest.approx(0.5 * len(mine))


def plan(connection: sqlite3.Connection, sql: str, values: list[Any]) -> str:
    return "; ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values))


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (RequestFilter(), "requests_time"),
        (RequestFilter(names={"client": "ci"}), "requests_time"),
        (RequestFilter(names={"status": "error"}), "requests_time"),
        (RequestFilter(q="x"), "requests_time"),
        (RequestFilter(since=1.0, until=2.0), "requests_time"),
        (RequestFilter(names={"session": "a"}), "requests_session"),
        (RequestFilter(names={"session": "a", "client": "ci"}), "requests_session"),
    ],
)
def test_a_page_follows_an_index_and_sorts_nothing(
    connection: sqlite3.Connection, wanted: RequestFilter, index: str
) -> None:
    sql, values = page_statement(COUNTED, wanted, limit=50, before=(MIDNIGHT * 1000, 5, 0))
    found = plan(connection, sql, values)
    assert f"SEARCH r USING INDEX {index}" in found
    assert "TEMP B-TREE" not in found
    sql, values = page_statement(UNCOUNTED, wanted, limit=50, before=(MIDNIGHT * 1000, 5, 0))
    other = plan(connection, sql, values)
    assert "SEARCH r USING INDEX uncounted_time" in other
    assert "TEMP B-TREE" not in other


def test_each_page_reads_as_many_rows_as_it_shows(tmp_path: Path) -> None:
    counts = []
    for size in (1000, 20_000):
        path = tmp_path / f"{size}.sqlite"
        file = ledger_file(path)
        file.write(batch(made(size)))
        file.close()
        ticks: list[int] = []
        with reading(path) as found:
            found.set_progress_handler(partial(ticks.append, 1), 10)
            page_of(found, RequestFilter(), limit=50)
            page_of(found, RequestFilter(names={"session": "a"}), limit=50)
            found.set_progress_handler(None, 0)
        counts.append(len(ticks))
    assert counts[1] < counts[0] * 1.2


def test_a_ledger_of_an_earlier_gateway_gets_the_tables_of_the_console(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    file.write(batch(made(30)))
    file.close()
    with sqlite3.connect(path) as raw:
        for table in ("details", "uncounted", "first_bytes"):
            raw.execute(f"DROP TABLE {table}")
    raw.close()
    file = ledger_file(path)
    file.open()
    file.close()
    with reading(path) as found:
        assert [count(found, RequestFilter()), len(TABLES)] == [30, 2]
        total = found.execute("SELECT SUM(requests) FROM first_bytes").fetchone()[0]
    assert total == 30


def test_old_details_are_deleted_and_requests_stay(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    ids = [f"req_{second:08x}{'0' * 16}" for second in (100, 200, 300)]
    whole = batch(request(id, 100.0 * number + 100) for number, id in enumerate(ids))
    lost = (*whole.requests[0][:0], *(["req_x", 150_000, *whole.requests[0][2:]]), 1)
    file.write(LedgerBatch(whole.requests, whole.calls, [lost], [(id, "{}") for id in ids]))
    file.prune(oldest=0.0, max_mb=1000, details_since=200.0)
    file.close()
    with reading(path) as found:
        kept = [row[0] for row in found.execute("SELECT id FROM details ORDER BY id")]
        assert (count(found, RequestFilter()), kept) == (3, ids[1:])
