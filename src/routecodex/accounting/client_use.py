"""Last use of each client, and the number of its requests that run now.

Kept in memory, and written to the store seldom: a request pays for two dict entries. Processes that share a
store with other machines show each other what runs in them, a second later.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable

from msgspec.json import Decoder

from routecodex.accounting.running_requests import RunningRequests
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "client-use"
_KEY = "last-used"
_SECONDS = 15.0
"""Seconds between two writes of one process."""
_RUNNING = "running"
_SHOWN_SECONDS = 1.0
"""Seconds after which running requests are shown to other processes again, if they have changed."""
_RENEWED_SECONDS = 5.0
_ALIVE_SECONDS = 15.0

_decoder = Decoder(dict[str, float])
_running_decoder = Decoder(dict[str, int])


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
        self._shown: dict[str, int] = {}
        self._shown_at = 0.0
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
        """Return the number of requests of a client that run now, in all workers that share a file."""
        running = self._running.get(name, 0)
        return running if self.shared is None else max(running, self.shared.total(name))

    def refresh(self) -> None:
        """Show the other workers again what runs in this one."""
        if self.shared is not None:
            self.shared.refresh(self._running)

    async def running_elsewhere(self) -> dict[str, int]:
        """Return the running requests of each client in other processes that share the store."""
        processes, total = self._store.processes, Counter[str]()
        if processes is not None:
            with contextlib.suppress(StoreError):
                for row in await processes.read_others(_RUNNING, within=_ALIVE_SECONDS):
                    found = json.try_read(row, _running_decoder)
                    total.update({} if found is None else found)
        return total

    async def show(self, *, at_end: bool = False) -> None:
        """Show the other processes that share the store what runs in this one."""
        processes, now = self._store.processes, time.monotonic()
        running = {} if at_end else dict(self._running)
        pause = _SHOWN_SECONDS if running != self._shown else _RENEWED_SECONDS
        if processes is None or not (running or self._shown) or (now < self._shown_at + pause and not at_end):
            return
        with contextlib.suppress(StoreError):
            await processes.write(_RUNNING, json.encode(running) if running else None)
            self._shown, self._shown_at = running, now

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
