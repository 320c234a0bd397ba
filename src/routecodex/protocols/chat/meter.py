"""How much an upstream that counts nothing has written, guessed from the size of its frames."""

from __future__ import annotations

_BYTES_PER_TOKEN = 3


class OutputMeter:
    """Adds up frames that pass unread; `envelope` is the size of a chunk that says nothing."""

    __slots__ = ("_bytes", "_frames", "envelope")

    def __init__(self) -> None:
        self.envelope = 0
        self._bytes = 0
        self._frames = 0

    def add(self, run: bytes) -> None:
        """Takes a run of whole frames."""
        self._bytes += len(run)
        self._frames += run.count(b"\n\n")

    def tokens(self) -> int:
        """A count that errs high: a token a frame at least, or three bytes each of what they say."""
        said = self._bytes - self._frames * self.envelope
        return max(self._frames, said // _BYTES_PER_TOKEN) + 1
