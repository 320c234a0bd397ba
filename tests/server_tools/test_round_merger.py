"""One answer from many rounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import (
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.response import Response, fold, unfold
from routecodex.server_tools.round_merger import RoundMerger, VisibleRounds


def answer(*parts: object, reason: str = "stop", usage: Usage | None = None) -> Response:
    return Response(parts=parts, finish=Finish(reason), usage=usage)  # type: ignore[arg-type]  # a table's words


def through(*rounds: Response, visible: VisibleRounds = "all") -> list[Event]:
    merger = RoundMerger(lambda name: name == "clock", visible=visible)
    events: list[Event] = []
    for number, one in enumerate(rounds):
        if number:
            merger.begin_round()
        for event in unfold(one):
            events.extend(merger.feed(event))
    return [*events, *merger.end()]


def text_of(response: Response) -> str:
    return "".join(part.text for part in response.parts if isinstance(part, Text))


SERVER_CALL = ToolCall("c1", "clock", '{"action":"get"}')
CLIENT_CALL = ToolCall("c2", "read", "{}")
THOUGHT = Reasoning("hm", "sig")

JOINED: list[tuple[list[list[object]], str]] = [
    ([[Text("a")], [Text("b")]], "a\n\nb"),
    ([[Text("a\n")], [Text("b")]], "a\n\nb"),
    ([[Text("a\n\n\n")], [Text("\n\nb")]], "a\n\nb"),
    ([[Text("a\r\n")], [Text("b\n")]], "a\n\nb\n"),
    ([[Text("a")], [THOUGHT, Text("b")]], "a\n\nb"),
    ([[THOUGHT, Text("a")], [THOUGHT, Text("b")], [Text("c")]], "a\n\nb\n\nc"),
    ([[Text("a")], [], [Text("c")]], "a\n\nc"),
    ([[SERVER_CALL], [Text("b")]], "b"),
    ([[Text("a"), SERVER_CALL], [Text("b")]], "a\n\nb"),
    ([[Text("")], [Text("b")]], "b"),
    ([[Text("a")], [Text("\n")]], "a"),
    ([[Text("a\n\n")]], "a\n\n"),
    ([[Text("a")], [Text("\n \n  b")]], "a\n\n  b"),
    ([[Text("a")], [Text("  \n")], [Text("c")]], "a\n\nc"),
    ([[Text("a"), Text("b")], [Text("c")]], "ab\n\nc"),
    ([[Text("a\n \n")], [Text("b")]], "a\n\nb"),
    ([[Text("a  ")], [Text("b")]], "a  \n\nb"),
    ([[Text("a  ")], [THOUGHT, Text("b")]], "a  \n\nb"),
]

OPENED: list[tuple[list[list[object]], str]] = [
    ([[Text("\n\n")], [Text("b")]], "b"),
    ([[Text("  ")], [Text("b")]], "b"),
    ([[Text(" \n")], [Text(" \n")], [Text("  b")]], "  b"),
    ([[Text("\n\n"), SERVER_CALL], [THOUGHT, Text("b")]], "b"),
    ([[THOUGHT, Text("\n\n"), SERVER_CALL], [Text("b")]], "b"),
    ([[Text("\n"), THOUGHT, SERVER_CALL], [Text("b")]], "b"),
    ([[THOUGHT], [Text("\n\nb")], [Text("c")]], "b\n\nc"),
    ([[SERVER_CALL], [SERVER_CALL], [Text("\n\n  b\n")]], "  b\n"),
    ([[], [Text("b")]], "b"),
]

SINGLE: list[tuple[list[object], str]] = [
    ([Text("\n\nb \n")], "\n\nb \n"),
    ([Text("\n"), THOUGHT, Text("b")], "\nb"),
    ([Text("\n\n"), CLIENT_CALL], "\n\n"),
    ([Text("\n\n")], "\n\n"),
    ([Text("")], ""),
]


@pytest.mark.parametrize(("rounds", "expected"), JOINED)
def test_texts_of_rounds_are_joined_by_one_blank_line(rounds: list[list[object]], expected: str) -> None:
    assert text_of(fold(through(*(answer(*parts) for parts in rounds)))) == expected


@pytest.mark.parametrize("visible", ["all", "last"])
@pytest.mark.parametrize(("rounds", "expected"), OPENED)
def test_an_answer_never_opens_with_the_blank_lines_of_a_round_without_text(
    rounds: list[list[object]], expected: str, visible: VisibleRounds
) -> None:
    response = fold(through(*(answer(*parts) for parts in rounds), visible=visible))
    assert all(part.text for part in response.parts if isinstance(part, Text))
    assert text_of(response) == (expected if visible == "all" else expected.rpartition("\n\n")[2])


@pytest.mark.parametrize(("parts", "expected"), SINGLE)
def test_the_text_of_a_single_round_stays_as_it_came(parts: list[object], expected: str) -> None:
    response = fold(through(answer(*parts)))
    assert text_of(response) == expected
    assert Text("") not in response.parts or parts == [Text("")]


def joined(texts: list[str]) -> str:
    """Return what the texts of several rounds must look like together."""
    shown = ""
    for number, text in enumerate(texts):
        if number:
            text = re.sub(r"\A(?:[ ]*\n)+", "", text)
        if not text.strip():
            continue
        if number < len(texts) - 1:
            text = re.sub(r"\n[ \n]*\Z", "", text)
        shown += ("\n\n" if shown else "") + text
    return shown


@given(st.lists(st.text(alphabet="a \n", max_size=6), min_size=2, max_size=5))
def test_texts_are_joined_alike_however_they_are_split(texts: list[str]) -> None:
    merger = RoundMerger(lambda _: False)
    events: list[Event] = [Started()]
    for number, text in enumerate(texts):
        if number:
            merger.begin_round()
        deltas: list[Event] = [TextDelta(0, piece) for piece in text]
        for event in [PartStarted(0, Text("")), *deltas, PartFinished(0)]:
            events += merger.feed(event)
    assert text_of(fold([*events, *merger.end()])) == joined(texts)
    assert text_of(fold(through(*(answer(Text(text)) for text in texts)))) == joined(texts)


def test_texts_that_follow_each_other_are_one_part_and_others_keep_theirs() -> None:
    shown = fold(through(answer(Text("a")), answer(Text("b")), answer(THOUGHT, Text("c"))))
    assert shown.parts == (Text("a\n\nb"), THOUGHT, Text("\n\nc"))


def test_two_texts_of_one_round_stay_two() -> None:
    assert fold(through(answer(Text("a"), Text("b")))).parts == (Text("a"), Text("b"))


def test_calls_to_server_tools_are_never_seen() -> None:
    shown = fold(through(answer(Text("a"), SERVER_CALL, CLIENT_CALL, reason="tool_calls")))
    assert shown.parts == (Text("a"), CLIENT_CALL)
    assert shown.finish.reason == "tool_calls"


STEPS = Usage(input=30, output=2, iterations=({"type": "message", "output_tokens": 2},))
FIRST = Usage(input=30, output=2, cache_read=10, cache_write=5, reasoning=1)
SECOND = Usage(input=50, output=4, cache_read=20, reasoning=3)

USAGES: list[tuple[list[Response], Usage | None]] = [
    ([answer(usage=FIRST)], FIRST),
    ([answer(Text("a"), usage=FIRST)], FIRST),
    ([answer(Text("a"), usage=STEPS)], STEPS),
    ([answer(Text("a"), usage=STEPS), answer(Text("b"), usage=STEPS)], Usage(input=30, output=4)),
    ([answer(Text("a")), answer(Text("b"))], None),
    (
        [answer(Text("a"), usage=FIRST), answer(Text("b"), usage=SECOND)],
        replace(FIRST, output=6, reasoning=4),
    ),
    (
        [answer(SERVER_CALL, usage=FIRST), answer(Text("b"), usage=SECOND)],
        replace(FIRST, output=4, reasoning=3),
    ),
    (
        [answer(SERVER_CALL, usage=FIRST), answer(CLIENT_CALL, usage=SECOND)],
        replace(FIRST, output=4, reasoning=3),
    ),
    ([answer(Text("a"), usage=FIRST), answer(Text("\n"), usage=SECOND)], FIRST),
    ([answer(Text("a")), answer(Text("b"), usage=SECOND)], SECOND),
    ([answer(THOUGHT, usage=FIRST), answer(Text("b"), usage=SECOND)], replace(FIRST, output=6, reasoning=4)),
]


@pytest.mark.parametrize(("rounds", "expected"), USAGES)
def test_the_client_is_shown_the_first_input_and_the_output_that_it_saw(
    rounds: list[Response], expected: Usage | None
) -> None:
    events = through(*rounds)
    assert fold(events).usage == expected
    assert sum(isinstance(event, UsageReported) for event in events) == (expected is not None)


def test_usage_is_the_sum_of_all_rounds_at_any_time() -> None:
    merger = RoundMerger(lambda _: False)
    assert merger.usage is None
    merger.feed(UsageReported(FIRST))
    assert merger.usage == FIRST
    merger.begin_round()
    assert merger.usage == FIRST
    merger.feed(UsageReported(SECOND))
    assert merger.usage == FIRST + SECOND
    merger.end()
    assert merger.usage == FIRST + SECOND


def test_there_is_one_start_and_one_end() -> None:
    events = through(answer(Text("a")), answer(Text("b")), answer(Text("c"), reason="length"))
    assert sum(isinstance(event, Started) for event in events) == 1
    assert [event for event in events if isinstance(event, Finished)] == [Finished(Finish("length"))]
    assert isinstance(events[-1], Finished)


def test_text_is_told_as_it_comes() -> None:
    merger = RoundMerger(lambda _: False)
    merger.feed(Started())
    assert merger.feed(PartStarted(0, Text(""))) == []
    assert merger.feed(TextDelta(0, "a")) == [PartStarted(0, Text("")), TextDelta(0, "a")]
    assert merger.feed(TextDelta(0, "\n")) == []
    assert merger.feed(TextDelta(0, "b")) == [TextDelta(0, "\nb")]


def test_parts_that_overlap_stay_whole() -> None:
    merger = RoundMerger(lambda _: False)
    events: list[Event] = [
        Started(),
        PartStarted(0, Text("")),
        TextDelta(0, "a"),
        PartStarted(1, ToolCall("c", "read")),
        TextDelta(0, "b\n"),
        PartFinished(0),
        PartFinished(1),
        Finished(Finish("tool_calls")),
    ]
    events = [one for event in events for one in merger.feed(event)]
    assert fold([*events, *merger.end()]).parts == (Text("ab\n"), ToolCall("c", "read"))


def test_only_the_last_round_is_told_when_that_is_wanted() -> None:
    rounds = answer(Text("a"), usage=FIRST), answer(THOUGHT, Text("b"), usage=SECOND)
    shown = fold(through(*rounds, visible="last"))
    assert shown.parts == (THOUGHT, Text("b"))
    assert shown.usage == replace(FIRST, output=4, reasoning=3)


def test_a_failure_ends_what_is_open() -> None:
    merger = RoundMerger(lambda _: False)
    for event in (Started(), PartStarted(0, Text("")), TextDelta(0, "a\n"), PartFinished(0)):
        merger.feed(event)
    failed = Failed(UpstreamFailed("it broke"))
    assert merger.fail(failed) == [TextDelta(0, "\n"), PartFinished(0), failed]


PARTS = st.one_of(
    st.text(alphabet="ab\n", max_size=6).map(Text),
    st.sampled_from([THOUGHT, SERVER_CALL, CLIENT_CALL]),
)


@given(st.lists(st.lists(PARTS, max_size=4), min_size=1, max_size=5))
def test_whatever_the_rounds_the_events_keep_their_grammar(rounds: list[list[object]]) -> None:
    events = through(*(answer(*parts) for parts in rounds))
    open_parts: set[int] = set()
    begun: list[int] = []
    for event in events[1:-1]:
        index = getattr(event, "index", None)
        if isinstance(event, PartStarted):
            begun.append(event.index)
            open_parts.add(event.index)
        elif isinstance(event, PartFinished):
            open_parts.remove(event.index)
        elif index is not None:
            assert index in open_parts
    assert not open_parts
    assert begun == list(range(len(begun)))
    shown = [part.text.strip("\n") for part in fold(events).parts if isinstance(part, Text)]
    said = [part.text.strip("\n") for parts in rounds for part in parts if isinstance(part, Text)]
    assert "".join(shown).replace("\n", "") == "".join(said).replace("\n", "")
