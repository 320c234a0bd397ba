"""The process that writes floods of requests: kills, hangs, signals, and files that cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from routecodex.accounting.ledger import Ledger, LedgerOptions
from routecodex.accounting.ledger_file import LedgerBatch, reading
from routecodex.accounting.ledger_process import LARGE, MOST_WAITING, LedgerProcess, WriteCommand
from tests.accounting.ledger_rows import MIDNIGHT, batch, ledger_file, request

LONG = 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.sqlite"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def process(clock: Clock) -> Iterator[LedgerProcess]:
    made = LedgerProcess(monotonic=clock, patience=LONG)
    yield made
    made.close()


def ready(process: LedgerProcess) -> LedgerProcess:
    """The process when it takes batches."""
    while not process.is_ready():
        time.sleep(0.01)
    return process


def command(path: Path, first: int, count: int = LARGE, *, waiting: int = 0) -> WriteCommand:
    rows = batch([request(f"req_{number:06d}", MIDNIGHT + 60) for number in range(first, first + count)])
    return WriteCommand(str(path), "main", "UTC", rows, waiting)


def figures(path: Path) -> tuple[int, int, int]:
    """Rows of requests and of calls, and the requests in the totals."""
    with reading(path) as connection:
        return (
            connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0],
            connection.execute("SELECT COUNT(*) FROM calls").fetchone()[0],
            connection.execute("SELECT SUM(requests) FROM hours").fetchone()[0],
        )


def running(process: LedgerProcess) -> int:
    assert process.pid is not None
    return process.pid


def test_a_large_batch_is_written_by_a_process(path: Path, process: LedgerProcess) -> None:
    # It has only been started, and nothing waits for it.
    assert not process.write(command(path, 0))
    assert ready(process).write(command(path, 0))
    assert figures(path) == (LARGE, LARGE, LARGE)
    first = running(process)
    assert first != os.getpid()
    assert process.write(command(path, LARGE))
    assert figures(path) == (2 * LARGE, 2 * LARGE, 2 * LARGE)
    assert running(process) == first


def test_batches_are_left_to_the_thread_when_too_many_requests_wait(
    path: Path, process: LedgerProcess
) -> None:
    assert not ready(process).write(command(path, 0, waiting=MOST_WAITING + 1))
    assert process.write(command(path, 0, waiting=MOST_WAITING))
    assert figures(path)[0] == LARGE


def test_a_process_that_does_not_start_is_given_up(
    path: Path, process: LedgerProcess, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert not process.write(command(path, 0))
    while process.pid is not None:
        # Its end shows in the pipe, or it is late.
        clock.now += 1.0
        assert not process.write(command(path, 0))
    clock.now += 61.0
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert not process.write(command(path, 0))
    assert process.pid is None


def test_small_batches_start_no_process(path: Path, process: LedgerProcess) -> None:
    assert not process.write(command(path, 0, LARGE - 1))
    assert process.pid is None
    assert not path.exists()


def test_the_process_writes_small_batches_too_until_the_flood_is_a_minute_ago(
    path: Path, process: LedgerProcess, clock: Clock
) -> None:
    assert ready(process).write(command(path, 0))
    clock.now = 59.0
    assert process.write(command(path, LARGE, 1))
    clock.now = 61.0
    assert not process.write(command(path, LARGE + 1, 1))
    assert process.pid is None


def test_each_batch_goes_to_the_file_it_names(path: Path, process: LedgerProcess) -> None:
    second = path.with_name("second.sqlite")
    assert ready(process).write(command(path, 0))
    assert process.write(command(second, 0))
    assert process.write(command(path, LARGE))
    assert figures(path)[0] == 2 * LARGE
    assert figures(second)[0] == LARGE


def test_a_batch_that_a_killed_process_did_not_confirm_is_left_to_the_thread(
    path: Path, process: LedgerProcess, clock: Clock
) -> None:
    assert ready(process).write(command(path, 0))
    os.kill(running(process), signal.SIGKILL)
    assert not process.write(command(path, LARGE))
    # It is not started again at once, in case it cannot run at all.
    assert not process.write(command(path, LARGE))
    assert process.pid is None
    clock.now = 61.0
    assert ready(process).write(command(path, LARGE))
    assert figures(path) == (2 * LARGE, 2 * LARGE, 2 * LARGE)


def test_a_process_that_hangs_is_killed_and_its_batch_is_left_to_the_thread(path: Path) -> None:
    process = LedgerProcess(patience=LONG)
    assert ready(process).write(command(path, 0))
    pid = running(process)
    os.kill(pid, signal.SIGSTOP)
    process.patience = 0.1
    assert not process.write(command(path, LARGE))
    assert process.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_rows_that_were_written_twice_count_once(path: Path, process: LedgerProcess) -> None:
    rows = command(path, 0)
    assert ready(process).write(rows)
    # The thread did not get the answer.
    file = ledger_file(path)
    file.write(rows.batch)
    file.close()
    assert figures(path) == (LARGE, LARGE, LARGE)


def test_a_file_that_cannot_be_written_is_left_to_the_thread(path: Path, process: LedgerProcess) -> None:
    ledger_file(path).write(batch([]))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not ready(process).write(command(path, 0))
    other.execute("ROLLBACK")
    other.close()
    assert process.write(command(path, 0))
    assert figures(path)[0] == LARGE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_whole_service_do_not_end_it_before_the_worker(
    path: Path, process: LedgerProcess, number: signal.Signals
) -> None:
    assert ready(process).write(command(path, 0))
    pid = running(process)
    os.kill(pid, number)
    assert process.write(command(path, LARGE))
    assert running(process) == pid


WORKER = """
import os, signal, sys
from pathlib import Path
from tests.accounting.test_ledger_process import command, ready
from routecodex.accounting.ledger_process import LedgerProcess

