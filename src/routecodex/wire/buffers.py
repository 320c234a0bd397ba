"""Buffers for large bodies and for writes that leave together.

A write to a sleeping peer wakes it, which can cost more than the rest of the write. If the event loop answers
many requests in one turn, separate writes wake the peer once each; a few writes in a row wake it once. So
`WriteBatcher` delays writes to the end of the turn, never longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import Final

_BATCH: Final = 4
"""Writes in a batch: the first one waits for the work of the others."""


class WriteBatcher:
    """Writes of one turn of the event loop; each entry is a function that writes."""

    __slots__ = ("_due", "_writes")

    def __init__(self) -> None:
        self._writes: list[Callable[[], None]] = []
        self._due = False

    def add(self, write: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Call `write` with the others of this turn, before the event loop waits again."""
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
    """Memory for a body of known length: bytes are read into place and never copied."""

    __slots__ = ("_file", "_view", "filled")

    def __init__(self, size: int) -> None:
        # BytesIO is the only writable buffer that returns its bytes without a copy.
        self._file = BytesIO(bytes(size))
        self._view = self._file.getbuffer()
        self.filled = 0

    def rest(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._view[self.filled :]

    def put(self, data: bytes | memoryview) -> None:
        """Add bytes that were read elsewhere; they must fit."""
        end = self.filled + len(data)
        self._view[self.filled : end] = data
        self.filled = end

    def whole(self) -> bytes:
        """Return all bytes; the buffer cannot be used any more."""
        self._view.release()
        return self._file.getvalue()
