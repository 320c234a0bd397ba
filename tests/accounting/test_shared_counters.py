"""Shared counters: atomic reservations, true figures, dead processes, lost and damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from routecodex.accounting.counter_file import SILENCE
from routecodex.accounting.counters import CountersUnavailable, LimitRefusal, LimitReservation
from routecodex.accounting.limits import Limit, make_limits
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.windows import MICROS
from routecodex.config import LimitConfig

NOW = int(datetime(2026, 11, 18, 7, 0, tzinfo=UTC).timestamp()) * MICROS
DAY = 86_400 * MICROS


def limits(*texts: str, owner: str = "client:laptop", concurrent: int | None = None) -> tuple[Limit, ...]:
    return make_limits(owner, [LimitConfig(limit=text) for text in texts], concurrent=concurrent)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "usage" / "gateway.limits"


@pytest.fixture
def counters(file: Path) -> Iterator[SharedCounters]:
    made = SharedCounters(file)
    yield made
    made.close()


def admitted(reserved: LimitReservation | LimitRefusal) -> LimitReservation:
    assert isinstance(reserved, LimitReservation)
    return reserved


def refused(reserved: LimitReservation | LimitRefusal) -> LimitRefusal:
    assert isinstance(reserved, LimitRefusal)
    return reserved


def state(counters: SharedCounters, rows: tuple[Limit, ...], now: int = NOW) -> list[tuple[int, int]]:
    return [(one.used, one.reserved) for one in counters.figures(rows, now)]


def test_the_true_figure_replaces_the_reservation(counters: SharedCounters) -> None:
    rows = limits("$1/day", "5 requests/60s")
    held = admitted(counters.reserve(rows, [700, 1], NOW))
    assert state(counters, rows) == [(0, 700), (0, 1)]
    counters.settle(held, [123, 1], NOW)
    assert state(counters, rows) == [(123, 0), (1, 0)]


def test_a_request_reserves_against_all_limits_or_none(counters: SharedCounters) -> None:
    rows = limits("10 tokens/day", "2 requests/day")
    admitted(counters.reserve(rows, [4, 1], NOW))
    assert refused(counters.reserve(rows, [7, 1], NOW)).exceeded.limit is rows[0]
    assert state(counters, rows) == [(0, 4), (0, 1)]
    admitted(counters.reserve(rows, [6, 1], NOW))
    assert refused(counters.reserve(rows, [0, 1], NOW)).exceeded.limit is rows[1]


def test_a_shadow_limit_counts_and_never_refuses(counters: SharedCounters) -> None:
    rows = make_limits("client:a", [LimitConfig(limit="1 requests/day", mode="shadow")])
    for _ in range(3):
        counters.settle(admitted(counters.reserve(rows, [1], NOW)), [1], NOW)
    assert state(counters, rows) == [(3, 0)]


def test_requests_at_the_same_time_stay_reserved_between_rounds(counters: SharedCounters) -> None:
    rows = limits("100 tokens/day", concurrent=1)
    held = admitted(counters.reserve(rows, [40, 1], NOW))
    counters.settle(held, [30, 0], NOW, last=False)
    assert state(counters, rows) == [(30, 0), (0, 1)]
    assert refused(counters.reserve(rows, [1, 1], NOW)).exceeded.limit is rows[1]
    counters.settle(held, [0, 0], NOW)
    assert state(counters, rows) == [(30, 0), (0, 0)]


def test_processes_share_one_limit(file: Path, counters: SharedCounters) -> None:
    other, rows = SharedCounters(file), limits("2 requests/day")
    admitted(counters.reserve(rows, [1], NOW))
    theirs = limits("2 requests/day")
    admitted(other.reserve(theirs, [1], NOW))
    refused(counters.reserve(rows, [1], NOW))
    other.close()
    assert state(counters, rows) == [(0, 1)]


def test_windows_survive_a_restart(file: Path) -> None:
    rows = limits("$1/day", "5 requests/60s")
    before = SharedCounters(file)
    before.settle(admitted(before.reserve(rows, [9, 1], NOW)), [7, 1], NOW)
    before.close()
    again, after = limits("$2/day", "6 requests/60s"), SharedCounters(file)
    assert state(after, again) == [(7, 0), (1, 0)]
    after.close()


def test_limits_of_before_and_after_a_reload_count_together(counters: SharedCounters) -> None:
    before = limits("5 requests/day", concurrent=5)
    first, second = (admitted(counters.reserve(before, [1, 1], NOW)) for _ in range(2))
    after = limits("6 requests/day", concurrent=5)
    third = admitted(counters.reserve(after, [1, 1], NOW))
    counters.settle(first, [1, 0], NOW)
    assert state(counters, after) == state(counters, before) == [(1, 2), (0, 2)]
    counters.settle(third, [1, 0], NOW)
    counters.settle(second, [1, 0], NOW)
    assert state(counters, after) == state(counters, before) == [(3, 0), (0, 0)]


def test_a_window_that_ends_makes_room(counters: SharedCounters) -> None:
    rows = limits("1 requests/60s")
    counters.settle(admitted(counters.reserve(rows, [1], NOW)), [1], NOW)
    refusal = refused(counters.reserve(rows, [1], NOW + 59 * MICROS))
    assert refusal.frees_at is not None
    assert refusal.frees_at == refusal.exceeded.resets_at
    refused(counters.reserve(rows, [1], refusal.frees_at - 1))
    admitted(counters.reserve(rows, [1], refusal.frees_at))


def test_waiting_does_not_help_a_request_that_is_larger_than_the_limit(counters: SharedCounters) -> None:
    rows = limits("10 tokens/60s")
    assert refused(counters.reserve(rows, [11], NOW)).frees_at is None


def test_a_clock_set_back_frees_nothing(counters: SharedCounters) -> None:
    rows = limits("1 requests/60s", "$1/day")
    counters.settle(admitted(counters.reserve(rows, [1, 5], NOW)), [1, 5], NOW)
    refused(counters.reserve(rows, [1, 5], NOW - 3 * DAY))
    assert state(counters, rows, NOW - 3 * DAY) == [(1, 0), (5, 0)]


@pytest.mark.parametrize("window", ["day", "60s"])
def test_use_beyond_all_bounds_stays_used(counters: SharedCounters, window: str) -> None:
    rows = make_limits("client:laptop", [LimitConfig(limit=f"5 tokens/{window}", mode="shadow")])
    for _ in range(3):
        counters.settle(admitted(counters.reserve(rows, [1], NOW)), [10**30], NOW)
    [(used, reserved)] = state(counters, rows)
    assert (used > 10**18, reserved) == (True, 0)
    refused(counters.reserve(limits(f"5 tokens/{window}"), [1], NOW))
    assert state(counters, rows, NOW + DAY) == [(0, 0)]


def test_reset_sets_use_to_zero_and_keeps_reservations(counters: SharedCounters) -> None:
    rows = limits("5 requests/day", concurrent=3)
    counters.settle(admitted(counters.reserve(rows, [1, 1], NOW)), [1, 0], NOW)
    admitted(counters.reserve(rows, [1, 1], NOW))
    counters.reset(rows, NOW)
    assert state(counters, rows) == [(0, 1), (0, 1)]


def test_warning_and_end_of_a_limit_are_reported_once_in_a_window(counters: SharedCounters) -> None:
    rows = limits("5 requests/day")
    seen: list[list[str]] = []
    for now in (NOW, NOW + DAY):
        for _ in range(7):
            reserved = counters.reserve(rows, [1], now)
            if isinstance(reserved, LimitReservation):
                counters.settle(reserved, [1], now)
            seen.append([event.name for event in reserved.events])
    assert seen == [[], [], [], ["limit_warn"], [], ["limit_exceeded"], []] * 2


HOLDER = """
import os, sys, time
from pathlib import Path
from routecodex.accounting.limits import make_limits
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.config import LimitConfig
rows = make_limits("client:laptop", [LimitConfig(limit="3 requests/day")])
counters = SharedCounters(Path(sys.argv[1]))
now = int(sys.argv[2])
counters.settle(counters.reserve(rows, [1], now), [1], now)
counters.reserve(rows, [1], now)
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_process_loses_its_reservations_at_once_and_keeps_its_use(
    file: Path, counters: SharedCounters
) -> None:
    rows = limits("3 requests/day")
    held = counters.reserve(rows, [1], NOW)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file), str(NOW)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert state(counters, rows) == [(1, 2)]
        refused(counters.reserve(rows, [1], NOW))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    admitted(counters.reserve(rows, [1], NOW))
    counters.settle(admitted(held), [1], NOW)
    assert state(counters, rows) == [(2, 1)]


