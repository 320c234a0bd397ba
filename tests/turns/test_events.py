"""Events of plugins, and answers that extend an earlier message."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from routecodex.turns import (
    ChatTurn,
    Conversation,
    Message,
    NotInThisHook,
    ScriptedSender,
    TextAdded,
    ToolOutputAdded,
    TurnOver,
)
from tests.turns.recording import conversation_with, recording, texts


async def test_what_a_plugin_tells_is_an_event_of_the_stream() -> None:
    event = ToolOutputAdded(Message("tool"), "x")
    plugin = SimpleNamespace(on_stream_data=lambda turn: turn.tell(event))
    conversation = Conversation(model="m", sender=ScriptedSender([["hello"]]), plugins=[plugin])
    events = [event async for event in conversation.stream("hi")]
    assert events[-4:-1] == [event, TextAdded("hello"), event]


async def test_telling_nobody_is_fine_and_telling_after_the_end_is_not() -> None:
    turns: list[ChatTurn] = []

    def tell(turn: ChatTurn) -> None:
        turns.append(turn)
        turn.tell(ToolOutputAdded(Message("tool"), "x"))

    conversation, _ = conversation_with(SimpleNamespace(on_turn_end=tell))
    await conversation.send("hi")
    with pytest.raises(TurnOver):
        tell(turns[0])


async def test_an_answer_may_go_on_in_the_message_before() -> None:
    def go_on(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.extend_message(turn.current_message)
            turn.append_and_request([])

    log: list[str] = []
    conversation, sender = conversation_with(
        SimpleNamespace(on_after_request=go_on), recording(log, "a"), answers=["one, ", ["two", "."]]
    )
    answer = await conversation.send("hi")
    assert answer is conversation.messages[1]
    assert texts(conversation) == [("user", "hi"), ("assistant", "one, two.")]
    assert log.count("a.on_message_append") == 1
    assert sender.bodies[1]["messages"][-1] == {"role": "assistant", "content": "one, "}


async def test_an_extension_nobody_asked_a_request_for_is_forgotten() -> None:
    def forget(turn: ChatTurn) -> None:
        if not turn.plugin_data:
            turn.plugin_data["done"] = True
            turn.extend_message(turn.current_message)

    conversation, _ = conversation_with(SimpleNamespace(on_after_request=forget), answers=["one", "two"])
    await conversation.send("hi")
    await conversation.send("there")
    assert texts(conversation)[1::2] == [("assistant", "one"), ("assistant", "two")]


async def test_extending_belongs_after_a_request() -> None:
    plugin = SimpleNamespace(on_turn_start=lambda turn: turn.extend_message(Message("assistant")))
    conversation, _ = conversation_with(plugin)
    with pytest.raises(NotInThisHook, match="extend_message belongs in on_after_request"):
        await conversation.send("hi")


async def test_an_answer_without_a_word_is_not_sent_again() -> None:
    old = [Message("assistant", ""), Message("assistant", reasoning_content="hm"), Message("user", "")]
    conversation, sender = conversation_with(initial_messages=old)
    await conversation.send("hi")
    assert sender.bodies[0]["messages"] == [
        {"role": "user", "content": ""},
        {"role": "user", "content": "hi"},
    ]
