from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import (
    AnnotationDelta,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response, ResponseBuilder, fold, unfold

words = st.text(max_size=12)
some = st.text(min_size=1, max_size=12)
values: st.SearchStrategy[Any] = st.dictionaries(some, st.integers() | words, max_size=2)
signatures = st.none() | some
extras = st.none() | st.dictionaries(some, words, min_size=1, max_size=2)
texts = st.builds(
    Text,
    words,
    annotations=st.lists(values, max_size=2).map(tuple),
    cache=st.none() | values,
    signature=signatures,
    extras=extras,
)
calls = st.builds(
    ToolCall,
    some,
    some,
    arguments=words,
    custom=st.booleans(),
    namespace=st.none() | some,
    signature=signatures,
    origin=st.none() | some,
)
thoughts = st.builds(
    Reasoning,
    words,
    signature=signatures,
    redacted=st.booleans(),
    id=st.none() | some,
    origin=st.none() | some,
)
parts = st.one_of(texts, calls, thoughts, st.builds(Refusal, words), st.builds(Opaque, some, values))
usages = st.builds(Usage, *[st.integers(0, 10**9)] * 5, estimated=st.booleans())
finishes = st.builds(
    Finish,
    st.sampled_from(["stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error"]),
    sequence=st.none() | some,
    upstream_reason=st.none() | some,
)


@st.composite
def responses(draw: st.DrawFn) -> Response:
    told = tuple(draw(st.lists(parts, max_size=5)))
    has_text = any(isinstance(part, Text) for part in told)
    return Response(
        id=draw(words),
        model=draw(words),
        created=draw(st.none() | st.integers(0, 2**40)),
        parts=told,
        finish=draw(finishes),
        usage=draw(st.none() | usages),
        # Log probabilities belong to text: without any there is nowhere to tell them.
        logprobs=tuple(draw(st.lists(values, max_size=2))) if has_text else (),
        extras=draw(extras),
    )


@settings(max_examples=100)
@given(responses())
def test_folding_what_was_unfolded_gives_the_same_answer(response: Response) -> None:
    assert fold(unfold(response)) == response


def check_grammar(events: list[Event]) -> None:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Started | Finished | Failed) for event in events[1:-1])
    opened: set[int] = set()
    closed: set[int] = set()
    for event in events[1:-1]:
        if isinstance(event, UsageReported):
            continue
        assert not isinstance(event, Started | Finished | Failed)
        if isinstance(event, PartStarted):
            assert event.index == len(opened)
            opened.add(event.index)
            continue
        assert event.index in opened - closed
        if isinstance(event, PartFinished):
            closed.add(event.index)
    assert opened == closed


@settings(max_examples=60)
@given(responses())
def test_unfolded_events_keep_the_grammar(response: Response) -> None:
    check_grammar(list(unfold(response)))


def test_pieces_of_several_open_parts_are_joined_in_their_order() -> None:
    events: list[Event] = [
        Started("id", "model", 7, {"tier": "a"}),
        PartStarted(0, Reasoning("Hm")),
        ReasoningDelta(0, ", yes"),
        SignatureDelta(0, "si"),
        PartStarted(1, Text("Say ")),
        TextDelta(1, "he", ("p1",)),
        SignatureDelta(0, "gned"),
        TextDelta(1, "llo", ("p2", "p3")),
        AnnotationDelta(1, {"url": "u"}),
        PartStarted(2, ToolCall("c", "f", '{"a"')),
        PartStarted(3, ToolCall("d", "g")),
        ArgumentsDelta(3, "{}"),
        ArgumentsDelta(2, ":1}"),
        UsageReported(Usage(1, 1)),
        UsageReported(Usage(1, 2)),
        Finished(Finish("tool_calls"), {"print": "b"}),
    ]
    assert fold(events) == Response(
        "id",
        "model",
        7,
        (
            Reasoning("Hm, yes", signature="signed"),
            Text("Say hello", annotations=({"url": "u"},)),
            ToolCall("c", "f", '{"a":1}'),
            ToolCall("d", "g", "{}"),
        ),
        Finish("tool_calls"),
        Usage(1, 2),
        ("p1", "p2", "p3"),
        {"tier": "a", "print": "b"},
    )


def test_a_failed_answer_is_raised_as_its_error() -> None:
    error = UpstreamFailed("broken")
    with pytest.raises(UpstreamFailed) as caught:
        fold([Started(), PartStarted(0, Text("")), TextDelta(0, "half"), Failed(error)])
    assert caught.value is error


def test_an_answer_can_be_seen_while_it_grows() -> None:
    folding = ResponseBuilder()
    for event in (Started("id"), PartStarted(0, Text("")), TextDelta(0, "half")):
        folding.add(event)
    assert folding.response() == Response("id", parts=(Text("half"),))


def test_usages_add_up() -> None:
    total = Usage(1, 2, cache_read=3, cache_write=4, reasoning=5) + Usage(10, 20, 30, 40, 50, estimated=True)
    assert total == Usage(11, 22, 33, 44, 55, estimated=True)
