"""What server tools may do in a turn, and who decides whether it goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.canon.response import Response
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext
from routecodex.server_tools.hidden_calls import HiddenCall, HiddenToolCalls
from tests.server_tools.turn_driver import HELLO, asked, play, said, saying, situation


class Says(ServerTool):
    """Says the same thing so many times."""

    def __init__(self, name: str, *, priority: int = 0, times: int = 1) -> None:
        self.name = name
        self.priority = priority
        self._left = times
        self.calls: list[str] = []

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        self.calls.append(situation.request_id)
        if not self._left:
            return None
        self._left -= 1
        return saying(self.name, f"{self.name}_followup")

    async def close(self, situation: TurnContext) -> None:
        self.calls.append("close")


class Peek(ServerTool):
    """A tool the model may call."""

    name = "peek"

    def __init__(self, *results: str | Exception) -> None:
        self._results = list(results)
        self.calls: list[str] = []

    async def inject(self, situation: TurnContext, request: Request) -> Request:
        situation.names.add(self.name)
        return replace(request, tools=(*request.tools, Tool(self.name)))

    def answers(self, situation: TurnContext, name: str) -> bool:
        return name == self.name

    async def call(self, situation: TurnContext, call: ToolCall) -> str:
        self.calls.append(call.id)
        arguments = msgspec.json.decode(call.arguments)
        result = self._results.pop(0) if self._results else f"saw {arguments['at']}"
        if isinstance(result, Exception):
            raise result
        return result


def looks(id: str, arguments: str = '{"at":"it"}') -> ToolCall:
    return ToolCall(id, "peek", arguments)


READS = ToolCall("r1", "read", "{}")


def user(text: str) -> Message:
    return Message("user", (Text(text),))


async def test_a_turn_in_which_nobody_has_anything_to_say_is_one_request() -> None:
    played = await play([ServerTool()], said("hi"), situation=situation())
    assert [request.messages for request in played.requests] == [(HELLO,)]


async def test_a_tool_that_cannot_add_to_a_request_does_not_cost_the_request() -> None:
    class Clumsy(ServerTool):
        name = "clumsy"

        async def inject(self, situation: TurnContext, request: Request) -> Request:
            raise RuntimeError("it slipped")

    played = await play([Clumsy()], said("hi"), situation=situation())
    assert [request.messages for request in played.requests] == [(HELLO,)]


async def test_a_follow_up_is_the_request_the_answer_and_the_message() -> None:
    asked_by = situation()
    played = await play([Says("go on")], said("one"), said("two"), situation=asked_by)
    assert played.new == [(HELLO,), (Message("assistant", (Text("one"),)), user("go on"))]
    assert (asked_by.round, asked_by.request_id) == (2, "req_1:go on_followup")


async def test_a_tool_can_tell_a_round_of_the_client_from_one_that_a_tool_asked_for() -> None:
    class Looks(Says):
        seen: list[tuple[str, Mapping[str, bool]]]

        async def inject(self, situation: TurnContext, request: Request) -> Request:
            self.seen.append((situation.request_id, situation.metadata))
            return request

    tool = Looks("go on")
    tool.seen = []
    await play([tool], said("one"), said("two"), situation=situation())
    assert tool.seen == [("req_1", {}), ("req_1:go on_followup", {"serverToolFollowup": True})]


async def test_the_highest_priority_is_asked_first_and_the_first_follow_up_wins() -> None:
    low, high = Says("low", priority=1), Says("high", priority=9)
    played = await play([low, high], said("1"), said("2"), said("3"), situation=situation())
    assert [new[-1] for new in played.new] == [HELLO, user("high"), user("low")]
    assert high.calls == ["req_1", "req_1:high_followup", "req_1:low_followup", "close"]
    assert low.calls == ["req_1:high_followup", "req_1:low_followup", "close"]


async def test_the_same_answer_twice_to_the_same_follow_up_is_the_last() -> None:
    asked_by = situation()
    answers = [said("same"), said("same"), said("same")]
    played = await play([Says("go on", times=9)], *answers, situation=asked_by)
    assert len(played.requests) == 3
    assert list(asked_by.notices.lines()) == ["no follow-up: the model gave the same answer twice in a row"]


async def test_the_same_answer_to_another_follow_up_is_not() -> None:
    asked_by = situation()
    tools = [Says("a", priority=2), Says("b", priority=1), Says("c")]
    played = await play(tools, *[said("same")] * 4, situation=asked_by)
    assert len(played.requests) == 4
    assert list(asked_by.notices.lines()) == []


async def test_a_turn_that_has_taken_its_time_is_not_followed_up() -> None:
    asked_by = situation()
    times = iter([0.0, 899.9, 900.0])
    asked_by.now = lambda: next(times)
    played = await play([Says("go on", times=9)], said("1"), said("2"), situation=asked_by)
    assert len(played.requests) == 2
    assert list(asked_by.notices.lines()) == ["no follow-up: the turn has taken all the time it may"]


class Breaks(Says):
    """Fails whatever it is asked."""

    error: Exception = RuntimeError("a fault")

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        raise self.error

    async def close(self, situation: TurnContext) -> None:
        raise self.error


FAULTS: list[tuple[Exception, str]] = [
    (RuntimeError("a fault"), "no follow-up of bad: it failed"),
    (UpstreamFailed("the store is full"), "no follow-up of bad: the store is full"),
]


@pytest.mark.parametrize(("error", "note"), FAULTS)
async def test_a_tool_that_fails_says_nothing_and_the_others_go_on(error: Exception, note: str) -> None:
    asked_by = situation()
    bad, good = Breaks("bad", priority=9), Says("good")
    bad.error = error
    played = await play([bad, good], said("1"), said("2"), situation=asked_by)
    assert [new[-1] for new in played.new] == [HELLO, user("good")]
    assert list(asked_by.notices.lines()) == [note]
    assert good.calls[-1] == "close"


async def test_a_model_that_goes_round_in_circles_is_not_answered_for_ever() -> None:
    asked_by = situation()
    played = await play([Peek()], *(said(looks(f"p{number}")) for number in range(9)), situation=asked_by)
    assert len(played.requests) == 6
    assert list(asked_by.notices.lines()) == [
        "no further round: the model made the same call 6 times in a row"
    ]


async def test_calls_of_ours_are_answered_until_there_are_none() -> None:
    asked_by = situation()
    answers = [said("let me see", looks("p1")), said(looks("p2")), said("it is there")]
    played = await play([Peek()], *answers, situation=asked_by)
    assert played.new == [
        (HELLO,),
        (
            Message("assistant", (Text("let me see"), looks("p1"))),
            Message("tool", (ToolResult("p1", (Text("saw it"),), name="peek"),)),
        ),
        (
            Message("assistant", (looks("p2"),)),
            Message("tool", (ToolResult("p2", (Text("saw it"),), name="peek"),)),
        ),
    ]
    assert all(request.tools == (Tool("peek"),) for request in played.requests)
    assert asked_by.request_id == "req_1:tools"


async def test_several_calls_of_ours_run_beside_each_other() -> None:
    class Meets(Peek):
        def __init__(self) -> None:
            super().__init__()
            self.meeting = asyncio.Barrier(2)

        async def call(self, situation: TurnContext, call: ToolCall) -> str:
            await self.meeting.wait()
            return call.id

    played = await play([Meets()], said(looks("a"), looks("b")), said("done"), situation=situation())
    assert results(played.requests[1]) == {"a": "a", "b": "b"}


def results(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for message in request.messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                found[part.call_id] = "".join(one.text for one in part.parts if isinstance(one, Text))
    return found


CALLS: list[tuple[list[str | Exception], str, str]] = [
    ([], "{", "bad_arguments"),
    ([], "[]", "tool_failed"),
    ([], "", "bad_arguments"),
    ([RuntimeError("secret")], "{}", "tool_failed"),
]


@pytest.mark.parametrize(("gives", "arguments", "code"), CALLS)
async def test_a_call_that_fails_has_a_result_that_says_so(
    gives: Sequence[str | Exception], arguments: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [said(looks("bad", arguments), looks("good")), said("I see")]
    tool = Peek(*gives, *(["fine"] if gives else []))
    with caplog.at_level(logging.ERROR, "routecodex.server_tools"):
        played = await play([tool], *answers, situation=situation())
    told = results(played.requests[1])
    failure = msgspec.json.decode(told["bad"])
    assert (failure["ok"], failure["error"]["code"]) == (False, code)
    assert "secret" not in told["bad"]
    assert told["good"] in ("fine", "saw it")
    assert bool(caplog.records) is (code == "tool_failed")


async def test_a_model_that_only_calls_ends_with_its_time() -> None:
    asked_by = situation()
    times = iter([0.0, 1.0, 2.0, 900.0])
    asked_by.now = lambda: next(times)
    played = await play([Peek()], *[said(looks("p"))] * 3, situation=asked_by)
    assert len(played.requests) == 3
    assert list(asked_by.notices.lines()) == [
        "the results of its calls are not told to the model: the turn has taken all the time it may"
    ]


async def test_calls_of_the_client_end_the_turn_and_ours_beside_them_are_kept() -> None:
    tool, more = Peek(), Says("go on")
    played = await play([tool, more], said(looks("p1"), READS, looks("p2")), situation=situation())
    assert len(played.requests) == 1
    assert tool.calls == ["p1", "p2"]
    assert more.calls == ["close"]
    back = asked(
        HELLO, Message("assistant", (READS,)), Message("tool", (ToolResult("r1", (Text("words"),)),))
    )
    ours = [HiddenCall(id, "peek", '{"at":"it"}', "saw it") for id in ("p1", "p2")]
    restored = await HiddenToolCalls(played.store).restored(back, "s-1")
    assert restored.messages[1] == Message("assistant", (looks("p1"), READS, looks("p2")))
    assert restored.messages[2].parts[:2] == tuple(
        ToolResult(pair.id, (Text(pair.result),), name="peek") for pair in ours
    )


async def test_calls_of_the_client_alone_are_none_of_our_business() -> None:
    tool, more = Peek(), Says("go on")
    played = await play([tool, more], said(READS), situation=situation())
    assert (len(played.requests), tool.calls, more.calls) == (1, [], ["close"])
