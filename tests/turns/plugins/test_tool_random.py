"""Random turns with tools: whatever fails, hangs or is aborted, every request holds calls and results in
pairs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.turns import (
    Allow,
    Call,
    ChatTurn,
    Conversation,
    Deny,
    Edit,
    LengthContinuation,
    Message,
    ScriptedSender,
    ToolPlugin,
)
from tests.turns.plugins.pairs import as_dicts, check_pairs

DEEDS = ("value", "fail", "pieces", "fail halfway", "hang", "abort", "abort and hang", "block", "leave")
PIECES = (
    *("text", "call", "call", "call twice", "unknown", "no json", "no id", "no name"),
    *("stop", "cut", "length"),
)

answers = st.lists(st.lists(st.sampled_from(PIECES), max_size=5), min_size=1, max_size=4)
deeds = st.lists(st.sampled_from(DEEDS), min_size=1, max_size=6)
decisions = st.lists(st.sampled_from(["allow", "deny", "edit", "ask", "raise"]), max_size=4)
disturbances = st.lists(st.sampled_from(["nothing", "append", "raise", "abort"]), max_size=3)


ENDS = {"done", "failed", "refused", "denied", "cancelled", "timed out"}


class Planned(Exception):
    """An error the script wants."""


@dataclass
class Stage:
    """A conversation with unreliable tools."""

    deeds: list[str]
    decisions: list[str]
    disturbances: list[str]
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    conversation: Conversation | None = None
    made: int = 0

    def abort(self) -> None:
        assert self.conversation is not None
        self.conversation.abort()

    def run(self, call: Any, turn: ChatTurn) -> Any:
        deed = self.deeds[self.made % len(self.deeds)]
        self.made += 1
        if deed == "value":
            return "value"
        return self.pieces(deed) if deed in ("pieces", "fail halfway") else self.act(deed)

    async def pieces(self, deed: str) -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(0)
        if deed == "fail halfway":
            raise Planned
        yield "two"

    async def act(self, deed: str) -> str:
        if "abort" in deed:
            self.abort()
        if deed == "fail":
            raise Planned
        if deed == "leave":
            raise SystemExit(1)
        if "hang" in deed:
            self.hanging.set()
            await self.release.wait()
        return "done"

    async def decide(self, calls: list[Any], turn: ChatTurn) -> Any:
        table = {"allow": Allow(), "deny": Deny("no"), "edit": Edit({"x": 1})}
        decision = self.decisions.pop() if self.decisions else "allow"
        if decision == "raise":
            raise Planned
        if decision == "ask":
            self.hanging.set()
            await self.release.wait()
        return [table.get(decision, Allow()) for _ in calls]

    async def disturb(self, turn: ChatTurn) -> None:
        what = self.disturbances.pop() if self.disturbances else "nothing"
        await asyncio.sleep(0)
        if what == "append":
            turn.append_message(Message("user", "by the way"))
        elif what == "raise":
            raise Planned
        elif what == "abort":
            turn.abort()

    def answer(self, script: list[str]) -> list[Any]:
        delta = {"tool_calls": [{"index": 50, "function": {"name": "f", "arguments": "{}"}}]}
        nameless = {"tool_calls": [{"index": 60, "id": "z"}]}
        table: dict[str, Any] = {
            "text": "text",
            "call": Call("f", {}),
            "call twice": Call("f", {}, id="twice"),
            "unknown": Call("other", {}),
            "no json": Call("f", "{"),
            "no id": {"choices": [{"delta": delta}]},
            "no name": {"choices": [{"delta": nameless}]},
            "stop": self.abort,
            "cut": Planned(),
            "length": {"choices": [{"delta": {}, "finish_reason": "length"}]},
        }
        return [table[piece] for piece in script]


async def play(
    script: list[list[str]], stage: Stage, end: str, *, slow: bool, options: dict[str, Any]
) -> None:
    sender = ScriptedSender([*map(stage.answer, script), *["done"] * 20])
    plugin = ToolPlugin([{"name": "f"}], call_tool=stage.run, before_call_tools=stage.decide, **options)
    plugins: list[object] = [SimpleNamespace(on_after_request=stage.disturb), plugin, LengthContinuation()]
    if slow:
        plugins.insert(0, SimpleNamespace(on_message_append=lambda turn: asyncio.sleep(0)))
    stage.conversation = conversation = Conversation(model="m", sender=sender, plugins=plugins)
    for text in ("one", "two", "three"):
        task = asyncio.create_task(conversation.send(text))
        task.add_done_callback(lambda _: stage.hanging.set())
        while not task.done():
            await stage.hanging.wait()
            stage.hanging.clear()
            ends: dict[str, Any] = {"abort": conversation.abort, "cancel": task.cancel}
            ends.get(end, stage.release.set)()
        with suppress(Planned, asyncio.CancelledError, BaseExceptionGroup):
            await task
        results = [message for message in conversation.messages if message.role == "tool"]
        assert {message.metadata["tool"]["state"] for message in results} <= ENDS
    before = as_dicts(conversation.messages)
    stage.release.set()
    await plugin.join()
    assert as_dicts(conversation.messages) == before, "late results are dropped"
    assert sender.open_streams == 0
    for body in sender.bodies:
        check_pairs(body["messages"])


@settings(max_examples=300)
@given(
    answers,
    deeds,
    decisions,
    disturbances,
    st.sampled_from(["abort", "cancel", "release"]),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "timeout": st.sampled_from([None, None, 0.001]),
            "max_concurrent": st.sampled_from([1, 2, 8]),
            "cancel_tools_on_abort": st.booleans(),
            "exclude_tool_messages_next_turn": st.sampled_from([False, True, "remove"]),
        }
    ),
)
def test_calls_and_results_are_in_pairs_in_every_request_whatever_happens(
    script: list[list[str]],
    deeds: list[str],
    decisions: list[str],
    disturbances: list[str],
    end: str,
    slow: bool,
    options: dict[str, Any],
) -> None:
    async def run() -> None:
        stage = Stage(deeds, list(decisions), list(disturbances))
        await asyncio.wait_for(play(script, stage, end, slow=slow, options=options), 20)

    asyncio.run(run())
