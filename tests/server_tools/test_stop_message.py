"""stopMessage: its conditions and its count."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.finish import Reason
from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Output, Request, RoleName
from routecodex.server_tools.framework import FollowUp, TurnContext
from routecodex.server_tools.stop_message import StopMessageOptions, StopMessageTool
from tests.server_tools.turn_driver import request_with, response_with, run_turn, turn_context


class Counter:
    """The uses of one session."""

    def __init__(self, left: int = 3) -> None:
        self.left = left
        self.given_back = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.error: Exception | None = None

    async def take(self, _situation: TurnContext) -> str | None:
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error
        if not self.left:
            return None
        self.left -= 1
        return "go on"

    async def give_back(self, _situation: TurnContext) -> None:
        self.left += 1
        self.given_back += 1


def stop_message(counter: Counter, *, idle: bool = False, include_answer: bool = True) -> StopMessageTool:
    async def is_idle(_request: Request) -> bool:
        return idle

    options = StopMessageOptions(include_answer=include_answer)
    return StopMessageTool(
        counter.take,
        give_back=counter.give_back,
        is_set=lambda _turn: counter.left > 0,
        is_idle=is_idle,
        options=options,
    )


SAID = FollowUp((Message("user", (Text("go on"),)),), "stop_followup")


async def test_it_speaks_to_a_model_that_stops() -> None:
    assert await stop_message(Counter()).follow_up(turn_context(), response_with("done")) == SAID


SILENT: list[tuple[Reason, str]] = [
    ("length", "stopMessage skipped: the answer ended with length"),
    ("content_filter", "stopMessage skipped: the answer ended with content_filter"),
    ("refusal", "stopMessage skipped: the answer ended with refusal"),
    ("pause", "stopMessage skipped: the answer ended with pause"),
    ("error", "stopMessage skipped: the answer ended with error"),
]


@pytest.mark.parametrize(("reason", "note"), SILENT)
async def test_it_is_silent_when_the_answer_ended_otherwise(reason: Reason, note: str) -> None:
    turn, counter = turn_context(), Counter()
    assert await stop_message(counter).follow_up(turn, response_with("done", reason=reason)) is None
    assert (list(turn.notices.lines()), counter.left) == ([note], 3)


async def test_it_is_silent_when_there_is_no_work() -> None:
    turn, counter = turn_context(), Counter()
    assert await stop_message(counter, idle=True).follow_up(turn, response_with("done")) is None
    assert (list(turn.notices.lines()), counter.left) == (["stopMessage skipped: bd_idle"], 3)


async def test_it_is_silent_when_it_was_said_often_enough() -> None:
    turn = turn_context()
    assert await stop_message(Counter(0)).follow_up(turn, response_with("done")) is None
    assert list(turn.notices.lines()) == ["stopMessage skipped: no uses left"]


@pytest.mark.parametrize("role", ["subagent", "utility", "compaction"])
def test_only_the_main_conversation_is_continued(role: RoleName) -> None:
    turn = turn_context()
    assert stop_message(Counter()).wants(turn)
    turn.role = role
    assert not stop_message(Counter()).wants(turn)
    assert list(turn.notices.lines()) == [f"stopMessage skipped: role {role}"]


def test_structured_output_is_not_continued() -> None:
    turn = turn_context(replace(request_with(Message("user", (Text("a"),))), output=Output("json_object")))
    assert not stop_message(Counter()).wants(turn)
    assert list(turn.notices.lines()) == ["stopMessage skipped: structured_output"]


async def test_it_speaks_again_and_again_until_none_is_left() -> None:
    counter = Counter()
    played = await run_turn([stop_message(counter)], *map(response_with, "1234"), turn=turn_context())
    assert (len(played.requests), counter.left, counter.given_back) == (4, 0, 0)


async def test_it_can_keep_the_answer_back() -> None:
    follow_up = await stop_message(Counter(), include_answer=False).follow_up(
        turn_context(), response_with("done")
    )
    assert follow_up is not None
    assert not follow_up.with_answer


async def test_a_use_whose_round_was_never_sent_is_given_back_once() -> None:
    turn, counter = turn_context(), Counter()
    turn.sent = 1
    tool = stop_message(counter)
    assert await tool.follow_up(turn, response_with("done")) == SAID
    turn.round = 2
    await tool.fell_through(turn)
    await tool.close(turn)
    assert (counter.left, counter.given_back) == (3, 1)


async def test_a_use_whose_round_was_sent_stays_counted_though_it_failed() -> None:
    turn, counter = turn_context(), Counter()
    tool = stop_message(counter)
    assert await tool.follow_up(turn, response_with("done")) == SAID
    turn.round = turn.sent = 2
    await tool.fell_through(turn)
    await tool.close(turn)
    assert (counter.left, counter.given_back) == (2, 0)


async def test_who_leaves_while_a_use_is_written_down_gets_it_back() -> None:
    turn, counter = turn_context(), Counter()
    tool = stop_message(counter)
    counter.goes_on.clear()
    asking = asyncio.create_task(tool.follow_up(turn, response_with("done")))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    closing = asyncio.create_task(tool.close(turn))
    await asyncio.sleep(0)
    assert not closing.done()
    counter.goes_on.set()
    await closing
    assert (counter.left, counter.given_back) == (3, 1)


async def test_a_use_that_could_not_be_written_down_is_neither_said_nor_given_back() -> None:
    turn, counter = turn_context(), Counter()
    counter.error = UpstreamFailed("the disk is full")
    played = await run_turn([stop_message(counter)], response_with("done"), turn=turn)
    assert (len(played.requests), counter.left, counter.given_back) == (1, 3, 0)
    assert list(turn.notices.lines()) == ["no follow-up of stop_message: the disk is full"]
