"""Aborts and cancellations in every phase."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import ChatTurn, Conversation, Message, ScriptedSender, TurnAborted
from tests.turns.recording import conversation_with, nothing_left, recording, texts


@dataclass(frozen=True)
class Row:
    """One line of the table: after an abort in this hook of plugin a …"""

    phase: str
    requests: int
    answer: str | None
    never: tuple[str, ...]


TABLE = [
    Row("on_turn_start", 0, None, ("b.on_turn_start", "a.on_before_request")),
    Row("on_before_request", 0, None, ("b.on_before_request", "a.on_message_append")),
    Row("on_message_append", 1, "par", ("b.on_message_append", "a.on_stream_data", "a.on_after_request")),
    Row("on_stream_data", 1, "par", ("b.on_stream_data", "a.on_after_request", "b.on_after_request")),
    Row("on_after_request", 1, "partial", ()),
    Row("on_turn_end", 1, "partial", ()),
    Row("cleanup", 1, "partial", ()),
]
"""Plugin b comes after a; the model says `par`, then `tial`, and a asks for one more request."""

Reaction = Callable[[ChatTurn, asyncio.Event], Any]


def abort_itself(turn: ChatTurn, here: asyncio.Event) -> None:
    turn.abort()


def abort_itself_and_raise(turn: ChatTurn, here: asyncio.Event) -> None:
    turn.abort()
    raise RuntimeError("because of the abort")


async def wait_for_it(turn: ChatTurn, here: asyncio.Event) -> None:
    here.set()
    await turn.wait_aborted()


async def wait_and_raise(turn: ChatTurn, here: asyncio.Event) -> None:
    here.set()
    await turn.wait_aborted()
    raise RuntimeError("because of the abort")


async def wait_beside(turn: ChatTurn, here: asyncio.Event) -> None:
    watch = asyncio.ensure_future(turn.wait_aborted())
    here.set()
    await asyncio.wait({watch})
    await asyncio.sleep(0)
    turn.raise_if_aborted()


async def never_return(turn: ChatTurn, here: asyncio.Event) -> None:
    here.set()
    await asyncio.Event().wait()


async def swallow(turn: ChatTurn, here: asyncio.Event) -> None:
    here.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)


REACTIONS: list[Reaction] = [
    abort_itself,
    abort_itself_and_raise,
    wait_for_it,
    wait_and_raise,
    wait_beside,
    never_return,
    swallow,
]
INTERRUPTED = {never_return, swallow}
"""These end only because the abort interrupts them, which it does not do any more from `on_turn_end` on."""

CASES = [
    pytest.param(row, reaction, id=f"{row.phase}-{reaction.__name__}")
    for row in TABLE
    for reaction in REACTIONS
    if not (row.phase in ("on_turn_end", "cleanup") and reaction in INTERRUPTED)
]


@pytest.mark.parametrize(("row", "reaction"), CASES)
async def test_an_abort_ends_the_turn_in_every_phase(row: Row, reaction: Reaction) -> None:
    log: list[str] = []
    here = asyncio.Event()
    turns: list[ChatTurn] = []

    def react(turn: ChatTurn | None) -> Any:
        if row.phase == "on_after_request" and turn is not None:
            turn.append_and_request([])
        return reaction(turn or turns[0], here)

    watch = recording(log, "w", on_turn_start=turns.append)
    actions: dict[str, Any] = {row.phase: react}
    a, b = recording(log, "a", **actions), recording(log, "b")
    sender = ScriptedSender([["par", "tial"]])
    conversation = Conversation(model="any", sender=sender, plugins=[watch, a, b])
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        if reaction not in (abort_itself, abort_itself_and_raise):
            await here.wait()
            conversation.abort()
        answer = await task

    assert (conversation.request_state, conversation.processing_state) == ("aborted", None)
    assert len(sender.bodies) == row.requests
    assert (answer.content if answer else None) == row.answer
    assert texts(conversation) == [("user", "hi"), *([("assistant", row.answer)] if row.answer else [])]
    assert not set(row.never) & set(log)
    cleanups = ["b.cleanup", "a.cleanup", "w.cleanup"]
    if row.phase == "on_turn_start":
        cleanups = ["a.cleanup", "w.cleanup"] if reaction is abort_itself else ["w.cleanup"]
    ends = [called for called in log if called.endswith((".on_turn_end", ".cleanup"))]
    assert ends == ["w.on_turn_end", "a.on_turn_end", "b.on_turn_end", *cleanups]


async def test_an_abort_stops_a_stream_that_waits_and_keeps_the_partial_message() -> None:
    log: list[str] = []
    here = asyncio.Event()
    closed: list[str] = []

    async def sender(body: dict[str, Any]) -> Any:
        try:
            yield {"choices": [{"delta": {"role": "assistant", "content": "par"}}]}
            here.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    conversation = Conversation(model="any", sender=sender, plugins=[recording(log, "a")])
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    conversation.abort()
    conversation.abort()
    assert await task == Message("assistant", "par")
    assert closed == ["closed"]
    assert "a.on_after_request" not in log
    assert log[-2:] == ["a.on_turn_end", "a.cleanup"]
    assert conversation.request_state == "aborted"
    assert task.cancelling() == 0


async def test_an_abort_before_the_first_data_gives_no_message() -> None:
    here = asyncio.Event()
    sender = ScriptedSender([[here.set, asyncio.Event()], "two"])
    conversation = Conversation(model="any", sender=sender)
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    conversation.abort()
    assert await task is None
    assert await conversation.send("again") == Message("assistant", "two")
    assert conversation.request_state == "completed"


async def test_an_abort_interrupts_every_sibling_but_those_that_mind_it() -> None:
    log: list[str] = []
    here = asyncio.Event()

    async def careless(turn: ChatTurn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("interrupted")

    async def careful(turn: ChatTurn) -> None:
        here.set()
        await turn.wait_aborted()
        await asyncio.sleep(0)
        await turn.append_message(Message("tool", "cancelled", tool_call_id="1"))
        turn.append_and_request([])
        log.append("settled")

    plugins = [SimpleNamespace(on_after_request=hook) for hook in (careless, careful)]
    watcher = recording([], "w")
    sender = ScriptedSender(["hello", "never"])
    conversation = Conversation(model="any", sender=sender, plugins=[*plugins, watcher])
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        await here.wait()
        conversation.abort()
        await task
    assert log == ["interrupted", "settled"]
    assert texts(conversation)[-1] == ("tool", "cancelled")
    assert len(sender.bodies) == 1


async def test_messages_appended_after_the_abort_pass_no_hook() -> None:
    seen: list[str] = []

    async def settle(turn: ChatTurn) -> None:
        turn.abort()
        turn.append_message(Message("tool", "cancelled", tool_call_id="1"))
        turn.append_message(Message("user", "dropped"), deferred=True)

    looker = SimpleNamespace(on_message_append=lambda turn: seen.append(turn.current_message.role))
    sender = ScriptedSender(["hello"])
    plugins = [looker, SimpleNamespace(on_after_request=settle)]
    conversation = Conversation(model="any", sender=sender, plugins=plugins)
    await conversation.send("hi")
    assert seen == ["assistant"]
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool"]


async def test_an_abort_while_a_plugin_message_is_held_up_still_places_it_and_those_behind() -> None:
    here = asyncio.Event()

    async def hold(turn: ChatTurn) -> None:
        if turn.current_message.role == "user":
            here.set()
            await asyncio.Event().wait()

    async def append(turn: ChatTurn) -> None:
        turn.append_message([Message("user", "1"), Message("user", "2")])

    sender = ScriptedSender(["hello"])
    plugins = [SimpleNamespace(on_message_append=hold), SimpleNamespace(on_after_request=append)]
    conversation = Conversation(model="any", sender=sender, plugins=plugins)
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        await here.wait()
        conversation.abort()
        await task
    assert [message.content for message in conversation.messages] == ["hi", "hello", "1", "2"]
    assert conversation.request_state == "aborted"


async def test_a_message_held_up_by_a_hook_that_never_began_is_placed_on_abort() -> None:
    async def hold(turn: ChatTurn) -> None:
        raise AssertionError("never begun for users")

    def append_and_abort(turn: ChatTurn) -> None:
        turn.append_message([Message("user", "1"), Message("user", "2")])
        turn.abort()

    def only_users(turn: ChatTurn) -> Any:
        return hold(turn) if turn.current_message.role == "user" else None

    sender = ScriptedSender(["hello"])
    plugins = [
        SimpleNamespace(on_message_append=only_users),
        SimpleNamespace(on_after_request=append_and_abort),
    ]
    conversation = Conversation(model="any", sender=sender, plugins=plugins)
    async with nothing_left(sender):
        await conversation.send("hi")
    assert [message.content for message in conversation.messages] == ["hi", "hello", "1", "2"]


async def test_a_genuine_error_before_the_abort_stays_an_error() -> None:
    cleaning = asyncio.Event()

    async def wait_in_cleanup(_: object) -> None:
        cleaning.set()
        await asyncio.sleep(0)

    async def closes_slowly(body: dict[str, Any]) -> Any:
        try:
            yield {"choices": [{"delta": {"content": "x"}}]}
        finally:
            conversation.abort()

    def fail(turn: ChatTurn) -> None:
        raise ValueError("genuine")

    log: list[str] = []
    plugin = recording(log, "a", on_stream_data=fail, cleanup=wait_in_cleanup)
    conversation = Conversation(model="any", sender=closes_slowly, plugins=[plugin])
    with pytest.raises(ValueError, match="genuine"):
        await conversation.send("hi")
    assert conversation.request_state == "error"
    assert "a.on_turn_end" not in log
    assert cleaning.is_set()


async def test_an_error_of_a_sibling_before_the_abort_stays_an_error() -> None:
    async def slow_to_stop(turn: ChatTurn) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            turn.abort()

    async def fail(turn: ChatTurn) -> None:
        await asyncio.sleep(0)
        raise ValueError("genuine")

    plugins = [SimpleNamespace(on_after_request=hook) for hook in (slow_to_stop, fail)]
    conversation = Conversation(model="any", sender=ScriptedSender(["hello"]), plugins=plugins)
    with pytest.raises(ValueError, match="genuine"):
        await conversation.send("hi")
    assert conversation.request_state == "error"


async def test_an_error_that_has_nothing_to_do_with_an_earlier_abort_is_told() -> None:
    def fail(turn: ChatTurn) -> None:
        raise OSError("disk full")

    abort = SimpleNamespace(on_before_request=lambda turn: turn.abort())
    conversation = Conversation(
        model="any", sender=ScriptedSender([]), plugins=[abort, SimpleNamespace(on_turn_end=fail)]
    )
    with pytest.raises(OSError, match="disk full"):
        await conversation.send("hi")
    assert conversation.request_state == "error"


async def test_turn_aborted_is_never_an_error_of_an_aborted_turn() -> None:
    def leave(turn: ChatTurn) -> None:
        raise TurnAborted("leaving")

    log: list[str] = []
    abort = SimpleNamespace(on_before_request=lambda turn: turn.abort())
    plugins = [abort, SimpleNamespace(on_turn_end=leave), recording(log, "b")]
    conversation = Conversation(model="any", sender=ScriptedSender([]), plugins=plugins)
    assert await conversation.send("hi") is None
    assert "b.on_turn_end" in log


async def test_a_provider_that_fails_because_of_the_abort_is_no_error() -> None:
    here = asyncio.Event()

    async def sender(body: dict[str, Any]) -> Any:
        here.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("connection closed") from None
        yield {}

    conversation = Conversation(model="any", sender=sender)
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    conversation.abort()
    assert await task is None
    assert conversation.request_state == "aborted"


WAITING = ["on_turn_start", "on_before_request", "on_message_append", "on_stream_data"]
WAITING += ["on_after_request", "on_turn_end", "cleanup"]


@pytest.mark.parametrize("phase", WAITING)
async def test_cancelling_from_outside_runs_cleanups_and_propagates(phase: str) -> None:
    log: list[str] = []
    here = asyncio.Event()

    async def wait(_: object) -> None:
        here.set()
        await asyncio.Event().wait()

    actions: dict[str, Any] = {phase: wait}
    plugins = [recording(log, "a"), recording(log, "b", **actions), recording(log, "c")]
    sender = ScriptedSender(["hello", "again"])
    conversation = Conversation(model="any", sender=sender, plugins=plugins)
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        await here.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert conversation.request_state == "aborted"
    cleanups = [called for called in log if called.endswith("cleanup")]
    started = {"on_turn_start": ["a.cleanup"]}.get(phase, ["c.cleanup", "b.cleanup", "a.cleanup"])
    assert cleanups == started
    assert ("c.on_turn_end" in log) is (phase == "cleanup")


async def test_an_abort_and_a_cancellation_at_once_is_a_cancellation() -> None:
    here = asyncio.Event()
    sender = ScriptedSender([[here.set, asyncio.Event()]])
    conversation = Conversation(model="any", sender=sender)
    async with nothing_left(sender):
        task = asyncio.create_task(conversation.send("hi"))
        await here.wait()
        conversation.abort()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_cancellation_carries_cleanup_errors_as_its_cause() -> None:
    here = asyncio.Event()

    def fail(_: object) -> None:
        raise KeyError("cleanup")

    sender = ScriptedSender([[here.set, asyncio.Event()]])
    conversation = Conversation(model="any", sender=sender, plugins=[recording([], "a", cleanup=fail)])
    task = asyncio.create_task(conversation.send("hi"))
    await here.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert conversation.request_state == "error"


async def test_a_time_out_around_send_works_as_anywhere() -> None:
    log: list[str] = []
    sender = ScriptedSender([[asyncio.Event()]])
    conversation = Conversation(model="any", sender=sender, plugins=[recording(log, "a")])
    async with nothing_left(sender):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(conversation.send("hi"), 0.01)
    assert log[-1] == "a.cleanup"


async def test_an_abort_between_turns_does_nothing() -> None:
    conversation = Conversation(model="any", sender=ScriptedSender(["one"]))
    states = []
    for _ in range(2):
        conversation.abort()
        states.append(conversation.request_state)
        if len(states) == 1:
            await conversation.send("hi")
    assert states == ["idle", "completed"]


async def test_an_abort_by_the_last_plugin_before_a_request_sends_nothing() -> None:
    log: list[str] = []
    plugin = recording(log, "a", on_before_request=lambda turn: turn.abort())
    conversation, sender = conversation_with(plugin)
    assert await conversation.send("hello") is None
    assert sender.bodies == []
    assert log == ["a.on_turn_start", "a.on_before_request", "a.on_turn_end", "a.cleanup"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_an_abort_after_a_request_starts_no_plugin_that_comes_later(is_async: bool) -> None:
    log: list[str] = []
    first = recording(log, "a", is_async=is_async, on_after_request=lambda turn: turn.abort())
    begun: list[str] = []

    async def waits(turn: ChatTurn) -> None:
        begun.append("b")
        await turn.wait_aborted()

    conversation, sender = conversation_with(first, SimpleNamespace(on_after_request=waits))
    async with nothing_left(sender):
        await conversation.send("hello")
    assert (conversation.request_state, begun) == ("aborted", ["b"] if is_async else [])
