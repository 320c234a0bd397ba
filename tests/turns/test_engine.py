"""The rules of a turn, one after the other, in a conversation with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import (
    ChatTurn,
    Conversation,
    Message,
    NotInThisHook,
    Plugin,
    ScriptedSender,
    TooManyRequests,
    TurnAborted,
    TurnOver,
)
from tests.turns.recording import HOOKS, conversation_with, nothing_left, once, raising, recording, texts


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_hooks_run_in_the_order_of_the_lifecycle(is_async: bool) -> None:
    log: list[str] = []
    a = recording(log, "a", is_async=is_async, on_after_request=once("more"))
    conversation, sender = conversation_with(a, answers=["one", "two"])
    async with nothing_left(sender):
        answer = await conversation.send("hi")
    assert answer == Message("assistant", "two")
    assert log == [
        "a.on_turn_start",
        "a.on_before_request",
        "a.on_message_append",
        "a.on_stream_data",
        "a.on_stream_data",
        "a.on_after_request",
        "a.on_message_append",
        "a.on_before_request",
        "a.on_message_append",
        "a.on_stream_data",
        "a.on_stream_data",
        "a.on_after_request",
        "a.on_turn_end",
        "a.cleanup",
    ]
    assert texts(conversation) == [
        ("user", "hi"),
        ("assistant", "one"),
        ("user", "more"),
        ("assistant", "two"),
    ]


async def test_plugins_take_turns_in_their_order_and_clean_up_in_reverse(is_async: bool) -> None:
    log: list[str] = []
    a, b = (recording(log, name, is_async=is_async) for name in "ab")
    conversation, _ = conversation_with(a, b)
    await conversation.send("hi")
    expected = [f"{name}.{hook}" for hook in HOOKS for name in "ab"]
    expected[8:8] = expected[6:8]
    assert log == [*expected, "b.cleanup", "a.cleanup"]


async def test_a_plugin_may_have_any_subset_of_the_hooks() -> None:
    log: list[str] = []
    only_end = SimpleNamespace(on_turn_end=lambda turn: log.append("end"))

    class Counting(Plugin):
        def on_stream_data(self, turn: ChatTurn) -> None:
            log.append("data")

    conversation, _ = conversation_with(only_end, Counting(), object(), Plugin())
    await conversation.send("hi")
    assert log == ["data", "data", "end"]


def test_a_hook_that_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="on_turn_end"):
        conversation_with(SimpleNamespace(on_turn_end=1))


async def test_an_error_at_the_start_stops_later_plugins_and_runs_earlier_cleanups(is_async: bool) -> None:
    log: list[str] = []
    error = ValueError("no")
    a, c = (recording(log, name, is_async=is_async) for name in "ac")
    b = recording(log, "b", is_async=is_async, on_turn_start=raising(error))
    conversation, sender = conversation_with(a, b, c)
    with pytest.raises(ValueError) as caught:
        await conversation.send("hi")
    assert caught.value is error
    assert log == ["a.on_turn_start", "b.on_turn_start", "a.cleanup"]
    assert sender.bodies == []
    assert conversation.request_state == "error"
    assert texts(conversation) == [("user", "hi")]


@pytest.mark.parametrize("hook", ["on_before_request", "on_message_append", "on_stream_data"])
async def test_an_error_in_a_serial_hook_ends_the_turn(hook: str, is_async: bool) -> None:
    log: list[str] = []
    error = ValueError("no")
    a = recording(log, "a", is_async=is_async, **{hook: raising(error)})
    b = recording(log, "b", is_async=is_async)
    conversation, sender = conversation_with(a, b)
    async with nothing_left(sender):
        with pytest.raises(ValueError) as caught:
            await conversation.send("hi")
    assert caught.value is error
    assert f"b.{hook}" not in log
    assert "b.on_turn_end" not in log
    assert log[-2:] == ["b.cleanup", "a.cleanup"]
    assert conversation.request_state == "error"


async def test_an_error_of_the_provider_ends_the_turn_and_keeps_what_came() -> None:
    log: list[str] = []
    conversation, sender = conversation_with(recording(log, "a"), answers=[["par", OSError("gone")]])
    async with nothing_left(sender):
        with pytest.raises(OSError, match="gone"):
            await conversation.send("hi")
    assert texts(conversation) == [("user", "hi"), ("assistant", "par")]
    assert "a.on_after_request" not in log
    assert "a.on_turn_end" not in log
    assert log[-1] == "a.cleanup"


async def test_an_error_at_the_end_skips_later_plugins(is_async: bool) -> None:
    log: list[str] = []
    a = recording(log, "a", is_async=is_async, on_turn_end=raising(ValueError("no")))
    b = recording(log, "b", is_async=is_async)
    conversation, _ = conversation_with(a, b)
    with pytest.raises(ValueError, match="no"):
        await conversation.send("hi")
    assert log[-3:] == ["a.on_turn_end", "b.cleanup", "a.cleanup"]
    assert conversation.request_state == "error"


async def test_on_after_request_runs_concurrently() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def wait_for_second(turn: ChatTurn) -> None:
        first.set()
        await second.wait()

    async def wait_for_first(turn: ChatTurn) -> None:
        await first.wait()
        second.set()

    conversation, _ = conversation_with(
        SimpleNamespace(on_after_request=wait_for_second), SimpleNamespace(on_after_request=wait_for_first)
    )
    assert await conversation.send("hi") == Message("assistant", "hello")


async def test_an_error_after_the_request_cancels_and_awaits_the_siblings() -> None:
    log: list[str] = []

    async def forever(turn: ChatTurn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("sibling ended")

    async def fail(turn: ChatTurn) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    a = recording(log, "a")
    conversation, sender = conversation_with(
        a, SimpleNamespace(on_after_request=forever), SimpleNamespace(on_after_request=fail)
    )
    async with nothing_left(sender):
        with pytest.raises(ValueError, match="no"):
            await conversation.send("hi")
    assert log[-2:] == ["sibling ended", "a.cleanup"]
    assert "a.on_turn_end" not in log


async def test_a_sibling_that_fails_while_it_is_cancelled_is_told_too() -> None:
    async def stubborn(turn: ChatTurn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("second")

    async def fail(turn: ChatTurn) -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    conversation, _ = conversation_with(
        SimpleNamespace(on_after_request=stubborn), SimpleNamespace(on_after_request=fail)
    )
    with pytest.raises(ExceptionGroup) as caught:
        await conversation.send("hi")
    assert [str(error) for error in caught.value.exceptions] == ["first", "'second'"]


async def test_a_sync_plugin_that_fails_first_starts_no_sibling() -> None:
    log: list[str] = []
    a = recording(log, "a", on_after_request=raising(ValueError("no")))
    b = recording(log, "b", is_async=True)
    conversation, sender = conversation_with(a, b)
    async with nothing_left(sender):
        with pytest.raises(ValueError, match="no"):
            await conversation.send("hi")
    assert "b.on_after_request" not in log


async def test_cleanup_errors_do_not_stop_other_cleanups(is_async: bool) -> None:
    log: list[str] = []

    async def fail_later(_: object) -> None:
        await asyncio.sleep(0)
        raise KeyError("b")

    a = recording(log, "a", cleanup=raising(KeyError("a")), is_async=is_async)
    b = recording(log, "b", cleanup=fail_later, is_async=is_async)
    conversation, _ = conversation_with(a, b)
    with pytest.raises(ExceptionGroup) as caught:
        await conversation.send("hi")
    assert [error.args for error in caught.value.exceptions] == [("b",), ("a",)]
    assert log[-2:] == ["b.cleanup", "a.cleanup"]
    assert conversation.request_state == "error"


async def test_a_single_cleanup_error_is_raised_as_itself() -> None:
    error = KeyError("a")
    conversation, _ = conversation_with(recording([], "a", cleanup=raising(error)))
    with pytest.raises(KeyError) as caught:
        await conversation.send("hi")
    assert caught.value is error


async def test_the_main_error_comes_first_in_the_group() -> None:
    a = recording([], "a", cleanup=raising(KeyError("cleanup")))
    conversation, _ = conversation_with(a, answers=[OSError("main")])
    with pytest.raises(ExceptionGroup) as caught:
        await conversation.send("hi")
    assert [type(error) for error in caught.value.exceptions] == [OSError, KeyError]


async def test_a_cleanup_that_is_no_function_is_an_error() -> None:
    conversation, _ = conversation_with(SimpleNamespace(on_turn_start=lambda turn: 1))
    with pytest.raises(TypeError, match="returned 1"):
        await conversation.send("hi")


async def test_request_body_may_be_edited_and_replaced_before_a_request() -> None:
    def edit(turn: ChatTurn) -> None:
        turn.request_body["temperature"] = 0
        turn.request_body["messages"][0]["content"] = "changed"

    def replace(turn: ChatTurn) -> None:
        turn.request_body = {**turn.request_body, "model": "other"}

    conversation, sender = conversation_with(
        SimpleNamespace(on_before_request=edit), SimpleNamespace(on_before_request=replace)
    )
    await conversation.send("hi")
    assert sender.bodies == [
        {"model": "other", "messages": [{"role": "user", "content": "changed"}], "temperature": 0}
    ]
    assert conversation.messages[0].content == "hi"


async def test_set_request_messages_keeps_the_fields_that_may_be_sent() -> None:
    def shorten(turn: ChatTurn) -> None:
        turn.set_request_messages(
            [Message("user", "m", metadata={"secret": 1}, name="x"), {"role": "user", "content": "d", "a": 1}]
        )

    conversation, sender = conversation_with(SimpleNamespace(on_before_request=shorten))
    await conversation.send("hi")
    assert sender.bodies[0]["messages"] == [
        {"role": "user", "content": "m"},
        {"role": "user", "content": "d"},
    ]


async def test_calls_that_belong_to_another_hook_are_refused() -> None:
    refused: list[str] = []

    def attempt(turn: ChatTurn) -> None:
        for what in (
            lambda: turn.append_message(Message("user")),
            lambda: turn.append_and_request([]),
            turn.prevent_default,
            lambda: turn.data,
            lambda: turn.request_body,
            lambda: turn.current_message,
            lambda: turn.set_request_messages([]),
        ):
            with pytest.raises(NotInThisHook) as caught:
                what()
            refused.append(str(caught.value))

    conversation, _ = conversation_with(SimpleNamespace(on_turn_start=attempt))
    await conversation.send("hi")
    assert len(refused) == 7


async def test_the_cap_on_requests_ends_the_turn_with_a_clear_error() -> None:
    forever = SimpleNamespace(on_after_request=lambda turn: turn.append_and_request([]))
    conversation, sender = conversation_with(forever, answers=["x"] * 9, max_requests=3)
    with pytest.raises(TooManyRequests, match="3 requests"):
        await conversation.send("hi")
    assert len(sender.bodies) == 3
    assert conversation.request_state == "error"


async def test_without_a_cap_a_turn_goes_on() -> None:
    def until(turn: ChatTurn) -> None:
        if turn.requests < 60:
            turn.append_and_request([])

    conversation, sender = conversation_with(
        SimpleNamespace(on_after_request=until), answers=["x"] * 60, max_requests=None
    )
    await conversation.send("hi")
    assert len(sender.bodies) == 60


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_requests is 0"):
        conversation_with(max_requests=0)


async def test_the_last_choice_chunk_is_not_the_usage_report() -> None:
    seen: list[Any] = []
    after = SimpleNamespace(on_after_request=lambda turn: seen.append(turn.last_choice_chunk))
    sender = ScriptedSender(["hello"], usage={"total_tokens": 3})
    await Conversation(model="any", sender=sender, plugins=[after]).send("hi")
    assert seen[0]["choices"][0]["finish_reason"] == "stop"


async def test_stream_data_sees_every_chunk_after_it_was_merged() -> None:
    seen: list[Any] = []

    def look(turn: ChatTurn) -> None:
        delta = turn.data["choices"][0]["delta"] if turn.data["choices"] else "usage"
        seen.append((delta, turn.current_message.content))

    sender = ScriptedSender([["a", "b"]], usage={"total_tokens": 3})
    plugin = SimpleNamespace(on_stream_data=look)
    await Conversation(model="any", sender=sender, plugins=[plugin]).send("hi")
    assert [content for _, content in seen] == ["a", "ab", "ab", "ab"]
    assert seen[-1][0] == "usage"


async def test_states_follow_the_turn() -> None:
    seen: list[tuple[str, str | None]] = []

    def look(turn: ChatTurn) -> None:
        seen.append((turn.request_state, turn.processing_state))

    def call_tools(turn: ChatTurn) -> None:
        turn.set_processing_state("calling-tools")
        look(turn)

    plugin = recording(
        [],
        "a",
        on_before_request=look,
        on_stream_data=look,
        on_after_request=call_tools,
    )
    conversation, _ = conversation_with(plugin)
    assert (conversation.request_state, conversation.processing_state) == ("idle", None)
    await conversation.send("hi")
    assert seen == [
        ("processing", "requesting"),
        ("processing", "streaming"),
        ("processing", "streaming"),
        ("processing", "calling-tools"),
    ]
    assert (conversation.request_state, conversation.processing_state) == ("completed", None)


async def test_plugin_data_lives_for_one_turn_and_belongs_to_its_plugin() -> None:
    seen: list[Any] = []

    def keep(turn: ChatTurn) -> None:
        seen.append(dict(turn.plugin_data))
        turn.plugin_data["kept"] = 1

    a = SimpleNamespace(on_turn_start=keep, on_turn_end=lambda turn: seen.append(dict(turn.plugin_data)))
    b = SimpleNamespace(on_turn_end=lambda turn: seen.append((dict(turn.plugin_data), turn.data_of(a))))
    conversation, _ = conversation_with(a, b, answers=["x", "y"])
    await conversation.send("hi")
    await conversation.send("hi")
    assert seen == [{}, {"kept": 1}, ({}, {"kept": 1})] * 2


async def test_a_turn_that_is_over_takes_nothing_any_more() -> None:
    kept: list[ChatTurn] = []
    conversation, _ = conversation_with(recording([], "a", on_after_request=kept.append))
    await conversation.send("hi")
    turn = kept[0]
    assert turn.over
    for late in (
        lambda: turn.append_message(Message("tool", "late")),
        lambda: turn.append_and_request([]),
        lambda: turn.set_processing_state("x"),
        lambda: turn.set_request_messages([]),
        turn.prevent_default,
    ):
        with pytest.raises(TurnOver):
            late()
    turn.abort()
    assert conversation.request_state == "completed"
    assert len(conversation.messages) == 2


async def test_a_wait_for_an_abort_that_never_came_ends_with_the_turn() -> None:
    waits: list[asyncio.Task[None]] = []

    def watch(turn: ChatTurn) -> None:
        waits.append(asyncio.ensure_future(turn.wait_aborted()))

    conversation, _ = conversation_with(recording([], "a", is_async=True, on_turn_start=watch))
    await conversation.send("hi")
    with pytest.raises(TurnOver):
        await waits[0]


async def test_raise_if_aborted_leaves_the_hook() -> None:
    def leave(turn: ChatTurn) -> None:
        turn.raise_if_aborted()
        turn.abort()
        with pytest.raises(TurnAborted):
            turn.raise_if_aborted()

    conversation, _ = conversation_with(SimpleNamespace(on_before_request=leave))
    assert await conversation.send("hi") is None
    assert conversation.request_state == "aborted"


async def test_the_last_choice_chunk_belongs_to_its_own_request() -> None:
    seen: list[Any] = []

    def after(turn: ChatTurn) -> None:
        seen.append(turn.last_choice_chunk)
        if turn.requests == 1:
            turn.append_and_request([])

    usage = {"choices": [], "usage": {"total_tokens": 1}}

    async def sender(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if not seen:
            yield {"choices": [{"index": 0, "delta": {"content": "hello"}}]}
        yield usage

    conversation = Conversation(model="any", sender=sender, plugins=[SimpleNamespace(on_after_request=after)])
    await conversation.send("go")
    assert seen == [{"choices": [{"index": 0, "delta": {"content": "hello"}}]}, None]


async def test_of_several_choices_the_first_is_the_answer() -> None:
    choices = [{"index": at, "delta": {"content": text}} for at, text in ((1, "other"), (0, "mine"))]
    conversation, _ = conversation_with(
        answers=[[{"choices": choices}, {"choices": choices[:1]}, {"choices": choices[1:]}]]
    )
    answer = await conversation.send("go")
    assert answer is not None
    assert answer.content == "minemine"
