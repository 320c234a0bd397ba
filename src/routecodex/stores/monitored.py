"""A store that times its calls and knows whether it can be used.

The first call that the store cannot carry out makes it `down`, or `read_only` if only writes have failed. The
spaces and keys of failed calls are then checked, again and again, until all of them can be used. Users of the
store need no timers of their own: every call is passed on, and `on_return` tells when it is worth trying
again. The log has one line when the store goes and one when it is back.

A store that judges itself (Redis) is believed: then nothing is checked here.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from routecodex.stores.store import (
    Availability,
    CallRefused,
    Change,
    GroupChange,
    GroupUpdates,
    OnAvailability,
    Place,
    Store,
    Stored,
    StoreError,
)

OnCall = Callable[[str, float, bool], None]
"""Called after every call: its name, its seconds, and whether the store failed."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_LATE_AFTER = 5.0
"""Seconds after which a call on one key counts as failed, though it may still end."""
_MOST_FAILED = 64

_TEXTS: dict[Availability, str] = {
    "down": "is down, requests continue with the last known state",
    "read_only": "cannot be written, nothing new is saved",
}

T = TypeVar("T")

log = logging.getLogger("routecodex.stores")


class StoreReport(Struct, frozen=True):
    """Whether a store can be used, and since when, in seconds since the epoch."""

    kind: str
    status: Availability
    since: float


