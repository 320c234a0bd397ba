"""The clock of a gateway: its parts put together, and what runs in the background while it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from routecodex.canon.errors import Overloaded
from routecodex.config.server_tools import ClockConfig as ClockRow
from routecodex.gateway.context.gateway_replies import ClockSummary
from routecodex.routing.instructions import strip
from routecodex.server_tools.clock import clock_tool, network_time, task_store
from routecodex.server_tools.clock.actions import ClockActions
from routecodex.server_tools.clock.deliveries import Deliveries
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.due_timer import DueTimer, ExpirySweep, Holds
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.task_store import TaskOverview, TaskStore
from routecodex.server_tools.clock.timestamps import time_zone, utc_text
from routecodex.stores.store import Store, StoreError

BARE = task_store.BARE
"""The space of the store whose files are for people to read: the tasks alone, as they are."""

log = logging.getLogger("routecodex.clock")


class ClockService:
    """Everything of the clock for one configuration of it."""

    def __init__(
        self,
        row: ClockRow,
        *,
        store: Store,
        clock: Callable[[], float],
        environ: Mapping[str, str],
        ntp_file: Path | None,
    ) -> None:
        self.row = row
        rules = DueRules(
            due_window_ms=row.due_window_ms, retention_ms=row.retention_ms, lease_ms=row.lease_ms
        )
        self._zone = time_zone(environ)
        self.time = NetworkTime(
            clock,
            options=network_time.NtpOptions(
                enabled=row.enabled and network_time.is_ntp_enabled(row.ntp.enabled, environ),
                servers=row.ntp.servers,
                timeout=row.ntp.timeout_ms / 1000,
            ),
            file=ntp_file,
        )
        now_ms = self.time.now_ms
        tasks = TaskStore(store, now_ms=now_ms)
        self._waker = waker = DueTimer(tasks, now_ms=now_ms)
        tasks.listen(waker.changed)
        self.actions = ClockActions(tasks, time=self.time, rules=rules, zone=self._zone)
        self._overview = TaskOverview(tasks, rules=rules, now_ms=now_ms)
        self._deliveries = Deliveries(tasks, rules=rules, now_ms=now_ms)
        self._upkeep = ExpirySweep(tasks, rules=rules, now_ms=now_ms)
        self._tasks: list[asyncio.Task[None]] = []
        self.clock_tool = clock_tool.ClockTool(
            self.actions,
            self._deliveries,
            Holds(tasks, waker, rules=rules, now_ms=now_ms),
            time=self.time,
            zone=self._zone,
            options=clock_tool.ClockOptions(
                time_tag=row.time_tag,
                hold_max_ms=row.hold_max_ms,
                hold_non_streaming=row.hold_non_streaming,
            ),
            clean=strip,
        )

    def report(self) -> dict[str, Any]:
        """Whether the tool is on offer, and what is known of network time."""
        return {"enabled": self.row.enabled, "ntp": self.time.report()}

    async def state_of(self, session: str | None) -> ClockSummary | None:
        """What a person is told of the clock in a conversation; None where there is no clock."""
        if not self.row.enabled:
            return None
        try:
            tasks = () if session is None else await self.actions.tasks(session)
        except StoreError as exc:
            log.error("tasks of session %.80r cannot be shown: %s", session, exc)
            tasks = None
        return ClockSummary(tasks, self._zone, self.time.state)

    async def sessions(self, limit: int) -> list[dict[str, Any]]:
        """The sessions that have tasks, the one written last first, as operators see them."""
        try:
            found = await self._overview.sessions(limit)
            return [{"id": one.session_id, "tasks": [*map(_shown, one.tasks)]} for one in found]
        except StoreError as exc:
            log.error("tasks cannot be listed: %s", exc)
            raise Overloaded(
                "the clock tasks cannot be reached now; try again later", code="store_unavailable"
            ) from exc

    async def cancel(self, task_id: str) -> bool:
        """Removes the task, whosever it is; False when there is no such task."""
        try:
            task = await self._overview.cancel(task_id)
        except StoreError as exc:
            log.error("task %.80r could not be cancelled: %s", task_id, exc)
            raise Overloaded(
                "the task could not be cancelled, nothing was changed", code="state_not_saved"
            ) from exc
        if task is not None:
            log.info("clock cancel by an operator for session %.80r: task %s", task.session_id, task.task_id)
        return task is not None

    def start(self) -> None:
        """Takes up where an earlier run left off, and keeps tidy and in time from now on."""
        if self._tasks or not self.row.enabled:
            return
        self.time.restore()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._upkeep.run(self.row.tick_ms / 1000)),
            loop.create_task(self.time.run()),
        ]

    def release(self) -> None:
        """Ends every hold: the answers that wait are whole, and the server is about to stop."""
        self._waker.release()

    async def stop(self) -> None:
        """Ends what runs in the background; what was delivered is written, what is reserved stays so.

        After a reload requests may still be under way here: they keep what they have reserved to their end.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._deliveries.close()


def _shown(task: Task) -> dict[str, Any]:
    delivered = task.delivered_at_ms
    return {
        "taskId": task.task_id,
        "dueAt": utc_text(task.due_at_ms),
        "task": task.task,
        "deliveredAt": None if delivered is None else utc_text(delivered),
        "deliveryCount": task.delivery_count,
        "repeat": task.repeat,
    }
