"""Writes that leave together: at the end of a turn of the event loop, a few at a time.

To write to a peer that sleeps means to wake it, which can cost more than all the rest of the write. When many
requests are answered in one turn, each write would find its peer asleep again; one after the other they wake
it once. No write waits for time to pass, or for anything that is not already due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["WriteBatcher"]

_TOGETHER: Final = 4
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
        if len(self._writes) >= _TOGETHER:
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
