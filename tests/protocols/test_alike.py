"""Frames that differ in one text only."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.protocols.alike import Alike

KEYS = (b'"content":"',)


def frame(text: str, finish: str = "null") -> bytes:
    told = msgspec.json.encode(text)
    return b'data: {"id":"x","delta":{"content":' + told + b'},"finish":' + finish.encode() + b"}\n\n"


def learnt(text: str = "Hi") -> Alike:
    alike = Alike()
    alike.learn(frame(text), KEYS)
    return alike


@pytest.mark.parametrize("text", ["Hi", 'say "hi"', "back\\slash\\", '\\"', "", "世界", "new\nline"])
def test_a_frame_of_any_text_gives_the_shape(text: str) -> None:
    assert learnt(text).take(frame("one") + frame("two")) == (["one", "two"], 2 * len(frame("one")))


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_any_texts_come_out_as_they_are(texts: list[str]) -> None:
    run = b"".join(map(frame, texts))
    taken, span = learnt().take(run)
    assert (taken, span) == (texts, len(run)) or (taken, span) == ([], 0)
    assert learnt().span(run) == len(run)


def test_the_first_frame_of_another_shape_ends_the_span() -> None:
    run = frame("one") + frame("two") + frame("end", '"stop"') + frame("three")
    assert learnt().span(run) == len(frame("one") + frame("two"))


def test_nothing_is_alike_before_a_shape_is_known() -> None:
    assert Alike().span(frame("one")) == 0


def test_a_text_that_quotes_the_tail_is_still_one_text() -> None:
    text = '"},"finish":null}\n\n'
    taken, span = learnt().take(frame(text) + frame("next"))
    assert (taken, span) == ([text, "next"], len(frame(text) + frame("next")))


def test_a_frame_without_the_key_teaches_nothing() -> None:
    alike = Alike()
    alike.learn(b'data: {"other":"x"}\n\n', KEYS)
    assert alike.span(b'data: {"other":"y"}\n\n') == 0


@pytest.mark.parametrize("rest", [b'data: {"id":"x","delta":{"content":"no end', b"", b"data: [DONE]\n\n"])
def test_what_is_no_such_frame_is_left_alone(rest: bytes) -> None:
    assert learnt().span(frame("one") + rest) == len(frame("one"))
