"""Reads and writes many text frames at once.

Frames that differ in one text only, taken many at once.

    data: {…"delta":{"content":" world"},…}
    └────── head ─────────────┘text└─ tail ─┘

Once one such frame was understood, a run of them is cut apart at its tails in one go. That each frame begins
with the head is proved by joining them again, and that each text is a string by reading all as one list.

Runs of text: pieces that follow each other are told and written together, far cheaper than one by one.

Most of a stream is pieces of one text. A decoder that can tell them together has `runs(data)` beside `feed`:
the same events, with many `TextAdded` as one `TextBatch`. An encoder that can write them together has
`add_texts(index, texts)`: the bytes it would have written for the events.
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
"""Bytes looked at in one go: a run that others interrupt is not cut apart to its end again and again."""

_strings = Decoder(list[str])
_BETWEEN = b'","'

_UNSURE = b"\\" + _BETWEEN
"""Where a text may have swallowed the quote that should close it."""


class FrameTemplate:
    """The shape of the last frame that was understood."""

    __slots__ = ("_head", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""

    def learn(self, raw: bytes, keys: Sequence[bytes]) -> None:
        """Takes the frame as the shape; one of `keys` stands before its text, such as `"content":"`."""
        for key in keys:
            before, found, after = raw.partition(key)
            if found:
                self._head, self._tail = before + found, after[scan.text_length(after) :]
                return

    def take_shape(self, head: bytes, tail: bytes) -> None:
        """Takes as the shape what stands before and behind the text of a frame that was understood."""
        self._head, self._tail = head, tail

    def span(self, run: bytes, at: int = 0) -> int:
        """Where the frames of this shape end that begin there; there if none do."""
        return scan.frames_end(run, at, self._head, self._tail)

    def take(self, run: bytes, at: int = 0) -> tuple[list[str], int]:
        """The texts of the frames of this shape that begin there, and how many bytes they are."""
        head, tail = self._head, self._tail
        skip = len(head)
        end = run.rfind(tail, at, at + SCAN_BYTES) if head and run.startswith(head, at) else -1
        if end < at + skip:
            return [], 0
        frames = run[at:end].split(tail)
        pieces = [frame[skip:] for frame in frames]
        texts = _texts(pieces) if (tail + head).join(pieces) == run[at + skip : end] else None
        if texts is None:
            # Something else stands among them: what comes before it is told by looking at each.
            alike = takewhile(lambda frame: frame.startswith(head), frames)
            pieces = list(takewhile(_is_text, [frame[skip:] for frame in alike]))
            texts = _texts(pieces, checked=True)
        return (texts, sum(map(len, pieces)) + len(pieces) * (skip + len(tail))) if texts else ([], 0)


def _texts(pieces: list[bytes], *, checked: bool = False) -> list[str] | None:
    """What the pieces say, each the inside of a JSON string; None when one of them is not, or may not be."""
    told = b'["' + _BETWEEN.join(pieces) + b'"]'
    if not checked and _UNSURE in told:
        return None
    texts = json.try_read(told, _strings)
    return texts if texts is not None and len(texts) == len(pieces) else None


def _is_text(piece: bytes) -> bool:
    return scan.text_length(piece) == len(piece)


_SEAM = "\x7f"
"""A character that JSON takes as it is and hardly any text holds."""


class TextBatch:
    """Many TextAdded events of one part that follow each other, none of them empty."""

    __slots__ = ("index", "texts")

    def __init__(self, index: int, texts: Sequence[str]) -> None:
        self.index: Final = index
        self.texts: Final = texts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextBatch) and (self.index, self.texts) == (other.index, other.texts)

    def __repr__(self) -> str:
        return f"Texts({self.index!r}, {self.texts!r})"


StreamItem: TypeAlias = Event | TextBatch


def batched(events: Iterable[Event]) -> list[StreamItem]:
    """The events, with plain texts of one part that follow each other as one."""
    out: list[StreamItem] = []
    for index, run in groupby(events, _part_of_text):
        if index is None:
            out.extend(run)
        else:
            out.append(TextBatch(index, [event.text for event in run if isinstance(event, TextDelta)]))
    return out


def unbatched(told: Iterable[StreamItem]) -> list[Event]:
    """The events one by one."""
    out: list[Event] = []
    for item in told:
        if isinstance(item, TextBatch):
            out.extend([TextDelta(item.index, text) for text in item.texts])
        else:
            out.append(item)
    return out


def escape_texts(texts: Sequence[str]) -> list[bytes]:
    """Each text as a JSON string without its quotes."""
    whole = _SEAM.join(texts)
    if whole.count(_SEAM) >= len(texts):
        return [json.encode(text)[1:-1] for text in texts]
    return json.encode(whole)[1:-1].split(_SEAM.encode())


def frame_at(run: bytes, at: int) -> tuple[Frame | None, int]:
    """The frame that begins there (None when it holds no data), and where the next one does."""
    end = run.find(b"\n\n", at)
    block = run[at:end] if end >= 0 else run[at:]
    frame = parse(block.strip(b"\n")) if block else None
    return frame, end + 2 if end >= 0 else len(run)


def _part_of_text(event: Event) -> int | None:
    """The part that a plain text belongs to; None for every other event."""
    return event.index if type(event) is TextDelta and event.text and not event.logprobs else None
