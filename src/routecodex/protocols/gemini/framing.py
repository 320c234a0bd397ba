"""Framing of streams: server-sent events (`alt=sse`), or one JSON array, as Google sends without it."""

from __future__ import annotations

import re

import msgspec

from routecodex.wire import sse

_TOKENS = re.compile(rb'["{}\\]')
_LIMIT = 32 * 1024 * 1024


class JsonArray:
    """Converts the frames of a stream to a JSON array, for requests without `alt=sse`.

    `wrap` takes whole frames, `end` closes the array. After a failure `end` is not called: an open array does
    not look like a complete answer.
    """

    __slots__ = ("_opened",)

    def __init__(self) -> None:
        self._opened = False

    def wrap(self, frames: bytes) -> bytes:
        """Return the frames as elements of the array."""
        out: list[bytes] = []
        for block in frames.split(b"\n\n"):
            frame = sse.parse(block)
            if frame is not None:
                out += (b"\n,\n" if self._opened else b"[", frame.data)
                self._opened = True
        return b"".join(out)

    def end(self) -> bytes:
        """Return the end of the array."""
        return b"\n]" if self._opened else b"[]"


class FrameReader(sse.Frames):
    """Cuts provider bytes into frames, server-sent events or objects of a JSON array."""

    __slots__ = ("_are_events", "_objects", "_start")

    def __init__(self) -> None:
        super().__init__()
        self._start = b""
        self._are_events = False
        self._objects: JsonArrayReader | None = None

    def cut(self, data: bytes) -> bytes:
        if self._are_events:
            return super().cut(data)
        if self._objects is None:
            return self._choose(data)
        return b"".join([sse.frame(found) for found in self._objects.feed(data)])

    def _choose(self, data: bytes) -> bytes:
        """Choose the framing by the first character: `[` or `{` is JSON, anything else is an event."""
        self._start += data
        first = self._start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if not first:
            return b""
        if first in b"[{":
            self._objects = JsonArrayReader()
        else:
            self._are_events = True
        data, self._start = self._start, b""
        return self.cut(data)


class JsonArrayReader:
    """Splits a JSON array into its objects as it arrives, each on one line."""

    __slots__ = ("_buffer", "_depth", "_escaped", "_scanned", "_text")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._depth = 0
        self._text = False
        self._escaped = -1

    def feed(self, data: bytes) -> list[bytes]:
        """Return the objects that these bytes complete."""
        self._buffer += data
        found: list[bytes] = []
        start = 0 if self._depth else -1
        for token in _TOKENS.finditer(self._buffer, self._scanned):
            at = token.start()
            if not self._is_structure(token[0], at):
                continue
            self._depth += 1 if token[0] == b"{" else -1
            if self._depth == 1 and token[0] == b"{":
                start = at
            elif self._depth == 0:
                found.append(compact(bytes(self._buffer[start : at + 1])))
                start = -1
        self._keep(start)
        return found

    def _is_structure(self, token: bytes, at: int) -> bool:
        """Return whether the token is a brace outside of strings."""
        if at == self._escaped:
            return False
        if token == b"\\":
            self._escaped = at + 1
            return False
        if token == b'"':
            self._text = not self._text
            return False
        return not self._text

    def _keep(self, start: int) -> None:
        """Discard the scanned bytes up to `start`, the brace of an incomplete object (-1: all of them)."""
        cut = start if start >= 0 else len(self._buffer)
        del self._buffer[:cut]
        self._escaped -= cut
        self._scanned = len(self._buffer)
        if len(self._buffer) > _LIMIT:
            raise sse.FrameTooLarge(f"a stream frame is larger than {_LIMIT} bytes")


def compact(data: bytes) -> bytes:
    """Return JSON on one line; unchanged if it is already."""
    if b"\n" not in data and b"\r" not in data:
        return data
    try:
        return msgspec.json.format(data, indent=-1)
    except msgspec.DecodeError:
        return data.replace(b"\r", b" ").replace(b"\n", b" ")
