"""The end of a tool turn on /v1/messages, for each setting, with the clients that differ on it."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols.grammar import check_messages
from tests.clients.gateway import Gateway, Gateways
from tests.clients.node_sdks import run
from tests.clients.python.anthropic_messages import TOOL
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.clients.raw import Answer, call
from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.steps import Hang, Sse

MODELS = {name: f"up_{name}.model-x" for name in PROTOCOLS}
SETTINGS = ("auto", "never", "always")
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])


def send(
    gateway: Gateway, model: str, *, tools: bool = True, headers: dict[str, str] | None = None
) -> Answer:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": 1000,
        "stream": True,
        "messages": [{"role": "user", "content": "please look_up the sky"}],
    }
    if tools:
        body["tools"] = [TOOL]
    return call(gateway, "POST", "/v1/messages", body=body, headers=headers)


@pytest.mark.parametrize("setting", SETTINGS)
@upstreams
def test_a_tool_turn_ends_with_message_stop_only_when_configured(
    gateways: Gateways, upstream: str, setting: str
) -> None:
    answer = send(gateways.get(setting), MODELS[upstream])
    ends = setting == "always"
    check_messages(answer.body, message_stop_after_calls=ends)
    assert answer.events[-1] == ("message_stop" if ends else "message_delta")
    last = next(frame for frame in reversed(answer.frames) if frame.event == "message_delta")
    assert last.json["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("setting", SETTINGS)
@upstreams
def test_any_other_turn_ends_with_message_stop(gateways: Gateways, upstream: str, setting: str) -> None:
    answer = send(gateways.get(setting), MODELS[upstream], tools=False)
    check_messages(answer.body)
    assert answer.events[-1] == "message_stop"


def test_the_body_ends_at_once_while_the_upstream_stays_open(gateway: Gateway) -> None:
    whole = answers.tool_call("messages", "look_up", {"city": "Paris"}, "toolu_1", True)
    assert isinstance(whole, Sse)
    gateway.upstreams.by_protocol["messages"].queue(Sse(whole.frames[:-1], end=Hang()))
    answer = send(gateway, MODELS["messages"])
    check_messages(answer.body, message_stop_after_calls=False)


STAINLESS = {"x-stainless-lang": "js", "user-agent": "Anthropic/JS 1.8.0"}
CLIENTS: dict[str, tuple[dict[str, str], bool]] = {
    "an unknown client": ({"user-agent": "curl/8.1"}, False),
    "Anthropic for Python": ({"x-stainless-lang": "python", "x-stainless-helper-method": "stream"}, False),
    "Anthropic for JavaScript, create": (STAINLESS, False),
    "Anthropic for JavaScript, stream": ({**STAINLESS, "x-stainless-helper-method": "stream"}, True),
    "Vercel AI SDK, since 6": ({"user-agent": "ai-sdk-anthropic/4.0.102 ai-sdk-provider-utils/5.0.79"}, True),
    "Vercel AI SDK, until 5": ({"user-agent": "ai/5.0.60 ai-sdk/anthropic/2.0.23"}, True),
    "Claude Code": ({"user-agent": "claude-cli/2.3.1 (external, cli)"}, True),
}


@pytest.mark.parametrize(("headers", "ends"), CLIENTS.values(), ids=CLIENTS.keys())
def test_auto_sends_message_stop_to_clients_that_need_it(
    gateway: Gateway, headers: dict[str, str], ends: bool
) -> None:
    check_messages(send(gateway, MODELS["chat"], headers=headers).body, message_stop_after_calls=ends)


@pytest.mark.parametrize("setting", SETTINGS)
@upstreams
@pytest.mark.parametrize(
    "sdk_mode", [pytest.param(row, id=name) for name, row in SDK_MODES.items() if row.protocol == "messages"]
)
def test_the_python_sdk_accepts_every_setting(
    gateways: Gateways, sdks: Sdks, sdk_mode: SdkMode, upstream: str, setting: str
) -> None:
    conversation = sdk_mode.start(sdks, gateways.get(setting), MODELS[upstream], tools=True)
    first = conversation.send("please look_up the sky")
    assert [one.name for one in first.calls] == ["look_up"]
    assert first.end == "tool_use"
    assert first.usage == (21, 9)
    assert conversation.send_results("a sunny day").text == "The tool says: a sunny day"


QUESTION = "please look_up the sky over Paris"
LOOPED = {"calls": [{"city": QUESTION}], "text": f"The tool says: sunny in {QUESTION}"}
NODE_MODELS = list(MODELS.values())


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_node_sdk_accepts_every_setting_without_its_stream_helper(
    gateways: Gateways, setting: str
) -> None:
    results = run("anthropic.mjs", gateways.get(setting), NODE_MODELS, ("loop-whole", "loop-stream"))
    assert {(line.get("text"), line.get("error")) for line in results.values()} == {(LOOPED["text"], None)}


@pytest.mark.parametrize("setting", ["auto", "always"])
def test_the_stream_helper_of_the_node_sdk_works_with(gateways: Gateways, setting: str) -> None:
    results = run("anthropic.mjs", gateways.get(setting), NODE_MODELS, ("loop-helper",))
    expected = {**LOOPED, "ends": ["tool_use", "end_turn"], "usage": 9}
    assert results == {(model, "loop-helper"): expected for model in NODE_MODELS}


def test_the_stream_helper_of_the_node_sdk_throws_with_never(gateways: Gateways) -> None:
    results = run("anthropic.mjs", gateways.get("never"), NODE_MODELS, ("loop-helper",))
    assert {line["error"] for line in results.values()} == {
        "AnthropicError: stream ended without producing a Message with role=assistant"
    }


@pytest.mark.parametrize("setting", ["auto", "always"])
def test_the_vercel_sdk_works_with(gateways: Gateways, setting: str) -> None:
    results = run("vercel.mjs", gateways.get(setting), NODE_MODELS, ("anthropic-loop-stream",))
    expected = {**LOOPED, "finish": "stop"}
    assert results == {(model, "anthropic-loop-stream"): expected for model in NODE_MODELS}


def test_the_vercel_sdk_stops_silently_with_never(gateways: Gateways) -> None:
    results = run("vercel.mjs", gateways.get("never"), NODE_MODELS, ("anthropic-loop-stream",))
    assert [(line.get("calls"), line.get("error")) for line in results.values()] == [([], None)] * 4
