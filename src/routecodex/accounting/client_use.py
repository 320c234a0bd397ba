"""When each client was last served, and how many of its requests run now.

Kept in memory, and written to the store seldom: a request pays for two dict entries.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from msgspec.json import Decoder

from routecodex.accounting.running_requests import RunningRequests
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "client-use"
_KEY = "last-used"
_SECONDS = 15.0
"""Seconds between two writes of one process."""

_decoder = Decoder(dict[str, float])


class ClientUse:
    """Last use and running requests of every client; `clock` returns seconds since the epoch.

    `shared` has the running requests of all workers; None if there is one worker.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._last: dict[str, float] = {}
        self._unsaved: set[str] = set()
        self._running: dict[str, int] = {}
        self._next_write = 0.0
        self.shared: RunningRequests | None = None

    def enter(self, name: str) -> None:
        """Note the start of a request."""
        self._last[name] = self._clock()
        self._unsaved.add(name)
        running = self._running[name] = self._running.get(name, 0) + 1
        if self.shared is not None:
            self.shared.show(name, running)

    def leave(self, name: str) -> None:
        """Note the end of a request."""
        running = self._running[name] - 1
        if running:
            self._running[name] = running
        else:
            del self._running[name]
        if self.shared is not None:
            self.shared.show(name, running)

    def in_flight(self, name: str) -> int:
        """Return the number of requests of a client that run now, in all workers."""
        running = self._running.get(name, 0)
        return running if self.shared is None else max(running, self.shared.total(name))

    def refresh(self) -> None:
        """Show the other workers again what runs in this one."""
        if self.shared is not None:
            self.shared.refresh(self._running)

    async def last_used(self) -> dict[str, float]:
        """Return the time of the last request of each client, of all processes that have written theirs."""
        stored: dict[str, float] = {}
        with contextlib.suppress(StoreError):
            found = await self._store.get(_SPACE, _KEY)
            stored = _decode(None if found is None else found.value)
        return _latest(stored, self._last)

    async def save(self, *, at_once: bool = False) -> None:
        """Write what is new, if the last write is long enough ago; while the store is down, keep it."""
        now = time.monotonic()
        if not self._unsaved or (now < self._next_write and not at_once):
            return
        self._next_write = now + _SECONDS
        new = {name: self._last[name] for name in self._unsaved}
        self._unsaved.clear()
        try:
            await self._store.update(_SPACE, _KEY, lambda raw: json.encode(_latest(_decode(raw), new)))
        except StoreError:
            self._unsaved.update(new)

    async def forget(self, name: str) -> None:
        """Drop a client that was revoked: another one may get its name."""
        self._last.pop(name, None)
        self._unsaved.discard(name)
        if self.shared is not None:
            self.shared.forget(name)
        with contextlib.suppress(StoreError):
            await self._store.update(_SPACE, _KEY, lambda raw: _without(raw, name))


def _without(raw: bytes | None, name: str) -> bytes | None:
    left = {key: value for key, value in _decode(raw).items() if key != name}
    return json.encode(left) if left else None


def _decode(raw: bytes | None) -> dict[str, float]:
    found = None if raw is None else json.try_read(raw, _decoder)
    return {} if found is None else found


def _latest(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in (*one, *other)}
