"""The server: listens, counts connections, sweeps out the late ones, drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from routecodex.server.http.connection import ServerConnection, shared_buffer
from routecodex.server.http.reader import Fault, HttpLimits
from routecodex.server.http.reply import Headers, encode_fields
from routecodex.server.http.request import HttpRequest
from routecodex.server.http.request_loop import Handler
from routecodex.wire.buffers import WriteBatcher

logger = logging.getLogger("routecodex.server")

ErrorBody = Callable[[int, str, HttpRequest | None], tuple[Headers, bytes]]

_REFUSALS_AT_ONCE = 256
_CLOSE_SECONDS = 5.0


class HttpServer:
    """Answers HTTP/1.1 on any number of addresses with one handler."""

    def __init__(self, handler: Handler, *, limits: HttpLimits, on_protocol_error: ErrorBody) -> None:
        self.handler = handler
        self.limits = limits
        self.active = 0
        """Requests in flight."""
        self.draining = False
        self.now = 0.0
        """The loop's time at the last sweep: exact enough for deadlines, and free to read."""
        self.date_line = b""
        self.loop: asyncio.AbstractEventLoop
        self.outbox = WriteBatcher()
        self.shared_buffer = shared_buffer()
        self._on_protocol_error = on_protocol_error
        self._connections: set[ServerConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._sweep_seconds = limits.sweep_seconds()
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def listen(
        self, host: str, port: int, *, reuse_port: bool = False, backlog: int = 2048
    ) -> tuple[str, int]:
        """Starts to accept on an address; returns the one that was bound."""
        self.loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self._sweep()
        # uvloop's has a list of sockets, where asyncio has a tuple.
        listener: Any = await self.loop.create_server(
            lambda: ServerConnection(self), host, port, reuse_port=reuse_port or None, backlog=backlog
        )
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return bound[0], bound[1]

    async def drain(self, seconds: float) -> bool:
        """Stops accepting and lets requests in flight finish; True when all did, else aborts the rest."""
        self.draining = True
        self._stop_listening()
        for connection in list(self._connections):
            connection.retire()
        if await self._empty(seconds):
            return True
        self._abort_all()
        return False

    async def close(self) -> None:
        """Stops at once: every connection is dropped, every handler cancelled and waited for."""
        self.draining = True
        self._stop_listening()
        self._abort_all()
        await self._empty(_CLOSE_SECONDS)
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _empty(self, seconds: float) -> bool:
        if not self._connections:
            return True
        if self._emptied is None or self._emptied.done():
            self._emptied = self.loop.create_future()
        done, _ = await asyncio.wait([self._emptied], timeout=seconds)
        return bool(done)

    @property
    def connections(self) -> int:
        """Number of connections that are open or whose handler still runs."""
        return len(self._connections)

    def within(self, seconds: float) -> float:
        """The deadline for something that may take this long, counted from the last sweep but never early."""
        return self.now + seconds + self._sweep_seconds

    def admit(self, connection: ServerConnection) -> Fault | None:
        """Takes a new connection in; or says how to refuse it; or, past all bounds, drops it."""
        surplus = len(self._connections) - self.limits.connections
        self._connections.add(connection)
        if surplus >= _REFUSALS_AT_ONCE:
            connection.abort()
        if surplus >= 0:
            return Fault(503, f"more than {self.limits.connections} connections are open")
        if self.draining:
            return Fault(503, "the server is shutting down")
        return None

    def forget(self, connection: ServerConnection) -> None:
        """Drops a connection that is closed and whose handler has ended."""
        self._connections.discard(connection)
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def explain(self, fault: Fault) -> tuple[Headers, bytes]:
        """The headers and body that tell a client about a fault."""
        try:
            headers, body = self._on_protocol_error(fault.status, fault.message, fault.request)
            encode_fields(headers)
        except Exception as exc:
            logger.error("on_protocol_error raised %s for status %d", type(exc).__qualname__, fault.status)
            return [(b"content-type", b"text/plain; charset=utf-8")], fault.message.encode()
        return headers, body

    def _sweep(self) -> None:
        self.now = now = self.loop.time()
        self.date_line = b"date: %b\r\n" % formatdate(usegmt=True).encode()
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)
        for connection in [c for c in self._connections if c.deadline <= now]:
            connection.expire()
