"""Reads and writes many text frames at once.

Most of a stream is deltas of one text, in frames that differ in that text only:

    data: {…"delta":{"content":" world"},…}
    └────── head ─────────────┘text└─ tail ─┘

Once one such frame was decoded, a run of them is split at the tails. Joining the pieces again proves that
each frame begins with the head; decoding all texts as one JSON list proves that each is a string. Decoders
return them as one `TextBatch` (`decode_batches`), encoders write them at once (`add_texts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, takewhile
from typing import Final, TypeAlias

from msgspec.json import Decoder

from routecodex.canon.events import Event, TextDelta
from routecodex.wire import json, scan
from routecodex.wire.frame import Frame
from routecodex.wire.sse import parse

SCAN_BYTES = 16 * 1024
"""Bytes split at once: a run with other frames in it is not split to its end again and again."""

_strings = Decoder(list[str])
_BETWEEN = b'","'

_UNSURE = b"\\" + _BETWEEN
"""A backslash before the quote that should close a text."""


class FrameTemplate:
    """A frame that repeats but for one text."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def learn(self, raw: bytes, keys: Sequence[bytes]) -> None:
        """Take the shape of a decoded frame; one of `keys` is before its text, such as `"content":"`."""
        for key in keys:
            before, found, after = raw.partition(key)
            if found:
                self._head, self._tail = before + found, after[scan.text_length(after) :]
                return

    def take_shape(self, head: bytes, tail: bytes) -> None:
        """Take the bytes before and after the text of a decoded frame as the shape."""
        self._head, self._tail = head, tail

    def span(self, run: bytes, at: int = 0) -> int:
        """Return the end of the frames of this shape that begin at `at`."""
        return scan.frames_end(run, at, self._head, self._tail)

    def take(self, run: bytes, at: int = 0) -> tuple[list[str], int]:
        """Return the texts of the frames of this shape that begin at `at`, and the size of the frames."""
        head, tail = self._head, self._tail
        skip = len(head)
        end = run.rfind(tail, at, at + SCAN_BYTES) if head and run.startswith(head, at) else -1
        if end < at + skip:
            return [], 0
        frames = run[at:end].split(tail)
        pieces = [frame[skip:] for frame in frames]
        texts = _texts(pieces) if (tail + head).join(pieces) == run[at + skip : end] else None
        if texts is None:
            # Another frame is among them: take those before it, each checked by itself.
            alike = takewhile(lambda frame: frame.startswith(head), frames)
            pieces = list(takewhile(_is_text, [frame[skip:] for frame in alike]))
            texts = _texts(pieces, checked=True)
        return (texts, sum(map(len, pieces)) + len(pieces) * (skip + len(tail))) if texts else ([], 0)


def _texts(pieces: list[bytes], *, checked: bool = False) -> list[str] | None:
    """Decode pieces that are insides of JSON strings; None if one is not, or may not be."""
    joined = b'["' + _BETWEEN.join(pieces) + b'"]'
    if not checked and _UNSURE in joined:
        return None
    texts = json.try_read(joined, _strings)
    return texts if texts is not None and len(texts) == len(pieces) else None


def _is_text(piece: bytes) -> bool:
    return scan.text_length(piece) == len(piece)


_SEPARATOR = "\x7f"
"""A character that JSON does not escape and hardly any text contains."""


class TextBatch:
    """Consecutive text deltas of one part, none of them empty."""

    __slots__ = ("index", "texts")

    def __init__(self, index: int, texts: Sequence[str]) -> None:
        self.index: Final = index
        self.texts: Final = texts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextBatch) and (self.index, self.texts) == (other.index, other.texts)

    def __repr__(self) -> str:
        return f"TextBatch({self.index!r}, {self.texts!r})"


StreamItem: TypeAlias = Event | TextBatch


def batched(events: Iterable[Event]) -> list[StreamItem]:
    """Return the events with consecutive plain texts of one part as one batch."""
    out: list[StreamItem] = []
    for index, run in groupby(events, _part_of_text):
        if index is None:
            out.extend(run)
        else:
            out.append(TextBatch(index, [event.text for event in run if isinstance(event, TextDelta)]))
    return out


def unbatched(items: Iterable[StreamItem]) -> list[Event]:
    """Return the events one by one."""
    out: list[Event] = []
    for item in items:
        if isinstance(item, TextBatch):
            out.extend([TextDelta(item.index, text) for text in item.texts])
        else:
            out.append(item)
    return out


def escape_texts(texts: Sequence[str]) -> list[bytes]:
    """Return each text as a JSON string without its quotes."""
    whole = _SEPARATOR.join(texts)
    if whole.count(_SEPARATOR) >= len(texts):
        return [json.encode(text)[1:-1] for text in texts]
    return json.encode(whole)[1:-1].split(_SEPARATOR.encode())


def frame_at(run: bytes, at: int) -> tuple[Frame | None, int]:
    """Return the frame that begins at `at` (None if it has no data), and its end."""
    end = run.find(b"\n\n", at)
    block = run[at:end] if end >= 0 else run[at:]
    frame = parse(block.strip(b"\n")) if block else None
    return frame, end + 2 if end >= 0 else len(run)


def _part_of_text(event: Event) -> int | None:
    """Return the part index of a plain text; None for every other event."""
    return event.index if type(event) is TextDelta and event.text and not event.logprobs else None
