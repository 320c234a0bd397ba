"""A response: its head and its streamed body.

The client sends `accept-encoding: identity`; a body that a provider or proxy compresses all the same, with
gzip or deflate, is decoded piece by piece in bounded memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from routecodex.canon.errors import UpstreamFailed
from routecodex.providers.http.connection import UpstreamConnection

if TYPE_CHECKING:
    from zlib import _Decompress

# These describe the compressed body, not the decoded one that the reader gets.
_CODED_BODY_HEADERS = frozenset((b"content-encoding", b"content-length"))


class HttpResponse:
    """The response to one request; read it to its end or close it to release its connection."""

    __slots__ = ("_conn", "_decoder", "_idle", "_peer", "_release", "ended", "headers", "status")

    def __init__(
        self, conn: UpstreamConnection, *, idle: float, release: Callable[[UpstreamConnection], None]
    ) -> None:
        self.status = conn.status
        self.headers = conn.headers
        self.ended = False
        self._peer = conn.peer
        self._conn: UpstreamConnection | None = conn
        self._idle = idle
        self._release = release
        self._decoder = inflater_for(self.header(b"content-encoding"))
        if self._decoder is not None:
            self.headers = [(n, v) for n, v in conn.headers if n not in _CODED_BODY_HEADERS]
        if conn.complete and not conn.pieces:
            self._end(conn)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, by its lower-case name."""
        for known, value in self.headers:
            if known == name:
                return value
        return None

    def take(self) -> bytes:
        """Take the received part of the body without waiting."""
        conn = self._conn
        if conn is None:
            return b""
        if self._decoder is not None:
            return self._take_decoded(conn, self._decoder)
        data = conn.take()
        if conn.complete:
            self._end(conn)
        return data

    async def chunk(self) -> bytes | None:
        """Wait for more of the body and return all that was received, or None at its end."""
        while True:
            data = self.take()
            if data:
                return data
            conn = self._reading()
            if conn is None:
                return None
            await conn.wait()

    async def pour(self, sink: Callable[[bytes], bool]) -> None:
        """Pass the body to `sink`, piece by piece, up to its end or until `sink` returns false.

        No task is woken for a piece: the connection calls `sink` where it reads.
        """
        while True:
            data = self.take()
            if data:
                if not sink(data):
                    return
                continue
            conn = self._reading()
            if conn is None:
                return
            if await conn.wait(sink if self._decoder is None else None):
                return

    def _reading(self) -> UpstreamConnection | None:
        """Return the connection with the rest of the body, or None at its end."""
        conn = self._conn
        if conn is None:
            if self.ended:
                return None
            raise UpstreamFailed(f"{self._peer}: the response was closed before its end")
        if conn.error is not None:
            raise conn.error
        conn.expect_within(self._idle)
        return conn

    async def read(self, limit: int) -> bytes:
        """Read the whole body; raise `UpstreamFailed` if it is longer than `limit`."""
        conn = self._conn
        if conn is not None and conn.complete and self._decoder is None and conn.error is None:
            data = self.take()
            if len(data) <= limit:
                return data
            raise self._too_long(limit)
        pieces: list[bytes] = []
        size = 0
        while (piece := await self.chunk()) is not None:
            size += len(piece)
            if size > limit:
                self.close()
                raise self._too_long(limit)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_long(self, limit: int) -> UpstreamFailed:
        return UpstreamFailed(f"{self._peer} sent a response longer than {limit} bytes")

    def close(self) -> None:
        """Release the connection to the pool if the response is complete, else abort it."""
        conn = self._conn
        if conn is None:
            return
        self._conn = None
        if conn.complete:
            conn.pieces.clear()
            self._release(conn)
        else:
            conn.abort()

    def _end(self, conn: UpstreamConnection) -> None:
        self._conn = None
        self.ended = True
        self._release(conn)

    def _take_decoded(self, conn: UpstreamConnection, decoder: Inflater) -> bytes:
        try:
            data = decoder.decode(b"" if decoder.pending else conn.take())
        except zlib.error as exc:
            self.close()
            raise UpstreamFailed(
                f"{self._peer} sent a body that does not match its content-encoding"
            ) from exc
        if not conn.complete or conn.pieces or decoder.pending:
            return data
        if decoder.finished:
            self._end(conn)
        else:
            conn.complete = False
            conn.fail(UpstreamFailed(f"{self._peer} sent a compressed body that ends too early"))
        return data


_MAX_PIECE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_WBITS_GZIP, _WBITS_ZLIB, _WBITS_RAW = 31, 15, -15
_IS_GZIP = {b"gzip": True, b"x-gzip": True, b"deflate": False}


def inflater_for(encoding: bytes | None) -> Inflater | None:
    """Return an inflater for a content-encoding, or None if it is unknown: the body then stays as it is."""
    if encoding is None:
        return None
    is_gzip = _IS_GZIP.get(encoding.strip().lower())
    return None if is_gzip is None else Inflater(gzip=is_gzip)


class Inflater:
    """Decodes gzip or deflate; `pending` is true while output is left that needs no more input."""

    __slots__ = ("_gzip", "_tail", "_zlib", "pending")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._zlib: _Decompress | None = None
        self._tail = b""
        self.pending = False

    @property
    def finished(self) -> bool:
        """Whether the compressed body is complete; an empty one counts as complete."""
        return self._zlib is None or self._zlib.eof

    def decode(self, raw: bytes) -> bytes:
        """Return the next piece of output, at most 1 MiB; raises `zlib.error` for malformed input."""
        while True:
            output = self._step(self._tail + raw if self._tail else raw)
            if output or not self.pending:
                return output
            raw = b""

    def _step(self, data: bytes) -> bytes:
        inflate = self._current(data)
        if inflate is None:
            self._tail, self.pending = b"", False
            return b""
        output = inflate.decompress(data, _MAX_PIECE)
        self._tail = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        self.pending = bool(self._tail) or (len(output) == _MAX_PIECE and not inflate.eof)
        return output

    def _current(self, data: bytes) -> _Decompress | None:
        """Return the decompressor: a new one at the start and for each gzip member, None for padding."""
        if self._zlib is None:
            if not data:
                return None
            self._zlib = zlib.decompressobj(self._wbits(data[0]))
        elif self._zlib.eof:
            if not self._gzip or not data.startswith(_GZIP_MAGIC):
                return None
            self._zlib = zlib.decompressobj(_WBITS_GZIP)
        return self._zlib

    def _wbits(self, first: int) -> int:
        if self._gzip:
            return _WBITS_GZIP
        # RFC 9110, section 8.4.1.2: "deflate" is a zlib stream, but some servers send raw deflate data. In
        # RFC 1950 the low nibble of the first byte is 8 for a zlib stream.
        return _WBITS_ZLIB if first & 0x0F == 8 and first >> 4 <= 7 else _WBITS_RAW
