"""Formats times and durations for log lines.

Moments and durations in the digits that log lines have them in.
"""

from __future__ import annotations

import time
from typing import Final

TICKS: Final = 10000
"""In a second: durations are told to this."""

PAIRS: Final = [b"%02d" % number for number in range(100)]
"""The numbers that have two digits, ready: to fill digits up takes longer than all the rest of a line."""
_MOST: Final = 1e9
_NEAR: Final = 0.000001


class _Seconds:
    """Whole seconds as text; the last one is kept, because many lines are of the same."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (-1, b"")

    def text(self, at: int) -> bytes:
        second, text = self._last
        if second != at:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)).encode()
            self._last = (at, text)
        return text


_seconds: Final = _Seconds()


def second_text(second: int) -> bytes:
    """The moment in UTC, to the second."""
    return _seconds.text(second)


def stamp(at: float) -> str:
    """The moment in UTC, to the millisecond."""
    second = int(at)
    return f"{second_text(second).decode()}.{int((at - second) * 1000.0):03d}Z"


def ticks(seconds: float) -> int:
    """The number that `round(seconds, 4)` is, in ticks, for a fraction of what that costs; -1 if unsure."""
    scaled = seconds * 10000.0
    if not 0.0 <= scaled < _MOST:
        return -1
    whole = int(scaled)
    over = scaled - whole
    # So near the middle, the multiplication may have carried it to the other side.
    if 0.5 - _NEAR < over < 0.5 + _NEAR:
        return -1
    return whole + 1 if over > 0.5 else whole


def duration(told: int) -> bytes:
    """A number of ticks as one of seconds."""
    return b"%d.%b%b" % (told // TICKS, PAIRS[told // 100 % 100], PAIRS[told % 100])
