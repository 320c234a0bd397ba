"""Background timers of the clock: due tasks, expiry.

Dropping tasks that are over: once at the start, then with every tick.

Waiting for tasks to come due: one timer for every session that is held.

The timer looks no further than a moment ahead: that is how a clock that was set, and a task that another
process cancelled, are noticed. A look costs one stamp of the whole space; only when it has changed are the
stamps of the held sessions compared. While nobody waits there is no timer.
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
from routecodex.server_tools.clock.reservations import SystemUptime, expired_reservations, uptime
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.store import StoreError

SWEEP_PAUSE = 100

log = logging.getLogger("routecodex.clock")


class SweepReport(Struct, frozen=True):
    """What one pass has found and done."""

    sessions: int = 0
    tasks: int = 0
    dropped: int = 0


class SweepVisit(NamedTuple):
    """A session as it was seen: nothing is to be done about it before `next_ms` unless its stamp changes."""

    stamp: int
    tasks: int
    next_ms: int


class ExpirySweep:
    """Passes over all sessions; one that is as it was seen last is not read again."""

    def __init__(self, shelf: TaskStore, *, rules: DueRules, now_ms: Callable[[], int]) -> None:
        self._shelf = shelf
        self._rules = rules
        self._now_ms = now_ms
        self._seen: dict[str, SweepVisit] = {}
        self._stamp: int | None = None

    async def sweep(self) -> SweepReport:
        """One pass; a store that does not answer ends it early and is no error."""
        try:
            report = await self._pass()
        except StoreError as exc:
            self._stamp = None
            log.error("tasks that are over could not be dropped: %s", exc)
            return SweepReport()
        if report.dropped:
            log.info(
                "%d tasks dropped, %d kept in %d sessions", report.dropped, report.tasks, report.sessions
            )
        return report

    async def run(self, every: float, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Sweeps now and then with every tick, until cancelled."""
        while True:
            await self.sweep()
            await sleep(every)

    async def _pass(self) -> SweepReport:
        stamp = self._shelf.stamp()
        if stamp != self._stamp:
            known = set(await self._shelf.sessions())
            self._seen = {session: self._seen.get(session, SweepVisit(-1, 0, 0)) for session in sorted(known)}
        dropped = await self._visit_all(changed=stamp != self._stamp)
        self._stamp = stamp
        tasks = sum(visit.tasks for visit in self._seen.values())
        return SweepReport(len(self._seen), tasks, dropped)

    async def _visit_all(self, *, changed: bool) -> int:
        """How many tasks were dropped; the loop gets its turn in between, however many sessions there are."""
        now_ms = self._now_ms()
        wanted = [session for session, seen in self._seen.items() if changed or now_ms > seen.next_ms]
        dropped = 0
        for at, session in enumerate(wanted):
            dropped += await self._visit(session)
            if at % SWEEP_PAUSE == 0:
                await asyncio.sleep(0)
        return dropped

    async def _visit(self, session: str) -> int:
        """How many tasks of the session were dropped."""
        stamp = self._shelf.stamp_of(session)
        seen = self._seen[session]
        now_ms = self._now_ms()
        if seen.stamp == stamp and now_ms <= seen.next_ms:
            return 0
        dropped = 0
        state = await self._shelf.load(session)
        if not state.tasks or any(now_ms > drop_at(task, self._rules) for task in state.tasks):
            at = EditContext(now_ms=now_ms, rules=self._rules)
            dropped = await self._shelf.edit(session, partial(edits.prune, at=at))
            stamp = self._shelf.stamp_of(session)
            state = await self._shelf.load(session)
        if state.tasks:
            next_ms = min(drop_at(task, self._rules) for task in state.tasks)
            self._seen[session] = SweepVisit(stamp, len(state.tasks), next_ms)
        else:
            del self._seen[session]
        return dropped


RECHECK_SECONDS = 1.0
_SLACK = 64


