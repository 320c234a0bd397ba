"""Idle connections kept per origin, the latest used first."""

from __future__ import annotations

import asyncio

from routecodex.canon.errors import UpstreamFailed
from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.origin import Origin

__all__ = ["ConnectionPool"]


class ConnectionPool:
    """All open connections of one client, and which of them are idle.

    Lists of idle connections are ordered by the time they became idle, because they are only appended to:
    the newest is taken, and what has expired stands at the front.
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
        """The connection that became idle last and is still good, or None."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        # To ask asyncio for the loop would be a system call before Python 3.12.
        oldest = idle[-1].loop.time() - self._idle_seconds
        while idle:
            conn = idle.pop()
            if conn.idle_since > oldest and not conn.transport.is_closing():
                return conn
            conn.abort()
        return None

    def give_back(self, conn: UpstreamConnection) -> None:
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
        """Forget a connection that is no more."""
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
            conn.fail(UpstreamFailed(f"{conn.peer}: the gateway is shutting down"))
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
        again = bool(self._idle)
        self._sweeper = loop.call_later(self._idle_seconds, self._sweep) if again else None
