"""Collects what happens in one worker between two reports, within bounds whatever the load."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Raw, Struct

from routecodex.accounting.cost import NANOS
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.server.access_log import LineEncoder
from routecodex.server.error_replies import SERVICE
from routecodex.server.logs import session_name
from routecodex.server.request_rows import active_row
from routecodex.wire import json

MOST_ROWS: Final = 100
"""Rows of one kind in one report, and in one frame."""
REPORT_SECONDS: Final = 0.25
_MOST_TIMES: Final = 1000
_MOST_CONFIGS: Final = 4
_LARGEST_ROW: Final = 16 * 1024


class WorkerReport(Struct):
    """Events of a worker since its last report; rows are JSON, figures are sums."""

    started: list[Raw] = []
    finished: list[Raw] = []
    skipped_started: int = 0
    skipped_finished: int = 0
    active: int = 0
    requests: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    nanos: int = 0
    first_bytes: list[float] = []
    sessions: list[str] = []
    configs: list[dict[str, Any]] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened; the number of requests under way does not count."""
        rows = self.started or self.skipped_started or self.finished or self.skipped_finished
        return not (rows or self.configs)


class EventTap:
    """Collects the requests of a worker; `active` returns those under way."""

    def __init__(self, active: Callable[[], Mapping[RequestRecord, ClientRequest]]) -> None:
        self._active = active
        self._encoder = LineEncoder()
        self._announced: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self._report = WorkerReport()
        self._ended: list[tuple[float, RequestRecord]] = []
        self._sessions: set[str] = set()

    def add(self, record: RequestRecord) -> None:
        """Note a request that has ended; called for every request while somebody subscribes.

        Refused calls of probes and of the console's own pages are left out, as in the ledger.
        """
        if record.endpoint in SERVICE:
            return
        report = self._report
        if len(self._ended) < MOST_ROWS:
            self._ended.append((time.time(), record))
        else:
            report.skipped_finished += 1
        if record.session and len(self._sessions) < MOST_ROWS:
            self._sessions.add(record.session)
        if not record.protocol:
            return
        report.requests += 1
        if record.status >= 400 or record.error is not None:
            report.errors += 1
        usage = record.usage
        if usage is not None:
            report.input_tokens += usage.input
            report.output_tokens += usage.output
            cost = record.cost
            report.nanos += 0 if cost is None else cost.nanos or 0
        if record.first_byte and len(report.first_bytes) < _MOST_TIMES:
            report.first_bytes.append(record.first_byte - record.arrived)

    def add_config(self, result: dict[str, Any]) -> None:
        """Note the result of a reload."""
        if len(self._report.configs) < _MOST_CONFIGS:
            self._report.configs.append(result)

    def collect(self) -> WorkerReport:
        """Return what happened since the last call."""
        ended, sessions, report = self._ended, self._sessions, self._report
        self._reset()
        for at, record in ended:
            row = self._encoder.encode(at, record)
            if len(row) > _LARGEST_ROW:
                report.skipped_finished += 1
            else:
                report.finished.append(Raw(row))
        report.sessions = [session_name(one) for one in sessions]
        self._collect_active(report)
        return report

    def _collect_active(self, report: WorkerReport) -> None:
        """Add the requests that were not under way at the last report; short ones are never among them."""
        active = self._active()
        report.active = len(active)
        now, tick = time.time(), time.monotonic()
        seen = set()
        for record, request in active.items():
            seen.add(record.id)
            if record.id in self._announced:
                continue
            if len(report.started) >= MOST_ROWS:
                report.skipped_started += 1
                continue
            began = now - (tick - record.arrived)
            report.started.append(Raw(json.encode(active_row(record, request, began=began))))
        self._announced = seen


def usd_of(nanos: int) -> float:
    """Return an amount in USD."""
    return nanos / NANOS
