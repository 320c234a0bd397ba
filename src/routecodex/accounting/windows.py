"""Windows of limits: what was used in a calendar period, or in the last so many seconds.

Time is an argument, in microseconds since the epoch. The state of a window is a row of cells (integers) in a
list or in shared memory, so that several processes can count in the same one:

    CLOCK      the latest time that it was advanced to, within a second
    POSITION   calendar: start of the period; rolling: number of the current bucket
    END        when period or bucket ends
    USED       what was used
    OLDEST     rolling: the first bucket that has any use; 0 without use
    WARNED     until when a warning is not repeated
    EXCEEDED   until when a report of the used limit is not repeated
    RING       rolling: use by bucket

A rolling window has 60 buckets and the current one: what was used at t counts until between t + W and
t + W + W/60. A clock that is set back frees nothing: a calendar window takes its use along to the earlier
period, a rolling one keeps the age of its use.

Every step leaves cells that the next one can repair: a process may be killed between two writes.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, TypeAlias

from routecodex.config.limit_text import CalendarPeriod

MICROS: Final = 1_000_000
"""Microseconds of a second."""
BUCKETS: Final = 60
_RING_SIZE: Final = BUCKETS + 1

CLOCK: Final = 0
POSITION: Final = 1
END: Final = 2
USED: Final = 3
OLDEST: Final = 4
WARNED: Final = 5
EXCEEDED: Final = 6
RING: Final = 7
CELLS: Final = RING + _RING_SIZE
"""Cells of one window."""

_JITTER: Final = 2 * MICROS
"""Processes read the clock before they wait for each other: an earlier time within it was not set back."""
_NEVER: Final = 1 << 62
_MOST_USED: Final = 1 << 61
"""Use does not grow beyond it, whatever providers report: a cell has 64 bits."""
_SECONDS: Final = {"minute": 60, "hour": 3600}
_LONGEST: Final = {"minute": 60, "hour": 3600, "day": 25 * 3600, "week": 169 * 3600, "month": 745 * 3600}

Cells: TypeAlias = "memoryview | list[int]"


class WindowState:
    """The cells of one window from `at` on, and their values; whatever changes is written to both."""

    __slots__ = ("at", "cells", "clock", "end", "exceeded", "oldest", "position", "used", "warned")

    def __init__(self, cells: Cells, at: int) -> None:
        self.cells: Final = cells
        self.at: Final = at
        self.load()

    def load(self) -> None:
        """Read the cells, which others may have changed."""
        cells, at = self.cells, self.at
        self.clock: int = cells[at + CLOCK]
        self.position: int = cells[at + POSITION]
        self.end: int = cells[at + END]
        self.used: int = cells[at + USED]
        self.oldest: int = cells[at + OLDEST]
        self.warned: int = cells[at + WARNED]
        self.exceeded: int = cells[at + EXCEEDED]

    def use(self, amount: int) -> None:
        """Set what is used."""
        self.used = self.cells[self.at + USED] = amount

    def move(self, position: int, end: int) -> None:
        """Set the period or bucket, and its end."""
        self.position = self.cells[self.at + POSITION] = position
        self.end = self.cells[self.at + END] = end

    def mark_oldest(self, bucket: int) -> None:
        """Set the first bucket that has any use."""
        self.oldest = self.cells[self.at + OLDEST] = bucket

    def quiet(self, *, warned: int | None = None, exceeded: int | None = None) -> None:
        """Set until when events are not reported again."""
        if warned is not None:
            self.warned = self.cells[self.at + WARNED] = warned
        if exceeded is not None:
            self.exceeded = self.cells[self.at + EXCEEDED] = exceeded

    def advance(self, window: Window, now: int) -> None:
        """Move to a time: what no longer counts is freed."""
        clock = self.clock
        if now < clock:
            if clock - now <= _JITTER:
                return
            window.go_back(self, now)
            latest = now + window.length
            self.quiet(warned=min(self.warned, latest), exceeded=min(self.exceeded, latest))
        elif now - clock < MICROS and now < self.end:
            # The clock need not be known more exactly than it may jitter.
            return
        self.clock = self.cells[self.at + CLOCK] = now
        if now >= self.end:
            window.enter(self, now)

    def clear(self, window: Window, now: int) -> None:
        """Set to no use at a time."""
        for cell in range(self.at, self.at + CELLS):
            self.cells[cell] = 0
        self.load()
        self.clock = self.cells[self.at + CLOCK] = now
        window.enter(self, now)

    def is_sane(self, window: Window) -> bool:
        """Return whether the cells can be those of such a window."""
        return 0 <= self.used < _NEVER and window.fits(self)


class Window:
    """One kind of window, which works on states.

    `length` is the longest time that a use can count, in microseconds.
    """

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length: Final = length

    def begins(self, now: int) -> int:
        """Return the time since which use counts."""
        raise NotImplementedError

    def enter(self, state: WindowState, now: int) -> None:
        """Move to the period or bucket of a later time."""
        raise NotImplementedError

    def go_back(self, state: WindowState, now: int) -> None:
        """Move to an earlier time without freeing anything."""
        raise NotImplementedError

    def add(self, state: WindowState, amount: int) -> None:
        """Count a use at the time of the state."""
        raise NotImplementedError

    def place(self, state: WindowState, time: int, amount: int) -> None:
        """Count a use in the past, if it still matters."""
        raise NotImplementedError

    def resets_at(self, state: WindowState) -> int | None:
        """Return when the period ends, or the oldest use leaves; None if nothing can leave."""
        raise NotImplementedError

    def frees_at(self, state: WindowState, room: int) -> int | None:
        """Return when so little is used that it fits into `room`; None if waiting does not help."""
        raise NotImplementedError

    def quiet_until(self, state: WindowState, now: int) -> int:
        """Return until when an event of now is not reported again."""
        raise NotImplementedError

    def fits(self, state: WindowState) -> bool:
        """Return whether the cells agree with each other."""
        raise NotImplementedError


class CalendarWindow(Window):
    """A minute, hour, day, week (from Monday) or month in a time zone; UTC without one."""

    __slots__ = ("period", "zone")

    def __init__(self, period: CalendarPeriod, zone: tzinfo | None = None) -> None:
        super().__init__((_LONGEST[period] + 24 * 3600) * MICROS)
        self.period: Final = period
        self.zone: Final = UTC if zone is None else zone

    def begins(self, now: int) -> int:
        return period_bounds(self.period, self.zone, now)[0]

    def enter(self, state: WindowState, now: int) -> None:
        # First of all, so that a process that is killed now has freed the period for the next one.
        state.use(0)
        state.move(*period_bounds(self.period, self.zone, now))

    def go_back(self, state: WindowState, now: int) -> None:
        state.move(*period_bounds(self.period, self.zone, now))

    def add(self, state: WindowState, amount: int) -> None:
        state.use(min(state.used + amount, _MOST_USED))

    def place(self, state: WindowState, time: int, amount: int) -> None:
        if state.position <= time:
            self.add(state, amount)

    def resets_at(self, state: WindowState) -> int | None:
        return state.end

    def frees_at(self, state: WindowState, room: int) -> int | None:
        return state.end if room >= 0 else None

    def quiet_until(self, state: WindowState, now: int) -> int:
        return state.end

    def fits(self, state: WindowState) -> bool:
        return 0 < state.end - state.position <= self.length


class RollingWindow(Window):
    """The last so many seconds."""

    __slots__ = ("_micros", "seconds")

    def __init__(self, seconds: int) -> None:
        self.seconds: Final = seconds
        self._micros: Final = seconds * MICROS
        super().__init__(-(-_RING_SIZE * seconds * MICROS // BUCKETS))

    def _starts(self, bucket: int) -> int:
        """Return the first microsecond of a bucket."""
        return -(-bucket * self._micros // BUCKETS)

    def _bucket(self, time: int) -> int:
        return time * BUCKETS // self._micros

    def begins(self, now: int) -> int:
        return now - self.length

    def enter(self, state: WindowState, now: int) -> None:
        cells, ring, new = state.cells, state.at + RING, self._bucket(now)
        for bucket in range(max(state.position + 1, new - BUCKETS), new + 1):
            cells[ring + bucket % _RING_SIZE] = 0
        state.move(new, self._starts(new + 1))
        self._recount(state)

    def _recount(self, state: WindowState) -> None:
        """Make sum and oldest use agree with the buckets."""
        cells, ring, new = state.cells, state.at + RING, state.position
        state.use(sum(cells[ring : ring + _RING_SIZE]))
        oldest = 0
        if state.used:
            oldest = max(state.oldest, new - BUCKETS)
            while oldest < new and not cells[ring + oldest % _RING_SIZE]:
                oldest += 1
        state.mark_oldest(oldest)

    def go_back(self, state: WindowState, now: int) -> None:
        cells, ring, old, new = state.cells, state.at + RING, state.position, self._bucket(now)
        uses = [cells[ring + (old - age) % _RING_SIZE] for age in range(_RING_SIZE)]
        for age, use in enumerate(uses):
            cells[ring + (new - age) % _RING_SIZE] = use
        state.move(new, self._starts(new + 1))
        state.mark_oldest(0)
        self._recount(state)

    def add(self, state: WindowState, amount: int) -> None:
        bucket = state.position
        amount = min(amount, _MOST_USED - state.used)
        state.cells[state.at + RING + bucket % _RING_SIZE] += amount
        state.use(state.used + amount)
        if not state.oldest:
            state.mark_oldest(bucket)

    def place(self, state: WindowState, time: int, amount: int) -> None:
        bucket = min(self._bucket(time), state.position)
        amount = min(amount, _MOST_USED - state.used)
        if bucket >= state.position - BUCKETS and amount:
            state.cells[state.at + RING + bucket % _RING_SIZE] += amount
            state.mark_oldest(0)
            self._recount(state)

    def resets_at(self, state: WindowState) -> int | None:
        return self._starts(state.oldest + _RING_SIZE) if state.oldest else None

    def frees_at(self, state: WindowState, room: int) -> int | None:
        if room < 0:
            return None
        cells, ring, used, new = state.cells, state.at + RING, state.used, state.position
        for bucket in range(new - BUCKETS, new + 1):
            used -= cells[ring + bucket % _RING_SIZE]
            if used <= room:
                return self._starts(bucket + _RING_SIZE)
        return None

    def quiet_until(self, state: WindowState, now: int) -> int:
        return now + self._micros

    def fits(self, state: WindowState) -> bool:
        ring = state.cells[state.at + RING : state.at + RING + _RING_SIZE]
        return min(ring) >= 0 and sum(ring) < _NEVER and state.oldest <= state.position


class NoWindow(Window):
    """The window of requests at the same time: nothing is used, only reserved."""

    def __init__(self) -> None:
        super().__init__(MICROS)

    def begins(self, now: int) -> int:
        return now

    def enter(self, state: WindowState, now: int) -> None:
        state.move(0, _NEVER)

    def go_back(self, state: WindowState, now: int) -> None:
        """Do nothing: time does not matter."""

    def add(self, state: WindowState, amount: int) -> None:
        """Do nothing: a request that has ended does not count."""

    def place(self, state: WindowState, time: int, amount: int) -> None:
        """Do nothing: a request that has ended does not count."""

    def resets_at(self, state: WindowState) -> int | None:
        return None

    def frees_at(self, state: WindowState, room: int) -> int | None:
        return None

    def quiet_until(self, state: WindowState, now: int) -> int:
        return now + 60 * MICROS

    def fits(self, state: WindowState) -> bool:
        return True


def period_bounds(period: CalendarPeriod, zone: tzinfo, now: int) -> tuple[int, int]:
    """Return start and end of a calendar period, in microseconds; every moment is in exactly one."""
    seconds = now // MICROS
    if period in _SECONDS:
        start, end = _even_bounds(_SECONDS[period], zone, seconds)
    else:
        start, end = _date_bounds(period, zone, seconds)
    return start * MICROS, end * MICROS


def _even_bounds(length: int, zone: tzinfo, now: int) -> tuple[int, int]:
    """Return the bounds of a minute or hour on local clocks; it ends early where their offset changes.

    Lord Howe Island moves its clocks by half an hour, so that an hour there is cut in two.
    """
    offset = _offset(now, zone)
    start = (now + offset) // length * length - offset
    end = start + length
    if _offset(start, zone) != offset:
        start = _change(start, now, zone)
    if _offset(end - 1, zone) != offset:
        end = _change(now, end - 1, zone)
    return start, end


def _offset(seconds: int, zone: tzinfo) -> int:
    offset = datetime.fromtimestamp(seconds, zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _change(before: int, after: int, zone: tzinfo) -> int:
    """Return the first second with the offset of `after`."""
    wanted = _offset(after, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == wanted:
            after = middle
        else:
            before = middle
    return after


def _date_bounds(period: CalendarPeriod, zone: tzinfo, now: int) -> tuple[int, int]:
    """Return the bounds of a day, week or month on local calendars.

    Where clocks go back over midnight a date comes twice: it begins the first time.
    """
    first = _first_date(period, datetime.fromtimestamp(now, zone).date())
    while (start := _midnight(first, zone)) > now:
        first = _first_date(period, first - timedelta(days=1))
    while (end := _midnight(_next_date(period, first), zone)) <= now:
        first, start = _next_date(period, first), end
    return start, end


def _first_date(period: CalendarPeriod, day: date) -> date:
    if period == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if period == "week" else day


def _next_date(period: CalendarPeriod, first: date) -> date:
    if period == "month":
        return (first + timedelta(days=31)).replace(day=1)
    return first + timedelta(days=7 if period == "week" else 1)


def _midnight(day: date, zone: tzinfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())
