"""The answer to one request: whole, or as a stream of chunks that is only complete once it is ended."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, Protocol

from routecodex.canon.errors import ClientDisconnected

__all__ = ["ClientDisconnected", "Headers", "Reply", "ReplyTransport", "encode_fields"]

Headers = Sequence[tuple[bytes, bytes] | bytes]
"""Names and values; what is bytes alone is whole lines, made and checked before."""

_STATUS_LINES: Final = {
    int(status): f"HTTP/1.1 {int(status)} {phrase}\r\n".encode()
    for status, phrase in [*((s, s.phrase) for s in HTTPStatus), (529, "Overloaded")]
}
_BODILESS: Final = frozenset({204, 304})
_CR: Final = 13

_LF: Final = 10
"""As numbers: a byte is looked for at once, while bytes in bytes are first taken for a number, in vain."""
_CLOSE: Final = b"connection: close\r\n"
_KEEP_ALIVE: Final = b"connection: keep-alive\r\n"


class ReplyTransport(Protocol):
    """What a reply needs of the connection it is written to."""

    gone: bool
    paused: bool

    def write(self, data: bytes) -> None:
        """Hands bytes to the socket; raises ClientGone when it is known to be closed."""

    def write_last(self, data: bytes) -> None:
        """Hands over the last bytes of an answer, which need not leave before others that are due now."""

    def keep(self, possible: bool) -> bool:
        """Decides, for good, whether the connection outlives this answer."""

    def cut(self, *, hard: bool) -> None:
        """Closes without another byte; hard: so that even an answer framed by the close looks broken."""

    def date_line(self) -> bytes:
        """The Date header of this second."""

    async def drained(self) -> None:
        """Returns once the client has read on; raises ClientGone when it left."""


class Reply:
    """How a handler answers: `send`, or `start`, `write`… and `end`.

    The content-length, transfer-encoding, connection and date headers are the server's own: handlers never
    pass them. For HEAD and for statuses without a body what is written is dropped. HTTP/1.0 clients get
    streams unframed, ended by the close of the connection.
    """

    __slots__ = ("_bodiless", "_chunked", "_head", "_http_1_0", "_keep_alive", "_outlet", "ended", "started")

    def __init__(
        self,
        outlet: ReplyTransport,
        *,
        head_only: bool = False,
        keep_alive: bool = True,
        http_1_0: bool = False,
    ) -> None:
        self._outlet = outlet
        self._bodiless = head_only
        self._keep_alive = keep_alive
        self._http_1_0 = http_1_0
        self._chunked = False
        self._head = b""
        self.started = False
        self.ended = False

    @property
    def writable(self) -> bool:
        """Whether the client takes more now: the answer has not ended, and nothing waits to be read."""
        return not (self.ended or self._outlet.gone or self._outlet.paused)

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Answers whole, in one write."""
        self.send_nowait(status, headers, body)
        if self._outlet.paused:
            await self._outlet.drained()

    def send_nowait(self, status: int, headers: Headers, body: bytes) -> None:
        """Answers whole without waiting for a slow client; for answers that end the handler's work."""
        length = b"" if status in _BODILESS else b"content-length: %d\r\n" % len(body)
        head = self._begin(status, headers, framing=length, keep_possible=True)
        self.ended = True
        self._outlet.write_last(head if self._bodiless else head + body)

    def start(self, status: int, headers: Headers) -> None:
        """Begins a stream; the head leaves with the first write."""
        chunked = not self._http_1_0 and status not in _BODILESS
        framing = b"transfer-encoding: chunked\r\n" if chunked else b""
        keep_possible = chunked or status in _BODILESS
        self._head = self._begin(status, headers, framing=framing, keep_possible=keep_possible)
        self._chunked = chunked

    async def write(self, data: bytes) -> None:
        """Writes one chunk (an empty one only pushes out the head); waits while the client is not reading."""
        if not self.write_nowait(data):
            await self._outlet.drained()

    def write_nowait(self, data: bytes) -> bool:
        """Writes one chunk; False when `drain` must be awaited before the next."""
        outlet = self._outlet
        self._check_open(outlet)
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
            outlet.write(payload)
        return not outlet.paused

    async def drain(self) -> None:
        """Waits while the client is not reading; raises ClientGone when it left."""
        await self._outlet.drained()

    async def end(self, data: bytes = b"") -> None:
        """Writes the last chunk and the stream's end in one write."""
        outlet = self._outlet
        self._check_open(outlet)
        head, self._head = self._head, b""
        self.ended = True
        payload = head if self._bodiless else self._last(head, data)
        if payload:
            outlet.write_last(payload)
        if outlet.paused:
            await outlet.drained()

    def _last(self, head: bytes, data: bytes) -> bytes:
        if not self._chunked:
            return head + data
        if not data:
            return head + b"0\r\n\r\n"
        # Joined, so that what may be many bytes is copied once.
        return b"".join([head, b"%x\r\n" % len(data), data, b"\r\n0\r\n\r\n"])

    def abort(self) -> None:
        """Drops the connection where the stream is, so that it never looks complete."""
        if self.ended or self._outlet.gone:
            return
        self.started = self.ended = True
        self._head = b""
        self._outlet.cut(hard=not self._chunked)

    def _begin(self, status: int, headers: Headers, *, framing: bytes, keep_possible: bool) -> bytes:
        if self.started:
            raise RuntimeError("the answer has already been started")
        outlet = self._outlet
        if outlet.gone:
            raise ClientDisconnected
        fields = encode_fields(headers)
        self.started = True
        if status in _BODILESS:
            self._bodiless = True
        if not outlet.keep(keep_possible and self._keep_alive):
            connection = _CLOSE
        else:
            connection = _KEEP_ALIVE if self._http_1_0 else b""
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        return b"%b%b%b%b%b\r\n" % (line, fields, outlet.date_line(), framing, connection)

    def _check_open(self, outlet: ReplyTransport) -> None:
        if outlet.gone:
            raise ClientDisconnected
        if not self.started or self.ended:
            raise RuntimeError(
                "the stream is not open: it was " + ("ended" if self.ended else "never started")
            )


def encode_fields(headers: Headers) -> bytes:
    """The header lines of an answer; a line break in one is refused, as it would forge headers."""
    return b"".join([field if isinstance(field, bytes) else _line(field) for field in headers])


def _line(field: tuple[bytes, bytes]) -> bytes:
    line = b"%b: %b" % field
    if _LF in line or _CR in line:
        raise ValueError("a response header contains a line break")
    return line + b"\r\n"
