from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import (
    ChatTurn,
    Conversation,
    ConversationBusy,
    ConversationClosed,
    Message,
    ScriptedSender,
)
from tests.turns.recording import conversation_with, nothing_left, recording, texts


async def test_send_takes_strings_messages_and_mappings_and_keeps_history() -> None:
    sender = ScriptedSender(["one", "two"])
    conversation = Conversation(
        "http://unused.invalid",
        model="m",
        sender=sender,
        initial_messages=[{"role": "system", "content": "be brief"}],
    )
    await conversation.send("a", Message("user", "b", metadata={"x": 1}), {"role": "user", "content": "c"})
    answer = await conversation.send("d")
    assert answer is conversation.messages[-1]
    assert sender.bodies[1] == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "d"},
        ],
    }


async def test_only_the_chosen_fields_are_sent() -> None:
    sender = ScriptedSender(["one"])
    fields = ("role", "content", "name")
    conversation = Conversation(model="m", sender=sender, request_message_fields=fields)
    await conversation.send(Message("user", "a", name="n", tool_call_id="x"))
    assert sender.bodies[0]["messages"] == [{"role": "user", "content": "a", "name": "n"}]


async def test_a_conversation_is_busy_until_its_cleanups_are_done() -> None:
    busy: list[str] = []

    async def attempt(_: object = None) -> None:
        with pytest.raises(ConversationBusy):
            await conversation.send("x")
        busy.append(conversation.request_state)

    hooks = ("on_before_request", "on_after_request", "on_turn_end")
    plugin = SimpleNamespace(on_turn_start=lambda turn: attempt, **dict.fromkeys(hooks, attempt))
    conversation = Conversation(model="m", sender=ScriptedSender([["a", attempt]]), plugins=[plugin])
    await conversation.send("hi")
    assert busy == ["processing"] * 5
    assert texts(conversation) == [("user", "hi"), ("assistant", "a")]


async def test_a_refused_send_leaves_the_messages_alone() -> None:
    gate = asyncio.Event()
    here = asyncio.Event()
    conversation = Conversation(model="m", sender=ScriptedSender([[here.set, gate, "x"]]))
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    with pytest.raises(ConversationBusy):
        await conversation.send("second")
    gate.set()
    await task
    assert texts(conversation) == [("user", "hi"), ("assistant", "x")]


async def test_usage_is_summed_over_rounds_and_turns() -> None:
    def again(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.append_and_request([])

    usage = {"prompt_tokens": 1, "total_tokens": 3, "details": {"cached": 1}}
    sender = ScriptedSender(["a", "b", "c", "d"], usage=usage)
    plugin = SimpleNamespace(on_after_request=again)
    conversation = Conversation(model="m", sender=sender, plugins=[plugin])
    assert conversation.usage == {}
    answer = await conversation.send("hi")
    assert conversation.usage == {"prompt_tokens": 2, "total_tokens": 6, "details": {"cached": 2}}
    await conversation.send("hi")
    assert conversation.usage["total_tokens"] == 12
    assert answer is not None
    assert answer.metadata == {"finish_reason": "stop", "usage": usage}


async def test_usage_that_grows_within_a_stream_counts_once() -> None:
    def chunk(total: int) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": "x"}}], "usage": {"total_tokens": total}}

    conversation = Conversation(model="m", sender=ScriptedSender([[chunk(1), chunk(2), chunk(3)]]))
    await conversation.send("hi")
    assert conversation.usage == {"total_tokens": 3}


async def test_an_answer_that_was_not_streamed_is_taken_whole() -> None:
    whole = {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "all"}, "finish_reason": "stop"},
            {"index": 1, "message": {"role": "assistant", "content": "other"}},
        ],
        "usage": {"total_tokens": 3},
    }
    conversation = Conversation(model="m", sender=ScriptedSender([[whole]]))
    assert await conversation.send("hi") == Message("assistant", "all")
    assert conversation.usage == {"total_tokens": 3}


async def test_an_answer_without_any_data_appends_nothing() -> None:
    async def silent(body: dict[str, Any]) -> Any:
        yield {"choices": [], "usage": {"total_tokens": 1}}

    log: list[str] = []
    conversation = Conversation(model="m", sender=silent, plugins=[recording(log, "a")])
    assert await conversation.send("hi") is None
    assert texts(conversation) == [("user", "hi")]
    assert "a.on_message_append" not in log
    assert "a.on_after_request" in log


async def test_closing_aborts_the_turn_and_waits_for_its_cleanups() -> None:
    log: list[str] = []
    here = asyncio.Event()

    async def clean(_: object) -> None:
        await asyncio.sleep(0)
        log.append("cleaned")

    sender = ScriptedSender([[here.set, asyncio.Event()]])
    async with nothing_left(sender):
        async with Conversation(
            model="m", sender=sender, plugins=[recording([], "a", cleanup=clean)]
        ) as conversation:
            task = asyncio.create_task(conversation.send("hi"))
            await here.wait()
        assert log == ["cleaned"]
        assert await task is None
    assert conversation.request_state == "aborted"
    await conversation.close()
    with pytest.raises(ConversationClosed):
        await conversation.send("hi")


