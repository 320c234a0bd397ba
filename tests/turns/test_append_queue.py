"""Appending of messages: responses and messages of plugins, immediate or deferred."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import ChatTurn, Message, NotInThisHook
from tests.turns.recording import conversation_with, nothing_left, once, recording, texts


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_plugins_start_in_order_after_a_request_sync_or_async() -> None:
    async def asynchronous(turn: ChatTurn) -> None:
        turn.append_message({"role": "user", "content": "first"})

    def sync(turn: ChatTurn) -> None:
        turn.append_message({"role": "user", "content": "second"})

    conversation, _ = conversation_with(
        SimpleNamespace(on_after_request=asynchronous), SimpleNamespace(on_after_request=sync)
    )
    await conversation.send("hi")
    assert texts(conversation)[2:] == [("user", "first"), ("user", "second")]


async def test_message_append_fires_for_responses_and_plugin_messages_not_for_what_was_sent() -> None:
    seen: list[Any] = []
    a = SimpleNamespace(
        on_message_append=lambda turn: seen.append((turn.current_message.role, turn.current_message.content)),
        on_after_request=once("more"),
    )
    conversation, _ = conversation_with(a, answers=[["o", "ne"], "two"])
    await conversation.send("hi", {"role": "user", "content": "there"})
    assert seen == [("assistant", "o"), ("user", "more"), ("assistant", "two")]


async def test_message_append_may_edit_the_message(is_async: bool) -> None:
    def mark(turn: ChatTurn) -> None:
        turn.current_message.metadata["marked"] = True

    conversation, _ = conversation_with(recording([], "a", is_async=is_async, on_message_append=mark))
    answer = await conversation.send("hi")
    assert answer is not None
    assert answer.metadata["marked"]


async def test_a_prevented_message_is_the_plugins_to_place_and_still_seen_by_others(is_async: bool) -> None:
    log: list[str] = []

    def place_first(turn: ChatTurn) -> None:
        turn.prevent_default()
        turn.messages.insert(0, turn.current_message)

    turns: list[ChatTurn] = []
    a = recording(log, "a", is_async=is_async, on_message_append=place_first)
    b = recording(log, "b", is_async=is_async, on_turn_end=turns.append)
    conversation, _ = conversation_with(a, b)
    await conversation.send("hi")
    assert texts(conversation) == [("assistant", "hello"), ("user", "hi")]
    assert "b.on_message_append" in log
    assert [message.content for message in turns[0].current_turn] == ["hi", "hello"]


async def test_an_empty_list_with_request_asks_again_and_messages_without_do_not() -> None:
    def again(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.append_and_request([])
        else:
            turn.append_message([Message("user", "x"), {"role": "user", "content": "y"}])

    conversation, sender = conversation_with(
        SimpleNamespace(on_after_request=again), answers=["one", "two", "never"]
    )
    await conversation.send("hi")
    assert len(sender.bodies) == 2
    assert texts(conversation)[2:] == [("assistant", "two"), ("user", "x"), ("user", "y")]


async def test_deferred_messages_follow_by_priority_then_plugin_then_call() -> None:
    ready = asyncio.Event()

    async def slow(turn: ChatTurn) -> None:
        await ready.wait()
        turn.append_message([Message("user", "a0"), Message("user", "a0'")], deferred=True)
        turn.append_message(Message("user", "a9"), deferred=True, priority=9)

    async def quick(turn: ChatTurn) -> None:
        turn.append_message(Message("user", "b9"), deferred=True, priority=9)
        turn.append_message(Message("user", "b0"), deferred=True)
        turn.append_message(Message("user", "now"))
        ready.set()

    conversation, _ = conversation_with(
        SimpleNamespace(on_after_request=slow), SimpleNamespace(on_after_request=quick)
    )
    await conversation.send("hi")
    assert [message.content for message in conversation.messages[2:]] == [
        "now",
        "a9",
        "b9",
        "a0",
        "a0'",
        "b0",
    ]


async def test_a_deferred_message_may_ask_for_a_request() -> None:
    def again(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.append_and_request({"role": "user", "content": "later"}, deferred=True)

    conversation, sender = conversation_with(SimpleNamespace(on_after_request=again), answers=["one", "two"])
    await conversation.send("hi")
    assert [message["content"] for message in sender.bodies[1]["messages"]] == ["hi", "one", "later"]


async def test_immediate_messages_are_in_the_list_when_the_call_returns() -> None:
    seen: list[int] = []

    def append(turn: ChatTurn) -> None:
        turn.append_message(Message("user", "x"))
        seen.append(len(turn.messages))

    conversation, _ = conversation_with(SimpleNamespace(on_after_request=append))
    await conversation.send("hi")
    assert seen == [3]


async def test_an_async_message_append_keeps_the_order_of_the_calls() -> None:
    async def append(turn: ChatTurn) -> None:
        turn.append_message([Message("user", "1"), Message("user", "2")])
        await turn.append_message(Message("user", "3"))
        assert turn.messages[-1].content == "3"
        turn.append_and_request([]) if turn.requests == 1 else None

    log: list[str] = []
    looker = recording(log, "a", is_async=True)
    conversation, sender = conversation_with(
        looker, SimpleNamespace(on_after_request=append), answers=["one", "two"]
    )
    async with nothing_left(sender):
        await conversation.send("hi")
    contents = [message.content for message in conversation.messages]
    assert contents == ["hi", "one", "1", "2", "3", "two", "1", "2", "3"]
    assert log.count("a.on_message_append") == 8


async def test_a_message_append_that_fails_ends_the_turn_even_if_the_appender_does_not_care(
    is_async: bool,
) -> None:
    def refuse(turn: ChatTurn) -> None:
        if turn.current_message.role == "user":
            raise ValueError("no users")

    async def append(turn: ChatTurn) -> None:
        with suppress(ValueError):
            turn.append_message([Message("user", "x"), Message("user", "y")])
        await asyncio.sleep(0)

    log: list[str] = []
    refusing = recording(log, "a", is_async=is_async, on_message_append=refuse)
    conversation, sender = conversation_with(refusing, SimpleNamespace(on_after_request=append))
    async with nothing_left(sender):
        with pytest.raises(ValueError, match="no users"):
            await conversation.send("hi")
    assert len(conversation.messages) == 2
    assert log[-1] == "a.cleanup"


async def test_a_plugin_may_append_at_the_end_of_the_turn(is_async: bool) -> None:
    def append(turn: ChatTurn) -> None:
        turn.append_message(Message("tool", "late", tool_call_id="1"))

    log: list[str] = []
    conversation, sender = conversation_with(recording(log, "a", is_async=is_async, on_turn_end=append))
    async with nothing_left(sender):
        await conversation.send("hi")
    assert texts(conversation)[-1] == ("tool", "late")
    assert log.count("a.on_message_append") == 2


async def test_messages_are_not_appended_from_within_message_append() -> None:
    def recurse(turn: ChatTurn) -> None:
        turn.append_message(Message("user"))

    conversation, _ = conversation_with(SimpleNamespace(on_message_append=recurse))
    with pytest.raises(NotInThisHook, match="on_message_append"):
        await conversation.send("hi")


async def test_deferred_messages_are_appended_in_their_own_round_only() -> None:
    def after(turn: ChatTurn) -> None:
        if turn.requests < 3:
            turn.append_and_request({"role": "user", "content": f"more {turn.requests}"}, deferred=True)

    conversation, _ = conversation_with(SimpleNamespace(on_after_request=after), answers=["a", "b", "c"])
    await conversation.send("go")
    assert [content for _, content in texts(conversation)] == ["go", "a", "more 1", "b", "more 2", "c"]


@pytest.mark.parametrize("options", [{"request": True}, {"deferred": True}])
async def test_nothing_is_asked_for_or_deferred_at_the_end_of_the_turn(options: dict[str, bool]) -> None:
    def end(turn: ChatTurn) -> None:
        turn.append_message({"role": "user", "content": "more"}, **options)

    conversation, sender = conversation_with(SimpleNamespace(on_turn_end=end))
    with pytest.raises(NotInThisHook, match="append_message belongs in on_after_request"):
        await conversation.send("go")
    assert (texts(conversation), len(sender.bodies)) == ([("user", "go"), ("assistant", "hello")], 1)
