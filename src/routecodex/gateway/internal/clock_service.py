"""Builds the clock of a gateway from its parts, and runs its background work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from routecodex.canon.errors import Overloaded
from routecodex.config.server_tools import ClockConfig
from routecodex.gateway.context.gateway_replies import ClockSummary
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.internal.tool_turn import session_name
from routecodex.routing.instructions import strip
from routecodex.server_tools.clock import clock_tool, network_time, task_store
from routecodex.server_tools.clock.actions import ClockActions
from routecodex.server_tools.clock.declared_tools import DeclaredTools
from routecodex.server_tools.clock.deliveries import Deliveries
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.due_timer import DueTimer, ExpirySweep, Holds
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task import SessionTasks, Task
from routecodex.server_tools.clock.task_store import TaskOverview, TaskStore
from routecodex.server_tools.clock.timestamps import time_zone, utc_text
from routecodex.stores.owned_keys import plain_key, split_key
from routecodex.stores.store import Store, StoreError

BARE = task_store.BARE
"""The space of the store whose files hold plain values, for people to read."""

log = logging.getLogger("routecodex.clock")


class ClockService:
    """The clock's parts and background work, for one configuration."""

    def __init__(
        self,
        config: ClockConfig,
        *,
        store: Store,
        clock: Callable[[], float],
        environ: Mapping[str, str],
        ntp_file: Path | None,
    ) -> None:
        self.config = config
        rules = DueRules(
            due_window_ms=config.due_window_ms, retention_ms=config.retention_ms, lease_ms=config.lease_ms
        )
        self._zone = time_zone(environ)
        self.time = NetworkTime(
            clock,
            options=network_time.NtpOptions(
                enabled=config.enabled and network_time.is_ntp_enabled(config.ntp.enabled, environ),
                servers=config.ntp.servers,
                timeout=config.ntp.timeout_ms / 1000,
            ),
            file=ntp_file,
        )
        now_ms = self.time.now_ms
        self._tasks = tasks = TaskStore(store, now_ms=now_ms)
        self._due_timer = DueTimer(tasks, now_ms=now_ms)
        tasks.listen(self._due_timer.changed)
        self.actions = ClockActions(tasks, time=self.time, rules=rules, zone=self._zone)
        self._overview = TaskOverview(tasks, rules=rules, now_ms=now_ms)
        self._deliveries = Deliveries(tasks, rules=rules, now_ms=now_ms)
        self._expiry_sweep = ExpirySweep(tasks, rules=rules, now_ms=now_ms)
        self._background: list[asyncio.Task[None]] = []
        self.clock_tool = clock_tool.ClockTool(
            self.actions,
            self._deliveries,
            Holds(tasks, self._due_timer, rules=rules, now_ms=now_ms),
            time=self.time,
            zone=self._zone,
            options=clock_tool.ClockOptions(
                time_tag=config.time_tag,
                hold_max_ms=config.hold_max_ms,
                hold_non_streaming=config.hold_non_streaming,
                complete_tools=config.complete_tools,
                subagents=config.subagents,
            ),
            declared=DeclaredTools(store),
            clean=strip,
        )

    def report(self) -> dict[str, Any]:
        """Return whether the tool is enabled, and the state of network time."""
        return {"enabled": self.config.enabled, "ntp": self.time.report()}

    async def summary(self, session: str | None) -> ClockSummary | None:
        """Return the clock as a status reply shows it; None if the clock is disabled."""
        if not self.config.enabled:
            return None
        try:
            tasks = () if session is None else await self.actions.tasks(session)
        except StoreError as exc:
            log.debug("tasks of session %.80r cannot be shown: %s", session and plain_key(session), exc)
            tasks = None
        return ClockSummary(tasks, self._zone, self.time.state)

    async def sessions(self, limit: int, only: Sequence[Scope] | None = None) -> list[dict[str, Any]]:
        """Return the sessions with tasks as operators see them, the last written first; `only` selects."""
        names = None if only is None else [name for scope in only if (name := session_name(scope))]
        try:
            return [*map(_session_fields, await self._overview.sessions(limit, names))]
        except StoreError as exc:
            log.debug("tasks cannot be listed: %s", exc)
            raise Overloaded(
                "the clock tasks cannot be reached now; try again later", code="store_unavailable"
            ) from exc

    async def tasks(self, scope: Scope) -> list[dict[str, Any]]:
        """Return the tasks of one session as operators see them; none while the store is down."""
        name = session_name(scope)
        if name is None or not self._tasks.stamp_of(name):
            return []
        try:
            return [*map(_task_fields, await self.actions.tasks(name))]
        except StoreError as exc:
            log.debug("tasks of session %.80r cannot be shown: %s", plain_key(name), exc)
            return []

    async def cancel(self, task_id: str) -> bool:
        """Cancel a task of any session; return False if there is no such task."""
        try:
            task = await self._overview.cancel(task_id)
        except StoreError as exc:
            log.debug("task %.80r could not be cancelled: %s", task_id, exc)
            raise Overloaded(
                "the task could not be cancelled, nothing was changed", code="state_not_saved"
            ) from exc
        if task is not None:
            log.info(
                "clock cancel by an operator for session %.80r: task %s",
                plain_key(task.session_id),
                task.task_id,
            )
        return task is not None

    def start(self) -> None:
        """Restore the network time of an earlier run, and start the background work."""
        if self._background or not self.config.enabled:
            return
        self.time.restore()
        loop = asyncio.get_running_loop()
        self._background = [
            loop.create_task(self._expiry_sweep.run(self.config.tick_ms / 1000)),
            loop.create_task(self.time.run()),
        ]

    def save_unsaved(self) -> None:
        """Begin to write what could not be written while the store was down."""
        self._deliveries.save_unsaved()

    def release(self) -> None:
        """End every hold, because the server stops: the answers that are held are complete."""
        self._due_timer.release()

    async def stop(self) -> None:
        """Stop the background work and write deliveries; reservations stay.

        After a reload requests may still run with this clock: they keep their reservations until they end.
        """
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background = []
        await self._deliveries.close()


def _session_fields(session: SessionTasks) -> dict[str, Any]:
    owner, id = split_key(session.session_id)
    client = {"client": owner} if owner else {}
    return {"id": id, **client, "tasks": [*map(_task_fields, session.tasks)]}


def _task_fields(task: Task) -> dict[str, Any]:
    delivered = task.delivered_at_ms
    return {
        "taskId": task.task_id,
        "dueAt": utc_text(task.due_at_ms),
        "task": task.task,
        "deliveredAt": None if delivered is None else utc_text(delivered),
        "deliveryCount": task.delivery_count,
        "repeat": task.repeat,
    }
