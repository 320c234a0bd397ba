from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import (
    ArgumentsAdded,
    Call,
    ChatTurn,
    Conversation,
    ConversationBusy,
    Message,
    MessageAppended,
    ReasoningAdded,
    RefusalAdded,
    ScriptedSender,
    StateChanged,
    TextAdded,
    ToolCallAdded,
    TurnEnded,
    TurnEvent,
)
from tests.turns.recording import conversation_with, nothing_left, recording, texts


async def test_a_stream_tells_what_happens_in_order() -> None:
    def once(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.set_processing_state("calling-tools")
            turn.append_and_request(Message("tool", "42", tool_call_id="call_1_0"))

    reasoning = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    more = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}}]}
    sender = ScriptedSender([[reasoning, Call("f", {"x": 1}), more], ["an", "swer"]], usage={"total": 2})
    plugin = SimpleNamespace(on_after_request=once)
    conversation = Conversation(model="m", sender=sender, plugins=[plugin])
    async with nothing_left(sender):
        events = [event async for event in conversation.stream("hi")]
    _, call, tool, answer = conversation.messages
    assert events == [
        StateChanged("requesting"),
        StateChanged("streaming"),
        MessageAppended(call),
        ReasoningAdded("hm"),
        ToolCallAdded(0, "call_1_0", "f"),
        ArgumentsAdded(0, '{"x":1}'),
        ArgumentsAdded(0, " "),
        StateChanged("calling-tools"),
        MessageAppended(tool),
        StateChanged("requesting"),
        StateChanged("streaming"),
        MessageAppended(answer),
        TextAdded("an"),
        TextAdded("swer"),
        TurnEnded(answer, "completed", {"total": 4}),
    ]


async def test_an_error_is_raised_after_the_events_before_it() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender([["x", OSError("cut")]]))
    seen: list[TurnEvent] = []

    async def read() -> None:
        async for event in conversation.stream("hi"):
            seen.append(event)  # noqa: PERF401  # what came before the error counts

    with pytest.raises(OSError, match="cut"):
        await read()
    assert seen[-1] == TextAdded("x")
    assert conversation.request_state == "error"


async def test_breaking_out_aborts_the_turn_runs_cleanups_and_frees_the_conversation() -> None:
    log: list[str] = []

    async def clean(_: object) -> None:
        await asyncio.sleep(0)
        log.append("cleaned")

    plugin = recording(log, "a", cleanup=clean)
    sender = ScriptedSender([["x", asyncio.Event()], "two"])
    conversation = Conversation(model="m", sender=sender, plugins=[plugin])
    async with nothing_left(sender):
        async for event in conversation.stream("hi"):
            if isinstance(event, TextAdded):
                break
        gc.collect()
        answer = await conversation.send("again")
    assert answer == Message("assistant", "two")
    first = log[: log.index("cleaned") + 1]
    assert first[-3:] == ["a.on_turn_end", "a.cleanup", "cleaned"]
    assert "a.on_after_request" not in first
    assert texts(conversation)[:2] == [("user", "hi"), ("assistant", "x")]


async def test_an_error_in_the_loop_over_a_stream_aborts_the_turn_too() -> None:
    sender = ScriptedSender([["x", asyncio.Event()]])
    conversation = Conversation(model="m", sender=sender)

    async def read() -> None:
        async for _ in conversation.stream("hi"):
            raise ZeroDivisionError

    async with nothing_left(sender):
        with pytest.raises(ZeroDivisionError):
            await read()
        gc.collect()
        await conversation.close()
    assert conversation.request_state == "aborted"


async def test_aclose_aborts_and_waits() -> None:
    log: list[str] = []
    sender = ScriptedSender([["x", asyncio.Event()]])
    conversation = Conversation(model="m", sender=sender, plugins=[recording(log, "a")])
    async with nothing_left(sender):
        async with conversation.stream("hi") as stream:
            assert await anext(stream) == StateChanged("requesting")
        assert log[-1] == "a.cleanup"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()
    assert conversation.request_state == "aborted"


async def test_aclose_raises_what_the_cleanups_raised() -> None:
    def fail(_: object) -> None:
        raise KeyError("cleanup")

    sender = ScriptedSender([["x", asyncio.Event()]])
    conversation = Conversation(model="m", sender=sender, plugins=[recording([], "a", cleanup=fail)])
    stream = conversation.stream("hi")
    await anext(stream)
    with pytest.raises(KeyError):
        await stream.aclose()


