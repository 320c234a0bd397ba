"""Runs of text: pieces that follow each other are told and written together, far cheaper than one by one.

Most of a stream is pieces of one text. A decoder that can tell them together has `runs(data)` beside `feed`:
the same events, with many `TextAdded` as one `Texts`. An encoder that can write them together has
`add_texts(index, texts)`: the bytes it would have written for the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from routecodex.canon.events import Event, TextDelta
from routecodex.protocols.codec import StreamDecoder, TextBatch
from routecodex.wire import json
from routecodex.wire.frame import Frame
from routecodex.wire.sse import parse

_SEAM = "\x7f"
"""A character that JSON takes as it is and hardly any text holds."""


StreamItem: TypeAlias = Event | TextBatch
DecodeBatches: TypeAlias = Callable[[bytes], Sequence[StreamItem]]


def batch_decoder(decoder: StreamDecoder) -> DecodeBatches:
    """How to hear texts together: as the decoder tells them, or gathered from its events."""
    runs: DecodeBatches | None = getattr(decoder, "runs", None)
    return runs if runs is not None else lambda data: batched(decoder.feed(data))


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
