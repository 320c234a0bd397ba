"""Server-sent events without IO: bytes in, frames out, whatever the chunking.

A frame ends at a blank line. Line ends may be LF, CRLF or CR; they are normalised to LF before anything else,
so `Frame.raw` is always LF-terminated and safe to pass on. Comment lines are dropped; a frame with nothing
but comments is no frame. A frame without data (only `event:`, or `data:` with nothing) is dropped too.
"""

from __future__ import annotations

from typing import Final

from routecodex.wire import json
from routecodex.wire.frame import Frame

__all__ = ["KEEP_ALIVE", "Frame", "FrameTooLarge", "Frames", "frame", "frame_at", "parse"]

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DATA: Final = b"data: "
_LINE_END: Final = 10

_CARRIAGE_RETURN: Final = 13
"""As numbers: bytes in bytes are first taken for a number, in vain, and then searched for."""


class FrameTooLarge(Exception):
    """A frame grew past the limit without ending."""


class Frames:
    """Cuts a stream of bytes into frames; `feed` pieces, then `close` for a last frame without blank line."""

    __slots__ = ("_buffer", "_held_cr", "_limit", "_started")

    def __init__(self, *, limit: int = 32 * 1024 * 1024) -> None:
        self._buffer = bytearray()
        self._held_cr = False
        self._limit = limit
        self._started = False

    def feed(self, data: bytes) -> list[Frame]:
        """The frames completed by these bytes."""
        blocks = self.cut(data).split(b"\n\n")
        return [frame for block in blocks if block and (frame := parse(block)) is not None]

    def cut(self, data: bytes) -> bytes:
        """All complete frames so far as one run of LF bytes ending in a blank line; the rest is kept."""
        if not self._started:
            data = self._without_mark(data)
            if not self._started:
                return b""
        if self._held_cr or _CARRIAGE_RETURN in data:
            data = self._normalise(data)
        end = -1 if self._buffer else data.rfind(b"\n\n")
        if end < 0:
            return self._cut_held(data)
        rest = data[end + 2 :]
        if not rest:
            return data
        self._buffer += rest
        return data[: end + 2]

    def _cut_held(self, data: bytes) -> bytes:
        """The same with what is held; a large frame is searched as it comes, and put together once."""
        buffer = self._buffer
        # A blank line may stand where two pieces meet.
        since = max(len(buffer) - 1, 0)
        buffer += data
        end = buffer.rfind(b"\n\n", since)
        if end < 0:
            if len(buffer) > self._limit:
                raise FrameTooLarge(f"a stream frame is larger than {self._limit} bytes")
            return b""
        self._buffer = buffer[end + 2 :]
        del buffer[end + 2 :]
        return bytes(buffer)

    def close(self) -> list[Frame]:
        """The last frame when its blank line never came; half a frame is dropped."""
        rest, self._buffer = self._buffer, bytearray()
        frame = parse(bytes(rest.strip(b"\n")))
        return [frame] if frame is not None and _is_whole(frame.data) else []

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished frame are held."""
        return bool(self._buffer.strip())

    def _without_mark(self, data: bytes) -> bytes:
        """The first bytes without a byte order mark; what may become one is kept until it is known."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        if len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data):
            self._buffer += data
            return b""
        self._started = True
        return data.removeprefix(_BYTE_ORDER_MARK)

    def _normalise(self, data: bytes) -> bytes:
        if self._held_cr:
            data = b"\r" + data
        self._held_cr = data.endswith(b"\r")
        if self._held_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_whole(data: bytes) -> bool:
    return data == b"[DONE]" or json.is_whole(data)


def parse(block: bytes) -> Frame | None:
    """One frame from its lines (without the blank one), or None when it holds no data."""
    if block[:6] == _DATA and len(block) > 6 and _LINE_END not in block:
        return Frame(b"", block[6:], block + b"\n\n")
    event = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
    if not any(data):
        return None
    return Frame(event, b"\n".join(data), block + b"\n\n")


def frame_at(run: bytes, at: int) -> tuple[bytes, bytes, int]:
    """Data and bytes of the frame that begins there, empty if it has no data, and where the next one does."""
    line = run.find(b"\n", at)
    if line > at + 6 and run[line + 1] == _LINE_END and run[at : at + 6] == _DATA:
        return run[at + 6 : line], run[at : line + 2], line + 2
    end = run.find(b"\n\n", at)
    found = parse(run[at:end].strip(b"\n")) if end >= 0 else None
    after = end + 2 if end >= 0 else len(run)
    return (b"", b"", after) if found is None else (found.data, found.raw, after)


def frame(data: bytes, event: bytes = b"") -> bytes:
    """One frame as bytes; `data` must hold no line ends (JSON does not)."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


KEEP_ALIVE = b": keep-alive\n\n"
