"""One connection to an upstream: an asyncio protocol around llhttp, one request at a time.

There is no task, queue or timer per piece. Body bytes go from the parser straight into a list (`pieces`);
whoever reads takes the list's content, and waits on a single future when there is none, or has it handed on
as it comes (`_sink`) without being woken for each piece. One timer per
connection looks at the current deadline when it fires and sets itself again, so that a deadline moves by an
assignment.

Where the hot path is compiled, plain heads (`wire/plain_heads.py`), bodies of known length after them and
chunks that arrive whole bypass the parser, with the same result. It gets everything else. `_between` says
that a chunk comes next, `_missing` how many bytes of a body do, `_ahead` that the parser has seen nothing of
this answer: it needs a head that announces chunks before it gets any.

`complete` is true whenever the peer has nothing to say: between requests and once an answer is whole.
Anything it says then spoils the connection for reuse.

How long an upstream is waited for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httptools

from routecodex.canon.errors import GatewayError, UpstreamFailed, UpstreamTimeout
from routecodex.providers.http.origin import Origin
from routecodex.wire import plain_heads, scan
from routecodex.wire.buffers import WriteBatcher


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait: for a usable connection, from the request to its answer's head, between pieces."""

    connect: float = 5.0
    first_byte: float = 120.0
    idle: float = 120.0


_UNREAD_LIMIT: Final = 256 * 1024
_ONE_WRITE_LIMIT: Final = 4 * 1024 * 1024
_WRITE_SLICE = 1024 * 1024

_BYPASSES: Final = scan.IN_C
"""Whether what is plain bypasses the parser, which is faster only in C. Either way the result is the same."""