class Stamps(Protocol):
    """What tells that tasks have changed."""

    def stamp(self) -> int: ...

    def stamp_of(self, session: str) -> int: ...


class Waiter:
    """One held request."""

    __slots__ = ("at_ms", "future", "session", "stamp")

    def __init__(self, session: str, at_ms: int, *, stamp: int, future: asyncio.Future[None]) -> None:
        self.session = session
        self.at_ms = at_ms
        self.stamp = stamp
        self.future = future

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class DueTimer:
    """Wakes each waiter at its moment, or as soon as the tasks of its session change."""

    def __init__(self, stamps: Stamps, *, now_ms: Callable[[], int], look: float = RECHECK_SECONDS) -> None:
        self._stamps = stamps
        self._now_ms = now_ms
        self._look = look
        self._heap: list[tuple[int, int, Waiter]] = []
        self._numbers = count()
        self._waiting: dict[str, set[Waiter]] = {}
        self._live = 0
        self._seen = 0
        self._timer: asyncio.TimerHandle | None = None
        self.released = False
        """Nobody is held any more: the server is about to stop."""

    def release(self) -> None:
        """Wakes everybody, for good."""
        self.released = True
        for waiters in self._waiting.values():
            for waiter in waiters:
                waiter.wake()

    @property
    def waiting(self) -> int:
        """How many requests are held."""
        return self._live

    async def wait(self, session: str, at_ms: int, *, stamp: int) -> None:
        """Returns at the moment, or once the session's stamp is another than the one given."""
        waiter = Waiter(session, at_ms, stamp=stamp, future=asyncio.get_running_loop().create_future())
        self._add(waiter)
        try:
            if self._stamps.stamp_of(session) != stamp:
                return
            await waiter.future
        finally:
            self._remove(waiter)

    def changed(self, session: str) -> None:
        """The tasks of the session were changed in this process."""
        for waiter in self._waiting.get(session, ()):
            waiter.wake()

    def _add(self, waiter: Waiter) -> None:
        if not self._live:
            self._seen = self._stamps.stamp()
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
            self._rest()
        elif len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [entry for entry in self._heap if not entry[2].future.done()]
            heapq.heapify(self._heap)

    def _rest(self) -> None:
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        ahead = (self._heap[0][0] - self._now_ms()) / 1000 if self._heap else self._look
        self._timer = loop.call_at(loop.time() + min(self._look, max(0.0, ahead)), self._fire)

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
        if stamp == self._seen:
            return
        self._seen = stamp
        for session, waiters in self._waiting.items():
            found = self._stamps.stamp_of(session)
            for waiter in waiters:
                if waiter.stamp != found:
                    waiter.wake()


class Holds:
    """Keeps a request until a task of its session can be delivered."""

    def __init__(
        self,
        shelf: TaskStore,
        waker: DueTimer,
        *,
        rules: DueRules,
        now_ms: Callable[[], int],
        up: Callable[[], SystemUptime] = uptime,
    ) -> None:
        self._shelf = shelf
        self._waker = waker
        self._rules = rules
        self._now_ms = now_ms
        self._up = up

    async def until_due(self, session: str, request_id: str, *, deadline_ms: int) -> bool:
        """Whether there is something to deliver before the deadline; returns at once when there cannot be."""
        while not self._waker.released:
            try:
                stamp = self._shelf.stamp_of(session)
                state = await self._shelf.load(session)
            except StoreError as exc:
                log.error("%s: not held, the tasks of the session cannot be read: %s", request_id, exc)
                return False
            now_ms = self._now_ms()
            seen = expired_reservations(state, now_ms, up=self._up(), lease_ms=self._rules.lease_ms)
            moment = wake_at(seen, now_ms, rules=self._rules, request_id=request_id)
            if moment is None or moment > deadline_ms:
                return False
            if moment <= now_ms:
                return True
            await self._waker.wait(session, moment, stamp=stamp)
        return False
