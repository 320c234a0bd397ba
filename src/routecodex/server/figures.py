"""Moments and durations in the digits that log lines have them in."""

from __future__ import annotations

import time
from typing import Final

_PAIRS: Final = [f"{number:02d}" for number in range(100)]


class _Seconds:
    """Whole seconds as text; the last one is kept, because many lines are of the same."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (-1, "")

    def text(self, at: int) -> str:
        second, text = self._last
        if second != at:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
            self._last = (at, text)
        return text


_seconds: Final = _Seconds()


def stamp(at: float) -> str:
    """The moment in UTC, to the millisecond."""
    second = int(at)
    thousandths = int((at - second) * 1000.0)
    return f"{_seconds.text(second)}.{_PAIRS[thousandths // 10]}{thousandths % 10}Z"


def rounded(seconds: float) -> str:
    """The number that `round(seconds, 4)` is, for a fraction of what that costs."""
    scaled = seconds * 10000.0
    if not 0.0 <= scaled < 1e9:
        return repr(round(seconds, 4))
    whole = int(scaled)
    over = scaled - whole
    # So near the middle, the multiplication may have carried it to the other side.
    if 0.499999 < over < 0.500001:
        return repr(round(seconds, 4))
    if over > 0.5:
        whole += 1
    return f"{whole // 10000}.{_PAIRS[whole // 100 % 100]}{_PAIRS[whole % 100]}"
