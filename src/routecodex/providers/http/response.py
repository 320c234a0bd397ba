"""A response: its head, and its body as it comes in.

Content codings we never asked for: gzip and deflate undone piece by piece, in bounded memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from routecodex.canon.errors import UpstreamFailed
from routecodex.providers.http.connection import UpstreamConnection

if TYPE_CHECKING:
    from zlib import _Decompress

_PIECE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_WBITS_GZIP, _WBITS_ZLIB, _WBITS_RAW = 31, 15, -15
_CODINGS = {b"gzip": True, b"x-gzip": True, b"deflate": False}


def inflater_for(encoding: bytes | None) -> Inflater | None:
    """An inflater for a content-encoding we can undo, else None: the body is passed on as it is."""
    if encoding is None:
        return None
    is_gzip = _CODINGS.get(encoding.strip().lower())
    return None if is_gzip is None else Inflater(gzip=is_gzip)


class Inflater:
    """Undoes one coding; `pending` says that more output waits without more input."""

    __slots__ = ("_gzip", "_tail", "_zlib", "pending")

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._zlib: _Decompress | None = None
        self._tail = b""
        self.pending = False

    @property
    def finished(self) -> bool:
        """Whether the coded body is whole; one that never began counts as whole."""
        return self._zlib is None or self._zlib.eof

    def decode(self, raw: bytes) -> bytes:
        """The next piece of output, at most a mebibyte; raises `zlib.error` on anything malformed."""
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
        output = inflate.decompress(data, _PIECE)
        self._tail = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        self.pending = bool(self._tail) or (len(output) == _PIECE and not inflate.eof)
        return output

    def _current(self, data: bytes) -> _Decompress | None:
        """The state to feed: a new one at the start and at each further gzip member, None for padding."""
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
        # "deflate" means a zlib stream, yet some servers send the bare one: the method nibble tells.
        return _WBITS_ZLIB if first & 0x0F == 8 and first >> 4 <= 7 else _WBITS_RAW


# Once we have undone the coding these no longer describe what the reader gets.
_UNTRUE_ONCE_DECODED = frozenset((b"content-encoding", b"content-length"))


class HttpResponse:
    """The answer to one request; read it to its end or close it, or its connection is lost to the pool."""

    __slots__ = ("_conn", "_decoder", "_give_back", "_idle", "_peer", "ended", "headers", "status")

    def __init__(
        self, conn: UpstreamConnection, *, idle: float, give_back: Callable[[UpstreamConnection], None]
    ) -> None:
        self.status = conn.status
        self.headers = conn.headers
        self.ended = False
        self._peer = conn.peer
        self._conn: UpstreamConnection | None = conn
        self._idle = idle
        self._give_back = give_back
        self._decoder = inflater_for(self.header(b"content-encoding"))
        if self._decoder is not None:
            self.headers = [(n, v) for n, v in conn.headers if n not in _UNTRUE_ONCE_DECODED]
        if conn.complete and not conn.pieces:
            self._end(conn)

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        for known, value in self.headers:
            if known == name:
                return value
        return None

    def take(self) -> bytes:
        """What is already here of the body, without waiting."""
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
        """The next piece of the body with all that is already here, or None at its proper end."""
        while True:
            data = self.take()
            if data:
                return data
            conn = self._waiting()
            if conn is None:
                return None
            await conn.wait()

    async def pour(self, sink: Callable[[bytes], bool]) -> None:
        """Hands the body to `sink`, piece by piece as it comes, up to its end or until that wants no more.

        The pieces that come in time are not waited for by a task: they are handed on where they are read.
        """
        while True:
            data = self.take()
            if data:
                if not sink(data):
                    return
                continue
            conn = self._waiting()
            if conn is None:
                return
            if await conn.wait(sink if self._decoder is None else None):
                return

    def _waiting(self) -> UpstreamConnection | None:
        """The connection that the rest of the body comes on; None at its proper end."""
        conn = self._conn
        if conn is None:
            if self.ended:
                return None
            raise UpstreamFailed(f"{self._peer}: the answer was closed before its end")
        if conn.error is not None:
            raise conn.error
        conn.expect_within(self._idle)
        return conn

    async def read(self, limit: int) -> bytes:
        """The whole body, refused once it is longer than `limit`."""
        conn = self._conn
        if conn is not None and conn.complete and self._decoder is None and conn.error is None:
            data = self.take()
            if len(data) <= limit:
                return data
            raise UpstreamFailed(f"{self._peer} sent an answer longer than {limit} bytes")
        pieces: list[bytes] = []
        size = 0
        while (piece := await self.chunk()) is not None:
            size += len(piece)
            if size > limit:
                self.close()
                raise UpstreamFailed(f"{self._peer} sent an answer longer than {limit} bytes")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Let go of the connection: kept if the whole answer has come, else aborted at once."""
        conn = self._conn
        if conn is None:
            return
        self._conn = None
        if conn.complete:
            conn.pieces.clear()
            self._give_back(conn)
        else:
            conn.abort()

    def _end(self, conn: UpstreamConnection) -> None:
        self._conn = None
        self.ended = True
        self._give_back(conn)

    def _take_decoded(self, conn: UpstreamConnection, decoder: Inflater) -> bytes:
        try:
            data = decoder.decode(b"" if decoder.pending else conn.take())
        except zlib.error as exc:
            self.close()
            raise UpstreamFailed(f"{self._peer} sent a body that its content-encoding cannot decode") from exc
        if not conn.complete or conn.pieces or decoder.pending:
            return data
        if decoder.finished:
            self._end(conn)
        else:
            conn.complete = False
            conn.fail(UpstreamFailed(f"{self._peer} cut its answer short: the compressed body has no end"))
        return data
