"""Server tools in a turn: injection, calls, follow-ups, and when a turn ends."""

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
from tests.server_tools.turn_driver import (
    HELLO,
    follow_up_with,
    request_with,
    response_with,
    run_turn,
    turn_context,
)


class FollowUpTool(ServerTool):
    """Asks for a follow-up with its own name as text, as often as `times`."""

    def __init__(self, name: str, *, priority: int = 0, times: int = 1) -> None:
        self.name = name
        self.priority = priority
        self._left = times
        self.calls: list[str] = []

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        self.calls.append(turn.request_id)
        if not self._left:
            return None
        self._left -= 1
        return follow_up_with(self.name, f"{self.name}_followup")

    async def close(self, turn: TurnContext) -> None:
        self.calls.append("close")


class PeekTool(ServerTool):
    """A tool the model may call."""

    name = "peek"

    def __init__(self, *results: str | Exception) -> None:
        self._results = list(results)
        self.calls: list[str] = []

    async def inject(self, turn: TurnContext, request: Request) -> Request:
        turn.names.add(self.name)
        return replace(request, tools=(*request.tools, Tool(self.name)))

    def answers(self, turn: TurnContext, name: str) -> bool:
        return name == self.name

    async def call(self, turn: TurnContext, call: ToolCall) -> str:
        self.calls.append(call.id)
        arguments = msgspec.json.decode(call.arguments)
        result = self._results.pop(0) if self._results else f"saw {arguments['at']}"
        if isinstance(result, Exception):
            raise result
        return result


def peek_call(id: str, arguments: str = '{"at":"it"}') -> ToolCall:
    return ToolCall(id, "peek", arguments)


CLIENT_CALL = ToolCall("r1", "read", "{}")


def user(text: str) -> Message:
    return Message("user", (Text(text),))


async def test_a_turn_without_follow_up_is_one_request() -> None:
    finished = await run_turn([ServerTool()], response_with("hi"), turn=turn_context())
    assert [request.messages for request in finished.requests] == [(HELLO,)]


async def test_a_tool_that_fails_to_inject_does_not_fail_the_request() -> None:
    class FailingInject(ServerTool):
        name = "failing"

        async def inject(self, turn: TurnContext, request: Request) -> Request:
            raise RuntimeError("inject failed")

    finished = await run_turn([FailingInject()], response_with("hi"), turn=turn_context())
    assert [request.messages for request in finished.requests] == [(HELLO,)]


async def test_a_follow_up_sends_the_request_the_answer_and_the_message() -> None:
    turn = turn_context()
    finished = await run_turn([FollowUpTool("go on")], response_with("one"), response_with("two"), turn=turn)
    assert finished.new == [(HELLO,), (Message("assistant", (Text("one"),)), user("go on"))]
    assert (turn.round, turn.request_id) == (2, "req_1:go on_followup")


async def test_a_tool_can_distinguish_the_client_round_from_a_follow_up() -> None:
    class RecordingTool(FollowUpTool):
        rounds: list[tuple[str, Mapping[str, bool]]]

        async def inject(self, turn: TurnContext, request: Request) -> Request:
            self.rounds.append((turn.request_id, turn.metadata))
            return request

    tool = RecordingTool("go on")
    tool.rounds = []
    await run_turn([tool], response_with("one"), response_with("two"), turn=turn_context())
    assert tool.rounds == [("req_1", {}), ("req_1:go on_followup", {"serverToolFollowup": True})]


async def test_tools_run_by_priority_and_the_first_follow_up_wins() -> None:
    low, high = FollowUpTool("low", priority=1), FollowUpTool("high", priority=9)
    finished = await run_turn(
        [low, high], response_with("1"), response_with("2"), response_with("3"), turn=turn_context()
    )
    assert [new[-1] for new in finished.new] == [HELLO, user("high"), user("low")]
    assert high.calls == ["req_1", "req_1:high_followup", "req_1:low_followup", "close"]
    assert low.calls == ["req_1:high_followup", "req_1:low_followup", "close"]


async def test_the_same_answer_twice_to_the_same_follow_up_ends_the_turn() -> None:
    turn = turn_context()
    answers = [response_with("same"), response_with("same"), response_with("same")]
    finished = await run_turn([FollowUpTool("go on", times=9)], *answers, turn=turn)
    assert len(finished.requests) == 3
    assert list(turn.notices.lines()) == ["no follow-up: the model gave the same answer twice in a row"]


async def test_the_same_answer_to_another_follow_up_does_not_end_the_turn() -> None:
    turn = turn_context()
    tools = [FollowUpTool("a", priority=2), FollowUpTool("b", priority=1), FollowUpTool("c")]
    finished = await run_turn(tools, *[response_with("same")] * 4, turn=turn)
    assert len(finished.requests) == 4
    assert list(turn.notices.lines()) == []


async def test_a_turn_past_its_time_limit_is_not_followed_up() -> None:
    turn = turn_context()
    times = iter([0.0, 899.9, 900.0])
    turn.now = lambda: next(times)
    finished = await run_turn(
        [FollowUpTool("go on", times=9)], response_with("1"), response_with("2"), turn=turn
    )
    assert len(finished.requests) == 2
    assert list(turn.notices.lines()) == ["no follow-up: the turn has taken all the time it may"]


