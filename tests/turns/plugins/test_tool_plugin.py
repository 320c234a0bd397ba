"""Tools in a turn: execution, results and approval."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import (
    Allow,
    Call,
    ChatTurn,
    Conversation,
    Deny,
    Edit,
    Message,
    MessageAppended,
    ScriptedSender,
    StateChanged,
    TextAdded,
    ToolCall,
    ToolEnded,
    ToolOutputAdded,
    ToolPlugin,
    tool,
)
from tests.turns.plugins.pairs import as_dicts, check_pairs, results
from tests.turns.recording import nothing_left, recording, texts


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def shout(text: str) -> str:
    return text.upper()


def fail(text: str = "no") -> None:
    raise ValueError(text)


def start_conversation(*plugins: object, answers: Any, **options: Any) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers)
    return Conversation(model="m", sender=sender, plugins=plugins, **options), sender


async def test_the_tools_are_offered_run_and_answered() -> None:
    conversation, sender = start_conversation(
        ToolPlugin([add, shout]),
        answers=[["Let me see. ", Call("add", {"a": 1, "b": 2}), Call("shout", {"text": "hi"})], "3, HI"],
    )
    async with nothing_left(sender):
        answer = await conversation.send("go")
    assert answer == Message("assistant", "3, HI")
    assert [schema["function"]["name"] for schema in sender.bodies[0]["tools"]] == ["add", "shout"]
    assert sender.bodies[1]["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Let me see. ",
            "tool_calls": [
                {
                    "id": "call_1_0",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1,"b":2}'},
                },
                {
                    "id": "call_1_1",
                    "type": "function",
                    "function": {"name": "shout", "arguments": '{"text":"hi"}'},
                },
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "call_1_0"},
        {"role": "tool", "content": "HI", "tool_call_id": "call_1_1"},
    ]
    assert conversation.messages[2].metadata == {"tool": {"name": "add", "state": "done"}}


async def test_calls_are_answered_whatever_the_finish_reason_says() -> None:
    finish = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    conversation, sender = start_conversation(
        ToolPlugin([add]), answers=[[Call("add", {"a": 1, "b": 1}), finish], "two"]
    )
    await conversation.send("go")
    assert results(conversation) == [("done", "2")]
    assert len(sender.bodies) == 2


async def test_an_answer_without_calls_ends_the_turn() -> None:
    conversation, sender = start_conversation(ToolPlugin([add]), answers=["done"])
    await conversation.send("go")
    assert len(sender.bodies) == 1


async def test_other_tools_of_the_request_stay_and_none_is_offered_twice() -> None:
    def preset(turn: ChatTurn) -> None:
        turn.request_body["tools"] = [{"type": "function", "function": {"name": "add"}}]

    plugins = [SimpleNamespace(on_before_request=preset), ToolPlugin([add, shout]), ToolPlugin([add])]
    conversation, sender = start_conversation(*plugins, answers=["ok"])
    await conversation.send("go")
    assert [schema["function"]["name"] for schema in sender.bodies[0]["tools"]] == ["add", "shout"]


async def test_a_plugin_without_tools_adds_none() -> None:
    conversation, sender = start_conversation(ToolPlugin(), answers=["ok"])
    await conversation.send("go")
    assert "tools" not in sender.bodies[0]


@pytest.mark.parametrize("is_async", [False, True])
async def test_get_tools_is_asked_before_every_request(is_async: bool) -> None:
    def now(turn: ChatTurn) -> list[Any]:
        return [add] if turn.requests == 1 else [shout]

    async def later(turn: ChatTurn) -> list[Any]:
        return now(turn)

    conversation, sender = start_conversation(
        ToolPlugin(get_tools=later if is_async else now), answers=[[Call("add", {"a": 1, "b": 1})], "ok"]
    )
    await conversation.send("go")
    offered = [[schema["function"]["name"] for schema in body["tools"]] for body in sender.bodies]
    assert offered == [["add"], ["shout"]]


BAD: dict[str, tuple[Call, str]] = {
    "unknown": (Call("sub", {}), "There is no tool 'sub'. The tools are: add."),
    "missing": (
        Call("add", {"a": 1}),
        "The tool 'add' was not called: the arguments are wrong: Object missing required field `b`",
    ),
    "wrong": (
        Call("add", {"a": 1, "b": "x"}),
        "The tool 'add' was not called: the arguments are wrong: Expected `int`, got `str` - at `$.b`",
    ),
    "no object": (
        Call("add", "[1]"),
        "The tool 'add' was not called: the arguments are not a JSON object. They were: [1]",
    ),
    "no JSON": (
        Call("add", '{"a": 1'),
        "The tool 'add' was not called: the arguments are not JSON (Input data was truncated). "
        'They were: {"a": 1',
    ),
}


@pytest.mark.parametrize(("call", "said"), BAD.values(), ids=BAD)
async def test_a_call_that_cannot_be_made_gets_a_result_that_says_so(call: Call, said: str) -> None:
    conversation, sender = start_conversation(ToolPlugin([add]), answers=[[call], "sorry"])
    assert await conversation.send("go") == Message("assistant", "sorry")
    assert results(conversation) == [("refused", said)]
    check_pairs(sender.bodies[1]["messages"])


async def test_arguments_that_are_no_json_are_not_sent_back() -> None:
    conversation, sender = start_conversation(ToolPlugin([add]), answers=[[Call("add", "{oh")], "sorry"])
    await conversation.send("go")
    assert sender.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"
    calls = conversation.messages[1].tool_calls
    assert calls is not None
    assert calls[0]["function"]["arguments"] == "{oh"


async def test_a_call_without_arguments_is_a_call_with_none() -> None:
    conversation, _ = start_conversation(ToolPlugin([fail]), answers=[[Call("fail", "")], "sorry"])
    await conversation.send("go")
    assert results(conversation) == [("failed", "The tool 'fail' failed: ValueError: no")]


async def test_a_tool_that_fails_does_not_fail_the_turn_and_its_output_is_kept_and_marked() -> None:
    async def half() -> AsyncIterator[str]:
        yield "one "
        yield "two"
        raise OSError("disk")

    def leave() -> None:
        raise SystemExit(3)

    conversation, sender = start_conversation(
        ToolPlugin([half, leave, fail]), answers=[[Call("half"), Call("leave"), Call("fail")], "ok"]
    )
    async with nothing_left(sender):
        await conversation.send("go")
    assert results(conversation) == [
        ("failed", "one two\n\n[The tool 'half' failed: OSError: disk]"),
        ("failed", "The tool 'leave' failed: SystemExit: 3"),
        ("failed", "The tool 'fail' failed: ValueError: no"),
    ]


class Outcome(BaseException):
    """As test frameworks raise it."""


async def test_whatever_a_tool_raises_is_told_as_its_failure() -> None:
    def blocking() -> str:
        raise Outcome("red")

    async def streaming() -> AsyncIterator[str]:
        yield "1 passed"
        raise Outcome("red")

    def leaving() -> str:
        raise SystemExit(3)

    tools = [blocking, streaming, leaving]
    calls = [Call(function.__name__) for function in tools]
    conversation, _ = start_conversation(ToolPlugin(tools), answers=[calls, "ok"])
    await conversation.send("go")
    assert results(conversation) == [
        ("failed", "The tool 'blocking' failed: Outcome: red"),
        ("failed", "1 passed\n\n[The tool 'streaming' failed: Outcome: red]"),
        ("failed", "The tool 'leaving' failed: SystemExit: 3"),
    ]


async def test_calls_that_came_without_a_type_are_sent_back_with_one() -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "fail", "arguments": "{}"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    conversation, sender = start_conversation(ToolPlugin([fail]), answers=[[chunk], "ok"])
    await conversation.send("go")
    sent = sender.bodies[1]["messages"][1]["tool_calls"]
    assert sent == [{"id": "c1", "type": "function", "function": {"name": "fail", "arguments": "{}"}}]


async def test_a_tool_that_takes_too_long_is_stopped_and_its_output_is_kept_and_marked() -> None:
    stopped = asyncio.Event()

    async def slow() -> AsyncIterator[str]:
        yield "begun"
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @tool(timeout=60)
    async def patient() -> str:
        await stopped.wait()
        return "fine"

    conversation, sender = start_conversation(
        ToolPlugin([slow, patient], timeout=0.01), answers=[[Call("slow"), Call("patient")], "ok"]
    )
    async with nothing_left(sender):
        await conversation.send("go")
    assert results(conversation) == [
        ("timed out", "begun\n\n[The tool 'slow' timed out after 0.01 s.]"),
        ("done", "fine"),
    ]


async def test_a_tool_that_will_not_be_stopped_does_not_hold_up_the_turn() -> None:
    release = asyncio.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    plugin = ToolPlugin([stubborn], timeout=0.01)
    conversation, _ = start_conversation(plugin, answers=[[Call("stubborn")], "ok"])
    assert await conversation.send("go") == Message("assistant", "ok")
    release.set()
    await plugin.join()
    assert results(conversation) == [("timed out", "The tool 'stubborn' timed out after 0.01 s.")]


async def test_blocking_functions_run_side_by_side_and_do_not_hold_up_the_loop() -> None:
    meet = threading.Barrier(8)

    def wait() -> str:
        meet.wait(30)
        return "met"

    conversation, _ = start_conversation(ToolPlugin([wait]), answers=[[Call("wait")] * 8, "ok"])
    await conversation.send("go")
    assert results(conversation) == [("done", "met")] * 8


@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_no_more_tools_run_at_once_than_allowed(limit: int) -> None:
    running: list[int] = []
    most = 0

    async def work(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        for _ in range(3):
            await asyncio.sleep(0)
        running.remove(number)
        return number

    calls = [Call("work", {"number": number}) for number in range(12)]
    conversation, sender = start_conversation(ToolPlugin([work], max_concurrent=limit), answers=[calls, "ok"])
    await conversation.send("go")
    assert most == limit
    assert results(conversation) == [("done", str(number)) for number in range(12)]
    assert len(sender.bodies) == 2


async def test_every_message_is_appended_in_the_order_of_the_calls_before_any_tool_starts() -> None:
    seen: list[list[Any]] = []

    async def look(number: int) -> str:
        seen.append([message.tool_call_id for message in conversation.messages if message.role == "tool"])
        return "x"

    looker = recording([], "l", is_async=True)
    calls = [Call("look", {"number": number}, id=f"c{number}") for number in range(3)]
    conversation, _ = start_conversation(looker, ToolPlugin([look]), answers=[calls, "ok"])
    await conversation.send("go")
    assert seen == [["c0", "c1", "c2"]] * 3


async def test_one_request_follows_when_all_have_settled() -> None:
    first = asyncio.Event()

    async def slow() -> str:
        await first.wait()
        assert len(sender.bodies) == 1
        return "slow"

    async def quick() -> str:
        first.set()
        return "quick"

    conversation, sender = start_conversation(
        ToolPlugin([slow, quick]), answers=[[Call("slow"), Call("quick")], "ok"]
    )
    await conversation.send("go")
    assert results(conversation) == [("done", "slow"), ("done", "quick")]
    assert len(sender.bodies) == 2


async def test_an_async_generator_streams_into_its_message_and_into_the_events() -> None:
    async def count(to: int) -> AsyncIterator[str]:
        for number in range(to):
            yield str(number)

    conversation, sender = start_conversation(ToolPlugin([count]), answers=[[Call("count", {"to": 2})], "ok"])
    async with nothing_left(sender):
        events = [event async for event in conversation.stream("go")]
    result = conversation.messages[2]
    assert events[events.index(StateChanged("calling-tools")) : -1] == [
        StateChanged("calling-tools"),
        MessageAppended(result),
        ToolOutputAdded(result, "0"),
        ToolOutputAdded(result, "1"),
        ToolEnded(result),
        StateChanged("requesting"),
        StateChanged("streaming"),
        MessageAppended(conversation.messages[3]),
        TextAdded("ok"),
    ]
    assert result.content == "01"


async def test_a_generator_streams_too_in_a_thread() -> None:
    here = threading.get_ident()

    def count() -> Iterator[str]:
        for number in range(3):
            yield f"{number}{threading.get_ident() == here} "

    conversation, _ = start_conversation(ToolPlugin([count]), answers=[[Call("count")], "ok"])
    await conversation.send("go")
    assert results(conversation) == [("done", "0False 1False 2False ")]


class Odd:
    def __str__(self) -> str:
        return "odd"


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
PARTS = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
VALUES: list[tuple[Any, Any]] = [
    ("text", "text"),
    (None, "(no output)"),
    ("", "(no output)"),
    ({"a": [1, None]}, '{"a":[1,null]}'),
    ([], "[]"),
    (PARTS, PARTS),
    (Odd(), '"odd"'),
    ("grün\n".encode(), "grün\n"),
    (bytearray(b"printed"), "printed"),
    (b"", "(no output)"),
    (b"\xff\x00", '"/wA="'),
    (ENDLESS, "[[...]]"),
    ("bad \udc80", "bad ?"),
]


@pytest.mark.parametrize(("value", "content"), VALUES)
async def test_whatever_a_tool_returns_becomes_content(value: Any, content: Any) -> None:
    async def give() -> Any:
        return value

    conversation, _ = start_conversation(ToolPlugin([give]), answers=[[Call("give")], "ok"])
    await conversation.send("go")
    assert results(conversation) == [("done", content)]


async def _pieces(call: ToolCall, turn: ChatTurn) -> AsyncIterator[str]:
    yield call.name
    yield str(call.arguments)


async def _value(call: ToolCall, turn: ChatTurn) -> str:
    return f"{call.name}{call.arguments}"


RUNNERS: list[Any] = [lambda call, turn: f"{call.name}{call.arguments}", _value, _pieces]


@pytest.mark.parametrize("call_tool", RUNNERS, ids=["value", "awaitable", "generator"])
async def test_schemas_are_run_by_call_tool(call_tool: Any) -> None:
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    conversation, sender = start_conversation(
        ToolPlugin([schema, add], call_tool=call_tool),
        answers=[[Call("f", {"x": 1}), Call("add", {"a": 1, "b": 1}), Call("g")], "ok"],
    )
    await conversation.send("go")
    assert sender.bodies[0]["tools"][0] == schema
    assert results(conversation) == [
        ("done", "f{'x': 1}"),
        ("done", "2"),
        ("refused", "There is no tool 'g'. The tools are: f, add."),
    ]


async def test_call_tool_without_tools_takes_every_call() -> None:
    conversation, _ = start_conversation(
        ToolPlugin(call_tool=lambda call, turn: call.name), answers=[[Call("a"), Call("b")], "ok"]
    )
    await conversation.send("go")
    assert results(conversation) == [("done", "a"), ("done", "b")]


async def test_of_several_plugins_each_runs_its_own_tools_and_one_request_follows() -> None:
    conversation, sender = start_conversation(
        ToolPlugin([add]),
        ToolPlugin([shout]),
        answers=[[Call("shout", {"text": "x"}), Call("add", {"a": 1, "b": 1}), Call("none")], "ok"],
    )
    await conversation.send("go")
    sent = [message["content"] for message in sender.bodies[1]["messages"][2:]]
    assert sent == ["X", "2", "There is no tool 'none'. The tools are: add."]
    assert len(sender.bodies) == 2
    check_pairs(sender.bodies[1]["messages"])


@pytest.mark.parametrize("by_id", [False, True])
async def test_calls_may_be_allowed_edited_or_denied(by_id: bool) -> None:
    asked: list[list[ToolCall]] = []

    async def before(calls: list[ToolCall], turn: ChatTurn) -> Any:
        asked.append(calls)
        assert [message.role for message in turn.messages] == ["user", "assistant"]
        if by_id:
            return {"call_1_1": Edit({"a": 40, "b": 2}), "call_1_3": Deny("too loud"), "call_1_4": Deny()}
        return [Allow(), Edit({"a": 40, "b": 2}), Deny("too loud"), Deny()]

    calls = [Call("add", {"a": 1, "b": 1})] * 2 + [Call("none")] + [Call("shout", {"text": "x"})] * 2
    conversation, sender = start_conversation(
        ToolPlugin([add, shout], before_call_tools=before), answers=[calls, "ok"]
    )
    await conversation.send("go")
    assert [call.id for call in asked[0]] == ["call_1_0", "call_1_1", "call_1_3", "call_1_4"]
    assert results(conversation) == [
        ("done", "2"),
        ("done", "42"),
        ("refused", "There is no tool 'none'. The tools are: add, shout."),
        ("denied", "The call of 'shout' was denied: too loud"),
        ("denied", "The call of 'shout' was denied."),
    ]
    assert conversation.messages[3].metadata["tool"]["arguments"] == {"a": 40, "b": 2}
    kept = sender.bodies[1]["messages"][1]["tool_calls"]
    assert [call["function"]["arguments"] for call in kept[:2]] == ['{"a":1,"b":1}'] * 2, "as the model said"


async def test_edited_arguments_are_checked_too() -> None:
    conversation, _ = start_conversation(
        ToolPlugin([add], before_call_tools=lambda calls, turn: [Edit({"a": 1})]),
        answers=[[Call("add", {"a": 1, "b": 1})], "ok"],
    )
    await conversation.send("go")
    assert results(conversation)[0][0] == "refused"


async def test_saying_nothing_allows_all() -> None:
    conversation, _ = start_conversation(
        ToolPlugin([add], before_call_tools=lambda calls, turn: None),
        answers=[[Call("add", {"a": 1, "b": 1})], "ok"],
    )
    await conversation.send("go")
    assert results(conversation) == [("done", "2")]


@pytest.mark.parametrize("answer", [True, [True], [Allow(), Allow()], {"other": Deny()}, "yes"])
async def test_an_approval_nobody_can_read_runs_nothing_and_leaves_calls_in_pairs(answer: Any) -> None:
    ran: list[int] = []
    conversation, _ = start_conversation(
        ToolPlugin([tool(name="run")(lambda: ran.append(1))], before_call_tools=lambda calls, turn: answer),
        answers=[[Call("run")]],
    )
    with pytest.raises((TypeError, ValueError), match="before_call_tools"):
        await conversation.send("go")
    assert ran == []
    assert results(conversation) == [("cancelled", "The tool call was cancelled.")]
    check_pairs(as_dicts(conversation.messages))


async def test_a_tool_may_not_speak_in_its_own_conversation_while_it_runs() -> None:
    async def ask() -> str:
        await conversation.send("more")
        return "never"

    conversation, _ = start_conversation(ToolPlugin([ask]), answers=[[Call("ask")], "ok"])
    await conversation.send("go")
    assert results(conversation)[0][1].startswith("The tool 'ask' failed: ConversationBusy")
    assert texts(conversation)[-1] == ("assistant", "ok")


async def test_what_other_plugins_append_meanwhile_does_not_come_between_in_requests() -> None:
    meddler = SimpleNamespace(
        on_after_request=lambda turn: (
            turn.append_message(Message("user", "by the way")) if turn.requests == 1 else None
        )
    )
    conversation, sender = start_conversation(
        meddler, ToolPlugin([add]), answers=[[Call("add", {"a": 1, "b": 1})], "ok"]
    )
    await conversation.send("go")
    check_pairs(sender.bodies[1]["messages"])
    assert [message["role"] for message in sender.bodies[1]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]


async def test_calls_without_an_id_or_with_one_used_before_get_their_own() -> None:
    nameless = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "add"}}]}}]}
    twice = [Call("add", {"a": 1, "b": 1}, id="same"), Call("add", {"a": 2, "b": 2}, id="same")]
    conversation, sender = start_conversation(ToolPlugin([add]), answers=[[nameless], twice, twice, "ok"])
    await conversation.send("go")
    check_pairs(sender.bodies[-1]["messages"])
    assert [said for state, said in results(conversation) if state == "done"] == ["2", "4", "2", "4"]


def test_two_tools_of_a_name_and_a_schema_nobody_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="two tools named 'add'"):
        ToolPlugin([add, add])
    with pytest.raises(ValueError, match="'f' is only a schema; pass call_tool"):
        ToolPlugin([{"name": "f"}])
    with pytest.raises(ValueError, match="max_concurrent is 0"):
        ToolPlugin([add], max_concurrent=0)