class Seconds:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.value = 1000.0

    def __call__(self) -> float:
        return self.value


def test_a_process_that_hangs_loses_its_reservations_after_30_seconds(file: Path) -> None:
    clock, rows = Seconds(), limits("5 requests/day")
    hung, alive = (SharedCounters(file, monotonic=clock) for _ in range(2))
    mine = limits("5 requests/day")
    held = admitted(hung.reserve(mine, [1], NOW))
    clock.value += SILENCE
    alive.beat()
    assert state(alive, rows) == [(0, 1)]
    clock.value += 0.001
    assert state(alive, rows) == [(0, 0)]
    admitted(alive.reserve(rows, [2], NOW))
    # It was alive after all: it is charged, and takes nothing from the reservations of others.
    hung.settle(held, [1], NOW)
    assert state(alive, rows) == [(1, 2)]
    admitted(hung.reserve(mine, [2], NOW))
    assert state(alive, rows) == [(1, 4)]
    hung.close()
    alive.close()


def test_signs_of_life_keep_reservations(file: Path) -> None:
    clock, rows = Seconds(), limits("5 requests/day")
    one, other = (SharedCounters(file, monotonic=clock) for _ in range(2))
    admitted(one.reserve(limits("5 requests/day"), [1], NOW))
    for _ in range(5):
        clock.value += SILENCE / 2
        one.beat()
        other.beat()
    assert state(other, rows) == [(0, 1)]
    one.close()
    other.close()


