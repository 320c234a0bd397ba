from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.parts import Text
from routecodex.canon.response import fold
from routecodex.protocols.gemini.content import GroundedText, citations
from tests.protocols.gemini.test_decode_stream import chunk, decode, frames

PAGE = {"web": {"uri": "https://a.example", "title": "A"}}


def grounded(start: int, end: int) -> dict[str, Any]:
    support = {"segment": {"startIndex": start, "endIndex": end}, "groundingChunkIndices": [0]}
    return {"groundingChunks": [PAGE], "groundingSupports": [support]}


def cited(start: int, end: int) -> dict[str, Any]:
    place = {"start_index": start, "end_index": end}
    return {"type": "url_citation", "url": "https://a.example", "title": "A", **place}


def test_positions_are_in_characters() -> None:
    text = "Grüße, 世界!"
    start, end = (len(text[:at].encode()) for at in (7, 9))
    assert citations(grounded(start, end), GroundedText(text)) == [cited(7, 9)]
    assert citations(grounded(0, 99), GroundedText(text)) == [cited(0, len(text))]


def test_citations_that_come_with_the_signature_belong_to_the_text_before() -> None:
    last = chunk(
        {"text": "", "thoughtSignature": "AAAA"}, finishReason="STOP", groundingMetadata=grounded(0, 7)
    )
    answer = fold(decode(frames(chunk({"text": "Grü"}), chunk({"text": "ße"}), last)))
    assert answer.parts == (Text("Grüße", annotations=(cited(0, 5),), signature="AAAA"),)


def test_text_after_a_signature_is_another_part() -> None:
    signed = {"text": "A", "thoughtSignature": "AAAA"}
    answer = fold(decode(frames(chunk(signed), chunk({"text": "B"}, finishReason="STOP"))))
    assert answer.parts == (Text("A", signature="AAAA"), Text("B"))


ODD: list[Any] = [
    7,
    {"groundingChunks": 7, "groundingSupports": {"a": 1}},
    {"groundingChunks": [None, {"web": None}, {"web": 7}], "groundingSupports": [None, 7]},
    {"groundingChunks": [None], "groundingSupports": [{"groundingChunkIndices": [0, -1, 5, None, "0"]}]},
    {"groundingChunks": [PAGE], "groundingSupports": [{"segment": 7, "groundingChunkIndices": 0}]},
    {"groundingChunks": [{"web": {"uri": 7}}], "groundingSupports": [{"groundingChunkIndices": [0]}]},
]


@pytest.mark.parametrize("grounding", ODD, ids=range(len(ODD)))
def test_malformed_grounding_is_skipped(grounding: Any) -> None:
    answer = fold(decode(frames(chunk({"text": "A"}, finishReason="STOP", groundingMetadata=grounding))))
    assert answer.parts == (Text("A"),)


def test_malformed_positions_become_zero() -> None:
    grounding = grounded(0, 0)
    grounding["groundingSupports"][0]["segment"] = {"startIndex": "x", "endIndex": None}
    assert citations(grounding, GroundedText("A")) == [cited(0, 0)]


@given(st.lists(st.text(st.sampled_from("aé世🦊"), max_size=900), max_size=4), st.integers(0, 9000))
def test_byte_offsets_are_counted_in_characters(texts: list[str], offset: int) -> None:
    grounded_text = GroundedText()
    for text in texts:
        grounded_text.add(text)
        grounded_text.char_offset(1)
    data = "".join(texts).encode()
    assert grounded_text.char_offset(offset) == len(data[:offset].decode("utf-8", "ignore"))
