"""Sends events of limits to the configured URL, one after the other, beside the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from routecodex.accounting.counters import LimitEvent
from routecodex.accounting.limit_table import limit_use
from routecodex.canon.errors import GatewayError
from routecodex.config import Config
from routecodex.providers.http import HttpClient, Timeouts, origin_of
from routecodex.wire import json

_TIMEOUTS: Final = Timeouts(connect=5.0, first_byte=10.0, idle=10.0)
_PAUSES: Final = (1.0, 5.0)
"""Seconds before an event is sent again."""
_MOST_WAITING: Final = 256
_LAST_SECONDS: Final = 2.0

log = logging.getLogger("routecodex.limits")


class LimitWebhook:
    """The receiver of events; without a URL nothing is sent."""

    def __init__(self, client: HttpClient, environ: Mapping[str, str]) -> None:
        self._client = client
        self._environ = environ
        self._url = ""
        self._server = ""
        self._waiting: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None

    def configure(self, config: Config) -> None:
        """Send to the URL of this configuration from now on."""
        self._url = config.usage.webhook
        self._server = config.server.identity

    def send(self, event: LimitEvent) -> None:
        """Begin to send an event; the oldest is dropped if too many wait."""
        if not self._url:
            return
        limit = event.figures.limit
        use = limit_use(event.figures)
        body = {
            "event": event.name,
            "server": self._server,
            "owner": limit.owner,
            "limit": limit.text,
            "used": use["used"],
            "max": limit.show(limit.max),
            "resets_at": use["resets_at"],
        }
        self._waiting = [*self._waiting[1 - _MOST_WAITING :], json.encode(body)]
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_all())

    async def close(self) -> None:
        """Give events under way a moment."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait([self._sending], timeout=_LAST_SECONDS)
            self._sending.cancel()

    async def _send_all(self) -> None:
        while self._waiting:
            body = self._waiting.pop(0)
            problem = await self._try(body)
            for pause in _PAUSES:
                if not problem:
                    break
                await asyncio.sleep(pause)
                problem = await self._try(body)
            if problem:
                log.warning("usage.webhook did not take an event of a limit: %s", problem)

    async def _try(self, body: bytes) -> str:
        """Send one event; return why it was not taken, or nothing."""
        try:
            response = await self._client.send(
                origin_of(self._url, environ=self._environ),
                method=b"POST",
                path=_path(self._url),
                headers=b"content-type: application/json\r\nuser-agent: routecodex\r\n",
                body=body,
                timeouts=_TIMEOUTS,
            )
        except GatewayError as error:
            return error.detached().message
        response.close()
        return "" if 200 <= response.status < 300 else f"HTTP {response.status}"


def _path(url: str) -> bytes:
    parts = urlsplit(url)
    return ((parts.path or "/") + (f"?{parts.query}" if parts.query else "")).encode("ascii", "ignore")
