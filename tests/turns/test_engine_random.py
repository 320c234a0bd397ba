"""Random turns: whatever plugins append, abort, raise or wait for, the promises hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.turns import ChatTurn, Conversation, ConversationBusy, Message, ScriptedSender, TurnOver
from tests.turns.recording import HOOKS, nothing_left

NAMES = "abc"
PHASES = (*HOOKS, "cleanup")
DEEDS = ("nothing", "abort", "raise", "pause", "wait", "mind", "append", "append later", "again")

step = st.tuples(st.sampled_from(PHASES), st.sampled_from(NAMES), st.sampled_from(DEEDS), st.booleans())
scripts = st.lists(step, max_size=6)
outside = st.sampled_from(["abort", "cancel"])


class Planned(Exception):
    """An error the script wants."""


@dataclass
class Stage:
    """One turn being played: the script for each hook, and what happened."""

    script: dict[tuple[str, str], tuple[str, bool]]
    log: list[str] = field(default_factory=list)
    appended: list[str] = field(default_factory=list)
    turns: list[ChatTurn] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    raised: list[Planned] = field(default_factory=list)

    def plugin(self, name: str) -> object:
        hooks = {phase: self._hook(name, phase) for phase in HOOKS}
        return type(f"Plugin{name}", (), {phase: staticmethod(hook) for phase, hook in hooks.items()})()

    def _hook(self, name: str, phase: str) -> Any:
        deed, is_async = self.script.get((phase, name), ("nothing", False))

        def cleanup() -> Any:
            self.log.append(f"{name}.cleanup")
            deed, is_async = self.script.get(("cleanup", name), ("nothing", False))
            return self._do(deed, self.turns[0], "cleanup", is_async=is_async)

        def hook(turn: ChatTurn) -> Any:
            self.turns.append(turn)
            self.log.append(f"{name}.{phase}")
            result = self._do(deed, turn, phase, is_async=is_async)
            if phase != "on_turn_start":
                return result
            return self._then(result, cleanup) if isawaitable(result) else cleanup

        return hook

    async def _then(self, result: Any, cleanup: Any) -> Any:
        await result
        return cleanup

    def _do(self, deed: str, turn: ChatTurn, phase: str, *, is_async: bool) -> Any:
        if is_async or deed in ("pause", "wait", "mind"):
            return self._do_async(deed, turn, phase)
        return self._do_now(deed, turn, phase)

    async def _do_async(self, deed: str, turn: ChatTurn, phase: str) -> None:
        await asyncio.sleep(0)
        if deed in ("wait", "mind"):
            self.waiting.set()
        if deed == "mind":
            await turn.wait_aborted()
        elif deed == "wait" and phase not in ("on_turn_end", "cleanup"):
            await asyncio.Event().wait()
        elif deed != "wait":
            self._do_now(deed, turn, phase)
        await asyncio.sleep(0)

    def _do_now(self, deed: str, turn: ChatTurn, phase: str) -> None:
        if deed == "abort":
            turn.abort()
        elif deed == "raise":
            error = Planned(phase)
            if not turn.aborted:
                self.raised.append(error)
            raise error
        elif phase == "on_after_request" and deed.startswith(("append", "again")):
            self._append(turn, deed)

    def _append(self, turn: ChatTurn, deed: str) -> None:
        text = f"m{len(self.appended)}" if deed == "append" else "later"
        if deed == "again":
            if turn.requests < 3:
                turn.append_and_request([])
            return
        if deed == "append":
            self.appended.append(text)
        turn.append_message(Message("user", text), deferred=deed == "append later")


async def play(script: list[Any], end: str) -> None:
    stage = Stage({(phase, name): (deed, is_async) for phase, name, deed, is_async in script})
    sender = ScriptedSender([["o", "ne"], ["t", "wo"], ["th", "ree"], "four"])
    plugins = [stage.plugin(name) for name in NAMES]
    conversation = Conversation(model="m", sender=sender, plugins=plugins)
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        task.add_done_callback(lambda _: stage.waiting.set())
        while not task.done():
            await stage.waiting.wait()
            stage.waiting.clear()
            if not task.done():
                await disturb(conversation, task, end=end if not stage.turns[0].aborted else "cancel")
    check(stage, conversation, task)


async def disturb(conversation: Conversation, task: asyncio.Task[Any], *, end: str) -> None:
    with pytest.raises(ConversationBusy):
        await conversation.send("busy")
    if end == "abort":
        conversation.abort()
    else:
        task.cancel()


def check(stage: Stage, conversation: Conversation, task: asyncio.Task[Any]) -> None:
    log = stage.log
    cleanups = [called[0] for called in log if called.endswith(".cleanup")]
    assert cleanups == sorted(cleanups, reverse=True), "last registered first"
    assert len(set(cleanups)) == len(cleanups)
    started = [called[0] for called in log if called.endswith(".on_turn_start")]
    assert set(started[:-1]) <= set(cleanups), "all but the one that may have failed"
    if len(started) == len(NAMES) and "a.on_before_request" in log:
        assert cleanups == list(reversed(NAMES))
    assert all(called.endswith(".cleanup") for called in log[len(log) - len(cleanups) :])
    check_end(stage, conversation, task)
    check_messages(stage, conversation)
    for turn in stage.turns:
        assert turn.over
        with pytest.raises(TurnOver):
            turn.append_message(Message("user", "late"))


def check_end(stage: Stage, conversation: Conversation, task: asyncio.Task[Any]) -> None:
    failed = not task.cancelled() and task.exception() is not None
    aborted = stage.turns[0].aborted
    state = conversation.request_state
    if failed:
        assert state == "error"
    elif not task.cancelled():
        assert state == ("aborted" if aborted else "completed")
    if not aborted and not task.cancelled():
        assert failed is bool(stage.raised)
    ended = any(called.endswith(".on_turn_end") for called in stage.log)
    errors_before = [error for error in stage.raised if error.args[0] not in ("on_turn_end", "cleanup")]
    assert not (ended and errors_before), "no on_turn_end after an error"
    if state == "completed":
        assert [f"{name}.on_turn_end" in stage.log for name in NAMES] == [True] * 3


def check_messages(stage: Stage, conversation: Conversation) -> None:
    messages = conversation.messages
    assert messages[0] == Message("user", "hi")
    contents = [message.content for message in messages]
    immediate = [content for content in contents if content in stage.appended]
    assert immediate == [text for text in stage.appended if text in immediate], "in the order of the calls"
    assert [message for message in stage.turns[0].current_turn if message.role == "assistant"] == [
        message for message in messages if message.role == "assistant"
    ]
    assert "busy" not in contents
    assert "late" not in contents


@settings(max_examples=300)
@given(scripts, outside)
def test_the_promises_hold_whatever_plugins_do(script: list[Any], end: str) -> None:
    asyncio.run(asyncio.wait_for(play(script, end), 20))
