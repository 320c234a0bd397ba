"""Requests of all workers: those that have ended, from the ledger, and those under way, from memory."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from routecodex.accounting.ledger import Ledger
from routecodex.accounting.ledger_file import UnreadableLedger, reading
from routecodex.canon.errors import ClientError
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import RequestRecord
from routecodex.server.request_details import detail_of
from routecodex.server.request_rows import Row, active_row
from routecodex.server.worker_peers import Question, WorkerPeers

T = TypeVar("T")

ActiveRow = tuple[float, Row]
"""A request under way, and the time at which it began."""
LogTail = Callable[[int], Awaitable[list[dict[str, Any]]]]


class RequestSource:
    """Requests for the admin API, and facts that only one worker knows.

    A reload may replace gateway and ledger.
    `log_tail` returns the newest lines of the request log, for a server without a ledger; None without both.
    `is_captured` returns whether the bodies of a request are kept; it may read the disk.
    """

    def __init__(
        self,
        *,
        gateway: Callable[[], Gateway],
        ledger: Callable[[], Ledger[RequestRecord] | None],
        log_tail: LogTail | None,
        is_captured: Callable[[str], bool] = lambda id: False,
    ) -> None:
        self._gateway = gateway
        self._ledger = ledger
        self.log_tail = log_tail
        self.is_captured = is_captured
        self.peers: WorkerPeers | None = None
        """The other workers of this server; None if there are none."""

    @property
    def has_ledger(self) -> bool:
        """Whether requests are kept in a ledger."""
        return self._ledger() is not None

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` reads from the ledger, in a thread; requests that just ended are in it."""
        ledger = self._ledger()
        if ledger is None:
            raise ClientError("there is no usage ledger; set usage.enabled", status=409, code="no_ledger")
        path = await ledger.ready()
        if self.peers is not None:
            await self.peers.ask({"rows": False})

        def read() -> T:
            with reading(path) as connection:
                return work(connection)

        try:
            return await asyncio.to_thread(read)
        except (FileNotFoundError, UnreadableLedger) as exc:
            raise ClientError(
                f"the usage ledger {path} cannot be read: {exc}", status=409, code="ledger_unreadable"
            ) from exc

    def own_active(self) -> list[ActiveRow]:
        """Return the requests of this worker that are under way, each with the time at which it began."""
        now, tick = time.time(), time.monotonic()
        found = [
            (now - (tick - record.arrived), record, request)
            for record, request in self._gateway().active.items()
        ]
        return [(began, active_row(record, request, began=began)) for began, record, request in found]

    async def active_rows(self) -> list[ActiveRow]:
        """Return the requests of all workers that are under way, the newest last."""
        rows = self.own_active()
        if self.peers is not None:
            for answer in await self.peers.ask({"rows": True}):
                rows += [(float(began), row) for began, row in answer]
        return sorted(rows, key=lambda pair: pair[0])

    async def active_detail(self, id: str) -> Row | None:
        """Return a request under way with its details, of any worker; None if there is none of this id."""
        found = self._own_detail(id)
        if found is None and self.peers is not None:
            answers = await self.peers.ask({"id": id})
            found = next((answer for answer in answers if answer), None)
        return found

    def _own_detail(self, id: str) -> Row | None:
        record = next((one for one in self._gateway().active if one.id == id), None)
        if record is None:
            return None
        row = next(row for _, row in self.own_active() if row["request"] == id)
        detail = detail_of(time.time(), record)
        return {
            **row,
            "plan": detail.plan,
            "calls": msgspec.to_builtins(detail.calls),
            "usage": msgspec.to_builtins(detail.usage),
            "notices": list(detail.notices),
            "captured": False,
        }

    async def quotas(self) -> dict[str, list[Row]]:
        """Return the limits that providers reported last of each key, to any worker."""
        answers = [self._own_quotas()]
        if self.peers is not None:
            answers += await self.peers.ask({"quotas": True})
        latest: dict[str, tuple[float, list[Row]]] = {}
        for name, at, rows in (one for answer in answers for one in answer):
            if name not in latest or latest[name][0] < at:
                latest[name] = (at, rows)
        return {name: rows for name, (_, rows) in latest.items()}

    def _own_quotas(self) -> list[Any]:
        found: list[Any] = msgspec.to_builtins(self._gateway().allowances.quotas())
        return found

    async def answer_peer(self, question: Question) -> Any:
        """Answer another worker: write what has ended, and return the requests under way, or one of them."""
        if "id" in question:
            return self._own_detail(str(question["id"]))
        if "quotas" in question:
            return self._own_quotas()
        ledger = self._ledger()
        if ledger is not None:
            await ledger.flush()
        return self.own_active() if question.get("rows") else []
