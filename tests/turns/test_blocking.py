"""`send_sync`: conversations in programs without an event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from routecodex.turns import Conversation, ConversationBusy, ConversationClosed, ScriptedSender
from tests.turns.recording import recording, texts


class LoopSender(ScriptedSender):
    """Notes the event loop of every request and of the close."""

    def __init__(self, answers: Any) -> None:
        super().__init__(answers)
        self.loops: list[asyncio.AbstractEventLoop] = []

    def __call__(self, body: dict[str, Any]) -> Any:
        self.loops.append(asyncio.get_running_loop())
        return super().__call__(body)


def test_a_program_without_a_loop_sends_and_waits() -> None:
    sender = LoopSender(["one", "two"])
    with Conversation(model="m", sender=sender) as conversation:
        first = conversation.send_sync("a", parameters={"seed": 1})
        second = conversation.send_sync("b")
    assert first is not None
    assert second is not None
    assert [first.content, second.content] == ["one", "two"]
    assert sender.bodies[0]["seed"] == 1
    assert sender.loops[0] is sender.loops[1]
    assert sender.loops[0].is_closed()


def test_a_sync_call_takes_an_output_type() -> None:
    @dataclass
    class City:
        name: str

    with Conversation(model="m", sender=ScriptedSender(['{"name": "Paris"}'])) as conversation:
        assert conversation.send_sync("Where?", output_type=City) == City("Paris")


async def test_a_sync_call_inside_a_running_loop_says_what_to_use_instead() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender(["one"]))
    with pytest.raises(RuntimeError, match=r"use `await conversation\.send\(…\)`"):
        conversation.send_sync("a")
    with pytest.raises(RuntimeError, match=r"use `await conversation\.close\(…\)`"):
        conversation.close_sync()
    assert conversation.messages == []
    assert await conversation.send("a") is not None


def test_an_error_of_the_turn_is_raised_and_its_cleanups_have_run() -> None:
    log: list[str] = []
    sender = ScriptedSender([OSError("gone"), "back"])
    with Conversation(model="m", sender=sender, plugins=[recording(log, "a")]) as conversation:
        with pytest.raises(OSError, match="gone"):
            conversation.send_sync("a")
        assert log[-1] == "a.cleanup"
        conversation.send_sync()
        assert texts(conversation) == [("user", "a"), ("assistant", "back")]


def test_a_closed_conversation_stays_closed() -> None:
    conversation = Conversation(model="m", sender=ScriptedSender(["one"]))
    conversation.close_sync()
    with pytest.raises(ConversationClosed):
        conversation.send_sync("a")
    conversation.close_sync()


def test_a_call_from_a_second_thread_finds_the_conversation_busy() -> None:
    here, go_on = threading.Event(), threading.Event()

    async def hold() -> None:
        here.set()
        await asyncio.to_thread(go_on.wait, 10)

    with Conversation(model="m", sender=ScriptedSender([[hold, "one"]])) as conversation:
        first = threading.Thread(target=conversation.send_sync, args=("a",))
        first.start()
        assert here.wait(10)
        with pytest.raises(ConversationBusy):
            conversation.send_sync("b")
        go_on.set()
        first.join(10)
        assert texts(conversation) == [("user", "a"), ("assistant", "one")]


def test_ctrl_c_ends_a_sync_call_after_the_cleanups() -> None:
    program = """
import asyncio, signal
from routecodex.turns import Conversation, ScriptedSender

class Cleaning:
    def on_turn_start(self, turn):
        return lambda: print("cleaned up")

script = [["half", lambda: signal.raise_signal(signal.SIGINT), asyncio.Event()], "whole"]
with Conversation(model="m", sender=ScriptedSender(script), plugins=[Cleaning()]) as conversation:
    try:
        conversation.send_sync("a")
    except KeyboardInterrupt:
        print("interrupted", conversation.request_state)
    print(conversation.send_sync("b").content)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("cleaned up\ninterrupted aborted\ncleaned up\nwhole\n", "")