_MANY: Final = 2048
"""Bytes from which on there may be so many chunks behind a head that it pays to take it off."""
_HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = 0x0A
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKS_FOLLOW: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _ParserStopped(Exception):
    """Raised in a parser callback so that llhttp reads no further."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that can be sent one request after the other; its answers are read by `HttpResponse`."""

    __slots__ = (
        "_ahead",
        "_between",
        "_deadline",
        "_head_only",
        "_limit",
        "_max_header_bytes",
        "_missing",
        "_on_lost",
        "_outbox",
        "_parser",
        "_patience",
        "_read_paused",
        "_request",
        "_sink",
        "_timer",
        "_timer_at",
        "_unread",
        "_until_close",
        "_waiter",
        "_write_paused",
        "closed",
        "complete",
        "error",
        "head_done",
        "headers",
        "idle_since",
        "keep_alive",
        "loop",
        "on_body",
        "on_chunk_complete",
        "on_chunk_header",
        "origin",
        "peer",
        "pieces",
        "status",
        "transport",
        "unanswered",
    )

    transport: asyncio.Transport

    def __init__(
        self,
        origin: Origin,
        *,
        max_header_bytes: int,
        on_lost: Callable[[UpstreamConnection], None],
        outbox: WriteBatcher,
    ) -> None:
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        self.peer = f"{host}:{origin.port}"
        self.origin = origin
        self.idle_since = 0.0
        self.closed = False
        self.error: GatewayError | None = None
        self.unanswered = False
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.on_chunk_header: Callable[[], None] | None = self._chunk_begins if _BYPASSES else None
        self.on_chunk_complete: Callable[[], None] | None = self._chunk_ends if _BYPASSES else None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_done = False
        self.complete = True
        self.keep_alive = False
        self._head_only = False
        self._until_close = False
        self._between = self._ahead = False
        self._missing = 0
        self._max_header_bytes = max_header_bytes
        self._limit = max_header_bytes
        self._unread = 0
        self._read_paused = False
        self._write_paused = False
        self._on_lost = on_lost
        self._outbox = outbox
        self._request = b""
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._deadline = math.inf
        self._patience = math.inf
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    async def exchange(
        self, request: Sequence[bytes], *, size: int, head_only: bool, timeouts: Timeouts
    ) -> None:
        """Send a request, return when the head of its answer is here; an error leaves it to be dropped."""
        self._begin(head_only)
        self.expect_within(timeouts.first_byte)
        self._check()
        if size > _ONE_WRITE_LIMIT:
            await self._write_in_slices(request)
        elif len(request) == 1:
            self._request = request[0]
            self._outbox.add(self._send, self.loop)
        else:
            self.transport.writelines(request)
        while not self.head_done:
            self._check()
            await self.wait()

    def _send(self) -> None:
        request, self._request = self._request, b""
        if not self.transport.is_closing():
            self.transport.write(request)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def take(self) -> bytes:
        """The body bytes that have come and were not taken yet."""
        pieces = self.pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._unread = 0
        if self._read_paused:
            self._read_paused = False
            if not self.closed:
                self.transport.resume_reading()
        return data

    def expect_within(self, seconds: float) -> None:
        """Move the deadline that a waiting reader is held to."""
        self._patience = seconds
        self._deadline = self.loop.time() + seconds

    def wait(self, sink: Callable[[bytes], bool] | None = None) -> asyncio.Future[bool]:
        """A future that is done once something has happened; what it was is for the caller to see.

        A `sink` is given the pieces of a body as they come, without an end to the waiting, as long as it says
        that it wants more. It has had enough if the result is true; what it raises, the future tells.
        """
        if self._deadline < self._timer_at:
            self._set_timer()
        self._sink = sink
        waiter = self._waiter = self.loop.create_future()
        return waiter

    def reusable(self) -> bool:
        """Whether another request may follow on this connection."""
        return (
            self.keep_alive
            and self.complete
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def fail(self, error: GatewayError) -> None:
        """Give up on the connection; the reader gets this error after the bytes that came before it."""
        if self.error is None:
            self.error = error
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.keep_alive = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream always has a full transport

    def data_received(self, data: bytes) -> None:
        if self.complete or self._parser is None:
            self.abort()
            return
        self._unread += len(data)
        try:
            if _BYPASSES:
                self._feed(self._parser, data)
            else:
                self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._parser_gave_up(exc)
        if self._unread > self._limit:
            self._past_limit()
        sink, waiter = self._sink, self._waiter
        if sink is None or waiter is None or self.complete or self.error is not None or not self.pieces:
            self._wake()
        elif not waiter.done():
            self._pour(sink, waiter)

    def _pour(self, sink: Callable[[bytes], bool], waiter: asyncio.Future[bool]) -> None:
        """Hands on what has come, to whoever waits for it."""
        self._deadline = self.loop.time() + self._patience
        try:
            if not sink(self.take()):
                self._wake(enough=True)
        except Exception as exc:
            self._waiter = self._sink = None
            if not waiter.done():
                waiter.set_exception(exc)

    def _feed(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Reads what is plain; the parser gets all from the first other byte on."""
        start = 0
        if not self.head_done:
            start = self._read_plain_head(data) or self._read_head(parser, data)
        if self._missing:
            self._collect(data, start)
            return
        if self._between and not self.complete:
            body, start = scan.unchunk(data, start)
            if body:
                self.pieces.append(body)
        if start < len(data):
            self._read_on(parser, data[start:] if start else data)

    def _read_plain_head(self, data: bytes) -> int:
        """Takes the head of an answer that begins here and is plain; where it ends, or 0 if there is none."""
        plain = None if self._head_only or self._unread > len(data) else plain_heads.parse_response(data)
        if plain is None or plain[2] > self._max_header_bytes:
            return 0
        self.status, self.headers, start, length = plain
        self.head_done = self.keep_alive = self._ahead = True
        self._limit = _UNREAD_LIMIT
        self._between = length < 0
        self._missing = max(length, 0)
        self.complete = not length
        return start

    def _read_head(self, parser: httptools.HttpResponseParser, data: bytes) -> int:
        """Lets the parser read a head that many bytes follow, or everything; up to where it did."""
        end = data.find(_HEAD_END) + len(_HEAD_END) if len(data) >= _MANY else len(data)
        if end < len(_HEAD_END):
            end = len(data)
        self._parse(parser, data if end == len(data) else data[:end])
        return end

    def _collect(self, data: bytes, start: int) -> None:
        """Takes what a body of known length goes on with; anything behind it spoils the connection."""
        end = start + self._missing
        if start < len(data):
            self.pieces.append(data[start:end] if start or end < len(data) else data)
        self._missing = max(end - len(data), 0)
        self.complete = not self._missing
        if end < len(data):
            self.keep_alive = False

    def _read_on(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Takes the last chunk if that is all there is; the parser gets anything else."""
        if self._ahead and self.complete:
            self.keep_alive = False
        elif self._ahead and data == _LAST_CHUNK:
            self.complete = True
        else:
            if self._ahead:
                self._ahead = False
                parser.feed_data(_CHUNKS_FOLLOW)
            self._parse(parser, data)

    def _parse(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        parser.feed_data(data)
        # It may also have the beginning of the line before a chunk, which does not end like this.
        self._between = self._between and data[-1] == _LINE_END

    def eof_received(self) -> None:
        # A plain close would first flush what we still write, to a peer that may never read it.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.keep_alive = False
        if not self.complete and self.error is None:
            self._ended_by_peer(exc)
        # These hold bound methods of this object: break the cycle.
        self._parser = self.on_chunk_header = self.on_chunk_complete = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if not self.head_done:
            self.expect_within(self._patience)
        self._wake()

    def on_message_begin(self) -> None:
        if self.complete:
            raise _ParserStopped

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.head_done:
            return  # it was told of chunks, behind a head that went past it
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if self._unread > self._max_header_bytes:
            self._check_head_size()
        if status == 101:
            self.fail(UpstreamFailed(f"{self.peer} switched protocols without being asked"))
            raise _ParserStopped
        if status < 200:
            self.headers = []
            return
        self.status = status
        self.head_done = True
        self._limit = _UNREAD_LIMIT
        self.keep_alive = parser.should_keep_alive()
        if self._head_only:
            # llhttp cannot be told that no body follows a HEAD, so it must not read on.
            self.complete = True
            raise _ParserStopped
        self._between = _is_chunked(self.headers)
        if not self.keep_alive:
            self._until_close = not self._between and not _has_length(self.headers)

    def _chunk_begins(self) -> None:
        self._between = False

    def _chunk_ends(self) -> None:
        self._between = True

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True

    def _begin(self, head_only: bool) -> None:
        self.headers = []
        self.head_done = False
        self.complete = False
        self.keep_alive = False
        self._head_only = head_only
        self._until_close = False
        self._between = self._ahead = False
        self._missing = 0
        self._unread = 0
        self._limit = self._max_header_bytes
        if self.closed:
            self._ended_by_peer(None)

    async def _write_in_slices(self, request: Sequence[bytes]) -> None:
        for part in request:
            view = memoryview(part)
            for start in range(0, len(view), _WRITE_SLICE):
                while self._write_paused and not self.head_done and self.error is None:
                    await self.wait()
                if self.error is not None:
                    return
                if self.head_done:
                    self.keep_alive = False  # answered early: the rest of the body is never sent
                    return
                self.transport.write(view[start : start + _WRITE_SLICE])

    def _parser_gave_up(self, exc: httptools.HttpParserError) -> None:
        if self.complete:
            self.keep_alive = False
            return
        self.fail(UpstreamFailed(f"{self.peer} sent an answer that is not proper HTTP/1.1: {exc}"))

    def _check_head_size(self) -> None:
        if sum(len(name) + len(value) + 4 for name, value in self.headers) > self._max_header_bytes:
            self._head_too_large()
            raise _ParserStopped

    def _head_too_large(self) -> None:
        self.fail(
            UpstreamFailed(f"{self.peer} sent a head or framing of more than {self._max_header_bytes} bytes")
        )

    def _past_limit(self) -> None:
        if self.complete or self._read_paused or self.error is not None:
            return
        if self.pieces:
            self._read_paused = True
            self.transport.pause_reading()
        else:
            self._head_too_large()

    def _ended_by_peer(self, exc: Exception | None) -> None:
        if self.head_done and self._until_close and exc is None:
            self.complete = True
            return
        self.unanswered = not self._unread and not self.head_done
        when = "in the middle of its answer" if self.head_done else "before it answered"
        self.error = UpstreamFailed(f"{self.peer} closed the connection {when}{_reason(exc)}")

    def _wake(self, *, enough: bool = False) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = self._sink = None
            if not waiter.done():
                waiter.set_result(enough)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        if self._waiter is None or self._waiter.done():
            return
        if self.loop.time() < self._deadline:
            self._set_timer()
            return
        doing = "fell silent in its answer" if self.head_done else "did not answer"
        self.fail(UpstreamTimeout(f"{self.peer} {doing} for {self._patience:g} s"))


def _has_length(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-length" for name, _ in headers)


def _is_chunked(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding" and value.lower().rstrip().endswith(b"chunked"):
            return True
    return False


def _reason(exc: Exception | None) -> str:
    if exc is None:
        return ""
    return f" ({getattr(exc, 'strerror', None) or type(exc).__name__})"
