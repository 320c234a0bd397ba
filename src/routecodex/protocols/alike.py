"""Frames that differ in one text only: recognised by their fixed beginning and end, without parsing.

Between the first and the last word of an answer nearly all frames of a stream are the same but for the piece
of text they carry. Once one of them was understood, the others are known by comparing bytes:

    data: {…"delta":{"content":" world"},…}
    └────── head ─────────────┘text└─ tail ─┘

Two alike frames in a row meet in `tail + head`, the seam, so a whole run of them is checked at once: without
its seams nothing may be left but text, and text holds no line end and no quote that is not escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.json import Decoder

from routecodex.wire import json

_texts = Decoder(list[str])
_ESCAPED_QUOTE = b'\\"'


class Alike:
    """The shape of the last frame that was understood."""

    __slots__ = ("_head", "_seam", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._seam = b""

    def learn(self, raw: bytes, keys: Sequence[bytes]) -> None:
        """Takes the frame as the shape; one of `keys` stands before its text, such as `"content":"`."""
        start = next((at + len(key) for key in keys if (at := raw.find(key)) >= 0), -1)
        if start < 0:
            return
        end = _closing_quote(raw, start)
        if end < 0:
            return
        self._head, self._tail = raw[:start], raw[end:]
        self._seam = self._tail + self._head

    def span(self, run: bytes) -> int:
        """How many bytes at the start of a run of whole frames are frames of this shape."""
        head, tail = self._head, self._tail
        if not head or not run.startswith(head):
            return 0
        end = run.rfind(tail)
        if end < len(head):
            return 0
        text = run[len(head) : end].replace(self._seam, b"")
        if b'"' in text and b'"' in text.replace(_ESCAPED_QUOTE, b""):
            return 0
        return 0 if b"\n" in text else end + len(tail)

    def take(self, run: bytes) -> tuple[list[str], int]:
        """The texts of the frames of this shape at the start of a run, and how many bytes they are."""
        span = self.span(run)
        if not span:
            return [], 0
        pieces = run[len(self._head) : span - len(self._tail)].replace(self._seam, b'","')
        texts = json.try_read(b'["' + pieces + b'"]', _texts)
        return (texts, span) if texts is not None else ([], 0)


def _closing_quote(raw: bytes, start: int) -> int:
    """Where the string that begins at `start` ends."""
    at = raw.find(b'"', start)
    while at > 0:
        backslashes = at - len(raw[start:at].rstrip(b"\\")) - start
        if backslashes % 2 == 0:
            return at
        at = raw.find(b'"', at + 1)
    return -1
