"""Whether the model is thinking, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.turns import Call, ChatTurn, Conversation, ScriptedSender, StateChanged, ThinkingState


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> Any:
        def move() -> None:
            self.now += seconds

        return move


def thought(text: str = "hm", field: str = "reasoning_content") -> dict[str, Any]:
    return {"choices": [{"delta": {field: text}}]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("speech", ["answer", Call("f")])
async def test_a_model_thinks_until_it_speaks(field: str, speech: Any) -> None:
    clock = Clock()
    changes: list[tuple[bool, float]] = []

    def changed(active: bool, turn: ChatTurn) -> None:
        changes.append((active, clock.now))

    state = ThinkingState(changed, clock=clock)
    script = [clock.after(1), thought(field=field), clock.after(2), thought(field=field), clock.after(3)]
    sender = ScriptedSender([[*script, speech, clock.after(4), "more"]])
    conversation = Conversation(model="m", sender=sender, plugins=[state])
    answer = await conversation.send("hi")
    assert changes == [(True, 1.0), (False, 6.0)]
    assert (state.thinking, state.seconds) == (False, 5.0)
    assert answer is not None
    assert answer.metadata["thinking_seconds"] == 5.0


async def test_the_time_runs_while_it_thinks() -> None:
    clock = Clock()
    seen: list[tuple[bool, float]] = []
    state = ThinkingState(clock=clock)

    def look() -> None:
        seen.append((state.thinking, state.seconds))

    script = [
        look,
        thought(),
        clock.after(2),
        look,
        "x",
        clock.after(5),
        look,
        thought(),
        clock.after(1),
        look,
    ]
    conversation = Conversation(model="m", sender=ScriptedSender([script, "y"]), plugins=[state])
    await conversation.send("hi")
    assert seen == [(False, 0.0), (True, 2.0), (False, 2.0), (True, 3.0)]
    assert not state.thinking
    await conversation.send("hi")
    assert state.seconds == 0.0, "every turn begins anew"


async def test_streams_tell_it_as_a_state() -> None:
    conversation = Conversation(
        model="m", sender=ScriptedSender([[thought(), "x"]]), plugins=[ThinkingState()]
    )
    events = [event async for event in conversation.stream("hi")]
    assert [event.state for event in events if isinstance(event, StateChanged)] == [
        "requesting",
        "streaming",
        "thinking",
        "streaming",
    ]


@pytest.mark.parametrize("end", ["abort", "error", "stop"])
async def test_thinking_ends_with_the_turn_however_it_ends(end: str) -> None:
    here = asyncio.Event()
    changes: list[bool] = []
    state = ThinkingState(lambda active, turn: changes.append(active))
    ends: dict[str, Any] = {"abort": asyncio.Event(), "error": OSError("cut"), "stop": lambda: None}
    sender = ScriptedSender([[thought(), here.set, ends[end]]])
    conversation = Conversation(model="m", sender=sender, plugins=[state])
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    if end == "abort":
        conversation.abort()
    await asyncio.wait({task})
    assert isinstance(task.exception(), OSError) is (end == "error")
    assert changes == [True, False]
    assert not state.thinking


async def test_conversations_that_share_it_have_their_own() -> None:
    turns: list[ChatTurn] = []
    state = ThinkingState(lambda active, turn: turns.append(turn))
    gate = asyncio.Event()
    first = Conversation(model="m", sender=ScriptedSender([[thought(), gate]]), plugins=[state])
    second = Conversation(model="m", sender=ScriptedSender([["x"]]), plugins=[state])
    task = asyncio.create_task(first.send("hi"))
    while not turns:
        await asyncio.sleep(0)
    await second.send("hi")
    assert not state.thinking
    assert state.of(turns[0]).active
    gate.set()
    await task
