"""The ledger of one worker: batches in a thread, and disks and files that cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from routecodex.accounting.ledger import Ledger, LedgerOptions
from routecodex.accounting.ledger_file import LedgerBatch, reading
from tests.accounting.ledger_rows import MIDNIGHT, batch, ledger_file, request


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.sqlite"


def to_rows(items: Sequence[tuple[float, str]]) -> LedgerBatch:
    return batch([request(id, at) for at, id in items])


@contextlib.asynccontextmanager
async def opened(path: Path, *, patience: float = 5.0, keep_days: int = 90) -> AsyncIterator[Ledger[str]]:
    options = LedgerOptions(path=path, server="main", keep_days=keep_days)
    ledger = Ledger[str](options, to_rows, patience=patience)
    try:
        yield ledger
    finally:
        await ledger.close()


def ids(path: Path) -> list[str]:
    with reading(path) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM requests ORDER BY id")]


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_request_is_in_the_file_within_a_second(path: Path) -> None:
    async with opened(path) as ledger:
        ledger.add("req_1")
        # Nothing but time passes: no further request, no flush.
        await until(lambda: ledger.rows == 1, seconds=1.0)
        assert ids(path) == ["req_1"]


async def test_a_clean_stop_writes_everything(path: Path) -> None:
    async with opened(path) as ledger:
        for number in range(1000):
            ledger.add(f"req_{number:04d}")
    assert len(ids(path)) == ledger.rows == 1000


async def test_requests_are_written_many_at_once(path: Path) -> None:
    sizes: list[int] = []

    def noted(items: Sequence[tuple[float, str]]) -> LedgerBatch:
        sizes.append(len(items))
        return to_rows(items)

    ledger = Ledger[str](LedgerOptions(path=path, server="main"), noted)
    for number in range(50):
        ledger.add(f"req_{number}")
    await ledger.flush()
    await ledger.close()
    assert sizes == [50]


async def test_a_file_that_another_program_locks_is_waited_for(path: Path) -> None:
    ledger_file(path).write(batch([]))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with opened(path) as ledger:
        ledger.add("req_1")
        flushed = asyncio.ensure_future(ledger.flush())
        await asyncio.sleep(0.3)
        assert (ledger.rows, ledger.lost, flushed.done()) == (0, 0, False)
        other.execute("ROLLBACK")
        await flushed
        assert (ledger.rows, ledger.lost) == (1, 0)
    other.close()


async def test_a_file_that_stays_locked_costs_rows_and_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger_file(path).write(batch([]))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with opened(path, patience=0.0) as ledger:
        for number in range(3):
            ledger.add(f"req_{number}")
            await ledger.flush()
        assert (ledger.rows, ledger.lost) == (0, 3)
        other.execute("ROLLBACK")
        ledger.add("req_3")
        await ledger.flush()
        assert (ledger.rows, ledger.lost) == (1, 3)
    other.close()
    assert ids(path) == ["req_3"]
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"]
    assert "locked" in caplog.text


async def test_a_stop_does_not_wait_for_a_locked_file(path: Path) -> None:
    ledger_file(path).write(batch([]))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(10):
        async with opened(path, patience=3600.0) as ledger:
            ledger.add("req_1")
    other.close()
    assert ledger.lost == 1


async def test_a_place_that_cannot_be_written_costs_rows_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Nobody can create a file below a file, not even the superuser that tests may run as.
    (tmp_path / "file").write_bytes(b"")
    async with opened(tmp_path / "file" / "main.sqlite") as ledger:
        for number in range(3):
            ledger.add(f"req_{number}")
            await ledger.flush()
        assert (ledger.rows, ledger.lost) == (0, 3)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_rows_that_a_slow_disk_cannot_take_are_counted(path: Path) -> None:
    async with opened(path) as ledger:
        # The thread has taken the first thousand.
        for number in range(21_050):
            ledger.add(f"req_{number:05d}")
        assert ledger.lost == 50


async def test_old_rows_are_deleted_beside_the_requests(path: Path) -> None:
    file = ledger_file(path)
    file.write(batch([request("req_old", MIDNIGHT - 5 * 86_400)]))
    file.close()
    async with opened(path, keep_days=3) as ledger:
        ledger.add("req_new")
        await ledger.flush()
        await until(lambda: ids(path) == ["req_new"])
    with reading(path) as connection:
        assert connection.execute("SELECT SUM(requests) FROM hours").fetchone() == (2,)


async def test_another_file_takes_the_next_rows(path: Path) -> None:
    async with opened(path) as ledger:
        ledger.add("req_1")
        await ledger.flush()
        second = path.with_name("second.sqlite")
        ledger.configure(LedgerOptions(path=second, server="main"))
        ledger.add("req_2")
        await ledger.flush()
        assert (ids(path), ids(second)) == (["req_1"], ["req_2"])
