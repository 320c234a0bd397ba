"""Frames that differ in one text only, taken many at once."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.protocols.text_batches import SCAN_BYTES, FrameTemplate

KEYS = (b'"content":"', b'"content": "')
TRICKY = [
    "Hi",
    'say "hi"',
    "back\\slash\\",
    '\\"',
    '",',
    ",",
    "",
    "世界",
    "new\nline",
    '"},"finish":null}\n\n',
]


def framed(text: bytes, finish: str = "null") -> bytes:
    return b'data: {"id":"x","delta":{"content":' + text + b'},"finish":' + finish.encode() + b"}\n\n"


def frame(text: str, finish: str = "null") -> bytes:
    return framed(msgspec.json.encode(text), finish)


def learnt(text: str = "Hi") -> FrameTemplate:
    repeats = FrameTemplate()
    repeats.learn(frame(text), KEYS)
    return repeats


@pytest.mark.parametrize("text", TRICKY)
def test_a_frame_of_any_text_gives_the_shape(text: str) -> None:
    assert learnt(text).take(frame("one") + frame("two")) == (["one", "two"], 2 * len(frame("one")))


@given(st.lists(st.text(max_size=8) | st.sampled_from(TRICKY), min_size=1, max_size=6))
def test_any_texts_come_out_as_they_are(texts: list[str]) -> None:
    run = b"".join(map(frame, texts))
    assert learnt().take(run) == (texts, len(run))


def test_frames_are_taken_from_where_they_begin() -> None:
    before, run = frame("end", '"stop"'), frame("one") + frame("two")
    assert learnt().take(before + run, len(before)) == (["one", "two"], len(run))
    assert learnt().take(before + run) == ([], 0)


@pytest.mark.parametrize("after", [b"", frame("three")])
@pytest.mark.parametrize("foreign", [frame("end", '"stop"'), b": ping\n\n", b"data: [DONE]\n\n", b"\n\n"])
def test_the_first_frame_of_another_shape_ends_the_run(foreign: bytes, after: bytes) -> None:
    run = frame("one") + frame("two")
    assert learnt().take(run + foreign + after) == (["one", "two"], len(run))


def test_a_long_run_is_taken_in_several_goes() -> None:
    texts = [f"text {number}" for number in range(SCAN_BYTES // 20)]
    run, at = b"".join(map(frame, texts)), 0
    told: list[str] = []
    while at < len(run):
        taken, span = learnt().take(run, at)
        assert 0 < span <= SCAN_BYTES
        told, at = told + taken, at + span
    assert (told, at) == (texts, len(run))


def test_a_frame_out_of_reach_is_left_alone() -> None:
    assert learnt().take(frame("x" * SCAN_BYTES)) == ([], 0)


def test_nothing_repeats_before_a_shape_is_known() -> None:
    assert FrameTemplate().take(frame("one")) == ([], 0)


def test_a_frame_without_the_key_teaches_nothing() -> None:
    repeats = FrameTemplate()
    repeats.learn(b'data: {"other":"x"}\n\n', KEYS)
    assert repeats.take(b'data: {"other":"y"}\n\n') == ([], 0)


@pytest.mark.parametrize(
    "broken",
    [
        framed(b'"'),
        framed(b'"a" , "b"'),
        framed(b'"a\\"'),
        framed(b'"a\\') + framed(b'",","b"'),
        framed(b'"\\x"'),
        framed(b'"\xff"'),
    ],
)
def test_what_is_no_string_is_never_taken_for_a_text(broken: bytes) -> None:
    assert learnt().take(broken) == ([], 0)
    assert learnt().take(frame("one") + broken) in (([], 0), (["one"], len(frame("one"))))
    assert learnt().take(broken + frame("one")) == ([], 0)


@given(st.lists(st.text(max_size=8) | st.sampled_from(TRICKY), min_size=1, max_size=6))
def test_a_run_of_any_texts_is_spanned(texts: list[str]) -> None:
    run = b"".join(map(frame, texts))
    assert learnt().span(run) == len(run)
    assert learnt().span(frame("end", '"stop"') + run, len(frame("end", '"stop"'))) == len(run) + len(
        frame("end", '"stop"')
    )


@pytest.mark.parametrize("after", [b"", frame("three")])
@pytest.mark.parametrize(
    "foreign",
    [
        frame("end", '"stop"'),
        b"data: [DONE]\n\n",
        framed(b'"a\\"'),
        b'data: {"id":"x","delta":{"content":"no end',
    ],
)
def test_the_first_frame_of_another_shape_ends_the_span(foreign: bytes, after: bytes) -> None:
    run = frame("one") + frame('say "two"')
    assert learnt().span(run + foreign + after) == len(run)


def test_nothing_is_spanned_before_a_shape_is_known() -> None:
    assert FrameTemplate().span(frame("one")) == 0
    assert FrameTemplate().span(frame("one"), 7) == 7
