"""The clock over HTTP: offers, calls and reminders; the client gets one answer without clock calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.server_tools.clock.arguments import SCHEMA
from tests.gateway.clock_gateway import (
    WINDOW,
    clock_gateway,
    command,
    iso,
    now_ms,
    reminder,
    reminders,
    script_tool_calls,
    store_tasks,
    stored_tasks,
    task_file,
    task_item,
    tool_results,
    until_delivered,
    upstream_request,
    without_time_line,
)
from tests.gateway.continuation_gateway import PROTOCOLS, GatewayHarness, token_usage
from tests.kit import answers, asking
from tests.routing.instruction_texts import wire_request

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
pairs = pytest.mark.parametrize(
    ("protocol", "upstream_protocol"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
TIME = re.compile(
    r"\[Time/Date\]: utc=`(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)` "
    r"local=`(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d)` tz=`(\S+)` nowMs=`(\d+)` ntpOffsetMs=`0`"
)
HOUR = 3_600_000
MERGED = ("messages", "gemini")


@streaming
@pairs
async def test_the_clock_is_offered_once_and_strict(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        script_tool_calls(harness, command("get"))
        answer = await harness.send(stream=stream, tools=True)
        assert harness.answer_text(answer, stream=stream) == "done"
        for number in (0, 1):
            tools = upstream_request(harness, number).tools
            assert [tool.name for tool in tools] == ["get_weather", "clock"]
            if upstream_protocol in ("chat", "responses"):
                assert (tools[1].strict, tools[1].parameters) == (True, SCHEMA)
            else:
                # Compatible third-party upstreams reject the field, and it would be in every request.
                assert b'"strict"' not in harness.upstream.requests[number].body
        assert b"clock" not in answer.body


@streaming
@protocols
async def test_a_client_with_its_own_clock_tool_keeps_it(tmp_path: Path, protocol: str, stream: bool) -> None:
    body = asking.body(protocol, stream=stream, tools=True)
    renamed = msgspec.json.encode(body).replace(b"get_weather", b"clock")
    async with clock_gateway(protocol, tmp_path) as harness:
        script_tool_calls(harness, command("get"), name="routecodex_clock")
        answer = await harness.send(stream=stream, body=renamed)
        assert harness.answer_text(answer, stream=stream) == "done"
        assert [tool.name for tool in upstream_request(harness, 1).tools] == ["clock", "routecodex_clock"]
        assert tool_results(harness, 1)[0]["action"] == "get"
        script_tool_calls(harness, *[{"city": "Oslo"}] * 3)
        client_answer = await harness.send(stream=stream, body=renamed)
        asking.check(protocol, client_answer, stream=stream)
        assert b'"clock"' in client_answer.body
        assert len(harness.upstream_texts) == 3


async def test_the_clock_is_not_offered_when_both_names_are_taken(tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("clock", "routecodex_clock")
    ]
    async with clock_gateway("chat", tmp_path) as harness:
        harness.script_texts("hi")
        answer = await harness.send(body={**asking.body("chat", stream=False), "tools": tools})
        assert harness.answer_text(answer, stream=False) == "hi"
        assert [tool.name for tool in upstream_request(harness, 0).tools] == ["clock", "routecodex_clock"]


@streaming
@protocols
async def test_every_action_changes_the_stored_tasks(tmp_path: Path, protocol: str, stream: bool) -> None:
    due = now_ms() + HOUR
    async with clock_gateway(protocol, tmp_path) as harness:
        known = {}

        def cancel() -> dict[str, Any]:
            known["id"] = stored_tasks(tmp_path)[0]["taskId"]
            return command("cancel", task_id=known["id"])

        def update() -> dict[str, Any]:
            change = {**task_item(due + HOUR, ""), "repeat": "", "arguments": ""}
            return command("update", change, task_id=stored_tasks(tmp_path)[0]["taskId"])

        script_tool_calls(
            harness,
            command("get"),
            command("schedule", task_item(due), task_item(due, "feed the cat", repeat="daily", maxRuns=3)),
            command("list"),
            cancel,
            update,
            command("clear"),
            command("list"),
        )
        answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "done"
        assert token_usage(protocol, answer, stream=stream) == (21, 9)
        got, scheduled, listed, cancelled, updated, cleared, empty = tool_results(harness, 7)
    assert list(got) == ["ok", "action", "active", "nowMs", "utc", "local", "timezone", "ntp"]
    assert (got["ok"], got["active"], got["ntp"]) == (True, True, {"status": "off", "offsetMs": 0})
    plants, cat = scheduled["scheduled"]
    assert plants == {"taskId": known["id"], "dueAt": iso(due), "task": "water the plants"}
    assert (cat["task"], cat["repeat"], cat["maxRuns"]) == ("feed the cat", "daily", 3)
    assert listed == {"ok": True, "items": [plants, cat]}
    assert cancelled == {"ok": True, "removed": known["id"]}
    assert updated == {"ok": True, "updated": {**cat, "dueAt": iso(due + HOUR)}}
    assert cleared == {"ok": True, "removedCount": 1}
    assert empty == {"ok": True, "items": []}
    assert stored_tasks(tmp_path) == []


WRONG: dict[str, tuple[Any, str]] = {
    "no-json": ('{"action": "schedule", ', "invalid_json"),
    "no-object": ('["get"]', "invalid_type"),
    "unknown-action": (command("snooze"), "unknown_action"),
    "unknown-field": ({**command("get"), "why": 1}, "unknown_field"),
    "no-time": (command("schedule", {**task_item(0), "dueAt": "soon"}), "due_at_invalid"),
    "no-offset": (
        command("schedule", {**task_item(0), "dueAt": "2030-01-21T20:30:00"}),
        "due_at_without_offset",
    ),
    "number": (command("schedule", {**task_item(0), "dueAt": "1769027400"}), "due_at_is_a_number"),
    "past": (command("schedule", task_item(1000)), "already_expired"),
    "unknown-task": (command("cancel", task_id="nobody"), "unknown_task"),
    "one-of-two": (command("schedule", task_item(2**41), task_item(2**41, " ")), "missing_task"),
}


@protocols
@pytest.mark.parametrize(("arguments", "code"), WRONG.values(), ids=WRONG)
async def test_wrong_arguments_are_an_error_result_and_nothing_is_stored(
    tmp_path: Path, protocol: str, arguments: Any, code: str
) -> None:
    # Some protocols cannot carry arguments that are not an object.
    upstream_protocol = "chat" if isinstance(arguments, str) else protocol
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        script_tool_calls(harness, arguments)
        answer = await harness.send()
        assert harness.answer_text(answer, stream=False) == "done"
        result = tool_results(harness, 1)[0]
    assert (result["ok"], result["error"]["code"]) == (False, code)
    assert result["error"]["message"]
    assert not task_file(tmp_path).exists()


@streaming
@protocols
async def test_without_a_session_tasks_are_refused_but_the_time_is_sent(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    body = asking.body(protocol, stream=stream)
    if protocol == "responses":
        body["store"] = False
    async with clock_gateway(protocol, tmp_path) as harness:
        soon = task_item(now_ms() + HOUR)
        orders = (command("schedule", soon), command("cancel", task_id="t1"), command("clear"))
        script_tool_calls(harness, *orders, command("list"), command("get"))
        answer = await harness.send(stream=stream, headers={}, body=body)
        assert harness.answer_text(answer, stream=stream) == "done"
        *refused, listed, got = tool_results(harness, 5)
        assert [result["error"]["code"] for result in refused] == ["missing_session"] * 3
        assert (listed, got["ok"]) == ({"ok": True, "items": []}, True)
        assert TIME.fullmatch(harness.upstream_texts[0][-1][1])
    assert not (tmp_path / "clock").exists() or not list((tmp_path / "clock").glob("*.json"))


@streaming
@pairs
async def test_the_time_is_a_separate_last_message_only_in_the_first_round(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        before = now_ms()
        script_tool_calls(harness, command("get"))
        await harness.send(stream=stream)
        messages = upstream_request(harness, 0).messages
        # Where roles must alternate, the time message becomes the last part of the user message.
        assert [message.role for message in messages] == ["user"] * (1 if upstream_protocol in MERGED else 2)
        found = TIME.fullmatch(harness.upstream_texts[0][-1][1])
        assert found is not None
        assert before <= int(found[4]) <= now_ms()
        assert iso(int(found[4])) == found[1]
        assert harness.upstream_texts[1] == [("user", "Hello")]


@protocols
async def test_an_assistant_prefill_gets_no_time_message(tmp_path: Path, protocol: str) -> None:
    named: dict[str, Any] = {} if protocol == "gemini" else {"model": "up.m"}
    begun = wire_request(protocol, ("user", "Hello"), ("assistant", "Well,"), **named)
    store_tasks(tmp_path, now_ms())
    async with clock_gateway(protocol, tmp_path, clock="hold_non_streaming = false\n") as harness:
        harness.script_texts("hi")
        await harness.send(body=begun.body)
        assert harness.upstream_texts == [[("user", "Hello"), ("assistant", "Well,")]]
    assert "deliveredAtMs" not in stored_tasks(tmp_path)[0]


@protocols
async def test_the_time_can_be_sent_only_with_tasks_or_never(tmp_path: Path, protocol: str) -> None:
    store_tasks(tmp_path, now_ms() + HOUR)
    async with clock_gateway(protocol, tmp_path, clock='time_tag = "with_tasks"\n') as harness:
        harness.script_texts("hi", "hi", "hi")
        await harness.send()
        await harness.send(headers={"x-session-id": "another"})
        await harness.send(headers={})
        assert [len(texts) for texts in harness.upstream_texts] == [2, 1, 1]
    async with clock_gateway(protocol, tmp_path, clock='time_tag = "off"\n') as harness:
        harness.script_texts("hi")
        await harness.send()
        assert harness.upstream_texts == [[("user", "Hello")]]


@streaming
@pairs
async def test_due_tasks_are_sent_once_in_the_next_request(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    late, soon, other = now_ms() - WINDOW, now_ms() + WINDOW // 2, now_ms() + 20 * WINDOW
    store_tasks(tmp_path, soon, late, other)
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        harness.script_texts(then="part ")
        answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "part 0"
        assert b"plants" not in answer.body
        await harness.send("and now?", stream=stream)
        expected = reminder(("water the plants 2", late), ("water the plants", soon))
        assert [without_time_line(texts) for texts in harness.upstream_texts] == [
            [("user", "Hello"), expected],
            [("user", "and now?")],
        ]
        assert TIME.fullmatch(harness.upstream_texts[0][1][1])
    first, second, third = stored_tasks(tmp_path)
    assert [first["deliveryCount"], second["deliveryCount"], third["deliveryCount"]] == [1, 1, 0]
    assert "deliveredAtMs" not in third
    assert late < first["deliveredAtMs"] <= now_ms()
    assert not [task for task in stored_tasks(tmp_path) if "reservation" in task]


@streaming
@protocols
async def test_a_reminder_stays_in_the_request_while_the_model_calls_the_clock(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    due = now_ms()
    store_tasks(tmp_path, due)
    async with clock_gateway(protocol, tmp_path) as harness:
        script_tool_calls(harness, command("get"), command("list"))
        await harness.send(stream=stream)
        expected = reminder(("water the plants", due))
        assert [without_time_line(texts) for texts in harness.upstream_texts] == [
            [("user", "Hello"), expected]
        ] * 3
        roles = [message.role for message in upstream_request(harness, 2).messages]
        assert roles.index("assistant") == (1 if protocol in MERGED else 2)
        assert tool_results(harness, 2)[1]["items"][0]["taskId"] == "t1"
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


@streaming
@protocols
async def test_a_delivered_task_is_still_listed(tmp_path: Path, protocol: str, stream: bool) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script_texts("hi")
        await harness.send(stream=stream)
        script_tool_calls(harness, *[command("list")] * 2)
        await harness.send(stream=stream)
        found = tool_results(harness, 2)[0]["items"]
    (task,) = stored_tasks(tmp_path)
    assert [row["deliveredAt"] for row in found] == [iso(task["deliveredAtMs"])]


@streaming
@protocols
async def test_a_task_due_when_it_is_set_is_sent_in_the_next_request_and_not_before(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path) as harness:
        due = now_ms() + 1000
        script_tool_calls(harness, command("schedule", task_item(due)), command("get"))
        answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "done"
        (task,) = stored_tasks(tmp_path)
        assert task["notBeforeRequestId"] == answer.headers["x-request-id"]
        await harness.send("and now?", stream=stream)
        assert reminders(harness) == [[], [], [], [reminder(("water the plants", due))[1]]]
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


async def test_a_recurring_task_is_sent_again(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock="hold_non_streaming = false\n") as harness:
        due = now_ms() - 1000
        script_tool_calls(harness, command("schedule", task_item(due, repeat="every 1 minutes", maxRuns=2)))
        await harness.send()
        await harness.send()
        await until_delivered(tmp_path)
        (task,) = stored_tasks(tmp_path)
        assert (task["dueAtMs"], task["deliveryCount"]) == (due + WINDOW, 1)
        assert "deliveredAtMs" not in task
        await harness.send()
        await until_delivered(tmp_path, 2)
        (task,) = stored_tasks(tmp_path)
        await harness.send()
        expected = [reminder(("water the plants", due + later))[1] for later in (0, WINDOW)]
        assert [one for some in reminders(harness) for one in some] == expected
    assert (task["deliveryCount"], "deliveredAtMs" in task) == (2, True)


def tool_names(harness: GatewayHarness, number: int) -> list[str]:
    return [tool.name for tool in upstream_request(harness, number).tools]


@pairs
async def test_a_request_with_a_reminder_gets_the_tools_that_its_session_declared_last(
    tmp_path: Path, protocol: str, upstream_protocol: str
) -> None:
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        harness.script_texts("one", "two", "three", "four")
        await harness.send(tools=True)
        await harness.send()
        store_tasks(tmp_path, now_ms())
        await harness.send()
        await harness.send()
        names = [tool_names(harness, number) for number in range(4)]
        declared = [upstream_request(harness, number).tools[0] for number in (0, 2)]
    assert names == [["get_weather", "clock"], ["clock"], ["get_weather", "clock"], ["clock"]]
    assert declared[0] == declared[1]
    assert [len(texts) for texts in reminders(harness)] == [0, 0, 1, 0]


@streaming
@protocols
async def test_the_client_gets_the_call_of_a_tool_that_was_supplied(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script(
            lambda request, number: (
                answers.tool_call(protocol, "get_weather", {"city": "Oslo"}, stream=stream)
                if number
                else harness.text_answer("one", request)
            )
        )
        await harness.send(tools=True)
        store_tasks(tmp_path, now_ms())
        answer = await harness.send(stream=stream)
    asking.check(protocol, answer, stream=stream)
    assert b"get_weather" in answer.body


@pytest.mark.parametrize(
    ("clock", "session", "expected"),
    [
        ('complete_tools = "off"\n', "s-1", ["clock"]),
        ("", "s-2", ["clock"]),
        ("", "s-1", ["get_weather", "clock"]),
    ],
    ids=["off", "another-session", "after-a-restart"],
)
async def test_tools_are_supplied_to_their_own_session_only(
    tmp_path: Path, clock: str, session: str, expected: list[str]
) -> None:
    async with clock_gateway("chat", tmp_path, clock=clock) as harness:
        harness.script_texts("one")
        await harness.send(tools=True)
    store_tasks(tmp_path, now_ms(), session=session)
    async with clock_gateway("chat", tmp_path, clock=clock) as harness:
        harness.script_texts("two")
        await harness.send(headers={"x-session-id": session})
        assert (tool_names(harness, 0), len(reminders(harness)[0])) == (expected, 1)


async def test_a_held_answer_goes_on_with_the_tools_of_its_session(tmp_path: Path) -> None:
    async with clock_gateway(
        "chat", tmp_path, clock="due_window_ms = 1000\nhold_max_ms = 60000\n"
    ) as harness:
        harness.script_texts("one", "two", "three")
        await harness.send(tools=True)
        store_tasks(tmp_path, now_ms() + 1300)
        await harness.send()
        assert [tool_names(harness, number) for number in range(3)] == [
            ["get_weather", "clock"],
            ["clock"],
            ["get_weather", "clock"],
        ]


async def test_a_supplied_tool_named_clock_stays_the_clients(tmp_path: Path) -> None:
    own = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    async with clock_gateway("chat", tmp_path) as harness:
        harness.script_texts("one", "two")
        await harness.send(body={**asking.body("chat", stream=False), "tools": [own]})
        store_tasks(tmp_path, now_ms())
        await harness.send()
        assert [tool_names(harness, number) for number in (0, 1)] == [["clock", "routecodex_clock"]] * 2


async def test_the_clock_is_renamed_when_the_client_has_a_namespace_of_its_name(tmp_path: Path) -> None:
    sleep = {"type": "function", "name": "sleep", "parameters": {"type": "object"}}
    tools = [{"type": "namespace", "name": "clock", "description": "", "tools": [sleep]}]
    async with clock_gateway("responses", tmp_path) as harness:
        harness.script_texts("one")
        await harness.send(body={**asking.body("responses", stream=False), "tools": tools})
        assert tool_names(harness, 0) == ["sleep", "routecodex_clock"]
