"""Empty and cut-off answers: their detection, and the follow-up."""

from __future__ import annotations

import pytest

from routecodex.canon.events import Event, Finished, PartFinished, PartStarted, Started, TextDelta
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response, fold
from routecodex.server_tools.empty_reply import ANSWER, CONTINUE, EmptyReplyTool, can_continue, is_empty
from routecodex.server_tools.framework import FollowUp, TurnContext
from routecodex.server_tools.round_merger import RoundMerger, VisibleRounds

THOUGHT = Reasoning("hm", "sig")

CASES: list[tuple[list[object], str, bool]] = [
    ([], "stop", True),
    ([], "error", True),
    ([Text("")], "stop", True),
    ([THOUGHT], "stop", True),
    ([THOUGHT, Text("")], "stop", True),
    ([], "length", False),
    ([], "content_filter", False),
    ([], "refusal", False),
    ([], "pause", False),
    ([Text("a")], "stop", False),
    ([Refusal("no")], "stop", False),
    ([ToolCall("c", "t")], "stop", False),
    ([Opaque("messages", {})], "stop", False),
]


def answer(*parts: object, reason: str = "stop") -> Response:
    return Response(parts=parts, finish=Finish(reason))  # type: ignore[arg-type]  # a table's words


def situation(*, cut_off: bool = False) -> TurnContext:
    request = Request(model="m", source="chat", messages=())
    made = TurnContext(id="r1", session=None, captured=request, now=lambda: 0.0)
    made.cut_off = cut_off
    return made


@pytest.mark.parametrize(("parts", "reason", "expected"), CASES)
def test_what_counts_as_empty(parts: list[object], reason: str, expected: bool) -> None:
    assert is_empty(answer(*parts, reason=reason)) is expected


def test_an_answer_with_half_a_call_cannot_go_on() -> None:
    assert can_continue(answer(THOUGHT, Text("a")))
    assert not can_continue(answer(Text("a"), ToolCall("c", "t", '{"a')))


async def test_an_empty_answer_is_followed_up_once() -> None:
    tool, turn = EmptyReplyTool(), situation()
    first = await tool.follow_up(turn, answer())
    assert first == FollowUp((Message("user", (Text(ANSWER),)),), "empty_followup", with_answer=False)
    assert await tool.follow_up(turn, answer()) is None
    assert list(turn.notices.lines()) == [
        "the answer was empty: requesting another",
        "no second follow-up to an empty or cut-off answer",
    ]


async def test_a_cut_off_answer_goes_on_with_what_was_said() -> None:
    wanted = await EmptyReplyTool().follow_up(situation(cut_off=True), answer(Text("half a"), reason="error"))
    assert wanted == FollowUp((Message("user", (Text(CONTINUE),)),), "empty_followup", with_answer=True)


async def test_thoughts_that_were_cut_off_are_not_told_again() -> None:
    wanted = await EmptyReplyTool().follow_up(situation(cut_off=True), answer(THOUGHT, reason="error"))
    assert wanted == FollowUp((Message("user", (Text(ANSWER),)),), "empty_followup", with_answer=False)


async def test_a_whole_answer_is_left_alone() -> None:
    assert await EmptyReplyTool().follow_up(situation(), answer(Text("done"))) is None


@pytest.mark.parametrize("visible", ["all", "last"])
@pytest.mark.parametrize(
    ("begun", "rest"), [("Hel", "lo"), ("one\n", "\ntwo"), ("one\n\n", "two"), ("", "all")]
)
def test_a_round_that_goes_on_is_joined_without_a_seam(begun: str, rest: str, visible: VisibleRounds) -> None:
    gate = RoundMerger(lambda name: False, visible=visible)
    told: list[Event] = []
    for number, text in enumerate((begun, rest)):
        if number:
            gate.begin_round(seamless=True)
        for event in (
            Started(),
            PartStarted(0, Text("")),
            TextDelta(0, text),
            PartFinished(0),
            Finished(Finish("stop")),
        ):
            told.extend(gate.feed(event))
    assert fold([*told, *gate.end()]).parts == (Text(begun + rest),)
