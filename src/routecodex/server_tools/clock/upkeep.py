"""Dropping tasks that are over: once at the start, then with every tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.edits import EditContext
from routecodex.server_tools.clock.rules import DueRules, drop_at
from routecodex.server_tools.clock.shelf import TaskStore
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
