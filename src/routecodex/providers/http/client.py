"""The HTTP client and its connection pool: idle connections per origin, the most recently used first.

`encode_head` encodes request line and headers. It adds absent headers and rejects bytes that would allow
request smuggling.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from routecodex.canon.errors import BadRequest, ConfigError, LocalFault, UpstreamFailed
from routecodex.providers.http.connection import Timeouts, UpstreamConnection
from routecodex.providers.http.dial import dial
from routecodex.providers.http.local_faults import DESCRIPTORS
from routecodex.providers.http.origin import Origin, Proxy
from routecodex.providers.http.response import HttpResponse
from routecodex.wire.buffers import WriteBatcher

Headers = Sequence[tuple[bytes, bytes]] | bytes

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
        added: bytes = b"",
    ) -> HttpResponse:
        """Send a request and return once the head of its final response has arrived.

        Host, content-length and `accept-encoding: identity` are added, and the header lines `added`. If the
        peer closes a kept-alive connection without sending a byte, the request is sent once more on a new one
        (RFC 9112, 9.3.1).
        """
        length = len(body) if isinstance(body, bytes) else sum(map(len, body))
        head = encode_head(origin, headers, method=method, path=path, length=length, added=added)
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

    def close_idle(self) -> int:
        """Drop every connection that is not in use, because descriptors are scarce; return their number."""
        return self._pool.close_idle()

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> UpstreamConnection:
        conn = await self._dial(origin, timeouts, last=False)
        if conn is None:
            await asyncio.sleep(0)  # the loop closes dropped connections in its next turn
            conn = await self._dial(origin, timeouts, last=True)
        assert conn is not None
        return conn

    async def _dial(self, origin: Origin, timeouts: Timeouts, *, last: bool) -> UpstreamConnection | None:
        """Open a connection; None if idle ones were closed first, because no descriptor was free."""
        pool = self._pool
        conn = UpstreamConnection(
            origin, max_header_bytes=self._max_header_bytes, on_lost=pool.lost, batcher=self._batcher
        )
        if self._closed():
            raise _closed_error(conn)
        try:
            await dial(conn, seconds=timeouts.connect)
        except LocalFault as fault:
            if last or fault.code != DESCRIPTORS or not pool.close_idle():
                raise
            return None
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

    def close_idle(self) -> int:
        """Drop the idle connections of all origins; return their number."""
        idle = [conn for kept in self._idle.values() for conn in kept]
        self._idle.clear()
        for conn in idle:
            conn.abort()
        return len(idle)

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


_INVALID_IN_TARGET = bytes(range(0x21)) + b"\x7f"
_LONGEST_CACHED: Final = 8192
"""Bytes of headers and path, parts of which clients choose."""
_BODYLESS_METHODS: Final = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
_LINE_BREAK = re.compile(rb"[\r\n]")


class _AbsentHeaders(NamedTuple):
    """Headers to add because the caller did not set them."""

    host: bool
    accept_encoding: bool


def encode_head(
    origin: Origin, headers: Headers, *, method: bytes, path: bytes, length: int, added: bytes = b""
) -> bytes:
    """Encode request line and headers for a body of `length` bytes.

    `added` are further header lines, which differ from request to request and are not cached.
    """
    cached = isinstance(headers, bytes) and len(headers) + len(path) <= _LONGEST_CACHED
    lines = _cached_lines if cached else _lines
    before, after = lines(origin, headers, method, path)
    if length or method not in _BODYLESS_METHODS:
        return b"%bcontent-length: %d\r\n%b%b\r\n" % (before, length, after, added)
    return b"%b%b%b\r\n" % (before, after, added)


def _lines(origin: Origin, headers: Headers, method: bytes, path: bytes) -> tuple[bytes, bytes]:
    """Return the lines of the head before and after its content-length."""
    if len(path.translate(None, _INVALID_IN_TARGET)) != len(path):
        raise BadRequest("the upstream path would contain a space or control character; check the model name")
    if isinstance(headers, bytes):
        block, absent = headers, _absent_from_block(headers)
    else:
        block = _join_headers(headers)
        absent = _absent_headers(block)
    lines = [method, b" ", path, b" HTTP/1.1\r\n"]
    if origin.proxy is not None and origin.tls is None:
        lines[2] = b"http://" + origin.host_header + path
        lines.append(_proxy_authorization(origin.proxy))
    if absent.host:
        lines += (b"host: ", origin.host_header, b"\r\n")
    if absent.accept_encoding:
        lines.append(b"accept-encoding: identity\r\n")
    return b"".join(lines), block


# A block in bytes belongs to a provider and is sent with every request: its lines are encoded once.
_cached_lines = lru_cache(maxsize=256)(_lines)


def _join_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    block = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
    lines = len(headers)
    if block.count(b"\n") != lines or block.count(b"\r") != lines:
        raise _line_break(headers)
    return block


def _line_break(headers: Sequence[tuple[bytes, bytes]]) -> ConfigError:
    name = next(name for name, value in headers if _LINE_BREAK.search(name + value))
    return ConfigError(f"header {name[:64]!r} contains a line break; remove it, for example after a key")


def _absent_headers(block: bytes) -> _AbsentHeaders:
    names = b"\n" + block.lower()
    if b"\ncontent-length:" in names or b"\ntransfer-encoding:" in names:
        raise ConfigError("headers content-length and transfer-encoding cannot be configured; remove them")
    return _AbsentHeaders(host=b"\nhost:" not in names, accept_encoding=b"\naccept-encoding:" not in names)


def _absent_from_block(block: bytes) -> _AbsentHeaders:
    if block and (not block.endswith(b"\r\n") or block.startswith(b"\r\n") or b"\r\n\r\n" in block):
        raise ConfigError("an encoded header block must consist of lines that each end with CR LF")
    return _absent_headers(block)


def _proxy_authorization(proxy: Proxy) -> bytes:
    if proxy.authorization is None:
        return b""
    return b"proxy-authorization: " + proxy.authorization + b"\r\n"