class MonitoredStore:
    """A store that times its calls and knows whether it can be used; see the module."""

    def __init__(
        self,
        store: Store,
        *,
        on_call: OnCall = lambda op, seconds, failed: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        late_after: float = _LATE_AFTER,
    ) -> None:
        self.on_return: list[Callable[[], object]] = []
        """Called when the store can be used again."""
        self.kind = store.kind
        self.settle_seconds = store.settle_seconds
        self.reads_by_updates = store.reads_by_updates
        self.bounds_calls = store.bounds_calls
        self.groups = None if store.groups is None else MonitoredGroups(store.groups, self)
        self.processes = store.processes
        self.returns = 0
        """Times that the store came back."""
        # Called for every request: not even one call more.
        self.stamp = store.stamp
        self.stamp_of = store.stamp_of
        self.uptime = store.uptime
        self._store = store
        self._on_call = on_call
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._late_after = late_after
        self._status: Availability = "up"
        self._since = clock()
        self._gone_since = self._since
        """When the last outage began."""
        self._failed: dict[tuple[str, str | None], bool] = {}
        """Space and key of failed calls, and whether a read failed; without a key the whole space."""
        self._checking: asyncio.Task[None] | None = None
        self._closed = False
        self._judges_itself = store.judge(self._note_status)
        self._back_at: float | None = None

    @property
    def missed(self) -> int:
        """Number of times that changes of others were noticed only by a check."""
        return self._store.missed

    def judge(self, listener: OnAvailability) -> bool:
        return self._store.judge(listener)

    def was_back_within(self, seconds: float) -> bool:
        """Return whether the store came back less than so many seconds ago."""
        if self._back_at is not None and time.monotonic() - self._back_at < seconds:
            return True
        return self._store.was_back_within(seconds)

    @property
    def works(self) -> bool:
        """Whether the store can be read and written."""
        return self._status == "up"

    @property
    def report(self) -> StoreReport:
        return StoreReport(self.kind, self._status, self._since)

    async def get(self, space: str, key: str) -> Stored | None:
        return await self._timed("get", self._store.get(space, key), space, key)

    async def get_intact(self, space: str, key: str) -> Stored | None:
        return await self._timed("get", self._store.get_intact(space, key), space, key)

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        call = self._store.put(space, key, value, ttl=ttl, expected=expected)
        return await self._timed("put", call, space, key)

    async def delete(self, space: str, key: str) -> bool:
        return await self._timed("delete", self._store.delete(space, key), space, key)

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        return await self._timed("update", self._store.update(space, key, change, ttl=ttl), space, key)

    async def read_all(self, space: str, *, most: int) -> list[tuple[str, Stored]]:
        return await self._timed("keys", self._store.read_all(space, most=most), space, None)

    async def keys(self, space: str) -> list[str]:
        return await self._timed("keys", self._store.keys(space), space, None)

    async def recent(self, space: str, *, limit: int, before: Place | None = None) -> list[Place]:
        return await self._timed("keys", self._store.recent(space, limit=limit, before=before), space, None)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        return await self._timed("trim", self._store.trim(space, entries=entries, size=size), space, None)

    async def call_group(self, op: str, call: Awaitable[T], space: str) -> T:
        """Await a call on several values as one of the store."""
        return await self._timed(op, call, space, None)

    async def spaces(self) -> list[str]:
        return await self._store.spaces()

    async def describe(self) -> dict[str, Any]:
        return await self._store.describe()

    async def check(self, space: str) -> None:
        await self._store.check(space)

    async def close(self) -> None:
        self._closed = True
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        await self._store.close()

    async def _timed(self, op: str, call: Awaitable[T], space: str, key: str | None) -> T:
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Calls on a whole space may take long when it is large.
        timer: asyncio.TimerHandle | None = None
        if key is not None and not self._judges_itself:
            timer = loop.call_later(self._late_after, self._note_late, op, space, key)
        failed = False
        try:
            return await call
        except CallRefused:
            raise
        except StoreError as exc:
            failed = True
            self._note_failure(op, space, key, exc)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._on_call(op, loop.time() - began, failed)

    def _note_late(self, op: str, space: str, key: str) -> None:
        late = StoreError(f"{op} of {space}/{key[:80]!r} has taken more than {self._late_after:g} s")
        self._note_failure(op, space, key, late)

    def _note_failure(self, op: str, space: str, key: str | None, exc: StoreError) -> None:
        log.debug("%s of the %s store failed: %s", op, self.kind, exc)
        if self._closed or self._judges_itself:
            return
        if len(self._failed) < _MOST_FAILED:
            call = (space, key)
            self._failed[call] = op in ("get", "keys") or self._failed.get(call, False)
        self._note_outage("down" if any(self._failed.values()) else "read_only", exc)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self._check_until_back())

    def _note_outage(self, status: Availability, reason: StoreError | None) -> None:
        if status == self._status:
            return
        was_up, self._status, self._since = self.works, status, self._clock()
        if was_up:
            self._gone_since = self._since
            log.error("the %s store %s: %s", self.kind, _TEXTS[status], reason)

    def _note_status(self, status: Availability, reason: StoreError | None) -> None:
        """Note what a store says of itself."""
        if self._closed:
            return
        if status == "up":
            self._note_return()
        else:
            self._note_outage(status, reason)

    async def _check_until_back(self) -> None:
        pause = _FIRST_PAUSE
        while not self.works:
            await self._sleep(pause * (0.5 + self._jitter() / 2))
            pause = min(pause * 2, _LONGEST_PAUSE)
            if await self._can_be_used():
                self._note_return()

    async def _can_be_used(self) -> bool:
        """Return whether every space and key whose calls failed can be used again."""
        try:
            for space, key in list(self._failed):
                if key is not None:
                    await self._read(space, key)
                await self._store.check(space)
        except StoreError:
            return False
        return True

    async def _read(self, space: str, key: str) -> None:
        try:
            await self._store.get_intact(space, key)
        except CallRefused as exc:
            log.debug("%s/%.80r of the %s store: %s", space, key, self.kind, exc)

    def _note_return(self) -> None:
        now = self._clock()
        log.warning("the %s store works again after %.3g s", self.kind, max(0.0, now - self._gone_since))
        self._status, self._since = "up", now
        self._back_at = time.monotonic()
        self.returns += 1
        self._failed.clear()
        for listener in self.on_return:
            listener()


class MonitoredGroups:
    """Calls on several values, timed and counted like those on one."""

    def __init__(self, groups: GroupUpdates, store: MonitoredStore) -> None:
        self._groups = groups
        self._store = store

    async def update(
        self, space: str, keys: Sequence[str], change: GroupChange[T], *, id: str, ttl: float
    ) -> T:
        update = self._groups.update(space, keys, change, id=id, ttl=ttl)
        return await self._store.call_group("update", update, space)

    async def generation(self, space: str) -> int:
        return await self._store.call_group("get", self._groups.generation(space), space)

    async def values(self, space: str, *, most: int) -> dict[str, bytes]:
        return await self._store.call_group("keys", self._groups.values(space, most=most), space)
