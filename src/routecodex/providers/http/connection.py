"""One connection to an upstream: an asyncio protocol around llhttp, one request at a time.

There is no task, queue or timer per piece. The parser appends body bytes to a list (`pieces`). A reader takes
the content of the list and waits on a single future when it is empty, or passes a `_sink` that receives each
piece without waking a task. One timer per connection compares the current deadline when it fires and sets
itself again, so moving a deadline is an assignment.

Where the hot path is compiled, plain heads (`wire/plain_heads.py`), bodies of known length after them and
chunks that arrive whole bypass the parser, with the same result. The parser gets everything else.
`_at_chunk_start` means that a chunk comes next, `_body_left` counts the missing bytes of a body, and
`_parser_skipped` means that the parser has read nothing of this response: before its first chunk it is fed a
head that announces chunks.

`complete` is true while no bytes are expected: between requests and after a whole response. Bytes that arrive
then make the connection unusable.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httptools

from routecodex.canon.errors import GatewayError, UpstreamFailed, UpstreamTimeout
from routecodex.providers.http.local_faults import local_fault
from routecodex.providers.http.origin import Origin
from routecodex.wire import plain_heads, scan
from routecodex.wire.buffers import WriteBatcher


@dataclass(frozen=True)
class Timeouts:
    """Seconds to wait for a connection, from the request to the response head, and between pieces."""

    connect: float = 5.0
    first_byte: float = 120.0
    idle: float = 120.0


_UNREAD_LIMIT: Final = 256 * 1024
_ONE_WRITE_LIMIT: Final = 4 * 1024 * 1024
_WRITE_SLICE = 1024 * 1024

_BYPASSES: Final = scan.IN_C
"""Whether plain heads and chunks bypass the parser, which is faster only in C; the result is the same."""

_SPLIT_HEAD_FROM: Final = 2048
"""Bytes from which it pays to give the parser the head alone and read the chunks behind it without it."""
_HEAD_END: Final = b"\r\n\r\n"
_LF: Final = 0x0A
_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNKS_FOLLOW: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class _ParserStopped(Exception):
    """Raised in a parser callback to stop llhttp."""


class UpstreamConnection(asyncio.Protocol):
    """A connection that sends one request after the other; `HttpResponse` reads the responses."""

    __slots__ = (
        "_at_chunk_start",
        "_batcher",
        "_body_left",
        "_deadline",
        "_head_only",
        "_limit",
        "_max_header_bytes",
        "_on_lost",
        "_parser",
        "_parser_skipped",
        "_read_paused",
        "_request",
        "_sink",
        "_timeout",
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
        batcher: WriteBatcher,
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
        self.on_chunk_header: Callable[[], None] | None = self._on_chunk_header if _BYPASSES else None
        self.on_chunk_complete: Callable[[], None] | None = self._on_chunk_complete if _BYPASSES else None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_done = False
        self.complete = True
        self.keep_alive = False
        self._head_only = False
        self._until_close = False
        self._at_chunk_start = self._parser_skipped = False
        self._body_left = 0
        self._max_header_bytes = max_header_bytes
        self._limit = max_header_bytes
        self._unread = 0
        self._read_paused = False
        self._write_paused = False
        self._on_lost = on_lost
        self._batcher = batcher
        self._request = b""
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[bool] | None = None
        self._sink: Callable[[bytes], bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._deadline = math.inf
        self._timeout = math.inf
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    async def exchange(
        self, request: Sequence[bytes], *, size: int, head_only: bool, timeouts: Timeouts
    ) -> None:
        """Send a request and return once the response head has arrived; after an error, abort."""
        self.start_request(head_only)
        self.expect_within(timeouts.first_byte)
        self._raise_error()
        if size > _ONE_WRITE_LIMIT:
            await self._write_in_slices(request)
        elif len(request) == 1:
            self._request = request[0]
            self._batcher.add(self._write_request, self.loop)
        else:
            self.transport.writelines(request)
        while not self.head_done:
            self._raise_error()
            await self.wait()

    def start_request(self, head_only: bool) -> None:
        """Reset the state of the last response; `exchange` does this first."""
        self.headers = []
        self.head_done = False
        self.complete = False
        self.keep_alive = False
        self._head_only = head_only
        self._until_close = False
        self._at_chunk_start = self._parser_skipped = False
        self._body_left = 0
        self._unread = 0
        self._limit = self._max_header_bytes
        if self.closed:
            self._on_peer_close(None)

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

    def _write_request(self) -> None:
        request, self._request = self._request, b""
        if not self.transport.is_closing():
            self.transport.write(request)

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def take(self) -> bytes:
        """Take the body bytes received since the last call."""
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
        """Move the deadline for the next bytes; it applies while a reader waits."""
        self._timeout = seconds
        self._deadline = self.loop.time() + seconds

    def wait(self, sink: Callable[[bytes], bool] | None = None) -> asyncio.Future[bool]:
        """Return a future that completes at the next event: bytes, end, error, or room to write.

        A `sink` receives the pieces of the body, without completing the future, as long as it returns true.
        When it returns false the future's result is true; an exception of the sink is set on the future.
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
            self._on_parser_error(exc)
        if self._unread > self._limit:
            self._on_unread_limit()
        sink, waiter = self._sink, self._waiter
        if sink is None or waiter is None or self.complete or self.error is not None or not self.pieces:
            self._wake()
        elif not waiter.done():
            self._feed_sink(sink, waiter)

    def _feed_sink(self, sink: Callable[[bytes], bool], waiter: asyncio.Future[bool]) -> None:
        """Give the received bytes to the sink of the waiting reader."""
        self._deadline = self.loop.time() + self._timeout
        try:
            if not sink(self.take()):
                self._wake(satisfied=True)
        except Exception as exc:
            self._waiter = self._sink = None
            if not waiter.done():
                waiter.set_exception(exc)

    def _feed(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Read plain heads and chunks; the parser gets all bytes from the first exception on."""
        start = 0
        if not self.head_done:
            start = self._read_plain_head(data) or self._read_head(parser, data)
        if self._body_left:
            self._read_sized_body(data, start)
            return
        if self._at_chunk_start and not self.complete:
            body, start = scan.unchunk(data, start)
            if body:
                self.pieces.append(body)
        if start < len(data):
            self._read_rest(parser, data[start:] if start else data)

    def _read_plain_head(self, data: bytes) -> int:
        """Read a plain response head at the start of the data; return its end, or 0 without one."""
        plain = None if self._head_only or self._unread > len(data) else plain_heads.parse_response(data)
        if plain is None or plain[2] > self._max_header_bytes:
            return 0
        self.status, self.headers, start, length = plain
        self.head_done = self.keep_alive = self._parser_skipped = True
        self._limit = _UNREAD_LIMIT
        self._at_chunk_start = length < 0
        self._body_left = max(length, 0)
        self.complete = not length
        return start

    def _read_head(self, parser: httptools.HttpResponseParser, data: bytes) -> int:
        """Let the parser read the head alone if many bytes follow it, else all; return the end of that."""
        end = data.find(_HEAD_END) + len(_HEAD_END) if len(data) >= _SPLIT_HEAD_FROM else len(data)
        if end < len(_HEAD_END):
            end = len(data)
        self._parse(parser, data if end == len(data) else data[:end])
        return end

    def _read_sized_body(self, data: bytes, start: int) -> None:
        """Read more of a body of known length; bytes after it make the connection unusable."""
        end = start + self._body_left
        if start < len(data):
            self.pieces.append(data[start:end] if start or end < len(data) else data)
        self._body_left = max(end - len(data), 0)
        self.complete = not self._body_left
        if end < len(data):
            self.keep_alive = False

    def _read_rest(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        """Read the last chunk if the data is only that; the parser gets anything else."""
        if self._parser_skipped and self.complete:
            self.keep_alive = False
        elif self._parser_skipped and data == _LAST_CHUNK:
            self.complete = True
        else:
            if self._parser_skipped:
                self._parser_skipped = False
                parser.feed_data(_CHUNKS_FOLLOW)
            self._parse(parser, data)

    def _parse(self, parser: httptools.HttpResponseParser, data: bytes) -> None:
        parser.feed_data(data)
        # Data that ends in half a chunk-size line does not end with LF: the parser must read the rest of it.
        self._at_chunk_start = self._at_chunk_start and data[-1] == _LF

    def eof_received(self) -> None:
        # A plain close would first flush pending writes, to a peer that may never read them.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.keep_alive = False
        if not self.complete and self.error is None:
            self._on_peer_close(exc)
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
            self.expect_within(self._timeout)
        self._wake()

    def on_message_begin(self) -> None:
        if self.complete:
            raise _ParserStopped

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_done:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.head_done:
            return  # the head of _CHUNKS_FOLLOW
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if self._unread > self._max_header_bytes:
            self._check_head_size()
        if status == 101:
            self.fail(UpstreamFailed(f"{self.peer} switched protocols, which was not requested"))
            raise _ParserStopped
        if status < 200:
            self.headers = []
            return
        self.status = status
        self.head_done = True
        self._limit = _UNREAD_LIMIT
        self.keep_alive = parser.should_keep_alive()
        if self._head_only:
            # httptools has no way to tell llhttp that a response to HEAD has no body.
            self.complete = True
            raise _ParserStopped
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if len(codings) > 1:
            # RFC 9112, section 6.3: several lines are one list, but not every parser joins them.
            message = f"{self.peer} sent several Transfer-Encoding headers: where its body ends is ambiguous"
            self.fail(UpstreamFailed(message, setting="base_url"))
            raise _ParserStopped
        self._at_chunk_start = bool(codings) and _ends_in_chunked(codings[0])
        if not self.keep_alive:
            self._until_close = not self._at_chunk_start and not _has_content_length(self.headers)

    def _on_chunk_header(self) -> None:
        self._at_chunk_start = False

    def _on_chunk_complete(self) -> None:
        self._at_chunk_start = True

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True

    def _on_parser_error(self, exc: httptools.HttpParserError) -> None:
        if self.complete:
            self.keep_alive = False
            return
        message = f"{self.peer} sent a response that is not valid HTTP/1.1: {exc}"
        self.fail(UpstreamFailed(message, setting="base_url"))

    def _check_head_size(self) -> None:
        if sum(len(name) + len(value) + 4 for name, value in self.headers) > self._max_header_bytes:
            self._head_too_large()
            raise _ParserStopped

    def _head_too_large(self) -> None:
        self.fail(
            UpstreamFailed(f"{self.peer} sent a head or framing of more than {self._max_header_bytes} bytes")
        )

    def _on_unread_limit(self) -> None:
        if self.complete or self._read_paused or self.error is not None:
            return
        if self.pieces:
            self._read_paused = True
            self.transport.pause_reading()
        else:
            self._head_too_large()

    def _on_peer_close(self, exc: Exception | None) -> None:
        if self.head_done and self._until_close and exc is None:
            self.complete = True
            return
        self.unanswered = not self._unread and not self.head_done
        when = "in the middle of its answer" if self.head_done else "before it answered"
        message = f"{self.peer} closed the connection {when}{_reason(exc)}"
        setting = None if self.head_done else "base_url"
        fault = local_fault(exc, f"the connection to {self.peer} broke {when}")
        self.error = fault or UpstreamFailed(message, setting=setting)

    def _wake(self, *, satisfied: bool = False) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = self._sink = None
            if not waiter.done():
                waiter.set_result(satisfied)

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
        setting = "timeout.idle_ms" if self.head_done else "timeout.first_byte_ms"
        self.fail(UpstreamTimeout(f"{self.peer} {doing} for {self._timeout:g} s", setting=setting))


def _has_content_length(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-length" for name, _ in headers)


def _ends_in_chunked(codings: bytes) -> bool:
    return codings.rpartition(b",")[2].strip(b" \t").lower() == b"chunked"


def _reason(exc: Exception | None) -> str:
    if exc is None:
        return ""
    return f" ({getattr(exc, 'strerror', None) or type(exc).__name__})"
