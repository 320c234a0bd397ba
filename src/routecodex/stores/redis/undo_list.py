"""Writes whose callers were told that they failed, though the server may have carried them out.

They are undone as soon as the server can be reached, if nobody has written the key since; the latest first,
because each is undone only while it is the last write of its key.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from msgspec import Struct

from routecodex.stores.redis.key_names import Stripe

MOST = 4096

FormerValue = Literal["absent", "value", "replaced"]
"""Place of the former value: there was none, it is known here, or the server kept it."""


class LostWrite(Struct, frozen=True):
    """A write that may have been carried out, or may be until its deadline, and what was stored before."""

    stripe: Stripe
    key: str
    id: str
    deadline_us: str
    source: FormerValue
    text: bytes = b""
    expires_ms: str = ""


class UndoList:
    """The writes to undo, bounded: of very many the oldest are forgotten."""

    def __init__(self) -> None:
        self._writes: deque[LostWrite] = deque(maxlen=MOST)

    def add(self, write: LostWrite) -> None:
        """Remember a write."""
        self._writes.append(write)

    def __len__(self) -> int:
        return len(self._writes)

    def latest(self) -> LostWrite | None:
        """Return the write to undo next."""
        return self._writes[-1] if self._writes else None

    def drop(self, write: LostWrite) -> None:
        """Forget a write that was undone, or that somebody wrote over."""
        if write in self._writes:
            self._writes.remove(write)
