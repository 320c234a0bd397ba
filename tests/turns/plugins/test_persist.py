"""Saved conversations: messages that survive, and their continuation."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Conflict, StoreError
from routecodex.turns import Call, Conversation, Message, Persist, ScriptedSender, ToolPlugin
from tests.turns.plugins.pairs import as_dicts, check_pairs
from tests.turns.recording import nothing_left, texts


def run() -> str:
    return "ran"


CHILD = Path(__file__).with_name("persist_child.py")


class Watched(MemoryStore):
    """A store that records its writes and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[list[tuple[str, Any]]] = []
        self.failure: str | None = None

    async def put(self, space: str, key: str, value: bytes, **options: Any) -> int:
        if self.failure is not None:
            raise StoreError(self.failure)
        version = await super().put(space, key, value, **options)
        self.puts.append([(m["role"], m.get("content")) for m in msgspec.json.decode(value)["messages"]])
        return version


async def resumed(persist: Persist, answers: Any, *plugins: object) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers)
    messages = await persist.load()
    return (
        Conversation(model="m", sender=sender, plugins=[persist, *plugins], initial_messages=messages),
        sender,
    )


async def test_a_conversation_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Persist(tmp_path, "chat")
    conversation, _ = await resumed(first, ["one"])
    await conversation.send("a")
    await first.close()
    second = Persist(str(tmp_path), "chat")
    again, sender = await resumed(second, ["two"])
    assert texts(again) == [("user", "a"), ("assistant", "one")]
    assert again.messages[1].metadata == {"finish_reason": "stop"}
    await again.send("b")
    assert [message["content"] for message in sender.bodies[0]["messages"]] == ["a", "one", "b"]
    await second.close()


async def test_every_message_is_saved_when_it_is_appended_and_again_when_it_is_complete() -> None:
    store = Watched()
    ran: list[int] = []

    def run() -> str:
        ran.append(len(store.puts))
        return "ran"

    conversation, sender = await resumed(
        Persist(store, "chat"), [["I ", "look", Call("run")], ["o", "k"]], ToolPlugin([run])
    )
    async with nothing_left(sender):
        await conversation.send("go")
    go, look, tool_message = ("user", "go"), ("assistant", "I look"), ("tool", "ran")
    assert store.puts == [
        [go],
        [go, ("assistant", "I ")],
        [go, look],
        [go, look, ("tool", "")],
        [go, look, tool_message],
        [go, look, tool_message, ("assistant", "o")],
        [go, look, tool_message, ("assistant", "ok")],
    ]
    assert ran == [4], "the call was saved before the tool ran"


async def test_an_answer_is_saved_as_it_grows() -> None:
    now = 0.0

    def pass_time() -> None:
        nonlocal now
        now += 0.6

    store = Watched()
    persist = Persist(store, "chat", interval=1, clock=lambda: now)
    script = [part for letter in "abcdef" for part in (letter, pass_time)]
    conversation, _ = await resumed(persist, [script])
    await conversation.send("go")
    assert [put[-1][1] for put in store.puts] == ["go", "a", "abc", "abcde", "abcdef"]


async def test_whatever_is_in_a_message_survives() -> None:
    store = MemoryStore()
    persist = Persist(store, "chat")
    thought = {"choices": [{"delta": {"reasoning_content": "hm", "audio": {"id": "1"}}}]}
    conversation, _ = await resumed(persist, [[thought, "x"]])
    await conversation.send(Message("user", [{"type": "text", "text": "a"}], metadata={"mine": 1}))
    loaded = await Persist(store, "chat").load()
    assert loaded == conversation.messages
    assert [message.metadata for message in loaded] == [message.metadata for message in conversation.messages]