class FailingTool(FollowUpTool):
    """Fails in every hook."""

    error: Exception = RuntimeError("a fault")

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        raise self.error

    async def close(self, turn: TurnContext) -> None:
        raise self.error


FAULTS: list[tuple[Exception, str]] = [
    (RuntimeError("a fault"), "no follow-up of bad: it failed"),
    (UpstreamFailed("the store is full"), "no follow-up of bad: the store is full"),
]


@pytest.mark.parametrize(("error", "note"), FAULTS)
async def test_a_tool_that_fails_is_skipped_and_the_others_go_on(error: Exception, note: str) -> None:
    turn = turn_context()
    bad, good = FailingTool("bad", priority=9), FollowUpTool("good")
    bad.error = error
    finished = await run_turn([bad, good], response_with("1"), response_with("2"), turn=turn)
    assert [new[-1] for new in finished.new] == [HELLO, user("good")]
    assert list(turn.notices.lines()) == [note]
    assert good.calls[-1] == "close"


async def test_a_model_that_repeats_the_same_call_is_stopped() -> None:
    turn = turn_context()
    finished = await run_turn(
        [PeekTool()], *(response_with(peek_call(f"p{number}")) for number in range(9)), turn=turn
    )
    assert len(finished.requests) == 6
    assert list(turn.notices.lines()) == ["no further round: the model made the same call 6 times in a row"]


async def test_server_tool_calls_are_answered_until_there_are_none() -> None:
    turn = turn_context()
    answers = [
        response_with("let me see", peek_call("p1")),
        response_with(peek_call("p2")),
        response_with("it is there"),
    ]
    finished = await run_turn([PeekTool()], *answers, turn=turn)
    assert finished.new == [
        (HELLO,),
        (
            Message("assistant", (Text("let me see"), peek_call("p1"))),
            Message("tool", (ToolResult("p1", (Text("saw it"),), name="peek"),)),
        ),
        (
            Message("assistant", (peek_call("p2"),)),
            Message("tool", (ToolResult("p2", (Text("saw it"),), name="peek"),)),
        ),
    ]
    assert all(request.tools == (Tool("peek"),) for request in finished.requests)
    assert turn.request_id == "req_1:tools"


async def test_several_server_tool_calls_run_concurrently() -> None:
    class MeetingTool(PeekTool):
        def __init__(self) -> None:
            super().__init__()
            self.barrier = asyncio.Barrier(2)

        async def call(self, turn: TurnContext, call: ToolCall) -> str:
            await self.barrier.wait()
            return call.id

    finished = await run_turn(
        [MeetingTool()],
        response_with(peek_call("a"), peek_call("b")),
        response_with("done"),
        turn=turn_context(),
    )
    assert results(finished.requests[1]) == {"a": "a", "b": "b"}


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


@pytest.mark.parametrize(("outcomes", "arguments", "code"), CALLS)
async def test_a_failed_call_has_an_error_result(
    outcomes: Sequence[str | Exception], arguments: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [response_with(peek_call("bad", arguments), peek_call("good")), response_with("I see")]
    tool = PeekTool(*outcomes, *(["fine"] if outcomes else []))
    with caplog.at_level(logging.ERROR, "routecodex.server_tools"):
        finished = await run_turn([tool], *answers, turn=turn_context())
    sent = results(finished.requests[1])
    failure = msgspec.json.decode(sent["bad"])
    assert (failure["ok"], failure["error"]["code"]) == (False, code)
    assert "secret" not in sent["bad"]
    assert sent["good"] in ("fine", "saw it")
    assert bool(caplog.records) is (code == "tool_failed")


async def test_a_model_that_only_calls_tools_ends_at_the_time_limit() -> None:
    turn = turn_context()
    times = iter([0.0, 1.0, 2.0, 900.0])
    turn.now = lambda: next(times)
    finished = await run_turn([PeekTool()], *[response_with(peek_call("p"))] * 3, turn=turn)
    assert len(finished.requests) == 3
    assert list(turn.notices.lines()) == [
        "the results of its calls are not told to the model: the turn has taken all the time it may"
    ]


async def test_client_calls_end_the_turn_and_server_calls_beside_them_are_stored() -> None:
    tool, more = PeekTool(), FollowUpTool("go on")
    finished = await run_turn(
        [tool, more], response_with(peek_call("p1"), CLIENT_CALL, peek_call("p2")), turn=turn_context()
    )
    assert len(finished.requests) == 1
    assert tool.calls == ["p1", "p2"]
    assert more.calls == ["close"]
    back = request_with(
        HELLO, Message("assistant", (CLIENT_CALL,)), Message("tool", (ToolResult("r1", (Text("words"),)),))
    )
    hidden = [HiddenCall(id, "peek", '{"at":"it"}', "saw it") for id in ("p1", "p2")]
    restored = await HiddenToolCalls(finished.store).restored(back, "s-1")
    assert restored.messages[1] == Message("assistant", (peek_call("p1"), CLIENT_CALL, peek_call("p2")))
    assert restored.messages[2].parts[:2] == tuple(
        ToolResult(call.id, (Text(call.result),), name="peek") for call in hidden
    )


async def test_client_calls_alone_run_no_server_tool() -> None:
    tool, more = PeekTool(), FollowUpTool("go on")
    finished = await run_turn([tool, more], response_with(CLIENT_CALL), turn=turn_context())
    assert (len(finished.requests), tool.calls, more.calls) == (1, [], ["close"])
