"""Room for a body of known length: what comes is read to where it stays, and never copied."""

from __future__ import annotations

from io import BytesIO

__all__ = ["BodyBuffer"]


class BodyBuffer:
    """Bytes that are still to come; there is memory for all of them from the beginning."""

    __slots__ = ("_file", "_view", "filled")

    def __init__(self, size: int) -> None:
        # Of all that can be written to, only this takes bytes, and gives them away, without a copy.
        self._file = BytesIO(bytes(size))
        self._view = self._file.getbuffer()
        self.filled = 0

    def rest(self) -> memoryview:
        """Where the next bytes go."""
        return self._view[self.filled :]

    def put(self, data: bytes | memoryview) -> None:
        """Takes bytes that were read elsewhere; no more than there is room for."""
        end = self.filled + len(data)
        self._view[self.filled : end] = data
        self.filled = end

    def whole(self) -> bytes:
        """All the bytes; from then on nothing can be put there."""
        self._view.release()
        return self._file.getvalue()
