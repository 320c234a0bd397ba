"""Atomic changes of limits in a store that several machines share.

Changes that wait while one is under way are joined: a call of the store costs the same for many of them, and
other processes come between less often. A process always writes what it holds in all, so that a change whose
answer was lost is put right by the next one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final, Generic, TypeVar

from routecodex.accounting.counters import CountersUnavailable, LimitReservation, PastUse
from routecodex.accounting.limits import Limit
from routecodex.accounting.stored_limit import LimitState, StoredLimit, decode_stored, new_stored
from routecodex.accounting.windows import MICROS
from routecodex.stores.store import GroupUpdates, StoreError
from routecodex.wire import json

SPACE: Final = "budgets"
JOINED: Final = 32
"""Most changes that are joined."""
_CLOSED: Final = "the counters are closed"
_DAY: Final = 86_400.0
_MOST_NODES: Final = 1000

T = TypeVar("T")
Change = Callable[[list[LimitState]], tuple[bool, T]]
"""Changes the states of its limits; may run more than once. Returns whether to write them, and a result."""
Past = dict[int, list[tuple[int, int]]]
"""Use that the ledger of this node knows, by limit."""


class _LedgerNeeded(Exception):
    """The store has lost a limit that this node had in it, and the ledger was not read for it."""


class _Waiting(Generic[T]):
    """A change that waits for its turn, and its caller for the result."""

    __slots__ = ("change", "limits", "reply")

    def __init__(self, limits: Sequence[Limit], change: Change[T]) -> None:
        self.limits: Final = limits
        self.change: Final = change
        self.reply: Final[asyncio.Future[T]] = asyncio.get_running_loop().create_future()


class _Applied:
    """Changes as they were made to certain stored values: states, results, and what this process holds."""

    __slots__ = ("own", "results", "stored", "writes")

    def __init__(self) -> None:
        self.stored: dict[int, StoredLimit] = {}
        self.own: dict[int, int] = {}
        self.results: list[Any] = []
        self.writes = False


def written_again(states: list[LimitState]) -> tuple[bool, None]:
    """Write limits as they are: with what this process holds now, and a later end of that."""
    return True, None


class LimitChanges:
    """Changes limits in the space `SPACE`; `node` names this machine, `now_ms` returns the store's time."""

    def __init__(self, groups: GroupUpdates, *, node: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self.past_use: PastUse | None = None
        self.process: Final = secrets.token_hex(6)
        self.own: dict[int, int] = {}
        """Reservations of this process, by limit."""
        self.limits: dict[int, Limit] = {}
        """Limits that this process has changed."""
        self.known: dict[int, StoredLimit] = {}
        """State of limits after the last change or read."""
        self.renewed: dict[int, int] = {}
        """Time of the last change of a limit by this process."""
        self._groups = groups
        self._node = node
        self._now_ms = now_ms
        self._numbers = count(1)
        self._waiting: deque[_Waiting[Any]] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def make(self, limits: Sequence[Limit], change: Change[T]) -> T:
        """Make a change in one atomic step; CountersUnavailable if the store cannot be used."""
        one = self._queue(limits, change)
        try:
            return await one.reply
        except asyncio.CancelledError:
            if one.reply.done() and not one.reply.cancelled() and one.reply.exception() is None:
                self._give_back(one.reply.result())
            raise

    def _queue(self, limits: Sequence[Limit], change: Change[T]) -> _Waiting[T]:
        one = _Waiting(limits, change)
        self._waiting.append(one)
        if self._runner is None or self._runner.done():
            self._runner = asyncio.ensure_future(self._run())
        return one

    def close(self) -> None:
        """Fail the changes that are not made yet."""
        if self._runner is not None:
            self._runner.cancel()
        self._fail((), CountersUnavailable(_CLOSED))

    async def _run(self) -> None:
        batch: list[_Waiting[Any]] = []
        error: Exception = CountersUnavailable(_CLOSED)
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), JOINED))]
                batch = [one for one in batch if not one.reply.done()]
                if batch:
                    await self._make_all(batch)
        except Exception as exc:
            error = exc
        finally:
            # After the last batch nothing is left of it.
            self._fail(batch, error)

    def _fail(self, batch: Sequence[_Waiting[Any]], error: Exception) -> None:
        """Fail a batch and all changes that wait."""
        for one in (*batch, *self._waiting):
            if not one.reply.done():
                one.reply.set_exception(error)
        self._waiting.clear()

    async def _make_all(self, batch: Sequence[_Waiting[Any]]) -> None:
        """Make changes together, or fail all of them."""
        limits = list({limit.digest: limit for one in batch for limit in one.limits}.values())
        node = self._node()
        try:
            past = {limit.digest: await self._past(limit) for limit in limits if self._lacks(limit, node)}
            try:
                applied = await self._write(limits, batch, past, node)
            except _LedgerNeeded:
                past = {limit.digest: await self._past(limit) for limit in limits}
                applied = await self._write(limits, batch, past, node)
        except StoreError as exc:
            for one in batch:
                if not one.reply.done():
                    one.reply.set_exception(CountersUnavailable(str(exc)))
            return
        now_ms = self._now_ms()
        self.own.update(applied.own)
        self.known.update(applied.stored)
        for limit in limits:
            self.limits[limit.digest] = limit
            self.renewed[limit.digest] = now_ms
        for one, result in zip(batch, applied.results, strict=True):
            if one.reply.done():
                self._give_back(result)
            else:
                one.reply.set_result(result)

    async def _write(
        self, limits: Sequence[Limit], batch: Sequence[_Waiting[Any]], past: Past, node: str
    ) -> _Applied:
        keys = [str(limit.digest) for limit in limits]
        ttl = max(limit.window.length for limit in limits) / MICROS + _DAY

        def apply(values: list[bytes | None]) -> tuple[list[bytes] | None, _Applied]:
            applied = self._apply(limits, values, batch, past, node)
            written = [json.encode(applied.stored[limit.digest]) for limit in limits]
            return written if applied.writes else None, applied

        id = f"{self.process}.{next(self._numbers)}"
        return await self._groups.update(SPACE, keys, apply, id=id, ttl=ttl)

    def _apply(
        self,
        limits: Sequence[Limit],
        values: Sequence[bytes | None],
        batch: Sequence[_Waiting[Any]],
        past: Past,
        node: str,
    ) -> _Applied:
        now_ms, applied = self._now_ms(), _Applied()
        states = {
            limit.digest: self._state(limit, value, past, node, now_ms)
            for limit, value in zip(limits, values, strict=True)
        }
        for one in batch:
            writes, result = one.change([states[limit.digest] for limit in one.limits])
            applied.writes = applied.writes or writes
            applied.results.append(result)
        applied.own = {digest: state.own for digest, state in states.items()}
        applied.stored = {digest: state.to_store() for digest, state in states.items()}
        return applied

    def _state(self, limit: Limit, value: bytes | None, past: Past, node: str, now_ms: int) -> LimitState:
        stored = None if value is None else decode_stored(value, limit)
        if stored is None:
            stored = new_stored(limit, now_ms)
        own = self.own.get(limit.digest, 0)
        state = LimitState(stored, now_ms=now_ms, process=self.process, own=own)
        state.window.advance(limit.window, now_ms * 1000)
        if node not in stored.nodes:
            if limit.digest not in past:
                raise _LedgerNeeded
            stored.nodes = [*stored.nodes, node][-_MOST_NODES:]
            for moment, amount in past[limit.digest]:
                limit.window.place(state.window, moment, amount)
        return state

    def _give_back(self, result: object) -> None:
        """Release what was reserved for a caller that has gone."""
        if isinstance(result, LimitReservation):
            for limit, amount in zip(result.limits, result.amounts, strict=True):
                self.own[limit.digest] -= amount
            self._queue(result.limits, written_again)

    def _lacks(self, limit: Limit, node: str) -> bool:
        """Return whether a limit may lack what the ledger of this node knows."""
        stored = self.known.get(limit.digest)
        return stored is None or node not in stored.nodes

    async def _past(self, limit: Limit) -> list[tuple[int, int]]:
        if self.past_use is None or limit.unit == "concurrent":
            return []
        since, past_use = limit.window.begins(self._now_ms() * 1000), self.past_use
        return await asyncio.to_thread(lambda: list(past_use(limit, since)))