def from_ledger(limit: Limit, since: int) -> list[tuple[int, int]]:
    assert since < NOW
    return [(NOW - 2 * DAY, 100), (NOW - 90 * MICROS, 20), (NOW - 30 * MICROS, 3)]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"not a file of counters" * 1000),
    lambda path: overwrite(path, 0, b"\xff" * 64),
    lambda path: overwrite(path, 4096 + 16, b"\xff" * 512),
    lambda path: os.truncate(path, 5000),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_lost_or_damaged_file_is_rebuilt_from_the_ledger(
    file: Path, damage: Callable[[Path], object]
) -> None:
    rows = limits("1000 requests/day")
    before = SharedCounters(file)
    before.settle(admitted(before.reserve(rows, [1], NOW)), [1], NOW)
    before.close()
    damage(file)
    again, after = (
        limits("1000 requests/day", "1000 requests/60s"),
        SharedCounters(file, past_use=from_ledger),
    )
    assert state(after, again) == [(23, 0), (3, 0)]
    after.close()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_deleted_while_in_use_is_replaced_at_the_next_sign_of_life(file: Path) -> None:
    rows, counters = limits("1000 requests/day"), SharedCounters(file, past_use=from_ledger)
    held = admitted(counters.reserve(rows, [1], NOW))
    file.unlink()
    counters.beat()
    assert file.exists()
    counters.settle(held, [1], NOW)
    assert state(counters, rows) == [(24, 0)]
    counters.close()


def test_a_file_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "usage").write_text("in the way")
    counters = SharedCounters(tmp_path / "usage" / "gateway.limits")
    with pytest.raises(CountersUnavailable, match=r"gateway\.limits: "):
        counters.reserve(limits("1 requests/day"), [1], NOW)
    with pytest.raises(CountersUnavailable, match=r"gateway\.limits: "):
        counters.beat()
    (tmp_path / "usage").unlink()
    admitted(counters.reserve(limits("1 requests/day"), [1], NOW))
    counters.close()


