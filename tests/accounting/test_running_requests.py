"""Running requests of clients, counted over several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from routecodex.accounting.running_requests import RunningRequests
from routecodex.accounting.shared_counters import SharedCounters


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.limits"


@pytest.fixture
def workers(file: Path) -> Iterator[list[SharedCounters]]:
    made = [SharedCounters(file) for _ in range(2)]
    yield made
    for one in made:
        one.close()


def test_the_requests_of_all_processes_are_added_up(workers: list[SharedCounters]) -> None:
    one, other = (RunningRequests(counters, clock=time.time) for counters in workers)
    one.show("laptop", 2)
    other.show("laptop", 3)
    other.show("ci", 1)
    assert (one.total("laptop"), other.total("laptop"), one.total("ci")) == (5, 5, 1)
    one.show("laptop", 0)
    assert (one.total("laptop"), one.total("nobody")) == (3, 0)


def test_a_process_that_ends_takes_its_requests_along(workers: list[SharedCounters]) -> None:
    one, other = (RunningRequests(counters, clock=time.time) for counters in workers)
    one.show("laptop", 2)
    other.show("laptop", 3)
    workers[1].close()
    assert one.total("laptop") == 2


HOLDER = """
import sys, time
from pathlib import Path
from routecodex.accounting.running_requests import RunningRequests
from routecodex.accounting.shared_counters import SharedCounters
running = RunningRequests(SharedCounters(Path(sys.argv[1])), clock=time.time)
running.show("laptop", 4)
print("shown", flush=True)
time.sleep(600)
"""


def test_requests_of_a_killed_process_are_gone(file: Path, workers: list[SharedCounters]) -> None:
    mine = RunningRequests(workers[0], clock=time.time)
    mine.show("laptop", 1)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"shown\n"
        assert mine.total("laptop") == 5
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert mine.total("laptop") == 1


def test_a_file_that_was_lost_gets_the_running_requests_again(
    file: Path, workers: list[SharedCounters]
) -> None:
    one, other = (RunningRequests(counters, clock=time.time) for counters in workers)
    one.show("laptop", 2)
    file.unlink()
    for counters in workers:
        counters.beat()
    one.refresh({"laptop": 2})
    assert other.total("laptop") == 2


def test_places_stay_those_of_their_clients_while_a_process_lives(workers: list[SharedCounters]) -> None:
    now = [1_800_000_000.0]
    one, other = (RunningRequests(counters, clock=lambda: now[0]) for counters in workers)
    one.show("laptop", 1)
    for _ in range(5):
        now[0] += 20 * 3600
        one.refresh({"laptop": 1})
        # A new client takes a place that nobody needs any more.
        other.show(f"new-{now[0]}", 7)
    one.show("laptop", 0)
    one.show("laptop", 1)
    assert other.total("laptop") == 1


def test_counters_that_cannot_be_used_count_nothing(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("in the way")
    running = RunningRequests(SharedCounters(tmp_path / "usage" / "x.limits"), clock=time.time)
    running.show("laptop", 1)
    running.refresh({"laptop": 1})
    assert running.total("laptop") == 0
