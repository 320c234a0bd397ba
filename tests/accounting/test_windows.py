"""Windows: periods across daylight saving and month ends, rolling windows, a clock that is set back."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.accounting.windows import (
    CELLS,
    MICROS,
    USED,
    CalendarWindow,
    NoWindow,
    RollingWindow,
    Window,
    WindowState,
    period_bounds,
)
from routecodex.config.limit_text import CalendarPeriod

PERIODS: list[CalendarPeriod] = ["minute", "hour", "day", "week", "month"]
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Africa/Casablanca",
]
MOMENTS = st.integers(int(datetime(1995, 1, 1, tzinfo=UTC).timestamp()), 4_000_000_000)


def micros(text: str) -> int:
    """Return a time such as `2026-03-29T01:30:00+01:00` in microseconds."""
    return int(datetime.fromisoformat(text).timestamp()) * MICROS


def bounds(period: CalendarPeriod, zone: str, now: str) -> tuple[str, str]:
    start, end = period_bounds(period, ZoneInfo(zone), micros(now))
    first, last = (datetime.fromtimestamp(one // MICROS, ZoneInfo(zone)).isoformat() for one in (start, end))
    return first, last


@pytest.mark.parametrize(
    ("period", "zone", "now", "expected"),
    [
        (
            "day",
            "Europe/Berlin",
            "2026-03-29T12:00:00+02:00",
            ("2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"),
        ),
        (
            "day",
            "Europe/Berlin",
            "2026-10-25T02:30:00+01:00",
            ("2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"),
        ),
        (
            "hour",
            "Europe/Berlin",
            "2026-10-25T02:30:00+02:00",
            ("2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"),
        ),
        (
            "hour",
            "Europe/Berlin",
            "2026-03-29T01:59:59+01:00",
            ("2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00"),
        ),
        (
            "hour",
            "Asia/Kolkata",
            "2026-11-18T00:10:00+05:30",
            ("2026-11-18T00:00:00+05:30", "2026-11-18T01:00:00+05:30"),
        ),
        (
            "week",
            "Asia/Shanghai",
            "2026-11-22T23:59:59+08:00",
            ("2026-11-16T00:00:00+08:00", "2026-11-23T00:00:00+08:00"),
        ),
        (
            "month",
            "UTC",
            "2028-02-29T23:59:59+00:00",
            ("2028-02-01T00:00:00+00:00", "2028-03-01T00:00:00+00:00"),
        ),
        (
            "month",
            "America/New_York",
            "2026-12-31T23:59:59-05:00",
            ("2026-12-01T00:00:00-05:00", "2027-01-01T00:00:00-05:00"),
        ),
        # Midnight does not exist there on this day.
        (
            "day",
            "America/Sao_Paulo",
            "2018-11-04T12:00:00-02:00",
            ("2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"),
        ),
        # Samoa left out 30 December 2011.
        (
            "day",
            "Pacific/Apia",
            "2011-12-31T00:00:00+14:00",
            ("2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"),
        ),
        # Clocks go back by half an hour here: the hour is cut in two.
        (
            "hour",
            "Australia/Lord_Howe",
            "2026-04-05T01:45:00+10:30",
            ("2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"),
        ),
    ],
)
def test_calendar_periods_follow_local_clocks(
    period: CalendarPeriod, zone: str, now: str, expected: tuple[str, str]
) -> None:
    assert bounds(period, zone, now) == expected


@given(st.sampled_from(PERIODS), st.sampled_from(ZONES), MOMENTS)
def test_calendar_periods_follow_each_other_without_gap(
    period: CalendarPeriod, zone: str, seconds: int
) -> None:
    where = ZoneInfo(zone)
    start, end = period_bounds(period, where, seconds * MICROS)
    assert start <= seconds * MICROS < end
    assert period_bounds(period, where, start) == (start, end)
    assert period_bounds(period, where, end - 1) == (start, end)
    assert period_bounds(period, where, end)[0] == end
    assert period_bounds(period, where, start - 1)[1] == start
    assert end - start <= CalendarWindow(period, where).length


class Meter:
    """One window and its cells."""

    def __init__(self, window: Window, now: int) -> None:
        self.window = window
        self.cells = [0] * (CELLS + 2)
        self.state = WindowState(self.cells, 1)
        self.state.clear(window, now)

    def use(self, amount: int, now: int) -> None:
        self.state.advance(self.window, now)
        self.window.add(self.state, amount)

    def used(self, now: int) -> int:
        self.state.advance(self.window, now)
        used = self.state.used
        # Another process has the cells alone, and sees the same.
        other = WindowState(list(self.cells), 1)
        assert (other.used, self.window.resets_at(other)) == (used, self.resets_at())
        assert (self.cells[0], self.cells[-1]) == (0, 0)
        return used

    def resets_at(self) -> int | None:
        return self.window.resets_at(self.state)


START = micros("2026-11-18T07:00:00+00:00")


@given(
    st.integers(1, 366 * 86_400), st.lists(st.tuples(st.floats(0, 0.7), st.integers(0, 1000)), max_size=40)
)
def test_a_use_counts_for_the_window_and_at_most_a_sixtieth_longer(
    seconds: int, steps: list[tuple[float, int]]
) -> None:
    window, now = seconds * MICROS, START
    meter = Meter(RollingWindow(seconds), now)
    uses: list[tuple[int, int]] = []
    for share, amount in steps:
        now += int(share * window)
        meter.use(amount, now)
        uses.append((now, amount))
        surely = sum(amount for at, amount in uses if now <= at + window)
        possibly = sum(amount for at, amount in uses if now <= at + window + window // 60 + 1)
        assert surely <= meter.used(now) <= possibly


@given(st.integers(1, 366 * 86_400), st.integers(0, 10**12))
def test_a_rolling_window_resets_when_its_oldest_use_leaves(seconds: int, offset: int) -> None:
    now = START + offset
    meter = Meter(RollingWindow(seconds), now)
    assert meter.resets_at() is None
    meter.use(5, now)
    leaves = meter.resets_at()
    assert leaves is not None
    assert now + seconds * MICROS < leaves <= now + seconds * MICROS + -(-seconds * MICROS // 60)
    assert meter.used(leaves - 1) == 5
    assert meter.used(leaves) == 0
    assert meter.resets_at() is None


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=20), st.integers(0, 60)
)
def test_a_rolling_window_says_when_it_has_room(uses: list[tuple[int, int]], room: int) -> None:
    now = START
    meter = Meter(RollingWindow(60), now)
    for pause, amount in uses:
        now += pause * MICROS
        meter.use(amount, now)
    total = meter.used(now)
    frees = meter.window.frees_at(meter.state, room)
    assert frees is not None
    if total > room:
        assert meter.used(frees - 1) > room
    assert meter.used(frees) <= room
    assert meter.window.frees_at(meter.state, -1) is None


def test_a_calendar_window_is_empty_in_the_next_period() -> None:
    meter = Meter(CalendarWindow("day", ZoneInfo("Europe/Berlin")), micros("2026-03-29T00:00:00+01:00"))
    meter.use(7, micros("2026-03-29T23:59:59+02:00"))
    assert meter.used(micros("2026-03-29T23:59:59+02:00")) == 7
    assert meter.resets_at() == micros("2026-03-30T00:00:00+02:00")
    assert meter.used(micros("2026-03-30T00:00:00+02:00")) == 0


WINDOWS: list[Window] = [
    CalendarWindow("day"),
    CalendarWindow("hour", ZoneInfo("Europe/Berlin")),
    RollingWindow(60),
    RollingWindow(5 * 3600),
]


@given(st.sampled_from(WINDOWS), st.lists(st.integers(-(10**12), 0), min_size=1, max_size=8))
def test_a_clock_that_is_set_back_frees_nothing(window: Window, changes: list[int]) -> None:
    now = START
    meter = Meter(window, now)
    meter.use(50, now)
    for change in changes:
        now += change
        assert meter.used(now) == 50
        assert meter.state.is_sane(window)


def test_use_leaves_at_its_age_after_the_clock_was_set_back() -> None:
    meter = Meter(RollingWindow(60), START)
    meter.use(1, START)
    meter.use(2, START + 30 * MICROS)
    earlier = START - 3600 * MICROS
    assert meter.used(earlier) == 3
    assert meter.used(earlier + 29 * MICROS) == 3
    assert meter.used(earlier + 32 * MICROS) == 2
    assert meter.used(earlier + 62 * MICROS) == 0


def test_a_clock_that_was_ahead_does_not_stop_the_window() -> None:
    meter = Meter(CalendarWindow("day"), START)
    meter.use(3, START + 400 * 86_400 * MICROS)
    assert meter.used(START) == 3
    assert meter.used(START + 86_400 * MICROS) == 0


def test_requests_at_the_same_time_are_not_used_up() -> None:
    meter = Meter(NoWindow(), START)
    meter.use(1, START)
    assert meter.used(START) == 0
    assert meter.resets_at() is None


@given(st.integers(0, 200), st.integers(1, 50))
def test_past_use_counts_as_if_it_had_been_counted_then(age: int, amount: int) -> None:
    counted = Meter(RollingWindow(60), START - age * MICROS)
    counted.use(amount, START - age * MICROS)
    placed = Meter(RollingWindow(60), START)
    placed.window.place(placed.state, START - age * MICROS, amount)
    for later in (0, 20, 45, 61):
        now = START + later * MICROS
        assert placed.used(now) == counted.used(now)
        assert placed.resets_at() == counted.resets_at()


def test_past_use_of_an_earlier_period_does_not_count() -> None:
    meter = Meter(CalendarWindow("day"), START)
    meter.window.place(meter.state, START - 7 * 3600 * MICROS - 1, 5)
    meter.window.place(meter.state, START - 7 * 3600 * MICROS, 6)
    assert meter.used(START) == 6


@pytest.mark.parametrize("window", WINDOWS)
def test_cells_that_no_window_can_have_are_recognised(window: Window) -> None:
    meter = Meter(window, START)
    meter.use(5, START)
    assert meter.state.is_sane(window)
    meter.cells[1 + USED] = -1
    meter.state.load()
    assert not meter.state.is_sane(window)
