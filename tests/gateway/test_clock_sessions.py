"""The clock state of a session, over HTTP: its file, clearing, restored calls, log and status."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.clock_gateway import (
    SESSION,
    clock_gateway,
    command,
    iso,
    now_ms,
    script_tool_calls,
    store_tasks,
    stored_tasks,
    task_item,
    tool_calls,
    tool_results,
)
from tests.gateway.continuation_gateway import PROTOCOLS, SESSION_HEADER, GatewayHarness
from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.raw_client import Answer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request
from tests.routing.instruction_texts import wire_request

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
pairs = pytest.mark.parametrize(
    ("protocol", "upstream_protocol"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
HOUR = 3_600_000


async def test_the_file_is_readable_and_named_after_the_session(tmp_path: Path) -> None:
    due = now_ms() + HOUR
    async with clock_gateway("chat", tmp_path) as harness:
        task = task_item(due, tool="water", arguments='{"litres": 2}')
        script_tool_calls(harness, command("schedule", task))
        await harness.send(headers={"x-session-id": "Ein Garten/1"})
    file = tmp_path / "clock" / "%45in%20%47arten%2f1.json"
    raw = file.read_text()
    state = msgspec.json.decode(raw)
    (task,) = state["tasks"]
    assert raw == msgspec.json.format(msgspec.json.encode(state), indent=2).decode() + "\n"
    assert state == {
        "version": 1,
        "sessionId": "Ein Garten/1",
        "tasks": [
            {
                "taskId": task["taskId"],
                "sessionId": "Ein Garten/1",
                "dueAtMs": due,
                "createdAtMs": task["createdAtMs"],
                "updatedAtMs": task["createdAtMs"],
                "task": "water the plants",
                "tool": "water",
                "arguments": {"litres": 2},
                "deliveryCount": 0,
            }
        ],
        "updatedAtMs": state["updatedAtMs"],
    }
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", task["taskId"])


async def test_tool_hints_of_the_model_are_sent_with_the_task(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path) as harness:
        due = now_ms()
        script_tool_calls(
            harness, command("schedule", task_item(due, 'say "hi"', tool="greet", arguments='{"to": "all"}'))
        )
        await harness.send()
        await harness.send()
        line = harness.upstream_texts[-1][-1][1].split("\n")[1]
    assert line == (
        f'[scheduled task:"say \\"hi\\""] due {iso(due)}, suggested tool: "greet", '
        'suggested arguments: {"to":"all"}'
    )


@streaming
@protocols
async def test_clear_empties_the_session_at_once_and_only_once(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    due = now_ms() + HOUR
    store_tasks(tmp_path, due, due)
    task_counts: list[int] = []
    step = ("user", "<**clock:clear**>Begin anew")
    named: dict[str, Any] = {} if protocol == "gemini" else {"model": "up.m", "stream": stream}
    if protocol == "chat" and stream:
        named["stream_options"] = {"include_usage": True}
    async with clock_gateway(protocol, tmp_path) as harness:

        def answer(request: Request, number: int) -> UpstreamAnswer:
            task_counts.append(len(stored_tasks(tmp_path)))
            return harness.text_answer(f"part {number}", request)

        harness.script(answer)
        first = await harness.send(stream=stream, body=wire_request(protocol, step, **named).body)
        assert answer_text(protocol, first, stream=stream) == "part 0"
        store_tasks(tmp_path, due)
        again = wire_request(protocol, step, ("call", "look", {}), ("result", "ok"), **named)
        await harness.send(stream=stream, body=again.body)
        assert task_counts == [0, 1]
        assert harness.upstream_texts[0][0] == ("user", "Begin anew")
    assert len(stored_tasks(tmp_path)) == 1


@protocols
async def test_clear_alone_is_answered_by_the_gateway(tmp_path: Path, protocol: str) -> None:
    store_tasks(tmp_path, now_ms() + HOUR)
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script_texts("hi")
        answer = await harness.send("<**clock:clear**>")
        assert harness.answer_text(answer, stream=False).startswith("[RouteCodex] ")
        assert (harness.upstream_texts, stored_tasks(tmp_path)) == ([], [])


def result_of(protocol: str, call: dict[str, Any], *, stream: bool) -> Any:
    """Return the conversation of a client that received the call and sends its result."""
    body = asking.body(protocol, stream=stream, tools=True)
    if protocol == "chat":
        body["messages"] += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
        ]
    elif protocol == "responses":
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        body["input"] = [{"role": "user", "content": "Hello"}, call, result]
    elif protocol == "messages":
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
        body["messages"] += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    else:
        answered = {key: call["functionCall"][key] for key in ("id", "name") if key in call["functionCall"]}
        result = {"functionResponse": {**answered, "response": {"output": "sunny"}}}
        body["contents"] += [{"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    return body


def call_in(protocol: str, answer: Answer) -> dict[str, Any]:
    """Return the only call of a whole answer, as the client sends it back."""
    readers: dict[str, Callable[[Any], Any]] = {
        "chat": lambda value: value["choices"][0]["message"].get("tool_calls"),
        "responses": lambda value: [one for one in value["output"] if one["type"] == "function_call"],
        "messages": lambda value: [one for one in value["content"] if one["type"] == "tool_use"],
        "gemini": lambda value: [
            one for one in value["candidates"][0]["content"]["parts"] if "functionCall" in one
        ],
    }
    (call,) = readers[protocol](answer.json)
    return dict(call)


def clock_and_client_call(harness: GatewayHarness, request: Request) -> UpstreamAnswer:
    """Answer with a call of the clock and one of a client tool."""
    clock_call = answers.Call("clock", command("schedule", task_item(now_ms() + HOUR)), "call_ours")
    client_call = answers.Call("get_weather", {"city": "Oslo"}, "call_theirs")
    return answers.tool_calls(
        harness.upstream_protocol, clock_call, client_call, stream=answers.wants_stream(request)
    )


@pytest.mark.parametrize("headers", [SESSION_HEADER, {}], ids=["with-session", "without"])
@pairs
async def test_a_clock_call_beside_a_client_call_is_hidden_and_restored_later(
    tmp_path: Path, protocol: str, upstream_protocol: str, headers: dict[str, str]
) -> None:
    async with clock_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        harness.script(
            lambda request, number: (
                harness.text_answer("done", request) if number else clock_and_client_call(harness, request)
            )
        )
        first = await harness.send(tools=True, headers=headers)
        asking.check(protocol, first, stream=False)
        assert b"clock" not in first.body
        call = call_in(protocol, first)
        assert len(harness.upstream_texts) == 1
        second = await harness.send(headers=headers, body=result_of(protocol, call, stream=False))
        assert harness.answer_text(second, stream=False) == "done"
        assert [name for _, name in tool_calls(harness, 1)] == ["clock", "get_weather"]
        results = tool_results(harness, 1)
        assert len(results) == 2
        clock_result = next(one for one in results if isinstance(one, dict) and "ok" in one)
        # A chain of responses is a session by itself; other requests without a session have no clock.
        assert clock_result["ok"] is (bool(headers) or protocol == "responses")
    assert len(stored_tasks(tmp_path)) == (1 if headers else 0)


@protocols
async def test_a_clock_call_beside_a_client_call_is_hidden_in_a_stream(tmp_path: Path, protocol: str) -> None:
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script(lambda request, _: clock_and_client_call(harness, request))
        answer = await harness.send(tools=True, stream=True)
        asking.check(protocol, answer, stream=True)
        assert b"clock" not in answer.body
        assert b"get_weather" in answer.body
    assert len(stored_tasks(tmp_path)) == 1


async def test_the_log_has_every_event_but_not_the_text_of_tasks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    due = now_ms() + 1000
    with caplog.at_level(logging.INFO, "routecodex"):
        async with clock_gateway("chat", tmp_path) as harness:
            script_tool_calls(
                harness, command("schedule", task_item(due, "the secret plan")), command("list")
            )
            set_in = (await harness.send()).headers["x-request-id"]
            request_id = (await harness.send()).headers["x-request-id"]
            task_id = stored_tasks(tmp_path)[0]["taskId"]
            script_tool_calls(harness, *[command("clear")] * 5)
            await harness.send("<**clock:clear**>Well")
    lines = [record.getMessage() for record in caplog.records if record.name == "routecodex.clock"]
    assert lines[:3] == [
        f"{set_in}: clock schedule for session '{SESSION}': 1 tasks, earliest due {iso(due)}, saved",
        f"{request_id}: 1 due tasks of session '{SESSION}' injected: {task_id}",
        f"{request_id}: 1 tasks delivered: {task_id} (1)",
    ]
    assert any("clock clear for session" in line for line in lines[3:])
    assert "secret plan" not in caplog.text


@protocols
async def test_status_shows_the_tasks_of_the_session_and_network_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    soon, later = now_ms(), now_ms() + HOUR
    store_tasks(tmp_path, soon, later, text="water the plants " * 5)
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script_texts("hi")
        await harness.send()
        status_lines = harness.answer_text(await harness.send("<**status**>"), stream=False).split("\n")
        delivered = stored_tasks(tmp_path)[0]["deliveredAtMs"]
        elsewhere = await harness.send("<**status**>", headers={"x-session-id": "another"})
        assert harness.answer_text(elsewhere, stream=False).endswith(
            "\n\nThere are no clock tasks.\n\nNetwork time: off, offset 0 ms."
        )
    short = ("water the plants " * 5)[:59] + "…"
    plain = [line.replace("+00:00", "Z") for line in status_lines]
    assert plain[plain.index("| clock task | due | state |") :] == [
        "| clock task | due | state |",
        "| --- | --- | --- |",
        f"| {short} | {iso(soon)} | delivered {iso(delivered)} |",
        f"| {short} | {iso(later)} | waiting |",
        "",
        "Network time: off, offset 0 ms.",
    ]
