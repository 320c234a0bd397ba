"""Grants one probe per cooling target across processes.

Who may probe a target: one request of all the processes that share a store.

A claim is taken in memory first, so that the requests of this process need no store to agree. Then it becomes
a lease in the store, which is renewed while the probe is under way, given back when it is over, and free for
anybody once a holder that was killed has stopped renewing it. Without a store the claim in memory has to do.
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

SPACE = "health.probes"

LEASE_SECONDS = 30.0
"""How long a lease holds that nobody renews, in seconds."""

LONGEST_PROBE = 300.0
"""How long a probe may be under way before another one may pass."""

PAUSE = 1.0
"""How long whoever may not probe stays away before looking again."""

_WAIT = 2.0

T = TypeVar("T")


class ProbeClaim(NamedTuple):
    """A probe under way: until when it counts, whose it is, and the name of its lease."""

    end: float
    by: object
    lease: str = ""


class ProbeLease(Struct, frozen=True):
    """What is stored for a place that is being probed."""

    by: str
    until: float


class ProbeTaken(Exception):
    """Somebody else has the lease."""


class ProbeGone(Exception):
    """The lease is not ours any more."""


_OTHERS = object()
_leases = msgspec.json.Decoder(ProbeLease)


class Probes:
    """The claims that this process knows of; `stumble` is told of a store that is down.

    A lease is given back only when `saved` says that what the probe has found out can be read by others.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        saved: Callable[[], Awaitable[None]],
        stumble: Callable[[StoreError], None],
        life: float = LEASE_SECONDS,
    ) -> None:
        self.claims: dict[Selector, ProbeClaim] = {}
        self._store = store
        self._clock = clock
        self._saved = saved
        self._stumble = stumble
        self._life = life
        self._id = fresh_id()
        self._numbers = count(1)
        self._in_store = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def end(self, place: Selector, now: float) -> float:
        """Until when the place is left to the probe under way there; 0.0 when there is none."""
        claim = self.claims.get(place)
        return claim.end if claim is not None and now < claim.end <= now + LONGEST_PROBE else 0.0

    def take(self, places: Iterable[Selector], now: float, *, by: object, lease: str = "") -> None:
        """Keeps the other requests of this process away."""
        for place in places:
            self.claims[place] = ProbeClaim(now + LONGEST_PROBE, by, lease)

    async def lease(self, places: Sequence[Selector], now: float, *, by: object) -> bool:
        """Takes the places unless another process has them; a store that is down or slow does not object."""
        lease = f"{self._id}.{next(self._numbers)}"
        self.take(places, now, by=by, lease=lease)
        asked = self._start(self._leased(places, lease))
        done, _ = await asyncio.wait({asked}, timeout=_WAIT)
        if not done:
            self._stumble(StoreError(f"a probe could not be noted within {_WAIT:g} s"))
        lost = asked.result() if done else None
        if lost is None:
            self._renew_later()
            return True
        self.claims[lost] = ProbeClaim(now + PAUSE, _OTHERS)
        self.release((place for place in places if place != lost), by=by)
        return False

    def release(self, places: Iterable[Selector], *, by: object) -> None:
        """Whoever made the attempt has no more to do with a probe; what others do is not known for sure."""
        for place in places:
            if place in self.claims and self.claims[place].by in (by, _OTHERS):
                self.drop(place)

    def drop(self, place: Selector) -> None:
        """Nothing is probed there any more, whoever did."""
        claim = self.claims.pop(place, None)
        if claim is not None and claim.lease:
            self._start(self._given_back(place, claim.lease))

    async def settle(self) -> None:
        """Waits until the store knows what has been given back."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _leased(self, places: Iterable[Selector], lease: str) -> Selector | None:
        """The place that somebody else has, None when all are ours."""
        async with self._in_store:
            for place in places:
                try:
                    await self._store.update(SPACE, str(place), partial(self._taken, lease), ttl=self._life)
                except ProbeTaken:
                    return place
                except StoreError as exc:
                    self._stumble(exc)
        return None

    def _taken(self, lease: str, found: bytes | None) -> bytes:
        now = self._clock()
        held = _held(found)
        # One of this process is on its way back: within a process the claims in memory decide.
        foreign = held is not None and not held.by.startswith(f"{self._id}.")
        if held is not None and foreign and now < held.until <= now + self._life + SKEW:
            raise ProbeTaken
        return msgspec.json.encode(ProbeLease(lease, now + self._life))

    async def _given_back(self, place: Selector, lease: str) -> None:
        await self._saved()
        async with self._in_store:
            try:
                await self._store.update(SPACE, str(place), partial(_without, lease))
            except ProbeGone:
                return
            except StoreError as exc:
                self._stumble(exc)

    def _renew_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._life / 3, self._renew)

    def _renew(self) -> None:
        self._timer = None
        now = self._clock()
        held = {place: claim.lease for place, claim in self.claims.items() if claim.lease and now < claim.end}
        if held:
            self._start(self._renewed(held))
            self._renew_later()

    async def _renewed(self, held: dict[Selector, str]) -> None:
        async with self._in_store:
            for place, lease in held.items():
                try:
                    await self._store.update(SPACE, str(place), partial(self._longer, lease), ttl=self._life)
                except ProbeGone:
                    continue
                except StoreError as exc:
                    self._stumble(exc)

    def _longer(self, lease: str, found: bytes | None) -> bytes:
        _without(lease, found)
        return msgspec.json.encode(ProbeLease(lease, self._clock() + self._life))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


def _held(found: bytes | None) -> ProbeLease | None:
    try:
        return None if found is None else _leases.decode(found)
    except msgspec.DecodeError:
        return None


def _without(lease: str, found: bytes | None) -> None:
    """Takes this lease out of the store, and no other one."""
    held = _held(found)
    if held is None or held.by != lease:
        raise ProbeGone
