"""The HTTP server: listens, counts connections, expires late ones, drains."""

from __future__ import annotations

import asyncio
import logging
import select
from collections.abc import Callable
from email.utils import formatdate

from routecodex.server.http.acceptor import Acceptor
from routecodex.server.http.connection import ServerConnection, shared_buffer
from routecodex.server.http.reader import Fault, HttpLimits
from routecodex.server.http.reply import Headers, WholeReply, encode_fields
from routecodex.server.http.request import HttpRequest
from routecodex.server.http.request_loop import Handler
from routecodex.wire.buffers import WriteBatcher

logger = logging.getLogger("routecodex.server")

ErrorBody = Callable[[int, str, HttpRequest | None], tuple[Headers, bytes]]

CheckHead = Callable[[HttpRequest], WholeReply | None]
"""Checks a request before its body is read; returns the response if it is refused."""

_MAX_REFUSED_AT_ONCE = 256
_CLOSE_SECONDS = 5.0
_LAST_REQUEST_SECONDS = 0.25
"""Time in which requests that are on their way when the server drains may arrive."""
_INTERRUPT_SECONDS = 1.0
"""Time for an interrupted handler to write its error, and for its client to read it."""


class HttpServer:
    """Serves HTTP/1.1 on any number of addresses with one handler."""

    def __init__(
        self,
        handler: Handler,
        *,
        limits: HttpLimits,
        on_protocol_error: ErrorBody,
        check_head: CheckHead = lambda request: None,
        is_essential: Callable[[HttpRequest], bool] = lambda request: False,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.check_head = check_head
        self.is_essential = is_essential
        """Whether a request is answered on a connection that would be refused for load."""
        self.active = 0
        """Requests in flight."""
        self.draining = False
        self.keeps_connections = True
        """False: answers close their connections, so that none is idle when the server drains."""
        self.now = 0.0
        """Time of the loop at the last sweep: exact enough for deadlines, without a call."""
        self.date_line = b""
        self.loop: asyncio.AbstractEventLoop
        self.batcher = WriteBatcher()
        self.shared_buffer = shared_buffer()
        self._on_protocol_error = on_protocol_error
        self._connections: set[ServerConnection] = set()
        self._acceptor = Acceptor(lambda: ServerConnection(self), self._has_room)
        self.on_pressure: Callable[[], object] = lambda: None
        """Called when descriptors are scarce, to close connections that are not in use."""
        self._sweep_seconds = limits.sweep_seconds()
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None

    async def listen(
        self, host: str, port: int, *, reuse_port: bool = False, backlog: int = 2048
    ) -> tuple[str, int]:
        """Accept connections on an address; return the bound one."""
        self.loop = asyncio.get_running_loop()
        if self._sweeper is None:
            self._sweep()
        return await self._acceptor.listen(host, port, reuse_port=reuse_port, backlog=backlog)

    async def drain(self, seconds: float) -> bool:
        """Stop accepting, wait for requests in flight; interrupt them after `seconds` and return False.

        What clients have sent until now is answered, also on connections that wait to be accepted, and so is
        what is on its way: an idle connection that closes as its client sends a request would lose it.
        """
        self.draining = True
        self.keeps_connections = False
        await self._acceptor.finish()
        grace = min(seconds, _LAST_REQUEST_SECONDS)
        if await self._wait_until_empty(grace):
            return True
        self._close_waiting()
        if await self._wait_until_empty(seconds - grace):
            return True
        await self._interrupt_all()
        return False

    def _close_waiting(self) -> None:
        """Close the connections on which no request has arrived."""
        waiting = {one.descriptor: one for one in self._connections if one.is_waiting}
        poll = select.poll()
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        unread = {descriptor for descriptor, _ in poll.poll(0)}
        for descriptor, connection in waiting.items():
            if descriptor not in unread:
                connection.close_if_waiting()

    async def close(self) -> None:
        """Stop at once: drop every connection, cancel every handler and wait for them."""
        self.draining = True
        self.keeps_connections = False
        self._acceptor.close()
        await self._interrupt_all()
        await self._wait_until_empty(_CLOSE_SECONDS)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def _interrupt_all(self) -> None:
        """Have handlers end their responses with an error, then drop every connection."""
        for connection in list(self._connections):
            connection.interrupt()
        if any(connection.interrupted for connection in self._connections):
            await self._wait_until_empty(_INTERRUPT_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    async def _wait_until_empty(self, seconds: float) -> bool:
        if not self._connections:
            return True
        if self._all_closed is None or self._all_closed.done():
            self._all_closed = self.loop.create_future()
        done, _ = await asyncio.wait([self._all_closed], timeout=seconds)
        return bool(done)

    @property
    def connections(self) -> int:
        """Number of connections that are open or whose handler still runs."""
        return len(self._connections)

    def deadline_in(self, seconds: float) -> float:
        """Return the time after that many seconds; counted from the last sweep, but never early."""
        return self.now + seconds + self._sweep_seconds

    def admit(self, connection: ServerConnection, descriptor: int) -> Fault | None:
        """Register a new connection; return a fault to refuse it, or abort it when too many are refused."""
        surplus = len(self._connections) - self.limits.connections
        self._connections.add(connection)
        if descriptor >= self.limits.descriptors or len(self._connections) >= self.limits.open_at_once:
            self._make_room()
        if surplus >= _MAX_REFUSED_AT_ONCE:
            connection.abort()
        if surplus >= 0:
            return Fault(503, f"more than {self.limits.connections} connections are open")
        return None

    def _make_room(self) -> None:
        """Pause accepting and close connections that are not in use."""
        self._acceptor.pause(
            f"{len(self._connections)} client connections are open, which leaves too few descriptors "
            "for providers (`ulimit -n`)"
        )
        self._close_unused()

    def _close_unused(self) -> None:
        for connection in [one for one in self._connections if one.is_used]:
            connection.close_if_waiting()
        self.on_pressure()

    def _has_room(self, descriptor: int) -> bool:
        """Return whether to accept again: few enough connections, and a descriptor that is low enough."""
        limits = self.limits
        if len(self._connections) < limits.open_at_once and descriptor < limits.descriptors:
            return True
        self._close_unused()
        return False

    def remove(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed and whose handler has ended."""
        self._connections.discard(connection)
        if not self._connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def error_reply(self, fault: Fault) -> tuple[Headers, bytes]:
        """Return headers and body of the error response for a fault."""
        if fault.reply is not None:
            return fault.reply[1], fault.reply[2]
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