path, process = Path(sys.argv[1]), LedgerProcess()
assert ready(process).write(command(path, 0))
print(process.pid, flush=True)
write = os.write

def write_and_die(descriptor, data):
    sent = write(descriptor, data)
    if sent == len(data):
        os.kill(os.getpid(), signal.SIGKILL)
    return sent

os.write = write_and_die
process.write(command(path, 400))
"""


def test_what_a_killed_worker_had_sent_is_written_and_the_process_ends(path: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    writer = int(worker.stdout.readline())
    watch = os.pidfd_open(writer)
    assert worker.wait(timeout=60) == -signal.SIGKILL
    worker.stdout.close()
    try:
        # The end of a process that is not a child.
        assert select.select([watch], [], [], 60.0)[0] == [watch]
    finally:
        os.close(watch)
    assert figures(path) == (2 * LARGE, 2 * LARGE, 2 * LARGE)


def to_rows(items: Sequence[tuple[float, str]]) -> LedgerBatch:
    return batch([request(id, at) for at, id in items])


def writers() -> list[int]:
    """Ids of the processes of this kind that this one has started."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            for pid in (task / "children").read_text().split():
                if b"ledger_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found += [int(pid)]
    return found


async def test_a_flood_loses_nothing_when_its_process_is_killed_again_and_again(path: Path) -> None:
    ledger = Ledger[str](LedgerOptions(path=path, server="main"), to_rows)
    killed = 0
    for flood in range(4):
        for number in range(LARGE):
            ledger.add(f"req_{flood}_{number:04d}")
        flushed = asyncio.ensure_future(ledger.flush())
        while not flushed.done():
            for pid in writers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            await asyncio.sleep(0)
    await ledger.close()
    assert killed > 0
    assert (ledger.rows, ledger.lost) == (4 * LARGE, 0)
    assert figures(path) == (4 * LARGE, 4 * LARGE, 4 * LARGE)


async def test_the_process_of_a_flood_ends_with_the_ledger(path: Path) -> None:
    ledger = Ledger[str](LedgerOptions(path=path, server="main"), to_rows)
    for number in range(LARGE):
        ledger.add(f"req_{number:04d}")
    await ledger.flush()
    assert len(writers()) == 1
    await ledger.close()
    assert writers() == []
    assert figures(path) == (LARGE, LARGE, LARGE)
