"""Runs of text: told together, told one by one, written together."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.events import Event, PartFinished, PartStarted, Started, TextDelta
from routecodex.canon.parts import Refusal, Text, ToolCall
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.text_batches import TextBatch, batched, escape_texts, frame_at, unbatched
from routecodex.wire.frame import Frame
from tests.protocols.test_grammar import ANSWERS

TEXTS = ["Hi", " world", '"', "\\", "\x7f", "世界", "50 %d", "\n"]
START = Started("id", "model")


def reply() -> ReplyContext:
    return ReplyContext(id="ab" * 12, created=1, model="m", provider="up")


def test_plain_texts_of_one_part_are_gathered() -> None:
    events: list[Event] = [
        START,
        TextDelta(0, "a"),
        TextDelta(0, "b"),
        TextDelta(1, "c"),
        TextDelta(1, "d", ({"token": "d"},)),
        TextDelta(1, ""),
        PartFinished(1),
    ]
    told = [START, TextBatch(0, ["a", "b"]), TextBatch(1, ["c"]), *events[4:]]
    assert batched(events) == told
    assert unbatched(told) == events


@given(st.lists(st.text(max_size=6) | st.sampled_from(TEXTS)))
def test_every_text_is_escaped_as_it_would_be_alone(texts: list[str]) -> None:
    assert escape_texts(texts) == [msgspec.json.encode(text)[1:-1] for text in texts]


@pytest.mark.parametrize("protocol", CODECS)
@pytest.mark.parametrize("scene", ANSWERS)
def test_a_decoder_tells_the_same_together_and_one_by_one(protocol: str, scene: str) -> None:
    stream = ANSWERS[scene](protocol, True).data
    together, alone = CODECS[protocol].stream_decoder(), CODECS[protocol].stream_decoder()
    assert unbatched(together.decode_batches(stream)) == alone.feed(stream)
    assert together.close() == alone.close()


@pytest.mark.parametrize("protocol", CODECS)
@pytest.mark.parametrize("part", [Text(""), Refusal("")], ids=["text", "refusal"])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("texts", [TEXTS, ["one"], ["a", "", "b"], [""]])
def test_an_encoder_writes_the_same_together_and_one_by_one(
    protocol: str, part: Text | Refusal, before: int, texts: list[str]
) -> None:
    encoders = [CODECS[protocol].stream_encoder(reply()) for _ in range(2)]
    opening: list[Event] = [START, PartStarted(0, part), *[TextDelta(0, "first")] * before]
    for encoder, event in itertools.product(encoders, opening):
        encoder.encode(event)
    written = encoders[0].add_texts(0, texts)
    assert written == b"".join(encoders[1].encode(TextDelta(0, text)) for text in texts)
    last = TextDelta(0, "last")
    assert encoders[0].encode(last) == encoders[1].encode(last)


def test_texts_of_a_later_part_wait_for_their_turn() -> None:
    for protocol in ("messages", "responses", "gemini"):
        encoders = [CODECS[protocol].stream_encoder(reply()) for _ in range(2)]
        opening: list[Event] = [START, PartStarted(0, ToolCall("a", "f")), PartStarted(1, Text(""))]
        for encoder, event in itertools.product(encoders, opening):
            encoder.encode(event)
        assert encoders[0].add_texts(1, ["a", "b"]) == b""
        for text in "ab":
            encoders[1].encode(TextDelta(1, text))
        assert encoders[0].encode(PartFinished(0)) == encoders[1].encode(PartFinished(0))


@pytest.mark.parametrize(
    ("run", "at", "found"),
    [
        (b"data: a\n\ndata: b\n\n", 0, (Frame(b"", b"a", b"data: a\n\n"), 9)),
        (b"data: a\n\ndata: b\n\n", 9, (Frame(b"", b"b", b"data: b\n\n"), 18)),
        (b"data: a\n\n\n", 9, (None, 10)),
        (b"\n\ndata: a\n\n", 0, (None, 2)),
        (b"\ndata: a\n\n", 0, (Frame(b"", b"a", b"data: a\n\n"), 10)),
        (b": comment\n\n", 0, (None, 11)),
    ],
)
def test_frames_are_found_one_after_the_other(run: bytes, at: int, found: tuple[Frame | None, int]) -> None:
    assert frame_at(run, at) == found
