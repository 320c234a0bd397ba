"""Runs of text: pieces that follow each other are told and written together, far cheaper than one by one.

Most of a stream is pieces of one text. A decoder that can tell them together has `runs(data)` beside `feed`:
the same events, with many `TextAdded` as one `Texts`. An encoder that can write them together has
`add_texts(index, texts)`: the bytes it would have written for the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from routecodex.canon.events import Event, TextAdded
from routecodex.wire import json
from routecodex.wire.sse import Frame, parse

from .codec import StreamDecoder, Texts

_SEAM = "\x7f"
"""A character that JSON takes as it is and hardly any text holds."""


Told: TypeAlias = Event | Texts
Runs: TypeAlias = Callable[[bytes], Sequence[Told]]


def reader(decoder: StreamDecoder) -> Runs:
    """How to hear texts together: as the decoder tells them, or gathered from its events."""
    runs: Runs | None = getattr(decoder, "runs", None)
    return runs if runs is not None else lambda data: gathered(decoder.feed(data))


def gathered(events: Iterable[Event]) -> list[Told]:
    """The events, with plain texts of one part that follow each other as one."""
    out: list[Told] = []
    for index, run in groupby(events, _part_of_text):
        if index is None:
            out.extend(run)
        else:
            out.append(Texts(index, [event.text for event in run if isinstance(event, TextAdded)]))
    return out


def spread(told: Iterable[Told]) -> list[Event]:
    """The events one by one."""
    out: list[Event] = []
    for item in told:
        if isinstance(item, Texts):
            out.extend([TextAdded(item.index, text) for text in item.texts])
        else:
            out.append(item)
    return out


def escaped(texts: Sequence[str]) -> list[bytes]:
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
    return event.index if type(event) is TextAdded and event.text and not event.logprobs else None
