"""Grants one probe per cooling target across processes.

A claim is made in memory first, which settles the requests of this process. Then it becomes a lease in the
store, which is renewed while the probe runs and returned when it ends. If its holder is killed, the lease
expires. During an outage of the store the claim in memory is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from routecodex.gateway.request import fresh_id
from routecodex.routing.cooldown import SKEW
from routecodex.routing.registry import Selector
from routecodex.stores.store import Store, StoreError
from routecodex.stores.uptime import STORE_CLOCK

SPACE = "health.probes"

LEASE_SECONDS = 30.0
"""Seconds until a lease expires that is not renewed."""

LONGEST_PROBE = 300.0
"""Seconds a probe may run before another one is allowed."""

PAUSE = 1.0
"""Seconds until a request checks again whether it may probe."""

_STORE_WAIT = 2.0

T = TypeVar("T")


class ProbeClaim(NamedTuple):
    """A running probe: the end of its claim, its holder, and the name of its lease."""

    end: float
    by: object
    lease: str = ""


class ProbeLease(Struct, frozen=True):
    """The stored lease of a key that is being probed."""

    by: str
    until: float


class ProbeTaken(Exception):
    """Another process holds the lease."""


class ProbeGone(Exception):
    """The lease is no longer held by this process."""


_OTHER_PROCESS = object()
_leases = msgspec.json.Decoder(ProbeLease)


class Probes:
    """Claims known to this process; a store that fails is ignored.

    A lease is returned only after `wait_saved`: other processes can then read the outcome of the probe.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        wait_saved: Callable[[], Awaitable[None]],
        ttl: float = LEASE_SECONDS,
    ) -> None:
        self.claims: dict[Selector, ProbeClaim] = {}
        self._store = store
        self._clock = clock
        self._wait_saved = wait_saved
        self._ttl = ttl
        self._id = fresh_id()
        self._numbers = count(1)
        self._store_lock = asyncio.Lock()
        self._running: set[asyncio.Task[Any]] = set()
        self._late: asyncio.Task[Any] | None = None
        """The lease that was not stored in time: no probe waits for the store before it is."""
        self._timer: asyncio.TimerHandle | None = None

    def end(self, key: Selector, now: float) -> float:
        """Return the end of the claim on a key; 0.0 without one."""
        claim = self.claims.get(key)
        return claim.end if claim is not None and now < claim.end <= now + LONGEST_PROBE else 0.0

    def claim(self, keys: Iterable[Selector], now: float, *, by: object, lease: str = "") -> None:
        """Claim keys within this process."""
        for key in keys:
            self.claims[key] = ProbeClaim(now + LONGEST_PROBE, by, lease)

    async def lease(self, keys: Sequence[Selector], now: float, *, by: object) -> bool:
        """Claim keys across processes; return False if another one holds one. A failing store is ignored."""
        lease = f"{self._id}.{next(self._numbers)}"
        if self._late is not None and not self._late.done():
            self.claim(keys, now, by=by)
            return True
        self.claim(keys, now, by=by, lease=lease)
        task = self._start(self._store_lease(keys, lease))
        done, _ = await asyncio.wait({task}, timeout=None if self._store.bounds_calls else _STORE_WAIT)
        if not done:
            self._late = task
        lost = task.result() if done else None
        if lost is None:
            self._schedule_renewal()
            return True
        self.claims[lost] = ProbeClaim(now + PAUSE, _OTHER_PROCESS)
        self.release((key for key in keys if key != lost), by=by)
        return False

    def release(self, keys: Iterable[Selector], *, by: object) -> None:
        """Release the claims of `by`, and those assumed of another process, which may have ended."""
        for key in keys:
            if key in self.claims and self.claims[key].by in (by, _OTHER_PROCESS):
                self.drop(key)

    def drop(self, key: Selector) -> None:
        """Drop the claim on a key, whoever holds it."""
        claim = self.claims.pop(key, None)
        if claim is not None and claim.lease:
            self._start(self._return_lease(key, claim.lease))

    async def settle(self) -> None:
        """Wait until all leases are returned."""
        while self._running:
            await asyncio.wait(self._running)

    async def _store_lease(self, keys: Iterable[Selector], lease: str) -> Selector | None:
        """Store the lease for every key; return the first key that another process holds."""
        async with self._store_lock:
            for key in keys:
                try:
                    await self._store.update(SPACE, str(key), partial(self._acquired, lease), ttl=self._ttl)
                except ProbeTaken:
                    return key
                except StoreError:
                    continue
        return None

    def _acquired(self, lease: str, value: bytes | None) -> bytes:
        """Return the new stored lease; ProbeTaken if another process holds it."""
        now = self._lease_time()
        held = _decode_lease(value)
        # A lease of this process is being returned: within the process the claims in memory decide.
        foreign = held is not None and not held.by.startswith(f"{self._id}.")
        if held is not None and foreign and now < held.until <= now + self._ttl + SKEW:
            raise ProbeTaken
        return msgspec.json.encode(ProbeLease(lease, now + self._ttl))

    async def _return_lease(self, key: Selector, lease: str) -> None:
        await self._wait_saved()
        async with self._store_lock:
            try:
                await self._store.update(SPACE, str(key), partial(_released, lease))
            except (ProbeGone, StoreError):
                return

    def _schedule_renewal(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._ttl / 3, self._renew)

    def _renew(self) -> None:
        self._timer = None
        now = self._clock()
        held = {key: claim.lease for key, claim in self.claims.items() if claim.lease and now < claim.end}
        if held:
            self._start(self._store_renewal(held))
            self._schedule_renewal()

    async def _store_renewal(self, held: dict[Selector, str]) -> None:
        async with self._store_lock:
            for key, lease in held.items():
                try:
                    await self._store.update(SPACE, str(key), partial(self._renewed, lease), ttl=self._ttl)
                except (ProbeGone, StoreError):
                    continue

    def _renewed(self, lease: str, value: bytes | None) -> bytes:
        _released(lease, value)
        return msgspec.json.encode(ProbeLease(lease, self._lease_time() + self._ttl))

    def _lease_time(self) -> float:
        """Return the time by which leases end: that of the store, if machines share it."""
        up = self._store.uptime()
        return up.ms / 1000 if up.start.startswith(STORE_CLOCK) else self._clock()

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


def _decode_lease(value: bytes | None) -> ProbeLease | None:
    try:
        return None if value is None else _leases.decode(value)
    except msgspec.DecodeError:
        return None


def _released(lease: str, value: bytes | None) -> None:
    """Return None, which deletes the stored lease; ProbeGone if it is not this one."""
    held = _decode_lease(value)
    if held is None or held.by != lease:
        raise ProbeGone
