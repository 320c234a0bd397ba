"""A mapped file of 64-bit integers that the processes of one machine share, each with a row of its own.

    header    magic, number of slots, rows in use and alive, the last generation, who stepped last
    rows      one for each process: pid, generation, last sign of life (monotonic)
    slots     cells of the user, and what each row holds of it

A byte-range lock makes each step atomic. A process that is alone keeps it to the end of its turn of the event
loop, so that the requests of one turn share its price. The row of a process that died is dropped, with all it
holds: the kernel releases the lock on the byte of its row when it dies. A process that hangs loses its row 30
seconds after its last sign of life.

Use one object for each file and process: closing any descriptor of a file releases all locks that its process
has on it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from routecodex.accounting.counters import CountersUnavailable
from routecodex.accounting.windows import MICROS

SILENCE: Final = 30.0
"""Seconds after its last sign of life at which a process loses its row."""
ROWS: Final = 128

_MAGIC: Final = int.from_bytes(b"RCXLIM\x00\x01", "big")
_WORD: Final = 8
_MAGIC_AT: Final = 0
_SLOT_CELLS: Final = 1
_SLOT_COUNT: Final = 2
_ROWS_USED: Final = 3
_GENERATION: Final = 4
_ROWS_ALIVE: Final = 5
_LAST_STEP: Final = 6
_ROWS_AT: Final = 64
_ROW_SIZE: Final = 3
_PID: Final = 0
_ROW_GENERATION: Final = 1
_BEAT: Final = 2
_SLOTS_AT: Final = 512
_FIRST_SLOTS: Final = 64
_MOST_SLOTS: Final = 65_536
_STEP_BYTE: Final = 1 << 40
_ROW_BYTE: Final = _STEP_BYTE + 1
"""Locked bytes are beyond the end of the file."""
_NO_ROW: Final = -1


class CounterFile:
    """The file as this process has mapped it; `cells` are its integers.

    A slot has `slot_cells` cells, the last `ROWS` of them belong to the rows. Call `slot_at` and everything
    below it between `lock` and `unlock`.
    """

    def __init__(
        self, path: Path, slot_cells: int, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._path: Final = path
        self._slot_cells: Final = slot_cells
        self._monotonic = monotonic
        self._descriptor = -1
        self._maps: list[mmap.mmap] = []
        self.cells: memoryview = memoryview(b"")
        self.slots = 0
        self.row = _NO_ROW
        """The row of this process, or -1."""
        self.generation = 0
        self.defer: Callable[[Callable[[], None]], object] | None = None
        """Calls a function at the end of this turn of the event loop."""
        self._token: Final = int.from_bytes(os.urandom(7), "big") + 1
        self.epoch = self._token
        """A number, of this object alone, that changes when others may have changed cells."""
        self._is_locked = self._is_deferred = False

    @property
    def is_open(self) -> bool:
        """Whether the file is mapped."""
        return self._descriptor >= 0

    def open(self) -> None:
        """Map the file; one that is missing or damaged is replaced by an empty one. CountersUnavailable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            while not self._open_valid():
                pass
        except OSError as exc:
            self.close()
            raise CountersUnavailable(f"{self._path}: {exc.strerror or exc}") from exc

    def _open_valid(self) -> bool:
        """Open and map the file, or replace it; return whether it could be mapped."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _STEP_BYTE)
        # Another process may have replaced it before this one got the lock.
        if not self.is_lost():
            if self._map():
                self._is_locked = True
                self._release()
                return True
            self._replace()
        self._forget()
        return False

    def _map(self) -> bool:
        """Map as much as the file has; return False if it is damaged."""
        size = os.fstat(self._descriptor).st_size
        if size < _SLOTS_AT * _WORD or size % _WORD:
            return False
        # A map has a descriptor of its own, and closing it would release the locks: old ones stay.
        self._maps.append(mmap.mmap(self._descriptor, size))
        self.cells = memoryview(self._maps[-1]).cast("q")
        cells = self.cells
        self.slots = cells[_SLOT_COUNT]
        return (
            cells[_MAGIC_AT] == _MAGIC
            and cells[_SLOT_CELLS] == self._slot_cells
            and 0 < self.slots <= _MOST_SLOTS
            and _SLOTS_AT + self.slots * self._slot_cells <= len(cells)
            and 0 <= cells[_ROWS_USED] <= ROWS
        )

    def _replace(self) -> None:
        """Put an empty file in place of a damaged one: truncating it would kill processes that map it."""
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            words = _SLOTS_AT + _FIRST_SLOTS * self._slot_cells
            _allocate(descriptor, words * _WORD)
            with mmap.mmap(descriptor, words * _WORD) as mapped, memoryview(mapped).cast("q") as cells:
                cells[_SLOT_CELLS], cells[_SLOT_COUNT] = self._slot_cells, _FIRST_SLOTS
                # Rows of the file before must not be taken for rows of this one.
                cells[_GENERATION] = int.from_bytes(os.urandom(6), "big")
                cells[_MAGIC_AT] = _MAGIC
            os.replace(name, self._path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give the row back and close the file."""
        if self.row != _NO_ROW:
            self.lock()
            if self.row != _NO_ROW:
                self._drop(self.row)
        self._forget()

    def _forget(self) -> None:
        self._is_locked = False
        self.epoch += 1
        self.cells.release()
        self.cells = memoryview(b"")
        for one in self._maps:
            # Another view of it keeps it open.
            with suppress(BufferError):
                one.close()
        self._maps.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.slots, self.row, self.generation = -1, 0, _NO_ROW, 0

    def is_lost(self) -> bool:
        """Return whether the file was deleted or replaced since it was opened."""
        mine = os.fstat(self._descriptor)
        try:
            there = os.stat(self._path)
        except OSError:
            return True
        return (mine.st_ino, mine.st_dev) != (there.st_ino, there.st_dev)

    def reopen(self) -> None:
        """Leave a file that was lost for the one in its place."""
        self._forget()
        self.open()

    def lock(self) -> None:
        """Begin a step; others may have made steps since the last one, and the file may have grown."""
        if not self._is_locked:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _STEP_BYTE)
            self._is_locked = True
        cells = self.cells
        if cells[_LAST_STEP] != self._token:
            cells[_LAST_STEP] = self._token
            self.epoch += 1
            if cells[_SLOT_COUNT] != self.slots:
                self._map()
            if self.row != _NO_ROW and cells[_row_at(self.row) + _ROW_GENERATION] != self.generation:
                self.row = _NO_ROW

    def has_changed(self) -> bool:
        """Return whether cells may have changed since the last step that began with `lock`."""
        return self.is_open and self.cells[_LAST_STEP] != self._token

    def hold(self) -> None:
        """Begin a step that reads nothing but cells; it sets the cell of the last step itself."""
        if not self._is_locked:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, _STEP_BYTE)
            self._is_locked = True

    def unlock(self) -> None:
        """End a step."""
        if self._is_deferred:
            # Nobody else can have come while the lock was kept.
            return
        if self.defer is None or self.cells[_ROWS_ALIVE] != 1 or self.row == _NO_ROW:
            self._release()
        else:
            self._is_deferred = True
            self.defer(self._release)

    def _release(self) -> None:
        self._is_deferred = False
        if self._is_locked:
            self._is_locked = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _STEP_BYTE)

    def slot_at(self, slot: int) -> int:
        """Return the first cell of a slot."""
        return _SLOTS_AT + slot * self._slot_cells

    def add_slots(self) -> int:
        """Double the file; return the first new slot."""
        slots = self.slots
        if slots >= _MOST_SLOTS:
            raise CountersUnavailable(f"{self._path} has {slots} counters, which is the most")
        try:
            _allocate(self._descriptor, self.slot_at(slots * 2) * _WORD)
        except OSError as exc:
            raise CountersUnavailable(f"{self._path}: {exc.strerror or exc}") from exc
        self.cells[_SLOT_COUNT] = slots * 2
        self._map()
        self.epoch += 1
        return slots

    def held_by_rows(self, at: int) -> int:
        """Return what all rows hold of a slot."""
        cells, total = self.cells, 0
        first = at + self._slot_cells - ROWS
        for cell in range(first, first + cells[_ROWS_USED]):
            total += cells[cell]
        return total

    def cell_of_row(self, at: int) -> int:
        """Return the cell of a slot that belongs to the row of this process."""
        return at + self._slot_cells - ROWS + self.row

    def take_row(self) -> None:
        """Take a row for this process."""
        self.drop_dead()
        cells = self.cells
        for row in range(ROWS):
            at = _row_at(row)
            if not cells[at + _PID] and self._lock_row(row):
                self._drop(row)
                cells[_GENERATION] += 1
                self.row, self.generation = row, cells[_GENERATION]
                cells[at + _BEAT] = self._now()
                cells[at + _ROW_GENERATION] = self.generation
                cells[at + _PID] = os.getpid()
                cells[_ROWS_USED] = max(cells[_ROWS_USED], row + 1)
                self._count_alive()
                return
        raise CountersUnavailable(f"{self._path} is used by {ROWS} processes, which is the most")

    def beat(self) -> None:
        """Show that this process is alive."""
        if self.row != _NO_ROW:
            self.cells[_row_at(self.row) + _BEAT] = self._now()

    def drop_dead(self) -> bool:
        """Drop the rows of processes that died or hang; return whether there were any."""
        cells, now, dropped = self.cells, self._now(), False
        for row in range(cells[_ROWS_USED]):
            at = _row_at(row)
            pid = cells[at + _PID]
            if not pid or row == self.row:
                continue
            # A sign of life that lies ahead is from before this machine started.
            is_silent = not 0 <= now - cells[at + _BEAT] <= SILENCE * MICROS
            if is_silent or (pid != os.getpid() and self._is_dead(row)):
                self._drop(row)
                dropped = True
        return dropped

    def _is_dead(self, row: int) -> bool:
        """Return whether the process of a row is gone: the kernel has released its lock."""
        if not self._lock_row(row):
            return False
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, _ROW_BYTE + row)
        return True

    def _lock_row(self, row: int) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ROW_BYTE + row)
        except OSError:
            return False
        return True

    def _drop(self, row: int) -> None:
        """Free a row and all it holds."""
        cells, last = self.cells, self._slot_cells - ROWS + row
        for slot in range(self.slots):
            cells[self.slot_at(slot) + last] = 0
        at = _row_at(row)
        cells[at + _ROW_GENERATION] = 0
        cells[at + _PID] = 0
        self._count_alive()
        self.epoch += 1

    def _count_alive(self) -> None:
        cells = self.cells
        alive = sum(1 for row in range(cells[_ROWS_USED]) if cells[_row_at(row) + _PID])
        cells[_ROWS_ALIVE] = alive

    def _now(self) -> int:
        return int(self._monotonic() * MICROS)


def _row_at(row: int) -> int:
    return _ROWS_AT + row * _ROW_SIZE


def _allocate(descriptor: int, size: int) -> None:
    """Give a file its size and its blocks: writing to a map of a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    begin = os.fstat(descriptor).st_size
    os.pwrite(descriptor, bytes(size - begin), begin)
