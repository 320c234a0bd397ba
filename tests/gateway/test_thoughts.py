"""Reasoning behind tool calls, for clients that cannot carry it: shared by workers, kept over restarts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.protocols.grammar.frames import read
from tests.cli.process import serve
from tests.gateway.continuation_gateway import (
    GatewayHarness,
    configuration,
    file_store_gateway,
    second_gateway,
)
from tests.gateway.store_outage import OUTAGES, Outage
from tests.kit import answers, asking
from tests.kit.answers.model_answer import Call, ReasoningPiece
from tests.kit.raw_client import Answer
from tests.kit.upstream import Request, Upstream

PROVIDERS = ("messages", "gemini", "responses")
THOUGHT = ReasoningPiece("I need the weather.", signature="c2lnbmVkLWZvci10aGlzLXR1cm4=")
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
providers = pytest.mark.parametrize("provider", PROVIDERS)
CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\nhold_max_ms = 0\n"


def script(harness: GatewayHarness) -> None:
    """Answer the first turn with a call behind signed reasoning, and results with text."""
    calls = [Call("get_weather", {"city": name}, f"call_{name}") for name in ("oslo", "rome")]

    def answer(request: Request) -> Any:
        if b"sunny" in request.body:
            return harness.text_answer("done", request)
        stream = answers.wants_stream(request)
        return answers.compose(harness.upstream_protocol, THOUGHT, *calls, stream=stream)

    harness.upstream.answer_with(answer)


def first_turn(*, stream: bool) -> dict[str, Any]:
    body = asking.body("chat", "weather?", stream=stream, tools=True)
    return {**body, "reasoning_effort": "low"}


def second_turn(first: dict[str, Any], answer: Answer, *, stream: bool) -> dict[str, Any]:
    """Return the request with the results, as a chat client sends it: without any reasoning."""
    asking.check("chat", answer, stream=stream)
    calls = [
        {"id": found, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for found in dict.fromkeys(ids_in(answer, stream=stream))
    ]
    assert len(calls) == 2
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {**first, "messages": [*first["messages"], message, *results]}


def ids_in(answer: Answer, *, stream: bool) -> list[str]:
    if not stream:
        return [call["id"] for call in answer.json["choices"][0]["message"]["tool_calls"]]
    events = [msgspec.json.decode(frame.data) for frame in read(answer.body) if frame.data != "[DONE]"]
    deltas = [event["choices"][0]["delta"] for event in events if event.get("choices")]
    return [call["id"] for delta in deltas for call in delta.get("tool_calls") or () if call.get("id")]


async def ask_twice(harness: GatewayHarness, second_port: int, *, stream: bool) -> bool:
    """Ask for calls, send their results to the second port; return whether the provider got its thought."""
    first = first_turn(stream=stream)
    answer = await harness.send(body=first, stream=stream)
    harness.port = second_port
    done = await harness.send(body=second_turn(first, answer, stream=stream), stream=stream)
    assert harness.answer_text(done, stream=stream) == "done"
    return THOUGHT.signature.encode() in harness.upstream.requests[-1].body


@streaming
@providers
async def test_another_worker_gives_the_provider_its_reasoning_back(
    tmp_path: Path, provider: str, stream: bool
) -> None:
    async with file_store_gateway("chat", tmp_path, upstream_protocol=provider) as harness:
        script(harness)
        async with second_gateway(harness) as other:
            assert await ask_twice(harness, other.port, stream=stream)


@streaming
async def test_reasoning_of_a_turn_with_server_tools_is_shared(tmp_path: Path, stream: bool) -> None:
    async with file_store_gateway("chat", tmp_path, upstream_protocol="messages", more=CLOCK) as harness:
        script(harness)
        async with second_gateway(harness) as other:
            assert await ask_twice(harness, other.port, stream=stream)


async def test_reasoning_is_stored_before_the_last_byte_of_the_answer(tmp_path: Path) -> None:
    """A gateway that is killed as soon as the client has the answer has stored the reasoning."""
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "messages", tmp_path / "state", upstream)
        script(harness)
        config, first = configuration(harness), first_turn(stream=True)
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            answer = await harness.send(body=first, stream=True)
            process.signal(signal.SIGKILL)
            await process.ended()
        async with serve(tmp_path, config, "--workers", "2") as process:
            harness.port = await process.port()
            for _ in range(4):
                await harness.send(body=second_turn(first, answer, stream=True), stream=True)
    seen = [THOUGHT.signature.encode() in request.body for request in upstream.requests]
    assert seen == [False, True, True, True, True]


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
async def test_an_outage_of_the_store_costs_no_answer(tmp_path: Path, outage: Outage) -> None:
    state = tmp_path / "state"
    async with file_store_gateway("chat", state, upstream_protocol="messages") as harness:
        script(harness)
        async with second_gateway(harness) as other:
            state.mkdir(exist_ok=True)
            with outage(state):
                assert await ask_twice(harness, harness.port, stream=True)
                assert not await ask_twice(harness, other.port, stream=True)


async def test_answers_without_reasoning_store_nothing(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path, upstream_protocol="messages") as harness:
        calls = [Call("get_weather", {"city": "oslo"}, "call_1")]
        harness.upstream.answer_with(
            lambda request: answers.tool_calls("messages", *calls, stream=answers.wants_stream(request))
        )
        for stream in (False, True):
            answer = await harness.send(body=first_turn(stream=stream), stream=stream)
            asking.check("chat", answer, stream=stream)
        assert not (tmp_path / "thoughts").exists()
