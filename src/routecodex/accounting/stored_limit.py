"""The state of a limit in a store that several machines share, and what a step does with it; without IO."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.accounting.counters import LimitEvent, LimitFigures, LimitRefusal
from routecodex.accounting.limits import Limit
from routecodex.accounting.windows import CELLS, WindowState
from routecodex.wire import json

SILENCE_MS: Final = 30_000
"""Milliseconds after its last sign of life in which the reservations of a process end."""
_SETTLED_MS: Final = 3_600_000
"""Milliseconds after which a use that is sent again may count twice: the longest outage to expect."""


class StoredLimit(Struct):
    """The stored state of a limit: the cells of its window, and reservations by process with their end.

    `nodes` have added what their ledgers know. `settled` has the number of the last use that a process has
    added, until that is forgotten: the store knows the ids of the last writes alone.
    """

    cells: list[int]
    held: dict[str, tuple[int, int]] = {}
    nodes: list[str] = []
    settled: dict[str, tuple[int, int]] = {}


_decoder = Decoder(StoredLimit)


class LimitState:
    """The state of a limit at a moment, as a process changes it.

    Of the process counts what it holds itself (`own`), whatever a step that failed has left in the store.
    """

    __slots__ = ("_others", "_stored", "now_ms", "own", "process", "window")

    def __init__(self, stored: StoredLimit, *, now_ms: int, process: str = "", own: int = 0) -> None:
        self.window: Final = WindowState(stored.cells, 0)
        self.now_ms: Final = now_ms
        self.process: Final = process
        self.own = own
        self._stored: Final = stored
        self._others = sum(
            amount for name, (amount, until) in stored.held.items() if until > now_ms and name != process
        )

    @property
    def reserved(self) -> int:
        """Amount that processes which are alive have reserved."""
        return self._others + self.own

    def settle(self, number: int) -> bool:
        """Note a use of the process; return False if it was added before. Its uses come in their order."""
        settled = self._stored.settled
        last, _ = settled.get(self.process, (-1, 0))
        if number <= last:
            return False
        settled[self.process] = (number, self.now_ms + _SETTLED_MS)
        return True

    def figures(self, limit: Limit) -> LimitFigures:
        return LimitFigures(limit, self.window.used, self.reserved, limit.window.resets_at(self.window))

    def to_store(self) -> StoredLimit:
        """Return the state to store: without what has ended."""
        stored, now_ms = self._stored, self.now_ms
        stored.held = {
            name: row for name, row in stored.held.items() if row[1] > now_ms and name != self.process
        }
        if self.own:
            stored.held[self.process] = (self.own, now_ms + SILENCE_MS)
        stored.settled = {name: row for name, row in stored.settled.items() if row[1] > now_ms}
        return stored


def new_stored(limit: Limit, now_ms: int) -> StoredLimit:
    """Return the state of a limit that nothing has counted in."""
    stored = StoredLimit([0] * CELLS)
    WindowState(stored.cells, 0).clear(limit.window, now_ms * 1000)
    return stored


def decode_stored(value: bytes, limit: Limit | None = None) -> StoredLimit | None:
    """Return a stored state; None for a damaged one, as far as that shows without its `limit`."""
    stored = json.try_read(value, _decoder)
    if stored is None or len(stored.cells) != CELLS:
        return None
    return stored if limit is None or WindowState(stored.cells, 0).is_sane(limit.window) else None


def first_without_room(
    limits: Sequence[Limit], states: Sequence[LimitState], amounts: Sequence[int], exempt: Set[Limit]
) -> int | None:
    """Return the index of the first limit that has no room for its amount; None if all have."""
    for index, (limit, state) in enumerate(zip(limits, states, strict=True)):
        is_full = state.window.used + state.reserved + amounts[index] > limit.max
        if is_full and limit.enforced and limit not in exempt:
            return index
    return None


def refuse(limit: Limit, state: LimitState, amount: int) -> tuple[bool, LimitRefusal]:
    """Return whether the refusal must be written, because it is the first in its window, and the refusal."""
    window, now = state.window, state.now_ms * 1000
    figures = state.figures(limit)
    room = limit.max - figures.reserved - amount
    refusal = LimitRefusal(figures, amount=amount, frees_at=limit.window.frees_at(window, room))
    if now < window.exceeded:
        return False, refusal
    window.quiet(exceeded=limit.window.quiet_until(window, now))
    refusal.events.append(LimitEvent("limit_exceeded", figures))
    return True, refusal


def events_of_use(limit: Limit, state: LimitState) -> list[LimitEvent]:
    """Report that a limit is nearly used, or used up in shadow mode, once in its window."""
    window, now = state.window, state.now_ms * 1000
    events: list[LimitEvent] = []
    if window.used < limit.warn_above:
        return events
    if now >= window.warned:
        window.quiet(warned=limit.window.quiet_until(window, now))
        events.append(LimitEvent("limit_warn", state.figures(limit)))
    if window.used >= limit.max and not limit.enforced and now >= window.exceeded:
        window.quiet(exceeded=limit.window.quiet_until(window, now))
        events.append(LimitEvent("limit_exceeded", state.figures(limit)))
    return events
