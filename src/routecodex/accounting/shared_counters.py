"""Counters of limits for the processes of one machine, in a mapped file (counter_file.py).

The file survives restarts and SIGKILL. A process that dies within a step leaves cells that the next step
repairs; what it had reserved is dropped with its row, and not charged. The values of cells that nobody else
has changed are kept, so that a step of a process that is alone writes cells and reads none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final

from routecodex.accounting.counter_file import ROWS, CounterFile
from routecodex.accounting.counters import (
    LimitEvent,
    LimitFigures,
    LimitRefusal,
    LimitReservation,
    PastUse,
    Reserved,
)
from routecodex.accounting.limit_packing import PreparedLimits
from routecodex.accounting.limit_slot import LimitSlot
from routecodex.accounting.limits import Limit
from routecodex.accounting.windows import CELLS, CLOCK, MICROS, WindowState
from routecodex.wire import scan

_PREPARES: Final = scan.IN_C
_DIGEST: Final = 0
_LENGTH: Final = 1
_WINDOW: Final = 2
_SLOT_SIZE: Final = _WINDOW + CELLS + ROWS
_DAY: Final = 86_400 * MICROS
_NO_EXEMPTIONS: Final[frozenset[Limit]] = frozenset()


class SharedCounters:
    """Counts in a mapped file; `past_use` yields what the ledger knows of a limit that the file lacks."""

    def __init__(
        self,
        path: Path,
        *,
        past_use: PastUse | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path: Final = path
        self.past_use = past_use
        self._file: Final = CounterFile(path, _SLOT_SIZE, monotonic=monotonic)
        self._slots: Final[dict[int, LimitSlot]] = {}
        """One for each digest: after a reload two limits count the same for a while."""

    async def refresh(self) -> None:
        """Return at once: all processes count in one file."""

    def use_loop(self, defer: Callable[[Callable[[], None]], object] | None) -> None:
        """Share the price of locking among the steps of one turn of the event loop."""
        self._file.defer = defer

    def reserve(
        self, limits: Sequence[Limit], amounts: list[int], now: int, *, exempt: Set[Limit] = _NO_EXEMPTIONS
    ) -> Reserved:
        """Reserve amounts against all limits, or none. CountersUnavailable if the file cannot be used."""
        file = self._file
        slots = self._enter(limits, now, takes_row=True)
        try:
            exceeded = _first_without_room(limits, slots, amounts, now, exempt)
            if exceeded >= 0 and file.drop_dead():
                slots = self._loaded(limits, now)
                exceeded = _first_without_room(limits, slots, amounts, now, exempt)
            if exceeded >= 0:
                return _refuse(limits, slots, exceeded, amounts[exceeded], now)
            cells = file.cells
            for index in range(len(slots)):
                amount = amounts[index]
                if amount:
                    slot = slots[index]
                    slot.reserved += amount
                    slot.own += amount
                    cells[slot.own_cell] = slot.own
            return LimitReservation(limits, amounts, generation=file.generation)
        finally:
            file.unlock()

    def settle(
        self, reservation: LimitReservation, used: Sequence[int], now: int, *, last: bool = True
    ) -> None:
        """Replace the reserved amounts by those used; requests at the same time stay until `last`."""
        limits, amounts = reservation.limits, reservation.amounts
        file = self._file
        slots = self._enter(limits, now)
        try:
            # A process that hung for long has lost its row, and with it what it had reserved.
            holds = file.row >= 0 and file.generation == reservation.generation
            for index in range(len(slots)):
                limit, slot = limits[index], slots[index]
                amount = amounts[index]
                if amount and (last or limit.unit != "concurrent"):
                    if holds:
                        slot.reserved -= amount
                        slot.own -= amount
                        file.cells[slot.own_cell] = slot.own
                    amounts[index] = 0
                state = slot.state
                state.advance(limit.window, now)
                if used[index]:
                    limit.window.add(state, used[index])
                    if state.used >= limit.warn_above:
                        _note_use(limit, slot, now, reservation.events)
        finally:
            file.unlock()

    def prepare(self, limits: Sequence[Limit]) -> PreparedLimits | None:
        """Return the limits prepared for the usual request; from the sources there is nothing to gain."""
        return PreparedLimits(self._file, limits) if _PREPARES else None

    def latest(self, limits: Sequence[Limit]) -> list[LimitFigures]:
        """Return the state of limits after the last step of this process that had to do with them."""
        rows: list[LimitFigures] = []
        has_changed = self._file.has_changed()
        for limit in limits:
            slot = limit.slot
            if slot is not None:
                if has_changed and slot.state.cells is self._file.cells:
                    slot.state.load()
                    slot.reserved = self._file.held_by_rows(slot.at)
                rows.append(_figures(limit, slot))
        return rows

    def figures(self, limits: Sequence[Limit], now: int) -> list[LimitFigures]:
        """Return the state of limits."""
        file = self._file
        self._enter(limits, now)
        try:
            file.drop_dead()
            slots = self._loaded(limits, now)
            for limit, slot in zip(limits, slots, strict=True):
                slot.state.advance(limit.window, now)
            return [_figures(limit, slot) for limit, slot in zip(limits, slots, strict=True)]
        finally:
            file.unlock()

    def reset(self, limits: Sequence[Limit], now: int) -> None:
        """Set the use of limits to 0; reservations stay."""
        slots = self._enter(limits, now)
        try:
            for limit, slot in zip(limits, slots, strict=True):
                slot.state.clear(limit.window, now)
        finally:
            self._file.unlock()

    def show_running(self, limit: Limit, count: int, now: int) -> None:
        """Set what this process holds of a limit that nothing is reserved against.

        The cell belongs to this process alone: while its place is known, no step is needed.
        """
        file, slot = self._file, limit.slot
        if slot is None or slot.state.cells is not file.cells or slot.own_cell != file.cell_of_row(slot.at):
            slot = self._enter([limit], now, takes_row=True)[0]
            file.unlock()
        file.cells[slot.own_cell] = count

    def running(self, limit: Limit, now: int) -> int:
        """Return what all processes that are alive hold of such a limit, by their cells."""
        file = self._file
        self._enter([limit], now)
        try:
            file.drop_dead()
            return file.held_by_rows(self._loaded([limit], now)[0].at)
        finally:
            file.unlock()

    def beat(self) -> None:
        """Show that this process is alive, drop the rows of dead ones, and leave a file that was lost.

        A process that counts is known to the others from its first beat on.
        """
        file = self._file
        if not file.is_open:
            file.open()
        elif file.is_lost():
            file.reopen()
        file.lock()
        try:
            if file.row < 0:
                file.take_row()
            file.beat()
            file.drop_dead()
        finally:
            file.unlock()

    async def flush(self) -> None:
        """Do nothing: a step is finished when it returns."""

    def close(self) -> None:
        """Release the reservations of this process."""
        if self._file.is_open:
            self._file.close()

    def _enter(self, limits: Sequence[Limit], now: int, *, takes_row: bool = False) -> list[LimitSlot]:
        """Begin a step; return the slots of the limits, as they are now."""
        file = self._file
        if not file.is_open:
            file.open()
        file.lock()
        try:
            if takes_row and file.row < 0:
                file.take_row()
            slots: list[LimitSlot] = []
            for limit in limits:
                slot = limit.slot
                if slot is None or slot.epoch != file.epoch:
                    return self._loaded(limits, now)
                slots.append(slot)
            return slots
        except BaseException:
            file.unlock()
            raise

    def _loaded(self, limits: Sequence[Limit], now: int) -> list[LimitSlot]:
        """Return the slots of all limits with the values that their cells have now."""
        file = self._file
        while True:
            missing = [limit for limit in limits if not self._load(limit)]
            if not missing:
                return [self._slots[limit.digest] for limit in limits]
            # The ledger is read without the lock, for which other processes would wait.
            file.unlock()
            past = [self._read_past(limit, now) for limit in missing]
            file.lock()
            for limit, rows in zip(missing, past, strict=True):
                if not self._load(limit):
                    self._make(limit, rows, now)

    def _read_past(self, limit: Limit, now: int) -> list[tuple[int, int]]:
        if self.past_use is None or limit.unit == "concurrent":
            return []
        return list(self.past_use(limit, limit.window.begins(now)))

    def _load(self, limit: Limit) -> bool:
        """Read the slot of a limit; return False if the file has none, or a damaged one."""
        file, slot = self._file, limit.slot
        if slot is not None and slot.epoch == file.epoch:
            return True
        slot = limit.slot = self._slots.get(limit.digest)
        if slot is not None and slot.epoch == file.epoch:
            return True
        cells = file.cells
        at = -1 if slot is None else slot.at
        if at < 0 or at >= len(cells) or cells[at + _DIGEST] != limit.digest:
            at = self._find(limit.digest)
        if at < 0:
            return False
        slot = LimitSlot(at, WindowState(cells, at + _WINDOW))
        if not slot.state.is_sane(limit.window):
            cells[at + _DIGEST] = 0
            return False
        limit.slot = self._slots[limit.digest] = slot
        slot.reserved = file.held_by_rows(at)
        slot.own_cell = file.cell_of_row(at)
        slot.own = cells[slot.own_cell] if file.row >= 0 else 0
        slot.epoch = file.epoch
        return True

    def _find(self, digest: int) -> int:
        file = self._file
        cells = file.cells
        for slot in range(file.slots):
            at = file.slot_at(slot)
            if cells[at + _DIGEST] == digest:
                return at
        return -1

    def _make(self, limit: Limit, past: Sequence[tuple[int, int]], now: int) -> None:
        """Give a limit a slot that begins with what was used before."""
        at = self._free_slot(now)
        cells = self._file.cells
        for cell in range(at, at + _SLOT_SIZE):
            cells[cell] = 0
        state = WindowState(cells, at + _WINDOW)
        state.clear(limit.window, now)
        for moment, amount in past:
            limit.window.place(state, moment, amount)
        cells[at + _LENGTH] = limit.window.length
        cells[at + _DIGEST] = limit.digest

    def _free_slot(self, now: int) -> int:
        """Return the place of a slot that nobody needs; the file grows if there is none."""
        file = self._file
        for slot in range(file.slots):
            at = file.slot_at(slot)
            if not file.cells[at + _DIGEST] or self._is_over(at, now):
                return at
        return file.slot_at(file.add_slots())

    def _is_over(self, at: int, now: int) -> bool:
        """Return whether nothing of a slot counts any more: its client may be gone."""
        cells = self._file.cells
        idle = now - cells[at + _WINDOW + CLOCK] > cells[at + _LENGTH] + _DAY
        return idle and not self._file.held_by_rows(at)


def _first_without_room(
    limits: Sequence[Limit], slots: list[LimitSlot], amounts: list[int], now: int, exempt: Set[Limit]
) -> int:
    """Return the index of the first limit without room for its amount, or -1."""
    exceeded = -1
    for index in range(len(slots)):
        limit, slot = limits[index], slots[index]
        slot.state.advance(limit.window, now)
        is_full = slot.state.used + slot.reserved + amounts[index] > limit.max
        if is_full and exceeded < 0 and limit.enforced and not (exempt and limit in exempt):
            exceeded = index
    return exceeded


def _refuse(
    limits: Sequence[Limit], slots: list[LimitSlot], index: int, amount: int, now: int
) -> LimitRefusal:
    limit, slot = limits[index], slots[index]
    exceeded = _figures(limit, slot)
    room = limit.max - slot.reserved - amount
    refusal = LimitRefusal(exceeded, amount=amount, frees_at=limit.window.frees_at(slot.state, room))
    if now >= slot.state.exceeded:
        slot.state.quiet(exceeded=limit.window.quiet_until(slot.state, now))
        refusal.events.append(LimitEvent("limit_exceeded", exceeded))
    return refusal


def _figures(limit: Limit, slot: LimitSlot) -> LimitFigures:
    state = slot.state
    return LimitFigures(limit, state.used, slot.reserved, limit.window.resets_at(state))


def _note_use(limit: Limit, slot: LimitSlot, now: int, events: list[LimitEvent]) -> None:
    """Report that a limit is nearly used, or used up in shadow mode, once in its window."""
    state = slot.state
    if now >= state.warned:
        state.quiet(warned=limit.window.quiet_until(state, now))
        events.append(LimitEvent("limit_warn", _figures(limit, slot)))
    if state.used >= limit.max and not limit.enforced and now >= state.exceeded:
        state.quiet(exceeded=limit.window.quiet_until(state, now))
        events.append(LimitEvent("limit_exceeded", _figures(limit, slot)))
