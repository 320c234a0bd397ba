from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.turns import Call, Conversation, Message, ScriptedSender


async def played(sender: ScriptedSender, body: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [chunk async for chunk in sender(body or {})]


async def test_calls_become_chunks_with_indexes_ids_and_json_arguments() -> None:
    sender = ScriptedSender([["ok", Call("f", {"x": 1}), Call("g", "{bad", id="mine")]])
    conversation = Conversation(model="any", sender=sender)
    answer = await conversation.send("hi")
    assert answer == Message(
        "assistant",
        "ok",
        tool_calls=[
            {"id": "call_1_0", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "mine", "type": "function", "function": {"name": "g", "arguments": "{bad"}},
        ],
    )
    assert answer is not None
    assert answer.metadata == {"finish_reason": "tool_calls"}


async def test_chunks_are_played_as_they_are_and_finish_only_once() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "length"}]}
    assert await played(ScriptedSender([[chunk]])) == [chunk]


async def test_functions_in_a_script_are_called_and_awaited() -> None:
    log: list[str] = []
    gate = asyncio.Event()

    async def later() -> None:
        await asyncio.sleep(0)
        log.append("awaited")
        gate.set()

    await played(ScriptedSender([[lambda: log.append("called"), later, gate, "x"]]))
    assert log == ["called", "awaited"]


async def test_an_answer_may_depend_on_the_request_and_bodies_are_copies() -> None:
    sender = ScriptedSender([lambda body: body["model"]])
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user"}]}
    chunks = await played(sender, body)
    body["messages"].clear()
    assert chunks[0]["choices"][0]["delta"]["content"] == "m"
    assert sender.bodies == [{"model": "m", "messages": [{"role": "user"}]}]


async def test_a_script_that_is_too_short_says_so() -> None:
    with pytest.raises(LookupError, match="the script has 0 answers, but this is request 1"):
        await played(ScriptedSender([]))


async def test_an_exception_is_raised_in_its_place_and_the_stream_counts_as_closed() -> None:
    sender = ScriptedSender([["x", OSError("cut")]])
    with pytest.raises(OSError, match="cut"):
        await played(sender)
    assert sender.open_streams == 0