@pytest.mark.parametrize("end", ["abort", "error", "cancel"])
async def test_a_turn_that_ends_early_is_saved_with_its_calls_settled(end: str) -> None:
    here = asyncio.Event()
    store = Watched()
    cut = OSError("cut")
    ends: dict[str, Any] = {"error": cut}
    script = ["I ", Call("run"), here.set, ends.get(end, asyncio.Event())]
    conversation, _ = await resumed(Persist(store, "chat"), [script], ToolPlugin([run]))
    task = asyncio.create_task(conversation.send("go"))
    await here.wait()
    if end == "abort":
        conversation.abort()
    elif end == "cancel":
        task.cancel()
    await asyncio.wait({task})
    raised = asyncio.CancelledError if task.cancelled() else task.exception()
    assert raised is {"abort": None, "error": cut, "cancel": asyncio.CancelledError}[end]
    assert store.puts[-1] == [("user", "go"), ("assistant", "I "), ("tool", "The tool call was cancelled.")]


async def test_a_store_that_fails_ends_the_turn() -> None:
    store = Watched()
    conversation, sender = await resumed(Persist(store, "chat"), ["one"])
    store.failure = "disk full"
    with pytest.raises(StoreError, match="disk full"):
        await conversation.send("go")
    assert sender.bodies == []


async def test_a_store_that_fails_while_tools_run_ends_the_turn_with_that_error() -> None:
    store = Watched()

    def run() -> str:
        store.failure = "disk full"
        return "ran"

    conversation, _ = await resumed(Persist(store, "chat"), [[Call("run")]], ToolPlugin([run]))
    with pytest.raises(StoreError, match="disk full"):
        await conversation.send("go")
    assert texts(conversation)[-1] == ("tool", "ran")


async def test_a_conversation_under_the_same_key_is_not_overwritten() -> None:
    store = MemoryStore()
    mine, _ = await resumed(Persist(store, "chat"), ["one"])
    await mine.send("a")
    stranger = Conversation(model="m", sender=ScriptedSender(["two"]), plugins=[Persist(store, "chat")])
    with pytest.raises(Conflict, match="load\\(\\) it first"):
        await stranger.send("b")
    assert texts(mine) == [(m.role, m.content) for m in await Persist(store, "chat").load()]
    other, _ = await resumed(Persist(store, "other"), ["three"])
    await other.send("c")


async def test_nothing_is_there_before_the_first_turn() -> None:
    assert await Persist(MemoryStore(), "chat").load() == []


async def test_a_saved_conversation_that_was_cut_off_is_mended() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":'}}
    cut = {"type": "function", "function": {"arguments": ""}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "old", "metadata": {"finish_reason": "stop"}},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "I ", "tool_calls": [call, cut]},
    ]
    store = MemoryStore()
    await store.put("conversations", "chat", msgspec.json.encode({"messages": messages}))
    loaded = await Persist(store, "chat", cancelled_text="gone").load()
    assert as_dicts(loaded[3:]) == [
        {"role": "assistant", "content": "I ", "tool_calls": [call]},
        {"role": "tool", "content": "gone", "tool_call_id": "a"},
    ]
    assert [message.metadata.get("partial", False) for message in loaded[:4]] == [False, False, False, True]


KILLED: dict[str, list[tuple[str, Any]]] = {
    "tool": [
        ("user", "go"),
        ("assistant", "Let me see. "),
        ("tool", "ran"),
        ("tool", "The tool call was cancelled."),
    ],
    "answer": [("user", "go"), ("assistant", None), ("tool", "ran"), ("assistant", "I think")],
    "call": [("user", "go"), ("assistant", "I ")],
    "request": [("user", "go")],
}


@pytest.mark.parametrize("place", KILLED)
async def test_a_killed_process_loses_nothing_that_was_said_and_another_goes_on(
    place: str, tmp_path: Path
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), place, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), 30) == b"here\n"
    child.send_signal(signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    persist = Persist(tmp_path, "chat")
    conversation, sender = await resumed(persist, ["welcome back"], ToolPlugin([run]))
    assert texts(conversation) == KILLED[place]
    await conversation.send("again")
    check_pairs(sender.bodies[0]["messages"])
    assert sender.bodies[0]["messages"][-1] == {"role": "user", "content": "again"}
    assert texts(conversation)[-1] == ("assistant", "welcome back")
    await persist.close()
