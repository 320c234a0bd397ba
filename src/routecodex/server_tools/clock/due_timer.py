"""Background timers of the clock: due tasks, expiry.

`DueTimer` is one timer for all held requests; it runs only while requests wait. It wakes up at least every
second, to notice that the time of day was set or that another process cancelled a task. Each wake-up reads
one stamp of the whole space; the stamps of the held sessions are compared only if that changed.

`ExpirySweep` deletes expired tasks at the start and with every tick.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from msgspec import Struct

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.due_rules import DueRules, drop_at, wake_at
from routecodex.server_tools.clock.edits import EditContext
from routecodex.server_tools.clock.reservations import effective_reservations
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.store import StoreError
from routecodex.stores.uptime import SystemUptime

SWEEP_PAUSE = 100

log = logging.getLogger("routecodex.clock")


class SweepReport(Struct, frozen=True):
    """The counts of one pass."""

    sessions: int = 0
    tasks: int = 0
    dropped: int = 0


class SweepVisit(NamedTuple):
    """The last visit of a session: until `next_ms` it needs none unless its stamp changes."""

    stamp: int | None
    tasks: int
    next_ms: int


class ExpirySweep:
    """Deletes expired tasks of all sessions; an unchanged session is not read again."""

    def __init__(self, store: TaskStore, *, rules: DueRules, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._rules = rules
        self._now_ms = now_ms
        self._visits: dict[str, SweepVisit] = {}
        self._stamp: int | None = None

    async def sweep(self) -> SweepReport:
        """Run one pass; a store error ends it early and is only logged."""
        try:
            report = await self._sweep_changed()
        except StoreError as exc:
            self._stamp = None
            log.debug("expired tasks could not be deleted: %s", exc)
            return SweepReport()
        if report.dropped:
            log.info(
                "%d tasks dropped, %d kept in %d sessions", report.dropped, report.tasks, report.sessions
            )
        return report

    async def run(self, every: float, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Sweep now and with every tick, until cancelled."""
        while True:
            await self.sweep()
            await sleep(every)

    async def _sweep_changed(self) -> SweepReport:
        stamp = self._store.stamp()
        if stamp != self._stamp:
            known = set(await self._store.sessions())
            unvisited = SweepVisit(None, 0, 0)
            self._visits = {session: self._visits.get(session, unvisited) for session in sorted(known)}
        dropped = await self._visit_all(changed=stamp != self._stamp)
        self._stamp = stamp
        tasks = sum(visit.tasks for visit in self._visits.values())
        return SweepReport(len(self._visits), tasks, dropped)

    async def _visit_all(self, *, changed: bool) -> int:
        """Visit the sessions and return the number of deleted tasks; yields to the loop in between."""
        now_ms = self._now_ms()
        pending = [session for session, visit in self._visits.items() if changed or now_ms > visit.next_ms]
        dropped = 0
        for at, session in enumerate(pending):
            dropped += await self._visit(session)
            if at % SWEEP_PAUSE == 0:
                await asyncio.sleep(0)
        return dropped

    async def _visit(self, session: str) -> int:
        """Delete the expired tasks of a session; return their number."""
        stamp = self._store.stamp_of(session)
        last = self._visits[session]
        now_ms = self._now_ms()
        if last.stamp == stamp and now_ms <= last.next_ms:
            return 0
        dropped = 0
        state = await self._store.load(session)
        if not state.tasks or any(now_ms > drop_at(task, self._rules) for task in state.tasks):
            at = EditContext(now_ms=now_ms, rules=self._rules)
            dropped = await self._store.edit(session, partial(edits.prune, at=at))
            stamp = self._store.stamp_of(session)
            state = await self._store.load(session)
        if state.tasks:
            next_ms = min(drop_at(task, self._rules) for task in state.tasks)
            self._visits[session] = SweepVisit(stamp, len(state.tasks), next_ms)
        else:
            del self._visits[session]
        return dropped


RECHECK_SECONDS = 1.0
_SLACK = 64
_STORE_PAUSE_MS = 1000
"""Time until a hold tries again to read tasks from a store that is down."""


class Stamps(Protocol):
    """Stamps that change with the tasks."""

    def stamp(self) -> int: ...

    def stamp_of(self, session: str) -> int: ...


