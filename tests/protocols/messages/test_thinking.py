from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.parts import Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.encode_request import encode_request
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, chat_request

HI = Message("user", (Text("hi"),))
TOOL = Tool("look", parameters={"type": "object", "properties": {}})
OFF = {"type": "disabled"}
SUMMARIZED = {"type": "adaptive", "display": "summarized"}


def options_for(model: str, **fields: Any) -> EncodeOptions:
    return replace(OPTIONS, model=model, **fields)


def settings(request: Request, options: EncodeOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the encoded body without the conversation, and the notices."""
    encoded = encode_request(request, options)
    body = json.decode(encoded.body)
    return {name: body[name] for name in body if name not in ("model", "messages", "tools")}, encoded.notices


def enabled(budget: int) -> dict[str, Any]:
    return {"type": "enabled", "budget_tokens": budget}


@pytest.mark.parametrize(
    ("model", "thinking", "field", "effort"),
    [
        ("claude-haiku-4-5", Thinking(effort="high"), enabled(16384), None),
        ("claude-opus-4-5", Thinking(adaptive=True), enabled(8192), None),
        ("claude-3-7-sonnet-latest", Thinking(budget=3000), enabled(3000), None),
        ("claude-sonnet-4-5", Thinking(), enabled(8192), None),
        ("claude-sonnet-4-5", Thinking(enabled=False), OFF, None),
        ("claude-sonnet-4-6", Thinking(effort="minimal"), {"type": "adaptive"}, "low"),
        ("claude-sonnet-4-6", Thinking(effort="xhigh"), {"type": "adaptive"}, "high"),
        ("claude-opus-4-6", Thinking(effort="max"), {"type": "adaptive"}, "max"),
        ("claude-opus-4-6", Thinking(budget=3000), enabled(3000), None),
        ("claude-opus-4-6", Thinking(adaptive=True), {"type": "adaptive"}, None),
        ("anthropic/claude-opus-4.8", Thinking(effort="high"), SUMMARIZED, "high"),
        ("claude-opus-4-7", Thinking(effort="xhigh"), SUMMARIZED, "xhigh"),
        ("claude-opus-4-8", Thinking(effort="low", visible=False), {"type": "adaptive"}, "low"),
        ("claude-opus-4-8", Thinking(budget=2048), SUMMARIZED, "low"),
        ("claude-opus-4-8", Thinking(budget=8000), SUMMARIZED, "medium"),
        ("claude-opus-4-8", Thinking(budget=24576), SUMMARIZED, "high"),
        ("claude-opus-4-8", Thinking(adaptive=True), SUMMARIZED, None),
        ("claude-opus-4-8", Thinking(effort="none"), OFF, None),
        ("claude-sonnet-5", Thinking(effort="medium"), SUMMARIZED, "medium"),
        ("claude-sonnet-5", Thinking(enabled=False), OFF, None),
        ("claude-sonnet-5-5", Thinking(enabled=False), {"type": "between_tools"}, None),
        ("glm-5.2", Thinking(effort="low"), enabled(2048), None),
        ("kimi-k2-thinking", Thinking(adaptive=True), enabled(8192), None),
    ],
)
def test_thinking_is_encoded_as_the_model_accepts_it(
    model: str, thinking: Thinking, field: dict[str, Any], effort: str | None
) -> None:
    sent, notices = settings(chat_request(HI, thinking=thinking, max_tokens=60_000), options_for(model))
    config = {} if effort is None else {"output_config": {"effort": effort}}
    assert sent == {"max_tokens": 60_000, "thinking": field, **config}
    assert notices == ()


def test_max_tokens_grows_for_thinking_without_a_budget_too() -> None:
    for requested, limit, room in (
        (500, None, 16884),
        (500, 4000, 4000),
        (None, None, 128_000),
        (None, 900, 900),
    ):
        request = chat_request(HI, thinking=Thinking(effort="high"), max_tokens=requested)
        sent, _ = settings(request, options_for("claude-opus-4-8", max_output_tokens=limit))
        assert sent == {"max_tokens": room, "thinking": SUMMARIZED, "output_config": {"effort": "high"}}


def test_a_model_without_thinking_gets_no_thinking_field() -> None:
    options = options_for("claude-3-5-haiku-latest")
    assert settings(chat_request(HI, thinking=Thinking(effort="low"), max_tokens=5), options) == (
        {"max_tokens": 5},
        ("dropped thinking: this model does not support it",),
    )
    assert settings(chat_request(HI, thinking=Thinking(enabled=False), max_tokens=5), options) == (
        {"max_tokens": 5},
        (),
    )


def test_a_model_that_always_thinks_gets_a_low_effort() -> None:
    request = chat_request(HI, thinking=Thinking(enabled=False), max_tokens=5)
    assert settings(request, options_for("claude-fable-5")) == (
        {"max_tokens": 5, "output_config": {"effort": "low"}},
        ("dropped thinking disabled: this model always thinks",),
    )


@pytest.mark.parametrize("thinking", [None, Thinking(effort="low")])
def test_a_forced_call_disables_default_thinking(thinking: Thinking | None) -> None:
    request = chat_request(
        HI, thinking=thinking, max_tokens=5, tools=(TOOL,), tool_choice=ToolChoice("required")
    )
    forced = {"max_tokens": 5, "tool_choice": {"type": "any"}}
    dropped = ("dropped thinking: it is not accepted with a forced tool call",) if thinking else ()
    assert settings(request, options_for("claude-sonnet-5")) == ({**forced, "thinking": OFF}, dropped)
    assert settings(request, options_for("claude-opus-4-8")) == (forced, dropped)
    silent = options_for("claude-sonnet-5", dialect=Dialect(reasoning_field="none"))
    assert settings(request, silent)[0] == forced


def test_a_call_cannot_be_forced_from_a_model_that_always_thinks() -> None:
    request = chat_request(
        HI,
        thinking=Thinking(effort="low"),
        tools=(TOOL,),
        tool_choice=ToolChoice("required"),
        max_tokens=9000,
    )
    assert settings(request, options_for("claude-opus-5-5")) == (
        {"max_tokens": 9000, "thinking": SUMMARIZED, "output_config": {"effort": "low"}},
        ("dropped tool_choice required: this model does not accept a forced tool call",),
    )


def test_sampling_that_a_model_refuses_is_left_out() -> None:
    request = chat_request(HI, temperature=0.2, top_p=0.5, top_k=5, max_tokens=5)
    for model in ("claude-opus-4-7", "claude-opus-4-8", "claude-sonnet-5"):
        assert settings(request, options_for(model)) == (
            {"max_tokens": 5},
            (
                "dropped temperature: this model rejects it",
                "dropped top_p: this model rejects it",
                "dropped top_k: this model rejects it",
            ),
        )
    silent = chat_request(HI, temperature=1.0, top_p=1.0, max_tokens=5)
    assert settings(silent, options_for("claude-opus-4-8")) == ({"max_tokens": 5}, ())
    assert settings(silent, options_for("claude-opus-4-6")) == ({"max_tokens": 5, "temperature": 1.0}, ())


def tool_turn(*first: Reasoning) -> tuple[Message, ...]:
    """Return a turn of two calls, the first of them after this reasoning."""
    return (
        HI,
        Message("assistant", (*first, ToolCall("a", "look", "{}"))),
        Message("tool", (ToolResult("a", (Text("sun"),)),)),
        Message("assistant", (ToolCall("b", "look", "{}"),)),
        Message("tool", (ToolResult("b", (Text("rain"),)),)),
    )


def test_only_a_budget_needs_a_tool_turn_that_began_with_thinking() -> None:
    fields = {"thinking": Thinking(effort="low"), "tools": (TOOL,), "max_tokens": 9000}
    without_thinking = chat_request(*tool_turn(), **fields)
    assert settings(without_thinking, options_for("claude-sonnet-4-5")) == (
        {"max_tokens": 9000},
        ("dropped thinking: the current tool turn began without it",),
    )
    assert settings(without_thinking, options_for("claude-opus-4-8"))[0]["thinking"] == SUMMARIZED
    with_thinking = chat_request(*tool_turn(Reasoning("t", "s", origin="acme")), **fields)
    assert settings(with_thinking, options_for("claude-sonnet-4-5")) == (
        {"max_tokens": 9000, "thinking": enabled(2048)},
        (),
    )


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ("claude-opus-4-8", 128_000),
        ("anthropic.claude-sonnet-5-v1:0", 128_000),
        ("claude-haiku-4-5-20251001", 64_000),
        ("claude-opus-4-5", 64_000),
        ("claude-opus-4-1-20250805", 32_000),
        ("claude-3-7-sonnet-latest", 64_000),
        ("claude-3-5-haiku-latest", 8192),
        ("claude-3-haiku-20240307", 4096),
        ("glm-4.7", 8192),
    ],
)
def test_a_request_without_a_limit_gets_the_models_own(model: str, limit: int) -> None:
    sent, _ = settings(chat_request(HI), options_for(model))
    assert sent["max_tokens"] == limit
    assert settings(chat_request(HI), options_for(model, max_output_tokens=900))[0]["max_tokens"] == 900
