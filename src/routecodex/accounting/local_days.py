"""Days of a time zone in terms of UTC: offsets as SQL, and hours in which a day ends."""

from __future__ import annotations

from datetime import datetime, tzinfo

from msgspec import Struct

from routecodex.accounting.ledger_schema import DAY

_QUARTER = 900
"""Seconds: the offset of every time zone is a multiple of a quarter of an hour."""


class DayOffsets(Struct, frozen=True):
    """The offsets of a time zone in some time, in seconds: `steps` has when each begins, and the offset."""

    since: int
    until: int
    steps: tuple[tuple[int, int], ...]

    def expression(self, seconds: str) -> str:
        """Return the SQL of the offset at a time, which is an expression too."""
        *earlier, (_, last) = self.steps
        if not earlier:
            return str(last)
        ends = (begin for begin, _ in self.steps[1:])
        cases = " ".join(
            f"WHEN {seconds} < {end} THEN {offset}" for end, (_, offset) in zip(ends, earlier, strict=True)
        )
        return f"CASE {cases} ELSE {last} END"

    def broken_slots(self, size: int, since: int, until: int | None) -> list[int]:
        """Return the slots of this size in which a day ends: India's begins at half past."""
        begin, end = max(since, self.since), self.until if until is None else min(until, self.until)
        found: list[int] = []
        for number, (first, offset) in enumerate(self.steps):
            last = self.steps[number + 1][0] if number + 1 < len(self.steps) else end
            if offset % size:
                midnight = -((-max(first, begin) - offset) // DAY) * DAY - offset
                found += [at - at % size for at in range(midnight, min(last, end), DAY)]
        return [slot for slot in found if since <= slot]


def day_offsets(zone: tzinfo, since: float, until: float) -> DayOffsets:
    """Return the offsets of a time zone between two times, with a day on either side."""
    at = int(since) // DAY * DAY - DAY
    end = max(int(until), at) + DAY
    steps = [(at, _offset(zone, at))]
    while at < end:
        later = min(at + DAY, end)
        if _offset(zone, later) != steps[-1][1]:
            moment = _first_with_other_offset(zone, at, later)
            steps.append((moment, _offset(zone, moment)))
        at = later
    return DayOffsets(steps[0][0], end, tuple(steps))


def _first_with_other_offset(zone: tzinfo, before: int, after: int) -> int:
    """Return the quarter of an hour with which another offset begins."""
    offset = _offset(zone, before)
    low, high = before // _QUARTER, -(-after // _QUARTER)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle * _QUARTER) == offset:
            low = middle
        else:
            high = middle
    return high * _QUARTER


def _offset(zone: tzinfo, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0