async def test_an_abort_ends_the_stream_with_the_partial_message() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender([["par", asyncio.Event()]], usage={}))
    events: list[TurnEvent] = []
    async for event in conversation.stream("hi"):
        events.append(event)
        if isinstance(event, TextAdded):
            conversation.abort()
    assert events[-1] == TurnEnded(Message("assistant", "par"), "aborted", {})


async def test_a_reader_who_goes_has_seen_all_there_is() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender([["a", "b", "c"]]))
    async for event in conversation.stream("hi"):
        if event == TextAdded("b"):
            break
    gc.collect()
    await conversation.close()
    assert texts(conversation) == [("user", "hi"), ("assistant", "ab")]
    assert conversation.request_state == "aborted"


async def test_a_cleanup_that_sends_after_the_reader_left_is_refused_and_not_waited_for() -> None:
    refused: list[BaseException] = []

    async def sends() -> None:
        try:
            await conversation.send("from within")
        except ConversationBusy as error:
            refused.append(error)

    plugin = recording([], "a", on_turn_start=lambda turn: sends)
    conversation, sender = conversation_with(plugin, answers=[["one ", "two"], "next"])
    async for event in conversation.stream("go"):
        if isinstance(event, TextAdded):
            break
    answer = await conversation.send("again")
    assert answer is not None
    assert (answer.content, len(refused), sender.open_streams) == ("next", 2, 0)


async def test_a_refusal_is_told_piece_by_piece() -> None:
    pieces = [{"choices": [{"index": 0, "delta": {"refusal": text}}]} for text in ("I will ", "not.")]
    conversation, _ = conversation_with(answers=[pieces])
    told = [event async for event in conversation.stream("go") if isinstance(event, RefusalAdded)]
    assert told == [RefusalAdded("I will "), RefusalAdded("not.")]
    assert conversation.messages[-1].refusal == "I will not."


async def test_cancelling_the_reader_runs_cleanups_and_propagates() -> None:
    log: list[str] = []
    here = asyncio.Event()

    async def clean(_: object) -> None:
        await asyncio.sleep(0)
        log.append("cleaned")

    sender = ScriptedSender([[here.set, asyncio.Event()]])
    plugin = recording(log, "a", cleanup=clean)
    conversation = Conversation(model="m", sender=sender, plugins=[plugin])

    async def read() -> None:
        async for _ in conversation.stream("hi"):
            pass

    async with nothing_left(sender):
        task = asyncio.create_task(read())
        await here.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log[-1] == "cleaned"


async def test_nothing_happens_before_the_first_event_is_asked_for() -> None:
    sender = ScriptedSender(["x"])
    conversation = Conversation(model="m", sender=sender)
    stream = conversation.stream("hi")
    assert conversation.request_state == "idle"
    assert conversation.messages == []
    await stream.aclose()
    assert [event async for event in stream] == []
    assert sender.bodies == []


async def test_a_stream_makes_the_conversation_busy() -> None:
    sender = ScriptedSender([["x", "y"]])
    conversation = Conversation(model="m", sender=sender)
    stream = conversation.stream("hi")
    await anext(stream)
    with pytest.raises(ConversationBusy):
        await conversation.send("x")
    with pytest.raises(ConversationBusy):
        await anext(conversation.stream("x"))
    await stream.aclose()


async def test_a_slow_reader_pauses_the_model() -> None:
    sent: list[int] = []

    def piece(number: int) -> Any:
        return lambda: sent.append(number)

    script = [part for number in range(100) for part in (piece(number), "x")]
    conversation = Conversation(model="m", sender=ScriptedSender([script]))
    stream = conversation.stream("hi")
    await anext(stream)
    for _ in range(500):
        await asyncio.sleep(0)
    assert sent == [0]
    events = [event async for event in stream]
    assert sum(isinstance(event, TextAdded) for event in events) == 100


async def test_prevented_messages_are_not_told_as_appended() -> None:
    hide = SimpleNamespace(on_message_append=lambda turn: turn.prevent_default())
    conversation = Conversation(model="m", sender=ScriptedSender(["x"]), plugins=[hide])
    events = [event async for event in conversation.stream("hi")]
    assert not any(isinstance(event, MessageAppended) for event in events)
    assert TextAdded("x") in events
