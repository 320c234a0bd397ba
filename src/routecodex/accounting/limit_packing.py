"""Limits that requests reserve against together, prepared for `limit_steps`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from routecodex.accounting import limit_steps
from routecodex.accounting.counter_file import CounterFile
from routecodex.accounting.counters import LimitReservation
from routecodex.accounting.limits import HeaderTexts, Limit
from routecodex.accounting.windows import MICROS, CalendarWindow, RollingWindow

_MOST: Final = 32
"""Limits that one step takes."""
_ROW: Final = struct.Struct("=8q")
_UNITS: Final = ("requests", "concurrent", "tokens", "input", "output", "uncached", "usd")
_CALENDAR: Final = 0
_ROLLING: Final = 1
_PRESENT: Final = 2


class PreparedLimits:
    """Limits of a request, and their places in the file; each step returns whether it was done.

    What is not done changes nothing: `SharedCounters` does it, after which the places are looked up again.
    """

    __slots__ = ("_cells", "_file", "_packed", "limits")

    def __init__(self, file: CounterFile, limits: Sequence[Limit]) -> None:
        self.limits: Final = limits
        self._file: Final = file
        self._packed = b""
        self._cells: memoryview | None = None
        """The mapped file that the places belong to."""

    def reserve(
        self, input: int, output: int, nanos: int, now: int, *, is_request: bool
    ) -> LimitReservation | None:
        """Reserve one call against all limits; None if that was not done."""
        file = self._file
        if not self._is_placed():
            return None
        file.hold()
        amounts = limit_steps.reserve(
            file.cells, self._packed, file.row, file.generation, now, input, output, nanos, is_request
        )
        file.unlock()
        if amounts is None:
            self._cells = None
            return None
        return LimitReservation(self.limits, amounts, generation=file.generation)

    def settle(
        self, reserved: LimitReservation, input: int, output: int, cache_read: int, nanos: int, now: int
    ) -> bool:
        """Replace a reservation by what was used in all."""
        file = self._file
        if not self._is_placed():
            return False
        file.hold()
        is_done = limit_steps.settle(
            file.cells,
            self._packed,
            reserved.amounts,
            file.row,
            reserved.generation,
            now,
            input,
            output,
            cache_read,
            nanos,
        )
        file.unlock()
        if not is_done:
            self._cells = None
        return is_done

    def header_lines(self, texts: HeaderTexts, now: int, *, is_messages: bool) -> bytes | None:
        """Return header lines with what is left; None if that was not done."""
        if not self._is_placed():
            return None
        return limit_steps.header_lines(self._file.cells, self._packed, texts, now, is_messages)

    def _is_placed(self) -> bool:
        """Return whether the places are known, or can be found without a step."""
        file = self._file
        if self._cells is file.cells:
            return True
        if file.row < 0 or not self.limits or len(self.limits) > _MOST:
            return False
        places: list[int] = []
        for limit in self.limits:
            slot = limit.slot
            if slot is None or slot.state.cells is not file.cells:
                return False
            places.append(slot.at)
        self._packed = b"".join(
            [pack(limit, at) for limit, at in zip(self.limits, places, strict=True)],
        )
        self._cells = file.cells
        return True


def pack(limit: Limit, at: int) -> bytes:
    """Return a limit, whose slot begins at a cell, as the steps read it."""
    window, micros, kind = limit.window, 0, _PRESENT
    if isinstance(window, RollingWindow):
        micros, kind = window.seconds * MICROS, _ROLLING
    elif isinstance(window, CalendarWindow):
        kind = _CALENDAR
    unit = _UNITS.index(limit.unit)
    return _ROW.pack(
        at, limit.digest, limit.max, limit.warn_above, micros, kind, unit, 1 if limit.enforced else 0
    )
