"""Bytes in, requests out: the request side of HTTP/1.1 without IO.

llhttp (through httptools) does the parsing and is never told to be lenient, so bare LF, folded headers, NUL,
spaces before the colon, bad chunk sizes and ambiguous lengths end in a `Fault`. This module adds what llhttp
leaves to its host: size limits, Host, versions, transfer codings, targets that do not decode.

A plain request that `wire/plain_heads.py` parses bypasses llhttp, which stays between two requests. From the
sources that module parses nothing. Every request that has to be refused is left to llhttp.

A `Fault` is always the last thing a reader yields, and so is a request after which the connection closes:
bytes behind either are never parsed, whatever they look like.

What a client may cost: sizes, times and the number of connections.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Final

import httptools

from routecodex.server.http.request import HttpRequest
from routecodex.wire import plain_heads
from routecodex.wire.buffers import BodyBuffer


@dataclass(frozen=True)
class HttpLimits:
    """The bounds an HTTP server holds its clients to; times are checked by a coarse sweep, never early."""

    body_bytes: int = 32 * 1024 * 1024
    header_bytes: int = 65536
    header_seconds: float = 15.0
    """A request head must be complete this long after its first byte, a fresh connection have begun one."""
    body_seconds: float = 60.0
    """A body that makes no progress for this long is answered 408."""
    keep_alive_seconds: float = 75.0
    write_stall_seconds: float = 60.0
    """A client that reads nothing for this long is cut off."""
    connections: int = 10_000
    """Further connections are answered 503 and closed."""
    linger_seconds: float = 2.0
    """After a refusal the client's remaining bytes are read and thrown away for this long."""
    linger_bytes: int = 64 * 1024 * 1024

    def sweep_seconds(self) -> float:
        """How often connections are looked at: fine enough for the shortest time, at most once a second."""
        shortest = min(
            self.header_seconds,
            self.body_seconds,
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

_SPACE: Final = 32
"""A value that ends with this or less may end with blanks that do not belong to it."""
_METHODS: Final = {m.encode(): m for m in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")}
_VERSION_FAULTS = frozenset({"Invalid HTTP version", "Pause on PRI/Upgrade"})
_REPEATS_ALLOWED: Final = 100
_PARTS_FOLDED_AT: Final = 4096
_FRAMING_PER_BODY_BYTE: Final = 16

_LARGE: Final = 65536
"""What is missing of a body of known length, from which on it is taken as it comes, past the parser."""


_ANNOUNCED: Final = 32
"""Bytes still missing per byte received, up to which a buffer is allocated for the whole body."""


class Phase(Enum):
    """Where in a request the bytes read so far end."""

    IDLE = "between requests"
    HEAD = "in the head"
    BODY = "in the body"


_IDLE: Final = Phase.IDLE
_HEAD: Final = Phase.HEAD
_BODY: Final = Phase.BODY


class Fault:
    """Why no more requests are read from a connection, as a status for its client.

    `request` is the one it is about, as far as that has come.
    """

    __slots__ = ("message", "request", "status")

    def __init__(self, status: int, message: str, request: HttpRequest | None = None) -> None:
        self.status = status
        self.message = message
        self.request = request


class _Refused(Exception):
    """Stops the parser from inside one of its callbacks."""


class RequestReader:
    """Turns a connection's bytes into requests, in `ready`, until one is faulty or says it is the last."""

    __slots__ = (
        "_announced",
        "_blocks",
        "_body_size",
        "_client",
        "_completed",
        "_fault",
        "_fed",
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
        "excess",
        "expects_continue",
        "finished",
        "missing",
        "phase",
        "ready",
        "room",
    )

    def __init__(self, limits: HttpLimits, client: tuple[str, int] | None) -> None:
        self._limits = limits
        self._client = client
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.ready: deque[HttpRequest | Fault] = deque()
        self.phase = _IDLE
        self.finished = False
        self.excess = False
        """Bytes came behind the last request."""
        self.expects_continue = False
        """The client waits for a 100 before it sends the body."""
        self.missing = 0
        """Bytes that are still to come of a large body, whatever they are."""
        self.room: BodyBuffer | None = None
        """Where these belong, if there is room for them already."""
        self._completed = 0
        self._fault: Fault | None = None
        self._request: HttpRequest | None = None
        self._upgrade = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._parts: list[bytes | memoryview] = []
        self._blocks: list[bytes] = []
        self._announced = self._fed = self._head_size = self._body_size = self._framing = self._repeats = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Reads on; whatever became complete is appended to `ready`."""
        parser = self._parser
        if self.finished or parser is None:
            self.excess = True
            return
        if self.missing:
            self._collect(data)
            return
        if self.phase is _IDLE and self._read_plain(data):
            return
        size = self._fed = len(data)
        completed = self._completed
        self._framing += size
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            self._read_past_upgrade(data, exc.args[0])
        except httptools.HttpParserError as exc:
            self._stop(exc)
        if self.phase is not _IDLE and completed == self._completed and not self.finished:
            self._check_sizes(size)
            if self.phase is _BODY and self._announced - self._body_size > _LARGE and not self._upgrade:
                self._go_past_parser()

    def _read_plain(self, data: bytes | memoryview) -> bool:
        """Takes a plain request, or as much as is here of one with a plain head; whether it is one."""
        start_of_data = data if isinstance(data, bytes) else bytes(data[: plain_heads.MAX_BYTES])
        plain = plain_heads.parse_request(start_of_data, _NAMES)
        if plain is None:
            return False
        target, headers, start, length = plain
        missing = start + length - len(data)
        if missing < 0 or start > self._limits.header_bytes or length > self._limits.body_bytes:
            return False
        try:
            self._request = HttpRequest("POST", target, headers=headers, client=self._client)
        except ValueError:
            return False
        self.phase = _BODY
        self.missing = missing
        self._body_size = length - missing
        if missing < length:
            self._keep(data[start:])
        if not missing:
            self.on_message_complete()
        elif missing > _LARGE:
            self._make_room()
        return True

    def _go_past_parser(self) -> None:
        self.missing = self._announced - self._body_size
        # The old one still waits for the body, which it will never see.
        self._parser = httptools.HttpRequestParser(self)
        self._make_room()

    def _collect(self, data: bytes | memoryview) -> None:
        """Takes what a large body goes on with; the rest is another request."""
        size = min(len(data), self.missing)
        self.missing -= size
        self._body_size += size
        self.expects_continue = False
        piece = data if size == len(data) else data[:size]
        if self.room is not None:
            self.room.put(piece)
        else:
            self._keep(piece)
            if self.missing > _LARGE:
                self._make_room()
        if not self.missing:
            self.on_message_complete()
            if size < len(data):
                self.feed(data[size:])

    def _make_room(self) -> None:
        """Allocates the buffer of a large body once a byte has come for every 32 that are missing.

        A length that is only announced takes up no memory.
        """
        if self._body_size * _ANNOUNCED < self.missing:
            return
        self.room = BodyBuffer(self._body_size + self.missing)
        for part in (*self._blocks, *self._parts):
            self.room.put(part)
        self._parts, self._blocks = [], []

    def filled(self, size: int) -> None:
        """Notes that so many bytes were read into the room of the body, which has that much left."""
        assert self.room is not None
        self.room.filled += size
        self.missing -= size
        self._body_size += size
        self.expects_continue = False
        if not self.missing:
            self.on_message_complete()

    def close(self) -> None:
        """Lets go of the parser, which refers back to this reader."""
        self.finished = True
        self._parser = self.room = None
        self.ready.clear()

    def fail(self, status: int, message: str) -> None:
        """Gives up on the request being read."""
        request = self._request if self._request is not None else self._begun()
        self.finished = True
        self.phase = _IDLE
        self.expects_continue = False
        self.room = None
        self.ready.append(Fault(status, message, request))

    def _begun(self) -> HttpRequest | None:
        """The request as far as its head has come; None before its path has, or when that cannot be read."""
        parser = self._parser
        if self.phase is not _HEAD or not self._target or parser is None:
            return None
        method = parser.get_method().decode("ascii")
        try:
            return HttpRequest(method, self._target, headers={**self._headers}, client=self._client)
        except ValueError:
            return None

    def _stop(self, exc: httptools.HttpParserError) -> None:
        if self.finished:
            self.excess = True
            return
        fault, reason = self._fault, str(exc)
        if fault is not None:
            self.fail(fault.status, fault.message)
        elif reason in _VERSION_FAULTS:
            self.fail(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        else:
            self.fail(400, f"not a valid HTTP request: {reason}")

    def _check_sizes(self, size: int) -> None:
        """Bounds what the parser keeps to itself: an unfinished head, chunk extensions, trailers."""
        if self.phase is _HEAD:
            self._head_size += size
            if self._head_size > self._limits.header_bytes:
                self.fail(431, self._too_big_head())
        elif self._framing > self._limits.header_bytes + _FRAMING_PER_BODY_BYTE * self._body_size:
            self.fail(413, "the chunked body is nearly all framing")

    def _too_big_head(self) -> str:
        return f"the request head is larger than {self._limits.header_bytes} bytes"

    def _refuse(self, status: int, message: str) -> _Refused:
        self._fault = Fault(status, message)
        return _Refused()

    def _read_past_upgrade(self, data: bytes | memoryview, offset: int) -> None:
        """Reads the body of an Upgrade request, which the parser takes for another protocol's bytes.

        The request's framing header is replayed into a second parser, so that the body's rules stay the same.
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
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1"))
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
        if value and value[-1] <= _SPACE:
            text = text.rstrip(" \t")
        headers = self._headers
        if key in headers:
            text = self._repeated(key, text)
        headers[key] = text

    def _repeated(self, key: str, text: str) -> str:
        if key == "user-agent":
            return text
        self._repeats += 1
        if key == "host":
            raise self._refuse(400, "more than one Host header")
        if self._repeats > _REPEATS_ALLOWED:
            raise self._refuse(431, "too many repeated headers")
        return f"{self._headers[key]}, {text}"

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, {}
        parser = self._parser
        assert parser is not None
        self._request = None
        self._announced = self._body_size = self._framing = 0
        if self._head_size + self._fed > self._limits.header_bytes:
            self._check_head(headers)
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._refuse(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        upgrade = parser.should_upgrade()
        keep_alive = parser.should_keep_alive() and not upgrade
        method = parser.get_method()
        self._request = self._build(
            _METHODS.get(method) or method.decode("ascii"), headers, keep_alive, version == "1.0"
        )
        self._check_framing(self._request)
        self._upgrade = upgrade and method != b"CONNECT" and _has_body(headers)
        self.phase = _BODY

    def _check_head(self, headers: dict[str, str]) -> None:
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self._limits.header_bytes:
            raise self._refuse(431, self._too_big_head())

    def _build(self, method: str, headers: dict[str, str], keep_alive: bool, http_1_0: bool) -> HttpRequest:
        if "host" not in headers and not http_1_0:
            raise self._refuse(400, "the Host header is missing")
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
            raise self._refuse(400, str(exc)) from exc

    def _check_framing(self, request: HttpRequest) -> None:
        headers = request.headers
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None:
            self._check_coding(coding.lower(), request.http_1_0, length is not None)
        elif length is not None:
            self._announced = int(length)
            if self._announced > self._limits.body_bytes:
                raise self._refuse(413, self._too_big_body())
        if "expect" in headers:
            self.expects_continue = not request.http_1_0 and headers["expect"].lower() == "100-continue"

    def _check_coding(self, coding: str, http_1_0: bool, has_length: bool) -> None:
        if http_1_0 or has_length:
            raise self._refuse(400, "Transfer-Encoding is not possible here")
        codings = [name.strip() for name in coding.split(",")]
        if len(codings) > 1 and codings[-1] == "chunked":
            raise self._refuse(501, f"transfer coding {coding!r} is not supported; send it chunked only")

    def _too_big_body(self) -> str:
        return f"the request body is larger than {self._limits.body_bytes} bytes"

    def on_body(self, data: bytes) -> None:
        size = len(data)
        self._body_size += size
        self._framing -= size
        self.expects_continue = False
        if self._body_size > self._limits.body_bytes:
            raise self._refuse(413, self._too_big_body())
        self._keep(data)

    def _keep(self, data: bytes | memoryview) -> None:
        parts = self._parts
        parts.append(data)
        if len(parts) >= _PARTS_FOLDED_AT:
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
        if self.room is not None:
            request.body, self.room = self.room.whole(), None
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
