"""Aborts, errors and old history: whatever becomes of a turn with tools, calls and results stay in pairs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import (
    Call,
    ChatTurn,
    Conversation,
    MessageAppended,
    ScriptedSender,
    ToolEnded,
    ToolPlugin,
    TurnEnded,
    tool,
)
from tests.turns.plugins.pairs import as_dicts, check_pairs, results
from tests.turns.recording import nothing_left, recording

CANCELLED = ("cancelled", "The tool call was cancelled.")


def start_conversation(*plugins: object, answers: Any, **options: Any) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers)
    return Conversation(model="m", sender=sender, plugins=plugins, **options), sender


class Worker:
    """A tool that says something, waits to be let go, and tells how it ended."""

    def __init__(self) -> None:
        self.here = asyncio.Event()
        self.release = asyncio.Event()
        self.log: list[str] = []

    async def work(self) -> AsyncIterator[str]:
        yield "begun"
        self.here.set()
        try:
            await self.release.wait()
            yield " late"
            self.log.append("finished")
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise


async def test_an_abort_ends_the_turn_at_once_and_the_work_goes_on_unheard() -> None:
    worker = Worker()
    plugin = ToolPlugin([worker.work])
    conversation, sender = start_conversation(plugin, answers=[[Call("work"), Call("work")], "never", "next"])
    task = asyncio.create_task(conversation.send("go"))
    await worker.here.wait()
    conversation.abort()
    await task
    assert conversation.request_state == "aborted"
    assert worker.log == []
    settled = [("cancelled", "begun\n\n[The tool call was cancelled.]")] * 2
    assert results(conversation) == settled
    worker.release.set()
    await plugin.join()
    assert worker.log == ["finished", "finished"]
    assert results(conversation) == settled, "late results are dropped"
    await conversation.send("again")
    check_pairs(sender.bodies[-1]["messages"])


async def test_with_cancel_tools_on_abort_the_work_ends_too() -> None:
    worker = Worker()
    conversation, sender = start_conversation(
        ToolPlugin([worker.work], cancel_tools_on_abort=True), answers=[[Call("work")]]
    )
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("go"))
        await worker.here.wait()
        conversation.abort()
        await task
    assert worker.log == ["cancelled"]
    assert results(conversation) == [("cancelled", "begun\n\n[The tool call was cancelled.]")]


async def test_a_blocking_function_goes_on_in_its_thread_and_is_not_waited_for() -> None:
    here, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> str:
        loop.call_soon_threadsafe(here.set)
        release.wait(30)
        ended.set()
        return "late"

    plugin = ToolPlugin([block], cancel_tools_on_abort=True)
    conversation, sender = start_conversation(plugin, answers=[[Call("block")]])
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("go"))
        await here.wait()
        conversation.abort()
        await task
    release.set()
    assert await asyncio.to_thread(ended.wait, 30)
    assert results(conversation) == [CANCELLED]


async def test_calls_that_wait_for_a_place_never_start_after_an_abort() -> None:
    started: list[int] = []
    here = asyncio.Event()
    release = asyncio.Event()

    async def work(number: int) -> str:
        started.append(number)
        here.set()
        await release.wait()
        return "late"

    calls = [Call("work", {"number": number}) for number in range(3)]
    plugin = ToolPlugin([work], max_concurrent=1)
    conversation, _ = start_conversation(plugin, answers=[calls])
    task = asyncio.create_task(conversation.send("go"))
    await here.wait()
    conversation.abort()
    await task
    release.set()
    await plugin.join()
    assert started == [0]
    assert results(conversation) == [CANCELLED] * 3


async def test_a_tool_may_abort_its_own_turn() -> None:
    async def stop() -> str:
        conversation.abort()
        await asyncio.sleep(0)
        return "late"

    plugin = ToolPlugin([stop])
    conversation, _ = start_conversation(plugin, answers=[[Call("stop")]])
    await conversation.send("go")
    await plugin.join()
    assert conversation.request_state == "aborted"
    assert results(conversation) == [CANCELLED]


async def test_an_abort_while_somebody_is_asked_denies_nothing_and_runs_nothing() -> None:
    here = asyncio.Event()
    log: list[str] = []

    async def ask(calls: Any, turn: ChatTurn) -> None:
        here.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("asking ended")

    conversation, sender = start_conversation(
        ToolPlugin([tool(name="run")(lambda: log.append("ran"))], before_call_tools=ask),
        answers=[[Call("run"), Call("none")]],
    )
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("go"))
        await here.wait()
        conversation.abort()
        await task
    assert log == ["asking ended"]
    assert results(conversation) == [CANCELLED, ("refused", "There is no tool 'none'. The tools are: run.")]


async def test_an_abort_in_the_middle_of_the_answer_settles_the_calls_it_has_made() -> None:
    here = asyncio.Event()
    cut = {"choices": [{"delta": {"tool_calls": [{"index": 1, "id": "x", "function": {"name": ""}}]}}]}
    conversation, sender = start_conversation(
        ToolPlugin([tool(name="run")(lambda: "ran")], cancelled_text="stopped"),
        answers=[["I ", Call("run", '{"x": '), cut, here.set, asyncio.Event()], "ok"],
    )
    events: list[Any] = []

    async def read() -> None:
        async for event in conversation.stream("go"):
            events.append(event)  # noqa: PERF401  # what was seen before an error counts

    task = asyncio.create_task(read())
    await here.wait()
    conversation.abort()
    await task
    assert results(conversation) == [("cancelled", "stopped")]
    assert events[-2:] == [
        MessageAppended(conversation.messages[2]),
        TurnEnded(conversation.messages[1], "aborted", {}),
    ]
    await conversation.send("again")
    check_pairs(sender.bodies[1]["messages"])
    calls = conversation.messages[1].tool_calls
    assert calls is not None
    assert len(calls) == 1, "a call without a name is none"


async def test_an_answer_stopped_before_it_said_anything_is_not_sent() -> None:
    here = asyncio.Event()
    thought = {"choices": [{"delta": {"role": "assistant", "reasoning_content": "hm"}}]}
    conversation, sender = start_conversation(
        ToolPlugin(), answers=[[thought, here.set, asyncio.Event()], "ok"]
    )
    task = asyncio.create_task(conversation.send("go"))
    await here.wait()
    conversation.abort()
    await task
    await conversation.send("again")
    assert [message["role"] for message in sender.bodies[1]["messages"]] == ["user", "user"]


async def test_an_abort_is_told_as_the_end_of_every_open_tool() -> None:
    worker = Worker()
    plugin = ToolPlugin([worker.work])
    conversation, _ = start_conversation(plugin, answers=[[Call("work")]])
    ended: list[Any] = []
    async for event in conversation.stream("go"):
        if isinstance(event, ToolEnded):
            ended.append(event.message.metadata["tool"]["state"])
        if worker.here.is_set():
            conversation.abort()
    assert ended == ["cancelled"]
    worker.release.set()
    await plugin.join()


@pytest.mark.parametrize("cut", ["sibling", "outside"])
async def test_calls_are_settled_when_the_turn_fails_or_is_cancelled(cut: str) -> None:
    worker = Worker()

    async def fail(turn: ChatTurn) -> None:
        await worker.here.wait()
        if cut == "sibling":
            raise ValueError("sibling")

    plugin = ToolPlugin([worker.work], cancel_tools_on_abort=True)
    conversation, sender = start_conversation(
        plugin, SimpleNamespace(on_after_request=fail), answers=[[Call("work"), Call("none")]]
    )
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("go"))
        await worker.here.wait()
        if cut == "outside":
            task.cancel()
        with pytest.raises((ValueError, asyncio.CancelledError)):
            await task
    assert [state for state, _ in results(conversation)] == ["cancelled", "refused"]
    assert worker.log == ["cancelled"]
    check_pairs(as_dicts(conversation.messages))


async def test_an_error_of_the_model_after_calls_leaves_them_settled() -> None:
    conversation, sender = start_conversation(
        ToolPlugin([tool(name="run")(lambda: "ran")]), answers=[[Call("run"), OSError("cut")], "ok"]
    )
    with pytest.raises(OSError, match="cut"):
        await conversation.send("go")
    assert results(conversation) == [CANCELLED]
    await conversation.send("again")
    check_pairs(sender.bodies[1]["messages"])


async def test_a_plugin_that_refuses_a_tool_message_ends_the_turn_with_its_calls_settled() -> None:
    def refuse(turn: ChatTurn) -> None:
        if turn.current_message.role == "tool":
            raise ValueError("no tools here")

    ran: list[int] = []
    conversation, sender = start_conversation(
        SimpleNamespace(on_message_append=refuse),
        ToolPlugin([tool(name="run")(lambda: ran.append(1))]),
        answers=[[Call("run"), Call("run")]],
    )
    async with nothing_left(sender):
        with pytest.raises(ValueError, match="no tools here"):
            await conversation.send("go")
    assert ran == []
    assert results(conversation) == [CANCELLED] * 2


HISTORY = [
    {"role": "user", "content": "old"},
    {
        "role": "assistant",
        "content": "looking",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "run", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "B"},
    {"role": "assistant", "content": "found"},
]


async def test_calls_of_old_history_without_a_result_get_the_cancelled_text() -> None:
    conversation, sender = start_conversation(ToolPlugin(), answers=["ok"], initial_messages=HISTORY)
    await conversation.send("go")
    sent = sender.bodies[0]["messages"]
    check_pairs(sent)
    assert [message["content"] for message in sent] == [
        "old",
        "looking",
        "The tool call was cancelled.",
        "B",
        "found",
        "go",
    ]
    assert [message.content for message in conversation.messages[2:4]] == [
        "B",
        "The tool call was cancelled.",
    ]


async def test_without_auto_fill_old_history_is_left_alone() -> None:
    plugin = ToolPlugin(auto_fill_missing_tool_messages=False)
    conversation, sender = start_conversation(plugin, answers=["ok"], initial_messages=HISTORY)
    await conversation.send("go")
    assert [message["content"] for message in sender.bodies[0]["messages"]] == [
        "old",
        "looking",
        "B",
        "found",
        "go",
    ]


async def test_the_same_id_in_two_old_answers_is_no_reason_to_touch_them() -> None:
    old = [*HISTORY[:2], {"role": "tool", "tool_call_id": "a", "content": "A"}, HISTORY[2]]
    conversation, _ = start_conversation(ToolPlugin(), answers=["ok"], initial_messages=[*old, *old])
    await conversation.send("go")
    assert as_dicts(conversation.messages[:8]) == [*old, *old]


@pytest.mark.parametrize("exclude", [True, "remove"])
async def test_tool_messages_of_earlier_turns_can_be_left_out(exclude: Any) -> None:
    plugin = ToolPlugin([tool(name="run")(lambda: "ran")], exclude_tool_messages_next_turn=exclude)
    answers = [["hm ", Call("run")], "first", [Call("run")], "second"]
    conversation, sender = start_conversation(plugin, answers=answers, initial_messages=HISTORY)
    await conversation.send("one")
    during = [message["content"] for message in sender.bodies[1]["messages"]]
    assert during == ["old", "found", "one", "hm ", "ran"], "its own turn sees them"
    assert any(message.content == "ran" for message in conversation.messages), "until the next turn"
    await conversation.send("two")
    after = [message.get("content") for message in sender.bodies[3]["messages"]]
    assert after == ["old", "found", "one", "first", "two", None, "ran"]
    kept = [message.content for message in conversation.messages]
    assert ("hm " in kept) is (exclude is True)
    check_pairs(sender.bodies[3]["messages"])


async def test_every_other_plugin_sees_the_messages_of_tools() -> None:
    log: list[str] = []
    looker = recording(log, "l")
    conversation, _ = start_conversation(
        looker, ToolPlugin([tool(name="run")(lambda: "ran")]), answers=[[Call("run")], "ok"]
    )
    await conversation.send("go")
    assert log.count("l.on_message_append") == 3
