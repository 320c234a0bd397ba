"""Keeps values, so that a change takes one call; lets one change of a key run at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque

from routecodex.stores.store import Stored

_LARGEST = 64 * 1024
_OVERHEAD = 400
"""Bytes that a value takes in memory beside its text and its name, roughly."""


class KeptValues:
    """The last known values by name, of which the oldest are dropped; large ones are never kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._values: OrderedDict[str, Stored] = OrderedDict()

    def get(self, name: str) -> Stored | None:
        """Return the last known value."""
        return self._values.get(name)

    def add(self, name: str, stored: Stored | None) -> None:
        """Keep a value in place of an earlier one; None forgets it."""
        old = self._values.pop(name, None)
        self._bytes -= 0 if old is None else _size(name, old)
        if stored is None or len(stored.value) > _LARGEST:
            return
        self._values[name] = stored
        self._bytes += _size(name, stored)
        while self._bytes > self._most:
            self._bytes -= _size(*self._values.popitem(last=False))

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._bytes = 0


def _size(name: str, stored: Stored) -> int:
    return len(name) + len(stored.value) + _OVERHEAD


class KeyLocks:
    """One lock for each key that is being changed: changes of one process do not reject each other."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Those who wait for a key, in their order; a key that nobody changes is absent."""

    async def hold(self, name: str) -> None:
        """Wait until no other change of this key runs in this process."""
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # A release may have passed it over already.
                with contextlib.suppress(ValueError):
                    waiting.remove(turn)
            else:
                self.release(name)
            raise

    def release(self, name: str) -> None:
        """Let the next one change the key."""
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]
