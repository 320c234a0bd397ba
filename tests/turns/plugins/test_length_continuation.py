"""Answers cut off by the token limit: one answer in the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.turns import (
    Call,
    Conversation,
    LengthContinuation,
    Message,
    MessageAppended,
    ScriptedSender,
    StateChanged,
    TextAdded,
    ToolPlugin,
    TurnEnded,
    tool,
)
from routecodex.turns.plugins.length_continuation import PROMPT
from tests.turns.recording import recording, texts

CUT = {"choices": [{"delta": {}, "finish_reason": "length"}]}


def start_conversation(*plugins: object, answers: Any) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers, usage={"total_tokens": 1})
    return Conversation(model="m", sender=sender, plugins=plugins), sender


async def test_the_parts_of_an_answer_are_one_message() -> None:
    log: list[str] = []
    conversation, sender = start_conversation(
        LengthContinuation(),
        recording(log, "l"),
        answers=[["Once up", CUT], ["on a ", CUT], "time."],
    )
    answer = await conversation.send("tell")
    assert texts(conversation) == [("user", "tell"), ("assistant", "Once upon a time.")]
    assert answer is conversation.messages[1]
    assert answer.metadata["finish_reason"] == "stop"
    assert log.count("l.on_message_append") == 1
    assert conversation.usage == {"total_tokens": 3}
    assert sender.bodies[2]["messages"] == [
        {"role": "user", "content": "tell"},
        {"role": "assistant", "content": "Once upon a "},
        {"role": "user", "content": PROMPT},
    ]


async def test_the_events_tell_one_answer() -> None:
    conversation, _ = start_conversation(LengthContinuation(), answers=[["Once up", CUT], "on"])
    events = [event async for event in conversation.stream("tell")]
    answer = conversation.messages[1]
    assert events == [
        StateChanged("requesting"),
        StateChanged("streaming"),
        MessageAppended(answer),
        TextAdded("Once up"),
        StateChanged("requesting"),
        StateChanged("streaming"),
        TextAdded("on"),
        TurnEnded(answer, "completed", {"total_tokens": 2}),
    ]


async def test_there_is_an_end_to_it() -> None:
    conversation, sender = start_conversation(
        LengthContinuation(2), answers=[["a", CUT], ["b", CUT], ["c", CUT]]
    )
    answer = await conversation.send("tell")
    assert answer == Message("assistant", "abc")
    assert answer is not None
    assert answer.metadata["finish_reason"] == "length"
    assert len(sender.bodies) == 3


async def test_a_part_that_adds_nothing_ends_it() -> None:
    conversation, sender = start_conversation(LengthContinuation(), answers=[["a", CUT], [CUT]])
    assert await conversation.send("tell") == Message("assistant", "a")
    assert len(sender.bodies) == 2


async def test_an_answer_that_never_said_anything_is_not_continued() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    conversation, sender = start_conversation(LengthContinuation(), answers=[[thought, CUT]])
    await conversation.send("tell")
    assert len(sender.bodies) == 1


async def test_every_turn_has_its_own_count() -> None:
    conversation, sender = start_conversation(
        LengthContinuation(1), answers=[["a", CUT], "b", ["c", CUT], "d"]
    )
    await conversation.send("one")
    await conversation.send("two")
    assert [text for _, text in texts(conversation)] == ["one", "ab", "two", "cd"]
    assert len(sender.bodies) == 4


@pytest.mark.parametrize("tools_first", [True, False])
async def test_an_answer_that_calls_tools_is_the_tool_plugins(tools_first: bool) -> None:
    plugins: list[object] = [ToolPlugin([tool(name="run")(lambda: "ran")]), LengthContinuation()]
    answers = [["I ", Call("run"), CUT], ["loo", CUT], ["ked", Call("run")], "done"]
    conversation, sender = start_conversation(
        *(plugins if tools_first else reversed(plugins)), answers=answers
    )
    await conversation.send("go")
    assert [text for _, text in texts(conversation)] == ["go", "I ", "ran", "looked", "ran", "done"]
    assert len(sender.bodies) == 4


async def test_an_abort_keeps_what_there_is_of_both_parts() -> None:
    here = asyncio.Event()
    conversation, _ = start_conversation(
        LengthContinuation(), answers=[["Once up", CUT], ["on", here.set, asyncio.Event()]]
    )
    task = asyncio.create_task(conversation.send("tell"))
    await here.wait()
    conversation.abort()
    assert await task == Message("assistant", "Once upon")


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="max_continuations is -1"):
        LengthContinuation(-1)
