"""Counters of limits for processes on several machines, in a store that they share.

One atomic step changes all limits of a request. Time is that of the store: the clocks of machines differ.
What a process has reserved carries an end, which its signs of life move: reservations of a process that is
gone end by themselves, and are not charged. A process always writes what it holds in all, so that a step
whose answer was lost is put right by the next one.

Every node adds what its own ledger knows of a limit when it first counts in it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.accounting.counters import (
    CountersUnavailable,
    LimitEvent,
    LimitFigures,
    LimitRefusal,
    LimitReservation,
    PastUse,
    Reserved,
)
from routecodex.accounting.limits import Limit
from routecodex.accounting.windows import CELLS, MICROS, WindowState
from routecodex.stores.store import GroupUpdates, Store, StoreError
from routecodex.wire import json

SPACE: Final = "budgets"
SILENCE_MS: Final = 30_000
"""Milliseconds after its last sign of life in which the reservations of a process end."""
_RENEW_MS: Final = 10_000
_ASKED_MS: Final = 60_000
_SETTLED_MS: Final = 3_600_000
"""Milliseconds after which a use that is sent again may count twice: the longest outage to expect."""
_DAY: Final = 86_400.0
_MOST_NODES: Final = 1000
_MOST_UNSENT: Final = 100_000
_MOST_LIMITS: Final = 100_000
_NO_EXEMPTIONS: Final[frozenset[Limit]] = frozenset()

T = TypeVar("T")

log = logging.getLogger("routecodex.limits")


class StoredLimit(Struct):
    """The stored state of a limit: the cells of its window, and reservations by process with their end.

    `nodes` have added what their ledgers know. `settled` has the number of the last use that a process has
    added, until that is forgotten: the store knows the ids of the last writes alone.
    """

    cells: list[int]
    held: dict[str, tuple[int, int]] = {}
    nodes: list[str] = []
    settled: dict[str, tuple[int, int]] = {}


_decoder = Decoder(StoredLimit)


class _LedgerNeeded(Exception):
    """The store has lost a limit that this node had in it, and the ledger was not read for it."""


class LimitView:
    """The state of a limit in one step."""

    __slots__ = ("limit", "state", "stored")

    def __init__(self, limit: Limit, stored: StoredLimit) -> None:
        self.limit: Final = limit
        self.stored: Final = stored
        self.state: Final = WindowState(stored.cells, 0)

    def reserved(self, now_ms: int) -> int:
        """Return what processes that are alive have reserved."""
        return sum(amount for amount, until in self.stored.held.values() if until > now_ms)

    def hold(self, process: str, amount: int, now_ms: int) -> None:
        """Set what a process has reserved; what has ended is dropped."""
        held = {name: row for name, row in self.stored.held.items() if row[1] > now_ms and name != process}
        self.stored.held = {**held, process: (amount, now_ms + SILENCE_MS)} if amount else held

    def settle(self, process: str, number: int, now_ms: int) -> bool:
        """Note a use of a process; return False if it was added before. Its uses come in their order."""
        settled = self.stored.settled
        last, _ = settled.get(process, (-1, 0))
        if number <= last:
            return False
        kept = {name: row for name, row in settled.items() if row[1] > now_ms}
        self.stored.settled = {**kept, process: (number, now_ms + _SETTLED_MS)}
        return True

    def figures(self, now_ms: int) -> LimitFigures:
        return LimitFigures(
            self.limit, self.state.used, self.reserved(now_ms), self.limit.window.resets_at(self.state)
        )


class StoredCounters:
    """Counts in a store; `node` names this machine, `works` tells whether the store can be used."""

    def __init__(
        self, store: Store, groups: GroupUpdates, *, node: Callable[[], str], works: Callable[[], bool]
    ) -> None:
        self.past_use: PastUse | None = None
        self.on_events: Callable[[Sequence[LimitEvent]], object] = lambda events: None
        """Called with the events of settling, which comes after the request."""
        self._store = store
        self._groups = groups
        self._node = node
        self._works = works
        self._process = secrets.token_hex(6)
        self._numbers = count(1)
        self._own: dict[int, int] = {}
        """Reservations of this process, by limit."""
        self._limits: dict[int, Limit] = {}
        self._known: dict[int, StoredLimit] = {}
        self._renewed: dict[int, int] = {}
        self._last_read: tuple[str, int] | None = None
        """Data of the store, and generation of the space, that were read last; None before the first time."""
        self._data = ""
        """Name of the data in the store; another one when they were lost."""
        self._asked_ms = 0
        """Time of the last query for figures: they are kept up to date while somebody looks."""
        self._unsent: deque[tuple[Sequence[Limit], list[int], list[int], int]] = deque(maxlen=_MOST_UNSENT)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sender: asyncio.Task[None] | None = None

    def use_loop(self, defer: Callable[[Callable[[], None]], object] | None) -> None:
        """Steps of one turn of the loop are not joined: each is a call of its own."""

    def reserve(
        self, limits: Sequence[Limit], amounts: list[int], now: int, *, exempt: Set[Limit] = _NO_EXEMPTIONS
    ) -> Awaitable[Reserved]:
        """Reserve amounts against all limits, or none; CountersUnavailable if the store cannot be used."""
        return self._reserve(limits, amounts, exempt)

    async def _reserve(self, limits: Sequence[Limit], amounts: list[int], exempt: Set[Limit]) -> Reserved:
        def change(views: list[LimitView]) -> tuple[bool, Reserved]:
            now_ms = self._now_ms()
            # Of this process counts what it holds, whatever a step that failed has left in the store.
            self._hold(views, now_ms)
            exceeded = _first_without_room(views, amounts, exempt, now_ms)
            if exceeded is not None:
                return _refuse(views[exceeded], amounts[exceeded], now_ms)
            for view, amount in zip(views, amounts, strict=True):
                view.hold(self._process, self._own.get(view.limit.digest, 0) + amount, now_ms)
            return True, LimitReservation(limits, list(amounts))

        reserved = await self._step(limits, change)
        if isinstance(reserved, LimitReservation):
            # Steps of this process run one after the other: the next one sees this.
            for limit, amount in zip(limits, amounts, strict=True):
                self._own[limit.digest] = self._own.get(limit.digest, 0) + amount
        return reserved

    def _hold(self, views: Sequence[LimitView], now_ms: int) -> None:
        for view in views:
            view.hold(self._process, self._own.get(view.limit.digest, 0), now_ms)

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
        self._unsent.append((reservation.limits, list(used), freed, next(self._numbers)))
        self._send()

    def _send(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = self._start(self._send_all())

    async def _send_all(self) -> None:
        """Count what was used, in order; the first that fails waits for the next sign of life."""
        while self._unsent:
            limits, used, freed, number = self._unsent[0]
            try:
                events = await self._step(
                    limits, partial(self._settle, used, freed, number), id=f"{self._process}.{number}"
                )
            except CountersUnavailable as exc:
                log.debug("use is not counted yet: %s", exc)
                return
            # Until now it counted as reserved: another request must not find that room.
            for limit, amount in zip(limits, freed, strict=True):
                self._own[limit.digest] = max(0, self._own.get(limit.digest, 0) - amount)
            self._unsent.popleft()
            if events:
                self.on_events(events)

    def _settle(
        self, used: Sequence[int], freed: Sequence[int], number: int, views: list[LimitView]
    ) -> tuple[bool, list[LimitEvent]]:
        now_ms = self._now_ms()
        events: list[LimitEvent] = []
        for view, amount, less in zip(views, used, freed, strict=True):
            view.hold(self._process, max(0, self._own.get(view.limit.digest, 0) - less), now_ms)
            if amount and view.settle(self._process, number, now_ms):
                view.limit.window.add(view.state, amount)
                events += _events_of_use(view, now_ms)
        return True, events

    def prepare(self, limits: Sequence[Limit]) -> None:
        """Return None: every step is one of the store."""

    def latest(self, limits: Sequence[Limit]) -> list[LimitFigures]:
        """Return the state of limits after the last step of this process that had to do with them."""
        now_ms = self._now_ms()
        return [
            LimitView(limit, stored).figures(now_ms)
            for limit in limits
            if (stored := self._known.get(limit.digest)) is not None
        ]

    def figures(self, limits: Sequence[Limit], now: int) -> list[LimitFigures]:
        """Return the state of limits, at most seconds old; CountersUnavailable while it is not known."""
        if self._last_read is None and any(limit.digest not in self._known for limit in limits):
            raise CountersUnavailable("the counters in the store have not been read yet")
        now_ms = self._asked_ms = self._now_ms()
        rows: list[LimitFigures] = []
        for limit in limits:
            view = LimitView(limit, self._known.get(limit.digest) or _new(limit, now_ms))
            view.state.advance(limit.window, now_ms * 1000)
            rows.append(view.figures(now_ms))
        return rows

    def reset(self, limits: Sequence[Limit], now: int) -> None:
        """Set the use of limits to 0; reservations stay. CountersUnavailable while the store is down."""
        if not self._works():
            raise CountersUnavailable("the store is down")

        def change(views: list[LimitView]) -> tuple[bool, None]:
            for view in views:
                view.state.clear(view.limit.window, self._now_ms() * 1000)
            return True, None

        for limit in limits:
            self._known.pop(limit.digest, None)
        self._start(self._ignoring_outage(self._step(limits, change)))

    def beat(self) -> None:
        """Renew the ends of what this process has reserved, send what could not be sent, read the figures."""
        self._start(self._ignoring_outage(self._beat()))
        if not self._works():
            raise CountersUnavailable("the store is down")

    async def _beat(self) -> None:
        self._send()
        await self._add_lost()
        now_ms = self._now_ms()
        due = [
            self._limits[digest]
            for digest, amount in self._own.items()
            if amount and now_ms - self._renewed.get(digest, 0) > _RENEW_MS and digest in self._limits
        ]
        for limit in due:
            await self._step([limit], self._renew)
        if self._last_read is None or now_ms - self._asked_ms < _ASKED_MS:
            await self._read_all()

    async def _add_lost(self) -> None:
        """Add what the ledger knows of the limits in use, if the store has lost its data."""
        data = self._store.uptime().start
        if data == self._data or not data:
            return
        for limit in list(self._limits.values()) if self._data else ():
            await self._step([limit], self._renew)
        self._data = data

    async def refresh(self) -> None:
        """Read the state of all limits, if any has changed; in an outage it stays as it was."""
        await self._ignoring_outage(self._read_all())

    async def _read_all(self) -> None:
        generation = await self._groups.generation(SPACE)
        current = self._store.uptime().start, generation
        if current == self._last_read:
            return
        lost = set(self._known)
        for key, value in (await self._groups.values(SPACE, most=_MOST_LIMITS)).items():
            found = json.try_read(value, _decoder)
            if found is not None and key.lstrip("-").isdigit():
                self._known[int(key)] = found
                lost.discard(int(key))
        for digest in lost:
            self._known.pop(digest, None)
        self._last_read = current

    def _renew(self, views: list[LimitView]) -> tuple[bool, None]:
        self._hold(views, self._now_ms())
        return True, None

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

    async def _step(
        self,
        limits: Sequence[Limit],
        change: Callable[[list[LimitView]], tuple[bool, T]],
        *,
        id: str | None = None,
    ) -> T:
        """Change all limits in one atomic step; `change` returns whether to write, and a result."""
        past = {limit.digest: await self._past(limit) for limit in limits if self._needs_past(limit)}
        try:
            return await self._step_with(past, limits, change, id or self._new_id())
        except _LedgerNeeded:
            past = {limit.digest: await self._past(limit) for limit in limits}
            return await self._step_with(past, limits, change, id or self._new_id())

    async def _step_with(
        self,
        past: dict[int, list[tuple[int, int]]],
        limits: Sequence[Limit],
        change: Callable[[list[LimitView]], tuple[bool, T]],
        id: str,
    ) -> T:
        """Change all limits; `past` has what the ledger of this node knows of those that lack it."""
        ttl = max(limit.window.length for limit in limits) / MICROS + _DAY

        def apply(values: list[bytes | None]) -> tuple[list[bytes] | None, tuple[T, list[LimitView]]]:
            now_ms = self._now_ms()
            views = [
                self._view(limit, value, past, now_ms) for limit, value in zip(limits, values, strict=True)
            ]
            writes, result = change(views)
            encoded = [json.encode(view.stored) for view in views] if writes else None
            return encoded, (result, views)

        keys = [str(limit.digest) for limit in limits]
        try:
            result, views = await self._groups.update(SPACE, keys, apply, id=id, ttl=ttl)
        except StoreError as exc:
            raise CountersUnavailable(str(exc)) from exc
        for view in views:
            self._limits[view.limit.digest] = view.limit
            self._known[view.limit.digest] = view.stored
            self._renewed[view.limit.digest] = self._now_ms()
        return result

    def _view(
        self, limit: Limit, value: bytes | None, past: dict[int, list[tuple[int, int]]], now_ms: int
    ) -> LimitView:
        stored = _decode(value, limit) or _new(limit, now_ms)
        view = LimitView(limit, stored)
        view.state.advance(limit.window, now_ms * 1000)
        node = self._node()
        if node not in stored.nodes:
            if limit.digest not in past:
                raise _LedgerNeeded
            stored.nodes = [*stored.nodes, node][-_MOST_NODES:]
            for moment, amount in past[limit.digest]:
                limit.window.place(view.state, moment, amount)
        return view

    def _needs_past(self, limit: Limit) -> bool:
        """Return whether this node may not yet have added what its ledger knows."""
        stored = self._known.get(limit.digest)
        return stored is None or self._node() not in stored.nodes

    async def _past(self, limit: Limit) -> list[tuple[int, int]]:
        if self.past_use is None or limit.unit == "concurrent":
            return []
        since = limit.window.begins(self._now_ms() * 1000)
        past_use = self.past_use
        return await asyncio.to_thread(lambda: list(past_use(limit, since)))

    def _now_ms(self) -> int:
        return self._store.uptime().ms

    def _new_id(self) -> str:
        return f"{self._process}.{next(self._numbers)}"

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


def _new(limit: Limit, now_ms: int) -> StoredLimit:
    stored = StoredLimit([0] * CELLS)
    WindowState(stored.cells, 0).clear(limit.window, now_ms * 1000)
    return stored


def _decode(value: bytes | None, limit: Limit) -> StoredLimit | None:
    """Return a stored state; None if there is none, or a damaged one."""
    stored = None if value is None else json.try_read(value, _decoder)
    if stored is None or len(stored.cells) != CELLS:
        return None
    return stored if WindowState(stored.cells, 0).is_sane(limit.window) else None


def _first_without_room(
    views: Sequence[LimitView], amounts: Sequence[int], exempt: Set[Limit], now_ms: int
) -> int | None:
    for index, view in enumerate(views):
        limit = view.limit
        is_full = view.state.used + view.reserved(now_ms) + amounts[index] > limit.max
        if is_full and limit.enforced and limit not in exempt:
            return index
    return None


def _refuse(view: LimitView, amount: int, now_ms: int) -> tuple[bool, LimitRefusal]:
    """Return whether the refusal must be written, because it is the first in its window, and the refusal."""
    limit, state = view.limit, view.state
    figures = view.figures(now_ms)
    room = limit.max - figures.reserved - amount
    refusal = LimitRefusal(figures, amount=amount, frees_at=limit.window.frees_at(state, room))
    if now_ms * 1000 < state.exceeded:
        return False, refusal
    state.quiet(exceeded=limit.window.quiet_until(state, now_ms * 1000))
    refusal.events.append(LimitEvent("limit_exceeded", figures))
    return True, refusal


def _events_of_use(view: LimitView, now_ms: int) -> list[LimitEvent]:
    """Report that a limit is nearly used, or used up in shadow mode, once in its window."""
    limit, state, now = view.limit, view.state, now_ms * 1000
    events: list[LimitEvent] = []
    if state.used < limit.warn_above:
        return events
    if now >= state.warned:
        state.quiet(warned=limit.window.quiet_until(state, now))
        events.append(LimitEvent("limit_warn", view.figures(now_ms)))
    if state.used >= limit.max and not limit.enforced and now >= state.exceeded:
        state.quiet(exceeded=limit.window.quiet_until(state, now))
        events.append(LimitEvent("limit_exceeded", view.figures(now_ms)))
    return events
