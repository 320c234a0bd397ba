"""The file of the ledger: its schema, its totals, several writers, and files that are damaged or gone."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from routecodex.accounting.ledger_file import UnreadableLedger, read_fact, reading
from routecodex.accounting.ledger_query import UsageQuery, figures
from tests.accounting.ledger_rows import MIDNIGHT, batch, call, ledger_file, request

DAY = 86_400
TOKENS = (
    "input_tokens output_tokens cache_read_tokens cache_write_tokens cache_write_1h_tokens reasoning_tokens"
)
FIGURES = (
    "requests errors input_tokens output_tokens cache_read_tokens cache_write_tokens reasoning_tokens cost "
    "cost_unknown cost_estimated cache_hit_rate"
)
TABLES = {
    "requests": "id time server client team session agent role protocol stream model route provider key "
    f"target_model status finish error attempts rounds {TOKENS} cost cost_kind first_byte_ms total_ms",
    "calls": f"request_id n kind provider key model status {TOKENS} cost cost_kind price_source ms",
    "hours": f"hour client team provider model {FIGURES}",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage" / "main.sqlite"


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with reading(path) as connection:
        return connection.execute(sql).fetchall()


def count(path: Path) -> int:
    return int(query(path, "SELECT COUNT(*) FROM requests")[0][0])


def test_the_tables_have_the_documented_columns(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT)]))
    for table, columns in TABLES.items():
        with reading(path) as connection:
            row = connection.execute(f"SELECT {columns.replace(' ', ', ')} FROM {table}").fetchone()
        assert row is not None
    assert query(path, "PRAGMA user_version") == [(1,)]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    file.close()


def test_only_the_owner_can_read_the_file(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT)]))
    for one in (path, Path(f"{path}-wal"), path.parent):
        assert stat.S_IMODE(one.stat().st_mode) & 0o077 == 0, one
    file.close()


def test_an_hour_has_calls_where_they_went_and_requests_where_they_ended(path: Path) -> None:
    row = request("req_1", MIDNIGHT + 10, provider="claude", target_model="opus", input_tokens=200, cost=1.0)
    failed = call(
        row, 1, kind="attempt", provider="glm", model="glm-4.7", input_tokens=80, cost=0.25, status=502
    )
    ended = call(row, 2, input_tokens=120, cost=0.75)
    file = ledger_file(path)
    file.write(batch([row], [failed, ended]))
    columns = "provider, model, requests, errors, input_tokens, cost, calls, call_errors"
    assert query(path, f"SELECT {columns} FROM hours ORDER BY provider") == [
        ("claude", "opus", 1, 0, 120, 0.75, 1, 0),
        ("glm", "glm-4.7", 0, 0, 80, 0.25, 1, 1),
    ]
    assert query(path, "SELECT hour, SUM(input_tokens) FROM hours") == [(MIDNIGHT, 200)]
    file.close()


def test_a_batch_that_is_written_twice_counts_once(path: Path) -> None:
    file = ledger_file(path)
    rows = batch([request("req_1", MIDNIGHT), request("req_2", MIDNIGHT)])
    file.write(rows)
    file.write(rows)
    assert query(path, "SELECT SUM(requests), SUM(input_tokens) FROM hours") == [(2, 200)]
    file.close()


def write_rows(path: Path, worker: int, batches: int) -> None:
    file = ledger_file(path)
    for number in range(batches):
        file.write(batch([request(f"req_{worker}_{number}_{row}", MIDNIGHT + number) for row in range(5)]))
    file.close()


def test_two_processes_write_the_same_file(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=write_rows, args=(path, number, 40)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert count(path) == 400
    with reading(path) as connection:
        for by in (("client",), ("session",), ("key",)):
            (found,) = figures(connection, UsageQuery(by=by)).values()
            assert (found.requests, found.input_tokens) == (400, 40_000)


def test_a_damaged_file_is_set_aside_and_a_new_one_begins(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT)]))
    file.close()
    path.write_bytes(b"this is not a database, " * 1000)
    file.write(batch([request("req_2", MIDNIGHT)]))
    assert query(path, "SELECT id FROM requests") == [("req_2",)]
    (aside,) = path.parent.glob("main.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is not a database")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(aside) in caplog.text
    file.close()


def test_a_damaged_file_is_set_aside_once_by_two_writers(path: Path) -> None:
    one, other = ledger_file(path), ledger_file(path)
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, " * 1000)
    one.write(batch([request("req_1", MIDNIGHT)]))
    other.write(batch([request("req_2", MIDNIGHT)]))
    assert count(path) == 2
    assert len(list(path.parent.glob("*.damaged-*"))) == 1
    one.close()
    other.close()


def test_a_file_that_was_removed_is_created_again(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_1", MIDNIGHT)]))
    for one in path.parent.iterdir():
        one.unlink()
    file.write(batch([request("req_2", MIDNIGHT)]))
    assert query(path, "SELECT id FROM requests") == [("req_2",)]
    file.close()


def test_old_rows_go_and_their_hourly_totals_stay(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request(f"req_{day}", MIDNIGHT + day * DAY) for day in range(10)]))
    while file.prune(oldest=MIDNIGHT + 4 * DAY, max_mb=1024):
        pass
    assert query(path, "SELECT MIN(time) FROM requests") == [((MIDNIGHT + 4 * DAY) * 1000,)]
    assert query(path, "SELECT COUNT(*) FROM calls") == [(6,)]
    with reading(path) as connection:
        for by in (("client",), ("model",), ("day",)):
            found = figures(connection, UsageQuery(by=by))
            assert sum(row.requests for row in found.values()) == 10
        kept = figures(connection, UsageQuery(by=("session",)))
    assert kept["s1",].requests == 6
    file.close()


def test_a_file_that_is_too_large_loses_its_oldest_rows(path: Path) -> None:
    file = ledger_file(path)
    for part in range(20):
        file.write(batch([request(f"req_{part:02d}{row:04d}", MIDNIGHT + part * DAY) for row in range(500)]))
    steps = 0
    while file.prune(oldest=0, max_mb=1):
        steps += 1
    assert steps > 1
    assert 0 < count(path) < 5000
    newest = (MIDNIGHT + 19 * DAY) * 1000
    assert query(path, "SELECT MAX(time), SUM(1) > 0 FROM requests") == [(newest, 1)]
    assert query(path, "SELECT SUM(requests) FROM hours") == [(10_000,)]
    file.close()
    assert path.stat().st_size < 1.5 * 1024 * 1024


def test_facts_of_the_server_are_in_the_file(path: Path) -> None:
    for zone in ("UTC", "Europe/Oslo"):
        file = ledger_file(path, timezone=zone)
        file.write(batch([]))
        file.close()
        with reading(path) as connection:
            assert (read_fact(connection, "timezone"), read_fact(connection, "server")) == (zone, "main")


def test_a_file_that_does_not_exist_is_not_created_by_a_reader(path: Path) -> None:
    with pytest.raises(FileNotFoundError), reading(path):
        pass
    assert not path.exists()


def test_a_file_whose_tables_are_about_to_be_created_does_not_exist_yet(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(FileNotFoundError), reading(path):
        pass


def test_a_file_that_is_not_a_ledger_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    file.write_bytes(b"this is not a database, " * 100)
    with pytest.raises(UnreadableLedger, match=r"other\.sqlite"), reading(file):
        pass


def test_a_file_of_a_later_version_is_neither_read_nor_written(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([]))
    file.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(Exception, match="version 2"):
        file.write(batch([request("req_1", MIDNIGHT)]))
    with pytest.raises(UnreadableLedger, match="version 2"), reading(path):
        pass
