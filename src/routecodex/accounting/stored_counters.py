"""Counters of limits for processes on several machines, in a store that they share.

One atomic step changes all limits of a request. Time is that of the store: the clocks of machines differ.
What a process has reserved carries an end, which its signs of life move: reservations of a process that is
gone end by themselves, and are not charged.

Every node adds what its own ledger knows of a limit when it first counts in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from functools import partial
from itertools import count, islice
from typing import Any, Final, TypeVar

from msgspec import Struct

from routecodex.accounting.counters import (
    CountersUnavailable,
    LimitEvent,
    LimitFigures,
    LimitReservation,
    PastUse,
    Reserved,
)
from routecodex.accounting.limit_changes import JOINED, SPACE, LimitChanges, written_again
from routecodex.accounting.limits import Limit
from routecodex.accounting.stored_limit import (
    LimitState,
    decode_stored,
    events_of_use,
    first_without_room,
    new_stored,
    refuse,
)
from routecodex.stores.store import GroupUpdates, Store, StoreError

_RENEW_MS: Final = 10_000
_ASKED_MS: Final = 60_000
_MOST_UNSENT: Final = 100_000
_MOST_LIMITS: Final = 100_000
_NO_EXEMPTIONS: Final[frozenset[Limit]] = frozenset()

T = TypeVar("T")

log = logging.getLogger("routecodex.limits")


class _Use(Struct, frozen=True):
    """Use of a request; `freed` was reserved for it. Uses are counted in the order of their `number`."""

    number: int
    limits: Sequence[Limit]
    amounts: list[int]
    freed: list[int]


class StoredCounters:
    """Counts in a store; `node` names this machine, `works` tells whether the store can be used."""

    def __init__(
        self, store: Store, groups: GroupUpdates, *, node: Callable[[], str], works: Callable[[], bool]
    ) -> None:
        self.on_events: Callable[[Sequence[LimitEvent]], object] = lambda events: None
        """Called with the events of settling, which comes after the request."""
        self._store = store
        self._groups = groups
        self._changes = LimitChanges(groups, node=node, now_ms=self._now_ms)
        self._works = works
        self._numbers = count(1)
        self._last_read: tuple[str, int] | None = None
        """Data of the store, and generation of the space, that were read last; None before the first time."""
        self._data = ""
        """Name of the data in the store; another one when they were lost."""
        self._asked_ms = 0
        """Time of the last query for figures: they are kept up to date while somebody looks."""
        self._unsent: deque[_Use] = deque(maxlen=_MOST_UNSENT)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sender: asyncio.Task[None] | None = None

    @property
    def past_use(self) -> PastUse | None:
        return self._changes.past_use

    @past_use.setter
    def past_use(self, past_use: PastUse | None) -> None:
        self._changes.past_use = past_use

    def use_loop(self, defer: Callable[[Callable[[], None]], object] | None) -> None:
        """Steps are joined as long as one is under way, not by turns of the loop."""

    def reserve(
        self, limits: Sequence[Limit], amounts: list[int], now: int, *, exempt: Set[Limit] = _NO_EXEMPTIONS
    ) -> Awaitable[Reserved]:
        """Reserve amounts against all limits, or none; CountersUnavailable if the store cannot be used."""

        def change(states: list[LimitState]) -> tuple[bool, Reserved]:
            full = first_without_room(limits, states, amounts, exempt)
            if full is not None:
                return refuse(limits[full], states[full], amounts[full])
            for state, amount in zip(states, amounts, strict=True):
                state.own += amount
            return True, LimitReservation(limits, list(amounts))

        return self._changes.make(limits, change)

    def settle(
        self, reservation: LimitReservation, used: Sequence[int], now: int, *, last: bool = True
    ) -> None:
        """Replace the reserved amounts by those used, beside the request; in an outage when it is over."""
        freed = [
            amount if last or limit.unit != "concurrent" else 0
            for limit, amount in zip(reservation.limits, reservation.amounts, strict=True)
        ]
        for index, amount in enumerate(freed):
            reservation.amounts[index] -= amount
        if len(self._unsent) == _MOST_UNSENT:
            log.error("the use of very many requests could not be counted; the oldest is dropped")
        self._unsent.append(_Use(next(self._numbers), reservation.limits, list(used), freed))
        self._send()

    def _send(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = self._start(self._send_all())

    async def _send_all(self) -> None:
        """Count what was used, in order; after a failure the rest waits for the next sign of life.

        Until it is counted it is reserved: another request must not find that room.
        """
        while self._unsent:
            uses = list(islice(self._unsent, JOINED))
            limits = list({limit.digest: limit for use in uses for limit in use.limits}.values())
            try:
                events = await self._changes.make(limits, partial(_settled, uses, limits))
            except CountersUnavailable as exc:
                log.debug("use is not counted yet: %s", exc)
                return
            while self._unsent and self._unsent[0].number <= uses[-1].number:
                self._unsent.popleft()
            if events:
                self.on_events(events)

    def prepare(self, limits: Sequence[Limit]) -> None:
        """Return None: every step is one of the store."""

    def latest(self, limits: Sequence[Limit]) -> list[LimitFigures]:
        """Return the state of limits after the last step of this process that had to do with them."""
        now_ms = self._now_ms()
        return [
            LimitState(stored, now_ms=now_ms).figures(limit)
            for limit in limits
            if (stored := self._changes.known.get(limit.digest)) is not None
        ]

    def figures(self, limits: Sequence[Limit], now: int) -> list[LimitFigures]:
        """Return the state of limits, at most seconds old; CountersUnavailable while it is not known."""
        known = self._changes.known
        if self._last_read is None and any(limit.digest not in known for limit in limits):
            raise CountersUnavailable("the counters in the store have not been read yet")
        now_ms = self._asked_ms = self._now_ms()
        rows: list[LimitFigures] = []
        for limit in limits:
            state = LimitState(known.get(limit.digest) or new_stored(limit, now_ms), now_ms=now_ms)
            state.window.advance(limit.window, now_ms * 1000)
            rows.append(state.figures(limit))
        return rows

    def reset(self, limits: Sequence[Limit], now: int) -> None:
        """Set the use of limits to 0; reservations stay. CountersUnavailable while the store is down."""
        if not self._works():
            raise CountersUnavailable("the store is down")

        def change(states: list[LimitState]) -> tuple[bool, None]:
            for limit, state in zip(limits, states, strict=True):
                state.window.clear(limit.window, state.now_ms * 1000)
            return True, None

        for limit in limits:
            self._changes.known.pop(limit.digest, None)
        self._start(self._ignoring_outage(self._changes.make(limits, change)))

    def beat(self) -> None:
        """Renew the ends of what this process has reserved, send what could not be sent, read the figures."""
        self._start(self._ignoring_outage(self._beat()))
        if not self._works():
            raise CountersUnavailable("the store is down")

    async def _beat(self) -> None:
        self._send()
        await self._add_lost()
        changes, now_ms = self._changes, self._now_ms()
        due = [
            changes.limits[digest]
            for digest, amount in changes.own.items()
            if amount and now_ms - changes.renewed.get(digest, 0) > _RENEW_MS and digest in changes.limits
        ]
        for limit in due:
            await changes.make([limit], written_again)
        if self._last_read is None or now_ms - self._asked_ms < _ASKED_MS:
            await self._read_all()

    async def _add_lost(self) -> None:
        """Add what the ledger knows of the limits in use, if the store has lost its data."""
        data = self._store.uptime().start
        if data == self._data or not data:
            return
        for limit in list(self._changes.limits.values()) if self._data else ():
            await self._changes.make([limit], written_again)
        self._data = data

    async def refresh(self) -> None:
        """Read the state of all limits, if any has changed; in an outage it stays as it was."""
        await self._ignoring_outage(self._read_all())

    async def _read_all(self) -> None:
        generation = await self._groups.generation(SPACE)
        current = self._store.uptime().start, generation
        if current == self._last_read:
            return
        known = self._changes.known
        lost = set(known)
        for key, value in (await self._groups.values(SPACE, most=_MOST_LIMITS)).items():
            found = decode_stored(value)
            if found is not None and key.lstrip("-").isdigit():
                known[int(key)] = found
                lost.discard(int(key))
        for digest in lost:
            known.pop(digest, None)
        self._last_read = current

    async def flush(self) -> None:
        """Wait until what was used is counted, as far as the store can be used."""
        if self._unsent:
            self._send()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Let go of everything: what is still reserved ends by itself."""
        for task in self._tasks:
            task.cancel()
        self._changes.close()

    def _now_ms(self) -> int:
        return self._store.uptime().ms

    async def _ignoring_outage(self, work: Awaitable[object]) -> None:
        try:
            await work
        except (CountersUnavailable, StoreError) as exc:
            log.debug("limits are not counted now: %s", exc)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _settled(
    uses: Sequence[_Use], limits: Sequence[Limit], states: list[LimitState]
) -> tuple[bool, list[LimitEvent]]:
    """Count uses, each once, and free what was reserved for them."""
    by_digest = {limit.digest: state for limit, state in zip(limits, states, strict=True)}
    events: list[LimitEvent] = []
    for use in uses:
        for limit, amount, less in zip(use.limits, use.amounts, use.freed, strict=True):
            state = by_digest[limit.digest]
            state.own = max(0, state.own - less)
            if amount and state.settle(use.number):
                limit.window.add(state.window, amount)
                events += events_of_use(limit, state)
    return True, events
