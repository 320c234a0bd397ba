"""Frames that differ in one text only: recognised by their fixed beginning and end, without parsing.

Between the first and the last word of an answer nearly all frames of a stream are the same but for the piece
of text they carry. Once one of them was understood, the others are known by comparing bytes:

    data: {…"delta":{"content":" world"},…}
    └────── head ─────────────┘text└─ tail ─┘

The text of such a frame ends at the first quote that is not escaped, and there the tail must begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.json import Decoder

from routecodex.wire import json

_texts = Decoder(list[str])
_BACKSLASH = 92


class Alike:
    """The shape of the last frame that was understood."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def learn(self, raw: bytes, keys: Sequence[bytes]) -> None:
        """Takes the frame as the shape; one of `keys` stands before its text, such as `"content":"`."""
        start = next((at + len(key) for key in keys if (at := raw.find(key)) >= 0), -1)
        if start < 0:
            return
        end = _closing_quote(raw, start)
        if end > 0:
            self._head, self._tail = raw[:start], raw[end:]

    def span(self, run: bytes) -> int:
        """How many bytes at the start of a run of whole frames are frames of this shape."""
        head, tail = self._head, self._tail
        if not head:
            return 0
        skip, end = len(head), len(tail)
        at = 0
        while run.startswith(head, at):
            quote = run.find(b'"', at + skip)
            if run[quote - 1] == _BACKSLASH:
                quote = _closing_quote(run, at + skip)
            if not run.startswith(tail, quote):
                break
            at = quote + end
        return at

    def take(self, run: bytes) -> tuple[list[str], int]:
        """The texts of the frames of this shape at the start of a run, and how many bytes they are."""
        span = self.span(run)
        if not span:
            return [], 0
        skip = len(self._head)
        pieces = [piece[skip:] for piece in run[: span - len(self._tail)].split(self._tail)]
        texts = json.try_read(b'["' + b'","'.join(pieces) + b'"]', _texts)
        # A text that quotes a whole tail would be cut in two; then every frame is read by itself.
        return (texts, span) if texts is not None and len(texts) == len(pieces) else ([], 0)


def _closing_quote(raw: bytes, start: int) -> int:
    """Where the string that begins at `start` ends, or -1."""
    at = raw.find(b'"', start)
    while at > 0:
        backslashes = at - start - len(raw[start:at].rstrip(b"\\"))
        if backslashes % 2 == 0:
            return at
        at = raw.find(b'"', at + 1)
    return -1