class Waiter:
    """One held request."""

    __slots__ = ("at_ms", "future", "session", "stamp")

    def __init__(self, session: str, at_ms: int, *, stamp: int | None, future: asyncio.Future[None]) -> None:
        self.session = session
        self.at_ms = at_ms
        self.stamp = stamp
        self.future = future

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class DueTimer:
    """Wakes each waiter at its time, or as soon as the tasks of its session change."""

    def __init__(
        self, stamps: Stamps, *, now_ms: Callable[[], int], recheck: float = RECHECK_SECONDS
    ) -> None:
        self._stamps = stamps
        self._now_ms = now_ms
        self._recheck = recheck
        self._heap: list[tuple[int, int, Waiter]] = []
        self._numbers = count()
        self._waiting: dict[str, set[Waiter]] = {}
        self._live = 0
        self._stamp = 0
        self._timer: asyncio.TimerHandle | None = None
        self.released = False
        """Requests are no longer held, because the server is stopping."""

    def release(self) -> None:
        """Wake all waiters and hold no more requests."""
        self.released = True
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.wake()

    @property
    def waiting(self) -> int:
        """The number of held requests."""
        return self._live

    async def wait(self, session: str, at_ms: int, *, stamp: int | None) -> None:
        """Wait until the time, or until the session's stamp differs from `stamp`; None: until any changes."""
        waiter = Waiter(session, at_ms, stamp=stamp, future=asyncio.get_running_loop().create_future())
        self._add(waiter)
        try:
            if stamp is not None and self._stamps.stamp_of(session) != stamp:
                return
            await waiter.future
        finally:
            self._remove(waiter)

    def changed(self, session: str) -> None:
        """Wake the waiters of a session whose tasks this process changed."""
        for waiter in self._waiting.get(session, ()):
            waiter.wake()

    def _add(self, waiter: Waiter) -> None:
        if not self._live:
            self._stamp = self._stamps.stamp()
        self._live += 1
        self._waiting.setdefault(waiter.session, set()).add(waiter)
        heapq.heappush(self._heap, (waiter.at_ms, next(self._numbers), waiter))
        if self._timer is None or self._heap[0][2] is waiter:
            self._arm()

    def _remove(self, waiter: Waiter) -> None:
        waiter.future.cancel()
        self._live -= 1
        others = self._waiting[waiter.session]
        others.discard(waiter)
        if not others:
            del self._waiting[waiter.session]
        if not self._live:
            self._stop()
        elif len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].future.done()]
            heapq.heapify(self._heap)

    def _stop(self) -> None:
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        ahead = (self._heap[0][0] - self._now_ms()) / 1000 if self._heap else self._recheck
        self._timer = loop.call_at(loop.time() + min(self._recheck, max(0.0, ahead)), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        while self._heap and (self._heap[0][0] <= now_ms or self._heap[0][2].future.done()):
            heapq.heappop(self._heap)[2].wake()
        self._compare_stamps()
        if self._live:
            self._arm()

    def _compare_stamps(self) -> None:
        stamp = self._stamps.stamp()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        for session, waiters in self._waiting.items():
            current = self._stamps.stamp_of(session)
            for waiter in waiters:
                if waiter.stamp != current:
                    waiter.wake()


class Holds:
    """Holds a request until a task of its session can be delivered."""

    def __init__(
        self,
        store: TaskStore,
        timer: DueTimer,
        *,
        rules: DueRules,
        now_ms: Callable[[], int],
        up: Callable[[], SystemUptime] | None = None,
    ) -> None:
        self._store = store
        self._timer = timer
        self._rules = rules
        self._now_ms = now_ms
        self._up = store.uptime if up is None else up

    async def until_due(self, session: str, request_id: str, *, deadline_ms: int) -> bool:
        """Wait for a deliverable task before the deadline; False at once if there cannot be one.

        A hold that has begun goes on while the store is down.
        """
        begun = False
        while not self._timer.released:
            try:
                before = self._store.stamp_of(session)
                state = await self._store.load(session)
            except StoreError as exc:
                log.debug("%s: the tasks of the session cannot be read: %s", request_id, exc)
                now_ms = self._now_ms()
                if not begun or now_ms >= deadline_ms:
                    return False
                pause_ms = min(now_ms + _STORE_PAUSE_MS, deadline_ms)
                await self._timer.wait(session, pause_ms, stamp=None)
                continue
            now_ms = self._now_ms()
            state = effective_reservations(
                state,
                now_ms,
                up=self._up(),
                lease_ms=self._rules.lease_ms,
                none_ends=self._store.was_back_within(self._rules.lease_ms),
            )
            moment = wake_at(state, now_ms, rules=self._rules, request_id=request_id)
            if moment is None or moment > deadline_ms:
                return False
            if moment <= now_ms:
                return True
            begun = True
            await self._wait(session, moment, before)
        return False

    async def _wait(self, session: str, moment: int, stamp: int) -> None:
        """Wait for the moment or a change; while the stamp is not known, look again soon."""
        if stamp >= 0:
            await self._timer.wait(session, moment, stamp=stamp)
            return
        known = self._store.stamp_of(session)
        soon = self._now_ms() + (1 if known >= 0 else _STORE_PAUSE_MS)
        await self._timer.wait(session, min(moment, soon), stamp=None)
