"""The client: a request goes out on a kept-alive connection if there is one, else on a new one."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.errors import UpstreamFailed
from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.dial import dial
from routecodex.providers.http.origin import Origin
from routecodex.providers.http.pool import ConnectionPool
from routecodex.providers.http.request import Headers, encode_head
from routecodex.providers.http.response import HttpResponse
from routecodex.providers.http.timeouts import Timeouts
from routecodex.wire.outbox import WriteBatcher

__all__ = ["HttpClient"]

# Up to here one copy is cheaper than a second system call.
_JOIN_LIMIT = 128 * 1024


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
        self._outbox = WriteBatcher()
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
        """Send a request and return when the head of its final answer is here.

        Host, content-length and `accept-encoding: identity` are added. A kept-alive connection that the
        peer closed without a byte of answer is replaced once by a new one.
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
                return HttpResponse(conn, idle=timeouts.idle, give_back=self._pool.give_back)
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
        return HttpResponse(conn, idle=timeouts.idle, give_back=self._pool.give_back)

    async def close(self) -> None:
        """Drop every connection, those in use too; requests under way fail."""
        await self._pool.close()

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> UpstreamConnection:
        pool = self._pool
        conn = UpstreamConnection(
            origin, max_header_bytes=self._max_header_bytes, on_lost=pool.lost, outbox=self._outbox
        )
        if self._is_shut():
            raise _shut(conn)
        await dial(conn, seconds=timeouts.connect)
        if self._is_shut():
            conn.abort()
            raise _shut(conn)
        pool.add(conn)
        return conn

    def _is_shut(self) -> bool:
        return self._pool.closed


def _shut(conn: UpstreamConnection) -> UpstreamFailed:
    return UpstreamFailed(f"{conn.peer}: the gateway is shutting down")
