"""The usage ledger of one worker: requests are collected, and written by a thread, many at once.

No request waits for the disk. Where rows cannot be written they are lost and counted, with one warning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from routecodex.accounting.ledger_file import LedgerBatch, LedgerFile, is_locked
from routecodex.accounting.ledger_process import LedgerProcess, WriteCommand
from routecodex.accounting.ledger_schema import DAY, UnknownLedgerVersion

log = logging.getLogger("routecodex.accounting")

T = TypeVar("T")

_BATCH_SECONDS = 0.2
_BATCH_REQUESTS = 1000
"""Requests that are written without waiting for more: memory that is soon used again stays in the cache."""
_MAX_PENDING = 20_000
_PRUNE_SECONDS = 60.0
_PRUNE_STEPS = 20
_BACKFILL_SECONDS = 0.2
_ERRORS = (sqlite3.Error, OSError, UnknownLedgerVersion)


class LedgerOptions(Struct, frozen=True, kw_only=True):
    """Place of the ledger, and how much of it is kept."""

    path: Path
    server: str
    timezone: str = "UTC"
    keep_days: int = 90
    max_mb: int = 1024
    detail_days: int = 0


class Ledger(Generic[T]):
    """Collects finished requests of type `T`; `to_rows` turns them into rows, in the thread.

    `rows` counts the requests that were written, `lost` those that were not. While another program has locked
    the file, a batch is tried again for `patience` seconds.
    """

    def __init__(
        self,
        options: LedgerOptions,
        to_rows: Callable[[Sequence[tuple[float, T]]], LedgerBatch],
        *,
        patience: float = 5.0,
    ) -> None:
        self.rows = 0
        self.lost = 0
        self.options = options
        self._to_rows = to_rows
        self._patience = patience
        self._file = _file_of(options)
        self._written_to = options
        """The options of `_file`, which the thread changes after those of the requests before."""
        self._process = LedgerProcess()
        self._pending: list[tuple[float, T]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="usage-ledger")
        self._closing = threading.Event()
        self._is_failing = False
        self._pruned_at = 0.0

    def add(self, item: T) -> None:
        """Add a request that has just ended."""
        if len(self._pending) >= _MAX_PENDING:
            self.lost += 1
            return
        self._pending.append((time.time(), item))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_SECONDS, self._write_next)
        elif self._writing is None and len(self._pending) >= _BATCH_REQUESTS:
            self._write_next()

    def configure(self, options: LedgerOptions) -> None:
        """Use these options from the next batch on."""
        if options != self.options:
            self.options = options
            self._thread.submit(self._reopen, options)

    def _reopen(self, options: LedgerOptions) -> None:
        self._file.close()
        self._file = _file_of(options)
        self._written_to = options

    def _write_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None or not self._pending:
            return
        batch, self._pending = self._pending, []
        self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)
        self._writing.add_done_callback(self._written)

    def _written(self, _done: asyncio.Future[None]) -> None:
        self._writing = None
        if self._pending and self._timer is None:
            self._write_next()

    async def flush(self) -> None:
        """Wait until every request that was added is written, or lost."""
        self._write_next()
        while self._writing is not None:
            await asyncio.wait([self._writing])
            # Let the callback start the next write before the check.
            await asyncio.sleep(0)
            self._write_next()

    async def ready(self) -> Path:
        """Write what was added, and return the file once it has every table."""
        await self.flush()
        loop = asyncio.get_running_loop()
        with contextlib.suppress(*_ERRORS):
            await loop.run_in_executor(self._thread, self._file.open)
        return self.options.path

    async def close(self) -> None:
        """Write what is left, and close the file; a file that is locked is not waited for."""
        self._closing.set()
        await self.flush()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._process.close)
        await loop.run_in_executor(self._thread, self._file.close)
        await asyncio.to_thread(self._thread.shutdown)

    def _write(self, batch: list[tuple[float, T]]) -> None:
        rows = self._to_rows(batch)
        try:
            if not self._write_apart(rows):
                self._write_patiently(rows)
        except _ERRORS as exc:
            self.lost += len(rows.requests)
            self._note_failure(exc)
            return
        self.rows += len(rows.requests)
        if self._is_failing:
            log.info("the usage ledger can be written again; %d requests are missing in it", self.lost)
            self._is_failing = False
        self._backfill()
        self._prune()

    def _write_apart(self, batch: LedgerBatch) -> bool:
        """Let the process write a batch of a flood; return whether it did."""
        options = self._written_to
        waiting = len(batch.requests) + len(self._pending)
        return self._process.write(
            WriteCommand(str(options.path), options.server, options.timezone, batch, waiting)
        )

    def _write_patiently(self, batch: LedgerBatch) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._file.write(batch)
                return
            except sqlite3.OperationalError as exc:
                if not is_locked(exc) or self._closing.is_set() or time.monotonic() > deadline:
                    raise

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            log.warning(
                "the usage ledger %s cannot be written, requests continue without it: %s",
                self._file.path,
                error,
            )
        self._is_failing = True

    def _backfill(self) -> None:
        """Complete the totals of a file of an earlier gateway, for a moment after each batch."""
        deadline = time.monotonic() + _BACKFILL_SECONDS
        with contextlib.suppress(*_ERRORS):
            while not self._closing.is_set() and self._file.backfill() and time.monotonic() < deadline:
                pass

    def _prune(self) -> None:
        """Delete old rows from time to time, a few at once: another worker waits for the file meanwhile."""
        now = time.monotonic()
        if self._closing.is_set() or (self._pruned_at and now - self._pruned_at < _PRUNE_SECONDS):
            return
        options = self.options
        oldest = time.time() - options.keep_days * DAY
        with contextlib.suppress(*_ERRORS):
            for _ in range(_PRUNE_STEPS):
                if not self._file.prune(
                    oldest=oldest,
                    max_mb=options.max_mb,
                    details_since=max(0.0, time.time() - options.detail_days * DAY),
                ):
                    self._pruned_at = now
                    break


def _file_of(options: LedgerOptions) -> LedgerFile:
    return LedgerFile(options.path, server=options.server, timezone=options.timezone)
