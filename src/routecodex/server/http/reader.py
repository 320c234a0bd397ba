"""Parses HTTP/1.1 requests without IO: bytes in, requests out.

llhttp (through httptools) parses, without any of its lenient flags, so bare LF, folded headers, NUL, spaces
before the colon, bad chunk sizes and ambiguous lengths end in a `Fault`. This module adds the checks llhttp
leaves to its host: size limits, Host, versions, transfer codings, targets that do not decode.

A plain request that `wire/plain_heads.py` parses bypasses llhttp, which stays between two requests. Without
the compiled module nothing bypasses it. Every request that must be rejected is left to llhttp.

A `Fault` is always the last item of a reader, and so is a request after which the connection closes: bytes
behind either are never parsed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Final

import httptools

from routecodex.server.http.reply import WholeReply
from routecodex.server.http.request import HttpRequest
from routecodex.wire import plain_heads
from routecodex.wire.buffers import BodyBuffer


@dataclass(frozen=True)
class HttpLimits:
    """Bounds for clients: sizes, times, connections; times are checked by a coarse sweep, never early."""

    body_bytes: int = 32 * 1024 * 1024
    header_bytes: int = 65536
    header_seconds: float = 15.0
    """Time for a request head from its first byte, and for the first byte of a new connection."""
    body_seconds: float = 60.0
    """A body without progress for this long gets HTTP 408."""
    body_total_seconds: float = 120.0
    """Time for a whole body, beside that for its size; a slower one gets HTTP 408."""
    body_bytes_per_second: int = 32 * 1024
    """Bytes of a body that give it one more second."""
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 60.0
    """A client that reads nothing for this long is disconnected."""
    connections: int = 10_000
    """Further connections get HTTP 503 and are closed."""
    open_at_once: int = 2**31 - 1
    """Connections at which accepting pauses, because providers need descriptors too."""
    descriptors: int = 2**31 - 1
    """Descriptor of a new connection at which accepting pauses; the kernel assigns the lowest one."""
    linger_seconds: float = 2.0
    """After a rejected request the client's remaining bytes are read and discarded for this long."""
    linger_bytes: int = 64 * 1024 * 1024

    def sweep_seconds(self) -> float:
        """Return the interval of the sweep: a quarter of the shortest time, at most a second."""
        shortest = min(
            self.header_seconds,
            self.body_seconds,
            self.body_total_seconds,
            self.keep_alive_seconds,
            self.write_stall_seconds,
            self.linger_seconds,
        )
        return min(1.0, max(0.005, shortest / 4))


_NAMES: Final = {
    spelling: name
    for name in (
        "accept", "accept-encoding", "accept-language", "anthropic-beta", "anthropic-version",
        "authorization", "connection", "content-length", "content-type", "cookie", "expect", "host",
        "openai-beta", "origin",
        "originator", "referer", "session_id", "transfer-encoding", "user-agent", "x-api-key", "x-app",
        "x-forwarded-for", "x-goog-api-client", "x-goog-api-key", "x-request-id", "x-stainless-arch",
        "x-stainless-async", "x-stainless-helper-method", "x-stainless-lang", "x-stainless-os",
        "x-stainless-package-version", "x-stainless-read-timeout", "x-stainless-retry-count",
        "x-stainless-runtime", "x-stainless-runtime-version", "x-stainless-timeout",
    )
    for spelling in (name.encode(), name.title().encode())
}  # fmt: skip

_LAST_BLANK: Final = 32
"""The space character: a header value that ends with a byte up to this may end with blanks to strip."""
_METHODS: Final = {m.encode(): m for m in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")}
_VERSION_FAULTS = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})
_MAX_REPEATED_HEADERS: Final = 100
_JOIN_PARTS_AT: Final = 4096
_FRAMING_PER_BODY_BYTE: Final = 16

_BODILESS_METHODS: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "CONNECT", "TRACE"})
"""Methods that give a body no meaning (RFC 9110, 9.3); nothing reads it."""
_BODILESS_BYTES: Final = 65536

_BYPASS_FROM: Final = 65536
"""Missing bytes of a body of known length from which on it bypasses the parser."""


_MISSING_PER_RECEIVED: Final = 32
"""Missing bytes per received byte up to which a buffer is allocated for the whole body."""


class Phase(Enum):
    """Position in a request of the bytes read so far."""

    IDLE = "between requests"
    HEAD = "in the head"
    BODY = "in the body"


