"""Buffers for large bodies and for writes that leave together.

Writes that leave together: at the end of a turn of the event loop, a few at a time.

To write to a peer that sleeps means to wake it, which can cost more than all the rest of the write. When many
requests are answered in one turn, each write would find its peer asleep again; one after the other they wake
it once. No write waits for time to pass, or for anything that is not already due.

Room for a body of known length: what comes is read to where it stays, and never copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import Final

_BATCH: Final = 4
"""How many wait for each other at most: the first of them waits for the work of the others."""


class WriteBatcher:
    """What is to be written in this turn of the loop; each entry writes for itself."""

    __slots__ = ("_due", "_writes")

    def __init__(self) -> None:
        self._writes: list[Callable[[], None]] = []
        self._due = False

    def add(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Calls `write` soon: with the others of this turn, before the loop waits again."""
        self._writes.append(write)
        if len(self._writes) >= _BATCH:
            self._empty()
        elif not self._due:
            self._due = True
            loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        self._empty()

    def _empty(self) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            write()


class BodyBuffer:
    """Bytes that are still to come; there is memory for all of them from the beginning."""

    __slots__ = ("_file", "_view", "filled")

    def __init__(self, size: int) -> None:
        # Of all that can be written to, only this takes bytes, and gives them away, without a copy.
        self._file = BytesIO(bytes(size))
        self._view = self._file.getbuffer()
        self.filled = 0

    def rest(self) -> memoryview:
        """Where the next bytes go."""
        return self._view[self.filled :]

    def put(self, data: bytes | memoryview) -> None:
        """Takes bytes that were read elsewhere; no more than there is room for."""
        end = self.filled + len(data)
        self._view[self.filled : end] = data
        self.filled = end

    def whole(self) -> bytes:
        """All the bytes; from then on nothing can be put there."""
        self._view.release()
        return self._file.getvalue()