def test_the_file_grows_with_the_number_of_limits_while_others_use_it(
    file: Path, counters: SharedCounters
) -> None:
    first = limits("5 requests/day")
    admitted(counters.reserve(first, [1], NOW))
    other = SharedCounters(file)
    many = [row for number in range(200) for row in limits("5 requests/day", owner=f"client:{number}")]
    admitted(other.reserve(many, [1] * len(many), NOW))
    assert state(counters, tuple(many)) == [(0, 1)] * 200
    assert state(counters, first) == [(0, 1)]
    other.close()
    assert state(counters, tuple(many)) == [(0, 0)] * 200


def test_places_of_limits_that_are_over_are_used_again(file: Path, counters: SharedCounters) -> None:
    for day in range(40):
        rows = [
            row for number in range(20) for row in limits("5 requests/60s", owner=f"client:{day}.{number}")
        ]
        counters.figures(rows, NOW + 2 * day * DAY)
    assert file.stat().st_size < 300_000


class Interleaving(RuleBasedStateMachine):
    """Any order of reserving, settling, killing and waiting, in several processes on one file."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.clock = Seconds()
        self.processes: list[SharedCounters] = []
        self.held: list[tuple[SharedCounters, LimitReservation]] = []
        self.used: list[tuple[int, int]] = []

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.rows = limits("6 requests/60s", "100 tokens/60s", "$0.0000002/60s", concurrent=4)
        for _ in range(3):
            self.spawn()

    def spawn(self) -> None:
        path = Path(self.folder.name) / "test.limits"
        self.processes.append(SharedCounters(path, monotonic=self.clock))

    @rule(which=st.integers(0, 2), tokens=st.integers(0, 60), nanos=st.integers(0, 120))
    def reserve(self, which: int, tokens: int, nanos: int) -> None:
        process, amounts = self.processes[which], [1, tokens, nanos, 1]
        figures = process.figures(self.rows, self.now)
        fits = all(
            row.used + row.reserved + amount <= row.limit.max
            for row, amount in zip(figures, amounts, strict=True)
        )
        reserved = process.reserve(self.rows, amounts, self.now)
        assert isinstance(reserved, LimitReservation) == fits
        in_window = [row for row in self.used if self.now <= row[0] + 60 * MICROS]
        free = 6 - len(in_window) - len(self.held)
        if isinstance(reserved, LimitReservation):
            assert free > 0
            assert len(self.held) < 4
            self.held.append((process, reserved))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 3), share=st.floats(0, 1))
    def settle(self, which: int, share: float) -> None:
        process, reservation = self.held.pop(which % len(self.held))
        _, tokens, nanos, _ = reservation.amounts
        process.settle(reservation, [1, int(tokens * share), int(nanos * share), 0], self.now)
        self.used.append((self.now, int(tokens * share)))

    @rule(which=st.integers(0, 2))
    def kill(self, which: int) -> None:
        dead = self.processes.pop(which)
        self.held = [row for row in self.held if row[0] is not dead]
        dead.close()
        self.spawn()

    @rule(which=st.integers(0, 2))
    def hang(self, which: int) -> None:
        """One process shows no sign of life for so long that it loses its reservations."""
        hung = self.processes[which]
        for _ in range(4):
            self.clock.value += SILENCE / 3
            for process in self.processes:
                if process is not hung:
                    process.beat()
        self.held = [row for row in self.held if row[0] is not hung]

    @rule(seconds=st.integers(0, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds * MICROS

    @rule()
    def set_clock_back(self) -> None:
        back = 3600 * MICROS
        self.now -= back
        self.used = [(at - back, tokens) for at, tokens in self.used]

    @invariant()
    def holds(self) -> None:
        for figures in self.processes[0].figures(self.rows, self.now) if self.processes else ():
            assert 0 <= figures.used + figures.reserved <= figures.limit.max
        if self.processes:
            concurrent = self.processes[1].figures(self.rows, self.now)[3]
            assert concurrent.reserved == len(self.held)

    def teardown(self) -> None:
        for process in self.processes:
            process.close()
        self.folder.cleanup()


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
