"""One answer from many rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
]


@pytest.mark.parametrize(("rounds", "expected"), JOINED)
def test_texts_of_rounds_are_joined_by_one_blank_line(rounds: list[list[object]], expected: str) -> None:
    assert text_of(fold(through(*(answer(*parts) for parts in rounds)))) == expected


def test_texts_that_follow_each_other_are_one_part_and_others_keep_theirs() -> None:
    shown = fold(through(answer(Text("a")), answer(Text("b")), answer(THOUGHT, Text("c"))))
    assert shown.parts == (Text("a\n\nb"), THOUGHT, Text("\n\nc"))


def test_two_texts_of_one_round_stay_two() -> None:
    assert fold(through(answer(Text("a"), Text("b")))).parts == (Text("a"), Text("b"))


def test_calls_to_server_tools_are_never_seen() -> None:
    shown = fold(through(answer(Text("a"), SERVER_CALL, CLIENT_CALL, reason="tool_calls")))
    assert shown.parts == (Text("a"), CLIENT_CALL)
    assert shown.finish.reason == "tool_calls"


def test_usage_is_summed_and_told_once() -> None:
    events = through(answer(usage=Usage(input=3, output=2)), answer(usage=Usage(input=5, output=1)))
    assert fold(events).usage == Usage(input=8, output=3)
    assert sum(type(event).__name__ == "UsageReported" for event in events) == 1


def test_there_is_one_start_and_one_end() -> None:
    events = through(answer(Text("a")), answer(Text("b")), answer(Text("c"), reason="length"))
    assert sum(isinstance(event, Started) for event in events) == 1
    assert [event for event in events if isinstance(event, Finished)] == [Finished(Finish("length"))]
    assert isinstance(events[-1], Finished)


def test_text_is_told_as_it_comes() -> None:
    merger = RoundMerger(lambda _: False)
    merger.feed(Started())
    merger.feed(PartStarted(0, Text("")))
    assert merger.feed(TextDelta(0, "a")) == [TextDelta(0, "a")]
    assert merger.feed(TextDelta(0, "\n")) == []
    assert merger.feed(TextDelta(0, "b")) == [TextDelta(0, "\nb")]
    assert merger.shown


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
    shown = fold(through(answer(Text("a"), usage=Usage(input=1)), answer(THOUGHT, Text("b")), visible="last"))
    assert shown.parts == (THOUGHT, Text("b"))
    assert shown.usage == Usage(input=1)


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