_IDLE: Final = Phase.IDLE
_HEAD: Final = Phase.HEAD
_BODY: Final = Phase.BODY


class Fault:
    """The error that ends reading from a connection, with the status for its client.

    `request` is the rejected request, as far as it was read; `reply` is the response, if it is made already.
    """

    __slots__ = ("message", "reply", "request", "status")

    def __init__(
        self,
        status: int,
        message: str,
        request: HttpRequest | None = None,
        reply: WholeReply | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.request = request
        self.reply = reply


class _Rejected(Exception):
    """Raised in a parser callback to stop llhttp."""


class RequestReader:
    """Parses a connection's bytes into requests, in `ready`, up to a fault or the last request."""

    __slots__ = (
        "_blocks",
        "_body_limit",
        "_client",
        "_completed",
        "_content_length",
        "_fault",
        "_fed_size",
        "_framing",
        "_head_size",
        "_headers",
        "_limits",
        "_parser",
        "_parts",
        "_repeats",
        "_request",
        "_target",
        "_upgrade",
        "body_buffer",
        "body_left",
        "body_size",
        "excess",
        "expects_continue",
        "finished",
        "head_checked",
        "phase",
        "ready",
    )

    def __init__(self, limits: HttpLimits, client: tuple[str, int] | None) -> None:
        self._limits = limits
        self._client = client
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.ready: deque[HttpRequest | Fault] = deque()
        self.phase = _IDLE
        self.finished = False
        self.excess = False
        """Whether bytes arrived after the last request."""
        self.expects_continue = False
        """Whether the client waits for 100 Continue before it sends the body."""
        self.head_checked = False
        """Whether the owner has checked the head of the request whose body is being read."""
        self.body_size = 0
        """Bytes read of the current body."""
        self.body_left = 0
        """Bytes missing of a body that bypasses the parser."""
        self.body_buffer: BodyBuffer | None = None
        """The buffer for these bytes, once allocated."""
        self._completed = 0
        self._fault: Fault | None = None
        self._request: HttpRequest | None = None
        self._upgrade = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._parts: list[bytes | memoryview] = []
        self._blocks: list[bytes] = []
        self._body_limit = limits.body_bytes
        self._content_length = self._fed_size = self._head_size = self._framing = self._repeats = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Parse more bytes; complete requests are appended to `ready`."""
        parser = self._parser
        if self.finished or parser is None:
            self.excess = True
            return
        if self.body_left:
            self._read_body(data)
            return
        if self.phase is _IDLE and self._read_plain(data):
            return
        size = self._fed_size = len(data)
        completed = self._completed
        self._framing += size
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._read_past_upgrade(data, exc.args[0])
        except httptools.HttpParserError as exc:
            self._on_parser_error(exc)
        if self.phase is not _IDLE and completed == self._completed and not self.finished:
            self._check_sizes(size)
            if (
                self.phase is _BODY
                and self._content_length - self.body_size > _BYPASS_FROM
                and not self._upgrade
            ):
                self._bypass_parser()

    def _read_plain(self, data: bytes | memoryview) -> bool:
        """Read a request with a plain head, its body as far as it arrived; False without a plain head."""
        start_of_data = data if isinstance(data, bytes) else bytes(data[: plain_heads.MAX_BYTES])
        plain = plain_heads.parse_request(start_of_data, _NAMES)
        if plain is None:
            return False
        target, headers, start, length = plain
        body_left = start + length - len(data)
        if body_left < 0 or start > self._limits.header_bytes or length > self._limits.body_bytes:
            return False
        try:
            self._request = HttpRequest("POST", target, headers=headers, client=self._client)
        except ValueError:
            return False
        self.phase = _BODY
        self.body_left = body_left
        self.body_size = length - body_left
        if body_left < length:
            self._append_part(data[start:])
        if not body_left:
            self.on_message_complete()
            return True
        self.head_checked = False
        if body_left > _BYPASS_FROM:
            self._allocate_body()
        return True

    def _bypass_parser(self) -> None:
        self.body_left = self._content_length - self.body_size
        # The old parser still expects the body.
        self._parser = httptools.HttpRequestParser(self)
        self._allocate_body()

    def _read_body(self, data: bytes | memoryview) -> None:
        """Read more of a body that bypasses the parser; bytes behind it are the next request."""
        size = min(len(data), self.body_left)
        self.body_left -= size
        self.body_size += size
        self.expects_continue = False
        piece = data if size == len(data) else data[:size]
        if self.body_buffer is not None:
            self.body_buffer.put(piece)
        else:
            self._append_part(piece)
            if self.body_left > _BYPASS_FROM:
                self._allocate_body()
        if not self.body_left:
            self.on_message_complete()
            if size < len(data):
                self.feed(data[size:])

    def _allocate_body(self) -> None:
        """Allocate the buffer of a large body once a byte has arrived for every 32 that are missing.

        A content-length alone costs no memory.
        """
        if self.body_size * _MISSING_PER_RECEIVED < self.body_left:
            return
        self.body_buffer = BodyBuffer(self.body_size + self.body_left)
        for part in (*self._blocks, *self._parts):
            self.body_buffer.put(part)
        self._parts, self._blocks = [], []

    def advance(self, size: int) -> None:
        """Continue after `size` bytes were read into the body buffer."""
        assert self.body_buffer is not None
        self.body_buffer.filled += size
        self.body_left -= size
        self.body_size += size
        self.expects_continue = False
        if not self.body_left:
            self.on_message_complete()

    def close(self) -> None:
        """Release the parser, which refers back to this reader."""
        self.finished = True
        self._parser = self.body_buffer = None
        self.ready.clear()

    @property
    def head(self) -> HttpRequest | None:
        """The request whose body is being read."""
        return self._request

    def fail(self, status: int, message: str, reply: WholeReply | None = None) -> None:
        """End reading with a fault about the current request, and release what was read of its body."""
        request = self._request if self._request is not None else self._partial_request()
        self.finished = True
        self.phase = _IDLE
        self.expects_continue = False
        self.body_buffer = None
        self._parts, self._blocks = [], []
        self.ready.append(Fault(status, message, request, reply))

    def _partial_request(self) -> HttpRequest | None:
        """Return the request with the headers read so far; None before a path that decodes."""
        parser = self._parser
        if self.phase is not _HEAD or not self._target or parser is None:
            return None
        method = parser.get_method().decode("ascii")
        try:
            return HttpRequest(method, self._target, headers={**self._headers}, client=self._client)
        except ValueError:
            return None

    def _on_parser_error(self, exc: httptools.HttpParserError) -> None:
        if self.finished:
            self.excess = True
            return
        fault, reason = self._fault, str(exc)
        if fault is not None:
            self.fail(fault.status, fault.message)
        elif reason in _VERSION_FAULTS:
            self.fail(505, "only HTTP/1.1 and HTTP/1.0 are supported")
        else:
            self.fail(400, f"not a valid HTTP request: {reason}")

    def _check_sizes(self, size: int) -> None:
        """Limit bytes that the parser consumes without a callback: head, chunk extensions, trailers."""
        if self.phase is _HEAD:
            self._head_size += size
            if self._head_size > self._limits.header_bytes:
                self.fail(431, self._head_too_large())
        elif self._framing > self._limits.header_bytes + _FRAMING_PER_BODY_BYTE * self.body_size:
            self.fail(413, "the chunked body has too many bytes of framing; send larger chunks")

    def _head_too_large(self) -> str:
        return f"the request head is larger than {self._limits.header_bytes} bytes"

    def _reject(self, status: int, message: str) -> _Rejected:
        self._fault = Fault(status, message)
        return _Rejected()

    def _read_past_upgrade(self, data: bytes | memoryview, offset: int) -> None:
        """Read the body of an Upgrade request, which llhttp treats as bytes of another protocol.

        The request's framing header is fed to a second parser, so that the same rules apply to the body.
        """
        rest = data[offset:]
        if self.finished or self._request is None:
            self.excess = self.excess or len(rest) > 0
            return
        self._upgrade = False
        headers = self._request.headers
        name = "content-length" if "content-length" in headers else "transfer-encoding"
        callbacks = SimpleNamespace(on_body=self.on_body, on_message_complete=self.on_message_complete)
        self._parser = httptools.HttpRequestParser(callbacks)
        try:
            self._parser.feed_data(f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1"))
        except httptools.HttpParserError as exc:
            self._on_parser_error(exc)
        if len(rest):
            self.feed(rest)

    def on_message_begin(self) -> None:
        self.phase = _HEAD
        self._target = b""
        self._headers = {}
        self._head_size = self._repeats = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        text = value.decode("latin-1")
        if value and value[-1] <= _LAST_BLANK:
            text = text.rstrip(" \t")
        headers = self._headers
        if key in headers:
            text = self._merge_repeated(key, text)
        headers[key] = text

    def _merge_repeated(self, key: str, text: str) -> str:
        if key == "user-agent":
            return text
        self._repeats += 1
        if key == "host":
            raise self._reject(400, "more than one Host header")
        if self._repeats > _MAX_REPEATED_HEADERS:
            raise self._reject(431, "too many repeated headers")
        return f"{self._headers[key]}, {text}"

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        parser = self._parser
        assert parser is not None
        self._request = None
        self._content_length = self.body_size = self._framing = 0
        if self._head_size + self._fed_size > self._limits.header_bytes:
            self._check_head(headers)
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._reject(505, "only HTTP/1.1 and HTTP/1.0 are supported")
        upgrade = parser.should_upgrade()
        keep_alive = parser.should_keep_alive() and not upgrade
        method = parser.get_method()
        self._request = self._build(
            _METHODS.get(method) or method.decode("ascii"), headers, keep_alive, version == "1.0"
        )
        self.head_checked = False
        self._check_framing(self._request)
        self._upgrade = upgrade and method != b"CONNECT" and _has_body(headers)
        self.phase = _BODY

    def _check_head(self, headers: dict[str, str]) -> None:
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self._limits.header_bytes:
            raise self._reject(431, self._head_too_large())

    def _build(self, method: str, headers: dict[str, str], keep_alive: bool, http_1_0: bool) -> HttpRequest:
        if "host" not in headers and not http_1_0:
            raise self._reject(400, "the Host header is missing")
        try:
            return HttpRequest(
                method,
                self._target,
                headers=headers,
                client=self._client,
                keep_alive=keep_alive,
                http_1_0=http_1_0,
            )
        except ValueError as exc:
            raise self._reject(400, str(exc)) from exc

    def _check_framing(self, request: HttpRequest) -> None:
        headers = request.headers
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        self._body_limit = self._limits.body_bytes
        if request.method in _BODILESS_METHODS:
            self._body_limit = min(self._body_limit, _BODILESS_BYTES)
        if coding is not None:
            self._check_coding(coding.lower(), request.http_1_0, length is not None)
        elif length is not None:
            self._content_length = int(length)
            if self._content_length > self._body_limit:
                raise self._reject(413, self._body_too_large())
        if "expect" in headers:
            self.expects_continue = not request.http_1_0 and headers["expect"].lower() == "100-continue"

    def _check_coding(self, coding: str, http_1_0: bool, has_length: bool) -> None:
        if http_1_0 or has_length:
            raise self._reject(
                400, "Transfer-Encoding is not allowed in HTTP/1.0 or together with Content-Length"
            )
        if coding == "chunked":
            return
        # llhttp checks this too, but not in an Upgrade request.
        if coding.rpartition(",")[2].strip() != "chunked":
            raise self._reject(400, f"transfer coding {coding[:80]!r} leaves the end of the body unknown")
        raise self._reject(501, f"transfer coding {coding[:80]!r} is not supported; send it chunked only")

    def _body_too_large(self) -> str:
        return f"the request body is larger than {self._body_limit} bytes"

    def on_body(self, data: bytes) -> None:
        size = len(data)
        self.body_size += size
        self._framing -= size
        self.expects_continue = False
        if self.body_size > self._body_limit:
            raise self._reject(413, self._body_too_large())
        self._append_part(data)

    def _append_part(self, data: bytes | memoryview) -> None:
        parts = self._parts
        parts.append(data)
        if len(parts) >= _JOIN_PARTS_AT:
            self._blocks.append(b"".join(parts))
            parts.clear()

    def on_message_complete(self) -> None:
        request = self._request
        if self._upgrade or request is None:
            return
        self._request = None
        self._completed += 1
        self.phase = _IDLE
        self.expects_continue = False
        if self.body_buffer is not None:
            request.body, self.body_buffer = self.body_buffer.whole(), None
        elif self._parts or self._blocks:
            request.body = self._take_body()
        if not request.keep_alive:
            self.finished = True
        self.ready.append(request)

    def _take_body(self) -> bytes:
        parts, blocks = self._parts, self._blocks
        self._parts, self._blocks = [], []
        if len(parts) == 1 and not blocks and isinstance(parts[0], bytes):
            return parts[0]
        return b"".join([*blocks, *parts])


def _has_body(headers: dict[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
