"""The response to one request: whole, or a stream of chunks that is complete only once it is ended."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Protocol

from routecodex.canon.errors import ClientDisconnected

__all__ = ["ClientDisconnected", "Headers", "Reply", "ReplyTransport", "WholeReply", "encode_fields"]

Headers = Sequence[tuple[bytes, bytes] | bytes]
"""Names and values; an entry in bytes is whole lines, encoded and checked before."""

WholeReply = tuple[int, Headers, bytes]
"""Status, headers and body of a response that does not stream."""

_STATUS_LINES: Final = {
    int(status): f"HTTP/1.1 {int(status)} {phrase}\r\n".encode()
    for status, phrase in [*((s, s.phrase) for s in HTTPStatus), (529, "Overloaded")]
}
_BODILESS: Final = frozenset({204, 304})
_CR: Final = 13

_LF: Final = 10
"""CR and LF as numbers: `in` finds them faster than it finds bytes, which it first tries to read as one."""
_CLOSE: Final = b"connection: close\r\n"
_KEEP_ALIVE: Final = b"connection: keep-alive\r\n"


class ReplyTransport(Protocol):
    """The connection as a reply needs it."""

    gone: bool
    interrupted: bool
    paused: bool

    def write(self, data: bytes) -> None:
        """Write to the socket; raise ClientDisconnected if it is known to be closed."""

    def write_last(self, data: bytes) -> None:
        """Write the last bytes of a response; they may be batched with others."""

    def decide_keep_alive(self, possible: bool) -> bool:
        """Decide whether the connection stays open after this response."""

    def close_unfinished(self, *, reset: bool) -> None:
        """Close without another byte; `reset` so that even a response framed by the close looks broken."""

    def date_line(self) -> bytes:
        """Return the Date header of this second."""

    async def drained(self) -> None:
        """Wait until the client has read enough; raise ClientDisconnected if it is gone."""


class Reply:
    """The response of a handler: `send`, or `start`, `write`… and `end`.

    The server adds the headers content-length, transfer-encoding, connection and date; handlers never pass
    them. For HEAD and for statuses without a body the body is dropped. HTTP/1.0 clients get streams without
    framing, ended by the close of the connection.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_head",
        "_http_1_0",
        "_keep_alive",
        "_transport",
        "ended",
        "extra_lines",
        "started",
        "status",
    )

    def __init__(
        self,
        transport: ReplyTransport,
        *,
        head_only: bool = False,
        keep_alive: bool = True,
        http_1_0: bool = False,
    ) -> None:
        self._transport = transport
        self._bodiless = head_only
        self._keep_alive = keep_alive
        self._http_1_0 = http_1_0
        self._chunked = False
        self._head = b""
        self.extra_lines = b""
        """Whole header lines that are added to the handler's own, such as those of CORS."""
        self.status = 0
        """The status, once the response has started."""
        self.started = False
        self.ended = False

    @property
    def writable(self) -> bool:
        """Whether the client accepts more now: the response has not ended and no bytes wait to be read."""
        return not (self.ended or self._transport.gone or self._transport.paused)

    @property
    def interrupted(self) -> bool:
        """Whether the handler was cancelled because the server stops, with the client still there."""
        return self._transport.interrupted and not self._transport.gone

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response in one write."""
        self.send_nowait(status, headers, body)
        if self._transport.paused:
            await self._transport.drained()

    def send_nowait(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response without waiting for a slow client."""
        length = b"" if status in _BODILESS else b"content-length: %d\r\n" % len(body)
        head = self._start(status, headers, framing=length, keep_possible=True)
        self.ended = True
        self._transport.write_last(head if self._bodiless else head + body)

    def start(self, status: int, headers: Headers) -> None:
        """Start a stream; the head is sent with the first write."""
        chunked = not self._http_1_0 and status not in _BODILESS
        framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        keep_possible = chunked or status in _BODILESS
        self._head = self._start(status, headers, framing=framing, keep_possible=keep_possible)
        self._chunked = chunked

    async def write(self, data: bytes) -> None:
        """Write one chunk, an empty one only for the head; wait while the client is not reading."""
        if not self.write_nowait(data):
            await self._transport.drained()

    def write_nowait(self, data: bytes) -> bool:
        """Write one chunk; return False if `drain` must be awaited before the next."""
        transport = self._transport
        self._check_open(transport)
        head = self._head
        if not data or self._bodiless:
            payload = head
        elif self._chunked:
            payload = b"%b%x\r\n%b\r\n" % (head, len(data), data)
        else:
            payload = head + data
        if head:
            self._head = b""
        if payload:
            transport.write(payload)
        return not transport.paused

    async def drain(self) -> None:
        """Wait while the client is not reading; raise ClientDisconnected if it is gone."""
        await self._transport.drained()

    async def end(self, data: bytes = b"") -> None:
        """Write the last chunk and the end of the stream in one write."""
        transport = self._transport
        self._check_open(transport)
        head, self._head = self._head, b""
        self.ended = True
        payload = head if self._bodiless else self._last_chunk(head, data)
        if payload:
            transport.write_last(payload)
        if transport.paused:
            await transport.drained()

    def _last_chunk(self, head: bytes, data: bytes) -> bytes:
        if not self._chunked:
            return head + data
        if not data:
            return head + b"0\r\n\r\n"
        # Joined, so that a large chunk is copied once.
        return b"".join([head, b"%x\r\n" % len(data), data, b"\r\n0\r\n\r\n"])

    def abort(self) -> None:
        """Drop the connection, so that the stream never looks complete."""
        if self.ended or self._transport.gone:
            return
        self.started = self.ended = True
        self._head = b""
        self._transport.close_unfinished(reset=not self._chunked)

    def _start(self, status: int, headers: Headers, *, framing: bytes, keep_possible: bool) -> bytes:
        if self.started:
            raise RuntimeError("the response has already been started")
        transport = self._transport
        if transport.gone:
            raise ClientDisconnected
        fields = encode_fields(headers)
        self.started = True
        self.status = status
        if status in _BODILESS:
            self._bodiless = True
        if not transport.decide_keep_alive(keep_possible and self._keep_alive):
            connection = _CLOSE
        else:
            connection = _KEEP_ALIVE if self._http_1_0 else b""
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        date, more = transport.date_line(), self.extra_lines
        # The values stand in the expression itself: only then is it compiled to one concatenation.
        return b"%b%b%b%b%b%b\r\n" % (line, fields, more, date, framing, connection)

    def _check_open(self, transport: ReplyTransport) -> None:
        if transport.gone:
            raise ClientDisconnected
        if not self.started or self.ended:
            raise RuntimeError(
                "the stream is not open: it was " + ("ended" if self.ended else "never started")
            )


def encode_fields(headers: Headers) -> bytes:
    """Encode header lines; a line break in one is an error, because it would forge headers."""
    return b"".join([field if isinstance(field, bytes) else _line(field) for field in headers])


def _line(field: tuple[bytes, bytes]) -> bytes:
    line = b"%b: %b" % field
    if _LF in line or _CR in line:
        raise ValueError("a response header contains a line break")
    return line + b"\r\n"
