"""Server-sent events without IO: bytes in, frames out, for any chunking.

A frame ends at a blank line. Line ends may be LF, CRLF or CR (HTML standard, 9.2.6) and are normalised to LF
first, so `Frame.raw` always has LF line ends. Comment lines are dropped, and so are frames without data.
"""

from __future__ import annotations

from typing import Final

from routecodex.wire import json
from routecodex.wire.frame import Frame

__all__ = ["KEEP_ALIVE", "Frame", "FrameTooLarge", "Frames", "frame", "frame_at", "parse"]

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_DATA: Final = b"data: "
_EVENT: Final = b"event: "
_LINE_END: Final = 10

_CARRIAGE_RETURN: Final = 13
"""As a number: `int in bytes` is faster than `bytes in bytes`."""


class FrameTooLarge(Exception):
    """A frame is larger than the limit."""


class Frames:
    """Splits a stream into frames: `feed` its chunks, then `close` for a last frame without a blank line."""

    __slots__ = ("_buffer", "_limit", "_pending_cr", "_started")

    def __init__(self, *, limit: int = 32 * 1024 * 1024) -> None:
        self._buffer = bytearray()
        self._pending_cr = False
        self._limit = limit
        self._started = False

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames completed by these bytes."""
        blocks = self.cut(data).split(b"\n\n")
        return [frame for block in blocks if block and (frame := parse(block)) is not None]

    def cut(self, data: bytes) -> bytes:
        """Return all complete frames as one run of bytes that ends in a blank line; hold the rest."""
        if not self._started:
            data = self._without_byte_order_mark(data)
            if not self._started:
                return b""
        if self._pending_cr or _CARRIAGE_RETURN in data:
            data = self._normalise(data)
        end = -1 if self._buffer else data.rfind(b"\n\n")
        if end < 0:
            return self._cut_buffered(data)
        rest = data[end + 2 :]
        if not rest:
            return data
        self._buffer += rest
        return data[: end + 2]

    def _cut_buffered(self, data: bytes) -> bytes:
        """Do the same with held bytes; a large frame is searched once, chunk by chunk."""
        buffer = self._buffer
        # A blank line may cross two chunks.
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
        """Return the last frame if only its blank line is missing; drop an incomplete frame."""
        rest, self._buffer = self._buffer, bytearray()
        frame = parse(bytes(rest.strip(b"\n")))
        return [frame] if frame is not None and _is_whole(frame.data) else []

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished frame are held."""
        return bool(self._buffer.strip())

    def _without_byte_order_mark(self, data: bytes) -> bytes:
        """Remove a byte order mark from the first bytes; hold bytes that may become one."""
        if self._buffer:
            data = bytes(self._buffer) + data
            self._buffer.clear()
        if len(data) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(data):
            self._buffer += data
            return b""
        self._started = True
        return data.removeprefix(_BYTE_ORDER_MARK)

    def _normalise(self, data: bytes) -> bytes:
        if self._pending_cr:
            data = b"\r" + data
        self._pending_cr = data.endswith(b"\r")
        if self._pending_cr:
            data = data[:-1]
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _is_whole(data: bytes) -> bool:
    return data == b"[DONE]" or json.is_whole(data)


def parse(block: bytes) -> Frame | None:
    """Parse the lines of one frame, without its blank line; return None if it has no data."""
    if block[:6] == _DATA and len(block) > 6 and _LINE_END not in block:
        return Frame(b"", block[6:], block + b"\n\n")
    if block[:7] == _EVENT:
        # Most named frames: one line with the event, one with data.
        name, _, value = block[7:].partition(b"\ndata: ")
        if value and _LINE_END not in name and _LINE_END not in value:
            return Frame(name, value, block + b"\n\n")
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
    """Return data and bytes of the frame at `at`, both empty without data, and the next frame's offset."""
    line = run.find(b"\n", at)
    if line > at + 6 and run[line + 1] == _LINE_END and run[at : at + 6] == _DATA:
        return run[at + 6 : line], run[at : line + 2], line + 2
    end = run.find(b"\n\n", at)
    found = parse(run[at:end].strip(b"\n")) if end >= 0 else None
    after = end + 2 if end >= 0 else len(run)
    return (b"", b"", after) if found is None else (found.data, found.raw, after)


def frame(data: bytes, event: bytes = b"") -> bytes:
    """Encode one frame; `data` must not contain line ends (JSON does not)."""
    if event:
        return b"event: " + event + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


KEEP_ALIVE = b": keep-alive\n\n"
