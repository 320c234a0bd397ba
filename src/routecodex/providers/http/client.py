"""The HTTP client and its connection pool: idle connections per origin, the most recently used first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from routecodex.canon.errors import UpstreamFailed
from routecodex.providers.http.connection import Timeouts, UpstreamConnection
from routecodex.providers.http.dial import dial
from routecodex.providers.http.origin import Origin
from routecodex.providers.http.request_head import Headers, encode_head
from routecodex.providers.http.response import HttpResponse
from routecodex.wire.buffers import WriteBatcher

_JOIN_LIMIT = 128 * 1024
"""Bytes up to which copying head and body together is cheaper than a second system call."""


class HttpClient:
    """Sends requests and keeps connections; one per event loop, shared by all providers."""

    def __init__(
        self,
        *,
        max_idle_per_origin: int = 128,
        idle_seconds: float = 55.0,
        max_header_bytes: int = 65536,
    ) -> None:
        self._max_header_bytes = max_header_bytes
        self._batcher = WriteBatcher()
        self._pool = ConnectionPool(max_idle_per_origin=max_idle_per_origin, idle_seconds=idle_seconds)

    async def send(
        self,
        origin: Origin,
        *,
        method: bytes,
        path: bytes,
        headers: Headers,
        body: bytes | Sequence[bytes],
        timeouts: Timeouts,
    ) -> HttpResponse:
        """Send a request and return once the head of its final response has arrived.

        Host, content-length and `accept-encoding: identity` are added. If the peer closes a kept-alive
        connection without sending a byte, the request is sent once more on a new one (RFC 9112, 9.3.1).
        """
        length = len(body) if isinstance(body, bytes) else sum(map(len, body))
        head = encode_head(origin, headers, method=method, path=path, length=length)
        size = len(head) + length
        request: Sequence[bytes] = (head, body) if isinstance(body, bytes) else (head, *body)
        if size <= _JOIN_LIMIT:
            request = (b"".join(request),)
        head_only = method == b"HEAD"
        conn = self._pool.take(origin)
        if conn is not None:
            try:
                await conn.exchange(request, size=size, head_only=head_only, timeouts=timeouts)
                return HttpResponse(conn, idle=timeouts.idle, release=self._pool.release)
            except BaseException as exc:
                conn.abort()
                if not (isinstance(exc, UpstreamFailed) and conn.unanswered):
                    raise
                exc.detached()  # the connection keeps it
        conn = await self._connect(origin, timeouts)
        try:
            await conn.exchange(request, size=size, head_only=head_only, timeouts=timeouts)
        except BaseException:
            conn.abort()
            raise
        return HttpResponse(conn, idle=timeouts.idle, release=self._pool.release)

    async def close(self) -> None:
        """Drop every connection, those in use too; requests under way fail."""
        await self._pool.close()

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> UpstreamConnection:
        pool = self._pool
        conn = UpstreamConnection(
            origin, max_header_bytes=self._max_header_bytes, on_lost=pool.lost, batcher=self._batcher
        )
        if self._closed():
            raise _closed_error(conn)
        await dial(conn, seconds=timeouts.connect)
        if self._closed():
            conn.abort()
            raise _closed_error(conn)
        pool.add(conn)
        return conn

    def _closed(self) -> bool:
        return self._pool.closed


class ConnectionPool:
    """All open connections of one client, and the idle ones by origin.

    Idle lists are only appended to, so they are ordered by time: the newest is taken from the end, expired
    connections are at the front.
    """

    def __init__(self, *, max_idle_per_origin: int, idle_seconds: float) -> None:
        self._max_idle = max_idle_per_origin
        self._idle_seconds = idle_seconds
        self._idle: dict[Origin, list[UpstreamConnection]] = {}
        self._open: set[UpstreamConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self.closed = False

    def add(self, conn: UpstreamConnection) -> None:
        """Keep track of a connection until it is lost."""
        if not conn.closed:
            self._open.add(conn)

    def take(self, origin: Origin) -> UpstreamConnection | None:
        """Take the connection that became idle last and is still usable, or None."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        # asyncio.get_running_loop() calls getpid(), a system call, before Python 3.12.
        oldest = idle[-1].loop.time() - self._idle_seconds
        while idle:
            conn = idle.pop()
            if conn.idle_since > oldest and not conn.transport.is_closing():
                return conn
            conn.abort()
        return None

    def release(self, conn: UpstreamConnection) -> None:
        """Keep a connection for the next request, or drop it when it cannot serve one."""
        if self.closed or not conn.reusable():
            conn.abort()
            return
        idle = self._idle.setdefault(conn.origin, [])
        if len(idle) >= self._max_idle:
            conn.abort()
            return
        conn.idle_since = conn.loop.time()
        idle.append(conn)
        if self._sweeper is None:
            self._sweeper = conn.loop.call_later(self._idle_seconds, self._sweep)

    def lost(self, conn: UpstreamConnection) -> None:
        """Remove a connection that was closed."""
        self._open.discard(conn)
        idle = self._idle.get(conn.origin)
        if idle and conn in idle:
            idle.remove(conn)
        if not self._open and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def close(self) -> None:
        """Drop every connection, those in use too, and return when all are gone."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._idle.clear()
        for conn in list(self._open):
            conn.fail(_closed_error(conn))
        if self._open:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_seconds
        for origin, idle in list(self._idle.items()):
            fresh = [conn for conn in idle if conn.idle_since > oldest]
            for conn in idle[: len(idle) - len(fresh)]:
                conn.abort()
            if fresh:
                self._idle[origin] = fresh
            else:
                del self._idle[origin]
        self._sweeper = loop.call_later(self._idle_seconds, self._sweep) if self._idle else None


def _closed_error(conn: UpstreamConnection) -> UpstreamFailed:
    return UpstreamFailed(f"{conn.peer}: the gateway is shutting down")
