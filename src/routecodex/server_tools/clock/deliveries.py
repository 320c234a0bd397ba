"""Delivers reminders: reserves due tasks, then commits or rolls back.

A reservation is stored with an expiry, so that two requests never deliver the same task, not even in two
processes. It is renewed while its request runs; if the process dies, it expires. The process that holds a
reservation ignores its expiry. A commit is started once the first byte of the answer has been written to the
client: a process that is killed between the two leaves the reservation, and the reminder is delivered again.
What could not be written while the store was down is written when it is back.
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
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.owned_keys import plain_key
from routecodex.stores.store import StoreError
from routecodex.stores.uptime import SystemUptime

RENEWALS_PER_LEASE = 3

T = TypeVar("T")

log = logging.getLogger("routecodex.clock")


class Reservation(Struct, frozen=True):
    """The tasks that a request is about to deliver, the earliest first."""

    id: str
    session: str
    request_id: str
    tasks: tuple[Task, ...]

    @property
    def task_ids(self) -> list[str]:
        return [task.task_id for task in self.tasks]


class HeldReservation(Struct, frozen=True):
    """A reservation of this process; `delivered_at_ms` is set when only its commit is missing."""

    reservation: Reservation
    delivered_at_ms: int | None = None
    committing: bool = False
    """The commit is being written."""


class Deliveries:
    """All reservations of this process.

    `request_id` is always the id of the client's request: the rounds of one request are one chain.
    """

    def __init__(
        self,
        store: TaskStore,
        *,
        rules: DueRules,
        now_ms: Callable[[], int],
        up: Callable[[], SystemUptime] | None = None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._store = store
        self._rules = rules
        self._now_ms = now_ms
        self._up = store.uptime if up is None else up
        self._new_id = new_id
        self._held: dict[str, HeldReservation] = {}
        self._unreleased: list[Reservation] = []
        """Reservations that were rolled back while the store was down."""
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: set[asyncio.Task[Any]] = set()

    async def reserve(self, session: str, request_id: str) -> Reservation | None:
        """Reserve the due tasks for this request; None if there are none or the store fails."""
        try:
            state = await self._store.load(session)
            if not edits.due(state, self._at(request_id)):
                return None
            return await self._reserve_shielded(session, request_id)
        except StoreError as exc:
            log.debug("%s: no reminders for session %.80r: %s", request_id, plain_key(session), exc)
            return None

    async def commit(self, reservation: Reservation) -> tuple[Task, ...]:
        """Store that the tasks were delivered; return those that were not stored as delivered before."""
        job = self.start_commit(reservation)
        return () if job is None else await asyncio.shield(job)

    def start_commit(self, reservation: Reservation) -> asyncio.Task[tuple[Task, ...]] | None:
        """Start to store that the tasks were delivered; None if that is under way or done.

        The reservation is held until the commit is written: no other request delivers the tasks meanwhile.
        """
        held = self._held.get(reservation.id)
        if held is None or held.committing:
            return None
        moment = self._now_ms() if held.delivered_at_ms is None else held.delivered_at_ms
        delivered = HeldReservation(reservation, moment)
        self._held[reservation.id] = replace(delivered, committing=True)
        return self._start(self._commit(delivered))

    async def roll_back(self, reservation: Reservation) -> None:
        """Release the tasks unless they were delivered."""
        held = self._held.get(reservation.id)
        if held is None or held.delivered_at_ms is not None:
            return
        del self._held[reservation.id]
        await asyncio.shield(self._start(self._roll_back(reservation)))

    async def renew(self) -> None:
        """Renew every reservation of this process and retry failed commits."""
        for held in list(self._held.values()):
            if held.delivered_at_ms is None:
                await self._renew(held.reservation)
            else:
                await self.commit(held.reservation)

    def save_unsaved(self) -> None:
        """Begin to write what could not be written while the store was down."""
        if self._held or self._unreleased:
            self._start(self._save_unsaved())

    async def _save_unsaved(self) -> None:
        unreleased, self._unreleased = self._unreleased, []
        for reservation in unreleased:
            await self._roll_back(reservation)
        await self.renew()

    async def close(self) -> None:
        """Wait for running store operations.

        A request that continues after a reload keeps its reservation; the renewals end with the last one.
        """
        while self._jobs:
            await asyncio.wait(self._jobs)

    async def _reserve_shielded(self, session: str, request_id: str) -> Reservation | None:
        """Finish the reservation even if the caller is cancelled, and roll it back then."""
        job = self._start(self._reserve(session, request_id))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._start(self._abandon(job))
            raise

    async def _abandon(self, job: asyncio.Task[Reservation | None]) -> None:
        with suppress(StoreError):
            reservation = await job
            if reservation is not None:
                await self.roll_back(reservation)

    async def _reserve(self, session: str, request_id: str) -> Reservation | None:
        at = self._at(request_id)
        mark_id = mark_prefix(request_id) + self._new_id()
        tasks = await self._store.edit(session, partial(edits.reserve, mark_id=mark_id, at=at))
        if not tasks:
            return None
        reservation = Reservation(mark_id, session, request_id, tasks)
        self._hold(HeldReservation(reservation))
        log.info(
            "%s: %d due tasks of session %.80r injected: %s",
            request_id,
            len(tasks),
            plain_key(session),
            ", ".join(reservation.task_ids),
        )
        return reservation

    async def _commit(self, held: HeldReservation) -> tuple[Task, ...]:
        reservation = held.reservation
        at = replace(self._at(reservation.request_id), now_ms=held.delivered_at_ms or 0)
        try:
            done = await self._store.edit(
                reservation.session, partial(edits.commit, reserved=reservation.tasks, at=at)
            )
        except StoreError as exc:
            log.debug("%s: delivery not written yet: %s", reservation.request_id, exc)
            self._hold(held)
            return ()
        del self._held[reservation.id]
        counts = ", ".join(f"{task.task_id} ({task.delivery_count})" for task in done)
        log.info("%s: %d tasks delivered: %s", reservation.request_id, len(done), counts)
        return done

    async def _roll_back(self, reservation: Reservation) -> None:
        try:
            released = await self._store.edit(
                reservation.session, partial(edits.roll_back, mark_id=reservation.id)
            )
        except StoreError as exc:
            log.debug("%s: tasks are not released yet: %s", reservation.request_id, exc)
            self._unreleased.append(reservation)
            return
        log.info("%s: %d tasks released", reservation.request_id, released)

    async def _renew(self, reservation: Reservation) -> None:
        at = self._at(reservation.request_id)
        try:
            await self._store.edit(reservation.session, partial(edits.renew, mark_id=reservation.id, at=at))
        except StoreError as exc:
            log.debug("%s: reservation not renewed: %s", reservation.request_id, exc)

    def _at(self, request_id: str) -> EditContext:
        return EditContext(
            now_ms=self._now_ms(),
            rules=self._rules,
            request_id=request_id,
            up=self._up(),
            held=self._held,
            none_ends=self._store.was_back_within(self._rules.lease_ms),
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
        """Start a job that runs to its end even if its caller is cancelled."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return task

    async def _renew_and_arm(self) -> None:
        await self.renew()
        self._arm()
