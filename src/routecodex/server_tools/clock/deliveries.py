"""Reminders on their way to a model: reserved, then committed or rolled back.

A reservation stands in the store with an expiry, so no two requests deliver the same task, not even in two
processes. It is renewed while its request is under way; when the process dies, the expiry gives it back. What
this process holds has not expired for it, whatever the store says. A commit that could not be written is
tried again with the next renewal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.due_rules import DueRules, mark_prefix
from routecodex.server_tools.clock.edits import EditContext
from routecodex.server_tools.clock.reservations import SystemUptime, uptime
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.store import StoreError

RENEWALS_PER_LEASE = 3

T = TypeVar("T")

log = logging.getLogger("routecodex.clock")


class Reservation(Struct, frozen=True):
    """The tasks a request is about to deliver, the earliest first."""

    id: str
    session: str
    request_id: str
    tasks: tuple[Task, ...]

    @property
    def task_ids(self) -> list[str]:
        return [task.task_id for task in self.tasks]


class HeldReservation(Struct, frozen=True):
    """A reservation of this process; `delivered_at_ms` when only its commit is still to be written."""

    reservation: Reservation
    delivered_at_ms: int | None = None


class Deliveries:
    """Every reservation this process holds.

    `request_id` is always that of the client's request: the rounds of one request are one chain.
    """

    def __init__(
        self,
        shelf: TaskStore,
        *,
        rules: DueRules,
        now_ms: Callable[[], int],
        up: Callable[[], SystemUptime] = uptime,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._shelf = shelf
        self._rules = rules
        self._now_ms = now_ms
        self._up = up
        self._new_id = new_id
        self._held: dict[str, HeldReservation] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: set[asyncio.Task[Any]] = set()

    async def reserve(self, session: str, request_id: str) -> Reservation | None:
        """What this request is to deliver; None when there is nothing, or the store does not answer."""
        try:
            state = await self._shelf.load(session)
            if not edits.due(state, self._at(request_id)):
                return None
            return await self._taken(session, request_id)
        except StoreError as exc:
            log.error("%s: no reminders for session %.80r: %s", request_id, session, exc)
            return None

    async def commit(self, reservation: Reservation) -> tuple[Task, ...]:
        """Writes down that the tasks were delivered; those it was the first to write."""
        held = self._held.pop(reservation.id, None)
        if held is None:
            return ()
        delivered = held if held.delivered_at_ms is not None else HeldReservation(reservation, self._now_ms())
        return await asyncio.shield(self._start(self._commit(delivered)))

    async def roll_back(self, reservation: Reservation) -> None:
        """Gives the tasks back, unless they were delivered."""
        held = self._held.get(reservation.id)
        if held is None or held.delivered_at_ms is not None:
            return
        del self._held[reservation.id]
        await asyncio.shield(self._start(self._roll_back(reservation)))

    async def renew(self) -> None:
        """Makes every reservation of this process last, and writes the commits that are owed."""
        for held in list(self._held.values()):
            if held.delivered_at_ms is None:
                await self._renew(held.reservation)
            else:
                await self.commit(held.reservation)

    async def close(self) -> None:
        """Waits until what is under way is written.

        A request that goes on, as after a reload, keeps its reservation: the renewals end with the last one.
        """
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def _taken(self, session: str, request_id: str) -> Reservation | None:
        """Reserves to the end, and gives back at once when nobody waits for it any more."""
        taking = self._start(self._take(session, request_id))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._start(self._abandon(taking))
            raise

    async def _abandon(self, taking: asyncio.Task[Reservation | None]) -> None:
        with suppress(StoreError):
            reservation = await taking
            if reservation is not None:
                await self.roll_back(reservation)

    async def _take(self, session: str, request_id: str) -> Reservation | None:
        at = self._at(request_id)
        mark_id = mark_prefix(request_id) + self._new_id()
        tasks = await self._shelf.edit(session, partial(edits.reserve, mark_id=mark_id, at=at))
        if not tasks:
            return None
        reservation = Reservation(mark_id, session, request_id, tasks)
        self._hold(HeldReservation(reservation))
        log.info(
            "%s: %d due tasks of session %.80r injected: %s",
            request_id,
            len(tasks),
            session,
            ", ".join(reservation.task_ids),
        )
        return reservation

    async def _commit(self, held: HeldReservation) -> tuple[Task, ...]:
        reservation = held.reservation
        at = replace(self._at(reservation.request_id), now_ms=held.delivered_at_ms or 0)
        try:
            done = await self._shelf.edit(
                reservation.session, partial(edits.commit, reserved=reservation.tasks, at=at)
            )
        except StoreError as exc:
            log.error("%s: delivery not written yet: %s", reservation.request_id, exc)
            self._hold(held)
            return ()
        counts = ", ".join(f"{task.task_id} ({task.delivery_count})" for task in done)
        log.info("%s: %d tasks delivered: %s", reservation.request_id, len(done), counts)
        return done

    async def _roll_back(self, reservation: Reservation) -> None:
        try:
            given_back = await self._shelf.edit(
                reservation.session, partial(edits.roll_back, mark_id=reservation.id)
            )
        except StoreError as exc:
            log.error("%s: tasks given back only when the lease is up: %s", reservation.request_id, exc)
            return
        log.info("%s: %d tasks given back", reservation.request_id, given_back)

    async def _renew(self, reservation: Reservation) -> None:
        at = self._at(reservation.request_id)
        try:
            await self._shelf.edit(reservation.session, partial(edits.renew, mark_id=reservation.id, at=at))
        except StoreError as exc:
            log.error("%s: reservation not renewed: %s", reservation.request_id, exc)

    def _at(self, request_id: str) -> EditContext:
        return EditContext(
            now_ms=self._now_ms(), rules=self._rules, request_id=request_id, up=self._up(), held=self._held
        )

    def _hold(self, held: HeldReservation) -> None:
        self._held[held.reservation.id] = held
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._held:
            delay = self._rules.lease_ms / 1000 / RENEWALS_PER_LEASE
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._start(self._renew_and_arm())

    def _start(self, job: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a job to its end, even when whoever waits for it is cancelled."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def _renew_and_arm(self) -> None:
        await self.renew()
        self._arm()
