"""Formats times and durations for log lines."""

from __future__ import annotations

import time
from typing import Final

TICKS: Final = 10000
"""Ticks per second, the precision of durations."""

PAIRS: Final = [b"%02d" % number for number in range(100)]
"""Numbers of two digits, precomputed: padding costs more than the rest of a line."""
_MAX_TICKS: Final = 1e9
_ROUNDING_ERROR: Final = 0.000001


class _Seconds:
    """Formats whole seconds; caches the last one, because many lines share it."""

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
    """Format a time in UTC, to the second."""
    return _seconds.text(second)


def stamp(at: float) -> str:
    """Format a time in UTC, to the millisecond."""
    second = int(at)
    return f"{second_text(second).decode()}.{int((at - second) * 1000.0):03d}Z"


def ticks(seconds: float) -> int:
    """Return `round(seconds, 4)` in ticks, at a fraction of its cost; -1 if unsure."""
    scaled = seconds * 10000.0
    if not 0.0 <= scaled < _MAX_TICKS:
        return -1
    whole = int(scaled)
    over = scaled - whole
    # This close to the middle, the multiplication may have moved it to the other side.
    if 0.5 - _ROUNDING_ERROR < over < 0.5 + _ROUNDING_ERROR:
        return -1
    return whole + 1 if over > 0.5 else whole


def duration(count: int) -> bytes:
    """Format ticks as seconds."""
    return b"%d.%b%b" % (count // TICKS, PAIRS[count // 100 % 100], PAIRS[count % 100])
