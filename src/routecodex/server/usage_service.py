"""The usage ledger of one server process: opened and moved by the configuration, and asked for usage."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from routecodex.accounting.figures import Figures, figures_of
from routecodex.accounting.ledger import Ledger, LedgerOptions
from routecodex.accounting.ledger_file import LedgerBatch, UnreadableLedger, has_request, ledger_path
from routecodex.accounting.ledger_use import LedgerUse
from routecodex.accounting.limits import Limit
from routecodex.accounting.usage_report import UsageQuestion, read_usage, report, zone_of
from routecodex.canon.errors import ClientError
from routecodex.config import Config
from routecodex.gateway.request import RequestRecord
from routecodex.server.directories import user_dir
from routecodex.server.ledger_rows import ledger_batch
from routecodex.server.logs import session_name


class UsageService:
    """The ledger of a process, None if there is none; `config` returns the configuration in force."""

    def __init__(self, config: Callable[[], Config], home: Path | None) -> None:
        self._config = config
        self._home = home
        self.ledger = self._open(config())

    def _open(self, config: Config) -> Ledger[RequestRecord] | None:
        options = self._options(config)
        return None if options is None else Ledger(options, self._batch)

    def _batch(self, records: Sequence[tuple[float, RequestRecord]]) -> LedgerBatch:
        """Return the rows of requests by the settings in force; called in the ledger's thread."""
        config = self._config()
        return ledger_batch(records, server=config.identity, detailed=config.console.detail_days > 0)

    def _options(self, config: Config) -> LedgerOptions | None:
        """Return where usage is kept; None without a user dir and a file of its own."""
        if self._home is None and not config.usage.file:
            return None
        path = ledger_path(config, self._home or user_dir())
        if path is None:
            return None
        usage = config.usage
        return LedgerOptions(
            path=path,
            server=config.identity,
            timezone=usage.timezone,
            keep_days=usage.keep_days,
            max_mb=usage.max_mb,
            detail_days=config.console.detail_days,
        )

    @property
    def path(self) -> Path | None:
        """The file of the ledger."""
        return None if self.ledger is None else self.ledger.options.path

    async def move(self, config: Config) -> None:
        """Keep usage where a new configuration says."""
        options = self._options(config)
        if self.ledger is not None and options is not None:
            self.ledger.configure(options)
            return
        before, self.ledger = self.ledger, self._open(config)
        if before is not None:
            await before.close()

    async def close(self) -> None:
        """Write what is left."""
        if self.ledger is not None:
            await self.ledger.close()

    async def _usage(self, question: UsageQuestion) -> dict[str, Any]:
        """Answer a question about usage, with the requests that ended a moment ago."""
        assert self.ledger is not None
        await self.ledger.flush()
        zone = zone_of(self._config().usage.timezone)
        return await asyncio.to_thread(read_usage, self.ledger.options.path, question, zone)

    async def of_session(self, session: str, client: str) -> Figures | None:
        """Return the usage of a session, or of a client today; None if it is not known."""
        if self.ledger is None:
            return None
        filters = {"session": session_name(session) or None, "client": client or None}
        since = "1970-01-01" if session else None
        question = UsageQuestion(filters=filters, since=since, now=time.time())
        try:
            return figures_of((await self._usage(question))["total"])
        except FileNotFoundError:
            return Figures()
        except UnreadableLedger:
            return None

    async def answer(self, question: UsageQuestion) -> dict[str, Any]:
        """Answer a question of the admin API."""
        if self.ledger is None:
            raise ClientError("there is no usage ledger; set usage.enabled", status=409, code="no_ledger")
        try:
            return await self._usage(question)
        except FileNotFoundError:
            return report(question, [], zone_of(self._config().usage.timezone))
        except UnreadableLedger as exc:
            raise ClientError(str(exc), status=409, code="ledger_unreadable") from exc

    async def has_request(self, id: str) -> bool:
        """Return whether the ledger has a request."""
        if self.ledger is None:
            return False
        await self.ledger.flush()
        with contextlib.suppress(FileNotFoundError, UnreadableLedger):
            return await asyncio.to_thread(has_request, self.ledger.options.path, id)
        return False

    def past_use(self, limit: Limit, since: int) -> Iterable[tuple[int, int]]:
        """Return what the ledger knows of a limit, for counters that have lost it."""
        return () if self.ledger is None else LedgerUse(self.ledger.options.path)(limit, since)