async def test_whoever_closes_second_waits_for_the_cleanups_too() -> None:
    log: list[str] = []
    gate = asyncio.Event()
    plugin = recording(log, "a", cleanup=lambda _: gate.wait())
    conversation, _ = conversation_with(plugin, answers=[[asyncio.Event()]])
    turn = asyncio.create_task(conversation.send("hello"))
    while not log:
        await asyncio.sleep(0)
    closing = [asyncio.create_task(conversation.close()) for _ in range(2)]
    while "a.cleanup" not in log:
        await asyncio.sleep(0)
    assert [task.done() for task in closing] == [False, False]
    gate.set()
    await asyncio.gather(*closing)
    assert turn.done()
    assert await turn is None


async def test_a_plugin_may_close_the_conversation() -> None:
    async def close(turn: ChatTurn) -> None:
        await conversation.close()

    for hook in ("on_before_request", "on_after_request"):
        plugins = [SimpleNamespace(**{hook: close})]
        conversation = Conversation(model="m", sender=ScriptedSender(["x"]), plugins=plugins)
        await conversation.send("hi")
        assert conversation.request_state == "aborted"


def test_a_conversation_needs_somebody_to_speak_with() -> None:
    with pytest.raises(TypeError, match="a base_url or a sender"):
        Conversation(model="m")


async def test_the_sender_in_use_is_closed_by_its_owner() -> None:
    closed: list[str] = []

    class Sender(ScriptedSender):
        async def aclose(self) -> None:
            closed.append("closed")

    async with Conversation(model="m", sender=Sender([])):
        pass
    assert closed == []


async def test_the_system_text_leads_every_request_and_is_no_message() -> None:
    sender = ScriptedSender(["one", "two"])
    conversation = Conversation(model="m", sender=sender, system="be brief")
    await conversation.send("a")
    await conversation.send("b")
    assert sender.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "b"},
    ]
    assert [message.role for message in conversation.messages] == ["user", "assistant"] * 2


async def test_the_system_text_stays_when_a_plugin_chooses_the_messages() -> None:
    def last_only(turn: ChatTurn) -> None:
        turn.set_request_messages(turn.messages[-1:])

    plugin = SimpleNamespace(on_before_request=last_only)
    sender = ScriptedSender(["one", "two"])
    conversation = Conversation(model="m", sender=sender, system="be brief", plugins=[plugin])
    await conversation.send("a")
    await conversation.send("b")
    assert sender.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "b"},
    ]


async def test_parameters_of_a_send_are_added_to_those_of_the_conversation_for_that_turn() -> None:
    sender = ScriptedSender(["one", "two", "three"])
    parameters = {"temperature": 0.2, "stop": ["END"]}
    conversation = Conversation(model="m", sender=sender, parameters=parameters)
    await conversation.send("a", parameters={"temperature": 1, "max_tokens": 5, "stop": None})
    async for _ in conversation.stream("b", parameters={"seed": 7}):
        pass
    await conversation.send("c")
    bodies = [
        {name: value for name, value in body.items() if name not in ("model", "messages")}
        for body in sender.bodies
    ]
    assert bodies == [{"temperature": 1, "max_tokens": 5}, {**parameters, "seed": 7}, parameters]


async def test_a_plugin_that_edits_a_parameter_edits_one_request() -> None:
    def stop(turn: ChatTurn) -> None:
        turn.request_body["stop"].append("!")

    sender = ScriptedSender(["one", "two"])
    plugins = [SimpleNamespace(on_before_request=stop)]
    conversation = Conversation(model="m", sender=sender, plugins=plugins, parameters={"stop": []})
    await conversation.send("a")
    await conversation.send("b")
    assert [body["stop"] for body in sender.bodies] == [["!"], ["!"]]


@pytest.mark.parametrize("name", ["model", "messages", "stream"])
async def test_fields_that_are_not_parameters_are_refused_before_anything_is_sent(name: str) -> None:
    conversation = Conversation(model="m", sender=ScriptedSender([]))
    with pytest.raises(TypeError, match=f"'{name}' is not a request parameter"):
        await conversation.send("a", parameters={name: 1})
    with pytest.raises(TypeError, match=f"'{name}' is not a request parameter"):
        Conversation(model="m", sender=ScriptedSender([]), parameters={name: 1})
    assert conversation.messages == []


async def test_a_conversation_says_its_session() -> None:
    url = "http://127.0.0.1:9/v1"
    assert Conversation(url, model="m", session_id="build-42").session_id == "build-42"
    generated = {Conversation(url, model="m").session_id for _ in range(2)}
    assert len(generated) == 2
    assert None not in generated
    assert Conversation(model="m", sender=ScriptedSender([])).session_id is None
    with pytest.raises(TypeError, match="x-session-id"):
        Conversation(model="m", sender=ScriptedSender([]), session_id="build-42")
    with pytest.raises(ValueError, match="not allowed in a header"):
        Conversation(url, model="m", session_id="a\nb")


@pytest.mark.parametrize("option", ["max_retries", "output_retries"])
def test_a_number_of_retries_is_not_negative(option: str) -> None:
    options: Any = {option: -1}
    with pytest.raises(ValueError, match=f"{option} is -1"):
        Conversation(model="m", sender=ScriptedSender([]), **options)
