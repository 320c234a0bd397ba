"""Series of the ledger say what the rows say, for every name, filter, step and time."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routecodex.accounting.ledger_file import reading
from routecodex.accounting.ledger_filter import RequestFilter
from routecodex.accounting.ledger_series import MOST_SERIES, SeriesQuery, series
from tests.accounting.ledger_rows import MIDNIGHT, batch, call, ledger_file, request

HOUR, DAY = 3600, 86_400
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> list[tuple[Row, Row]]:
    """Requests over three days; some have an attempt at another provider before their round."""
    chance = random.Random(11)
    found = []
    for number in range(1500):
        provider = chance.choice(["glm", "claude"])
        row = request(
            f"req_{number:05d}",
            MIDNIGHT + chance.uniform(0, 3 * DAY),
            client=chance.choice(["laptop", "ci"]),
            route=chance.choice(["default", "tools"]),
            provider=provider,
            target_model=f"{provider}-1",
            status=chance.choice([200, 200, 502]),
            cost=chance.choice([0.25, None]),
            first_byte_ms=chance.choice([None, chance.uniform(5, 900)]),
        )
        found.append((row, call(row, provider=chance.choice(["glm", provider]), model="glm-1")))
    return found


@pytest.fixture(scope="module")
def connection(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Row, Row]]
) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("series") / "usage.sqlite"
    file = ledger_file(path)
    file.write(batch([row for row, _ in rows], [one for _, one in rows]))
    file.close()
    with reading(path) as found:
        yield found


CASES = [
    SeriesQuery(since=MIDNIGHT + 1234, until=MIDNIGHT + 3 * DAY - 777, step=step, by=by, wanted=wanted)
    for step in (900, HOUR, 5 * HOUR, 40_001, 4 * DAY)
    for by in (None, "provider", "client", "model", "route")
    for wanted in (
        RequestFilter(),
        RequestFilter(names={"client": "ci"}),
        RequestFilter(names={"provider": "glm"}),
        RequestFilter(names={"route": "tools"}),
        RequestFilter(names={"status": "error"}),
    )
]
COLUMN = {"provider": "provider", "client": "client", "model": "target_model", "route": "route"}
CALL_COLUMN = {**COLUMN, "model": "model"}


def selects(query: SeriesQuery, row: Row) -> bool:
    names = query.wanted.names
    is_error = row["status"] >= 400
    return (
        query.since * 1000 <= row["time"] < query.until * 1000
        and names.get("client", row["client"]) == row["client"]
        and names.get("route", row["route"]) == row["route"]
        and (names.get("status") != "error" or is_error)
    )


def expected(query: SeriesQuery, rows: list[tuple[Row, Row]]) -> dict[str, dict[int, list[float]]]:
    """Return requests, errors, input tokens and cost by name and number of the point."""
    found: dict[str, dict[int, list[float]]] = {}

    def add(name: str, at: int, place: int, value: float) -> None:
        number = (at - int(query.since * 1000)) // (query.step * 1000)
        found.setdefault(name, {}).setdefault(number, [0, 0, 0, 0.0])[place] += value

    provider = query.wanted.names.get("provider")
    for row, one in rows:
        if not selects(query, row):
            continue
        if provider in (None, row["provider"]):
            name = "all" if query.by is None else row[COLUMN[query.by]]
            add(name, row["time"], 0, 1)
            add(name, row["time"], 1, row["status"] >= 400)
        used = {**row, "provider": one["provider"], "model": one["model"]} if query.counts_calls else row
        if provider in (None, used["provider"]):
            columns = CALL_COLUMN if query.counts_calls else COLUMN
            name = "all" if query.by is None else used[columns[query.by]]
            add(name, row["time"], 2, one["input_tokens"])
            add(name, row["time"], 3, one["cost"] or 0.0)
    return found


@pytest.mark.parametrize("query", CASES, ids=str)
def test_points_are_the_sums_of_their_rows(
    connection: sqlite3.Connection, rows: list[tuple[Row, Row]], query: SeriesQuery
) -> None:
    found = {one["name"]: one["points"] for one in series(connection, query)}
    wanted = expected(query, rows)
    assert found.keys() == wanted.keys()
    for name, points in found.items():
        assert len(points) == query.points
        for number, point in enumerate(points):
            sums = wanted[name].get(number, [0, 0, 0, 0.0])
            assert [point["requests"], point["errors"], point["input_tokens"]] == sums[:3]
            assert (point["cost"] or 0.0) == pytest.approx(sums[3])


@pytest.mark.parametrize("step", [HOUR, 7 * HOUR, 4 * DAY])
def test_percentiles_are_close_to_those_of_the_rows(
    connection: sqlite3.Connection, rows: list[tuple[Row, Row]], step: int
) -> None:
    query = SeriesQuery(since=MIDNIGHT + 600, until=MIDNIGHT + 3 * DAY, step=step)
    (found,) = series(connection, query)
    for number, point in enumerate(found["points"]):
        begin = (query.since + number * step) * 1000
        times = sorted(
            row["first_byte_ms"]
            for row, _ in rows
            if begin <= row["time"] < min(begin + step * 1000, query.until * 1000)
            and row["first_byte_ms"] is not None
        )
        if len(times) < 30:
            continue
        assert point["first_byte_p50"] == pytest.approx(times[len(times) // 2] / 1000, rel=0.15)
        assert point["first_byte_p50"] <= point["first_byte_p95"]


def test_a_cost_of_which_nothing_is_known_is_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    row = request("req_1", MIDNIGHT + 100, cost=None)
    file.write(batch([row], [call(row, cost=None)]))
    file.close()
    with reading(path) as found:
        points = [
            series(found, SeriesQuery(since=MIDNIGHT, until=MIDNIGHT + 2 * HOUR, step=step))[0]["points"]
            for step in (60, HOUR)
        ]
    assert [point["cost"] for point in points[1]] == [None, 0.0]
    assert (points[0][1]["cost"], points[0][0]["cost"]) == (None, 0.0)


def test_many_names_become_twelve_series(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    file.write(
        batch(
            request(f"req_{client}_{n}", MIDNIGHT + 100, client=f"c{client:02d}")
            for client in range(20)
            for n in range(client + 1)
        )
    )
    file.close()
    with reading(path) as found:
        rows = series(found, SeriesQuery(since=MIDNIGHT, until=MIDNIGHT + HOUR, step=HOUR, by="client"))
    assert [row["name"] for row in rows] == [*(f"c{n:02d}" for n in range(19, 8, -1)), "other"]
    assert len(rows) == MOST_SERIES
    assert sum(row["points"][0]["requests"] for row in rows) == sum(range(1, 21))


def test_rows_that_another_program_added_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    file = ledger_file(path)
    file.write(batch(request(f"req_{n}", MIDNIGHT + n * HOUR) for n in range(10)))
    file.close()
    with sqlite3.connect(path) as raw:
        raw.execute(
            "INSERT INTO requests (id, time, client) VALUES ('req_x', ?, 'x')", ((MIDNIGHT + 60) * 1000,)
        )
    raw.close()
    with reading(path) as found:
        query = SeriesQuery(since=MIDNIGHT, until=MIDNIGHT + DAY, step=2 * HOUR)
        points = series(found, query)[0]["points"]
    assert sum(point["requests"] for point in points) == 11
