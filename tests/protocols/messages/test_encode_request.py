from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Media, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.protocols.messages.encode_request import encode_request
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, chat_request, wire_request

HI = Message("user", (Text("hi"),))
WEATHER = Tool("weather", parameters={"type": "object", "properties": {}})


def sent(request: Request, options: EncodeOptions = OPTIONS) -> dict[str, Any]:
    value: dict[str, Any] = json.decode(encode_request(request, options).body)
    return value


def notices(request: Request, options: EncodeOptions = OPTIONS) -> tuple[str, ...]:
    return encode_request(request, options).notices


def test_the_smallest_request() -> None:
    assert sent(chat_request(HI)) == {
        "model": "m-1",
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"stop": ("a", "b")}, {"stop_sequences": ["a", "b"]}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"temperature": 1.7}, {"temperature": 1.0}),
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"top_p": 0.3, "top_k": 4}, {"top_p": 0.3, "top_k": 4}),
    ({"user": "u"}, {"metadata": {"user_id": "u"}}),
    ({"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
    ({"service_tier": "default"}, {"service_tier": "standard_only"}),
    ({"service_tier": "auto"}, {"service_tier": "auto"}),
    ({"stream": True}, {"stream": True}),
    ({"system": (Text("be brief"),)}, {"system": [{"type": "text", "text": "be brief"}]}),
]


@pytest.mark.parametrize(("fields", "expected"), SETTINGS)
def test_settings_are_encoded(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {**sent(chat_request(HI)), **expected} == sent(chat_request(HI, **fields))


@pytest.mark.parametrize(
    ("fields", "notice"),
    [
        ({"seed": 1}, "dropped seed: messages has no such field"),
        ({"frequency_penalty": 0.5}, "dropped frequency_penalty: messages has no such field"),
        ({"logprobs": True}, "dropped logprobs: messages has no such field"),
        ({"verbosity": "low"}, "dropped verbosity: messages has no such field"),
        ({"temperature": 2.0}, "dropped part of temperature: messages accepts at most 1"),
        ({"stop": (" ",)}, "dropped stop: messages rejects blank stop sequences"),
        ({"metadata": {"k": "v"}}, "dropped metadata: messages has only user_id"),
        ({"service_tier": "flex"}, "dropped service_tier flex: messages has no such tier"),
        ({"extras": {"web_search_options": {}}}, "dropped web_search_options: only chat has it"),
        (
            {"tools": (Tool("search", "hosted", hosted={}),)},
            "dropped tool search: it runs at another provider",
        ),
        ({"tool_choice": ToolChoice("required")}, "dropped tool_choice: there are no tools to choose from"),
    ],
)
def test_dropped_settings_are_noticed(fields: dict[str, Any], notice: str) -> None:
    assert notices(chat_request(HI, **fields)) == (notice,)


@pytest.mark.parametrize(
    "fields",
    [
        {"extras": {"store": True, "stream_options": {"include_usage": True}}},
        {"frequency_penalty": 0.0, "logprobs": False, "verbosity": "medium"},
        {"cache_key": "k", "include_usage": True, "n": 1},
    ],
)
def test_settings_without_effect_are_dropped_without_a_notice(fields: dict[str, Any]) -> None:
    assert notices(chat_request(HI, **fields)) == ()


REJECTED = "dropped top_p: temperature is set, and this model accepts only one of them"


@pytest.mark.parametrize(
    ("model", "both"),
    [
        ("claude-3-7-sonnet-latest", True),
        ("claude-sonnet-4-20250514", True),
        ("claude-opus-4-1-20250805", False),
        ("claude-sonnet-4-5", False),
        ("claude-sonnet-4-6", False),
        ("claude-latest", False),
        ("glm-5.2", True),
        ("MiniMax-M3", True),
    ],
)
def test_top_p_is_dropped_only_if_the_model_rejects_it_beside_temperature(model: str, both: bool) -> None:
    options = replace(OPTIONS, model=model)
    request = chat_request(HI, temperature=0.5, top_p=0.9)
    kept = {"temperature": 0.5, "top_p": 0.9} if both else {"temperature": 0.5}
    assert sent(request, options) == {**sent(chat_request(HI), options), **kept}
    assert notices(request, options) == (() if both else (REJECTED,))
    # A top_p of 1 has no effect.
    assert notices(chat_request(HI, temperature=0.5, top_p=1.0), options) == ()


def test_several_answers_at_once_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        encode_request(chat_request(HI, n=2), OPTIONS)
    assert caught.value.param == "n"


def test_max_tokens_keeps_within_the_model() -> None:
    options = replace(OPTIONS, max_output_tokens=4000)
    assert sent(chat_request(HI), options)["max_tokens"] == 4000
    assert sent(chat_request(HI, max_tokens=9000), options)["max_tokens"] == 4000
    assert notices(chat_request(HI, max_tokens=9000), options) == (
        "dropped part of max_tokens: this model writes at most 4000 tokens",
    )


@pytest.mark.parametrize(
    ("thinking", "max_tokens", "limit", "expected"),
    [
        (Thinking(effort="minimal"), 9000, None, (9000, {"type": "enabled", "budget_tokens": 1024})),
        (Thinking(effort="low"), 9000, None, (9000, {"type": "enabled", "budget_tokens": 2048})),
        (Thinking(effort="medium"), 9000, None, (9000, {"type": "enabled", "budget_tokens": 8192})),
        (Thinking(effort="high"), 500, None, (16884, {"type": "enabled", "budget_tokens": 16384})),
        (Thinking(effort="max"), 500, 20000, (20000, {"type": "enabled", "budget_tokens": 19999})),
        (Thinking(budget=3000), 9000, None, (9000, {"type": "enabled", "budget_tokens": 3000})),
        (Thinking(budget=10), 9000, None, (9000, {"type": "enabled", "budget_tokens": 1024})),
        (Thinking(budget=3000), 500, 900, (500, None)),
        (Thinking(effort="low"), None, None, (10240, {"type": "enabled", "budget_tokens": 2048})),
        (Thinking(adaptive=True), 500, None, (8692, {"type": "enabled", "budget_tokens": 8192})),
        (Thinking(enabled=False), 500, None, (500, {"type": "disabled"})),
        (Thinking(effort="none"), 500, None, (500, {"type": "disabled"})),
    ],
)
def test_thinking_fits_into_max_tokens(
    thinking: Thinking, max_tokens: int | None, limit: int | None, expected: tuple[int, Any]
) -> None:
    options = replace(OPTIONS, max_output_tokens=limit)
    body = sent(chat_request(HI, thinking=thinking, max_tokens=max_tokens), options)
    room, field = expected
    assert body.get("thinking") == field
    assert body["max_tokens"] == room


def test_thinking_takes_only_the_sampling_it_allows() -> None:
    request = chat_request(HI, thinking=Thinking(effort="low"), temperature=0.2, top_k=5, top_p=0.5)
    body = sent(request)
    assert body.keys() == {"model", "max_tokens", "messages", "thinking"}
    assert notices(request) == (
        "dropped temperature: with thinking only 1 is accepted",
        "dropped top_k: it is not accepted with thinking",
        "dropped top_p: with thinking only 0.95 to 1 is accepted",
    )
    assert sent(chat_request(HI, thinking=Thinking(effort="low"), temperature=1.0))["temperature"] == 1.0


def test_thinking_gives_way_to_a_forced_call_and_to_a_tool_turn_without_thinking() -> None:
    forced = chat_request(
        HI, thinking=Thinking(effort="low"), tools=(WEATHER,), tool_choice=ToolChoice("required")
    )
    assert "thinking" not in sent(forced)
    assert notices(forced) == ("dropped thinking: it is not accepted with a forced tool call",)
    amid = chat_request(
        HI,
        Message("assistant", (ToolCall("a", "weather", "{}"),)),
        Message("tool", (ToolResult("a", (Text("sun"),)),)),
        thinking=Thinking(effort="low"),
        tools=(WEATHER,),
    )
    assert notices(amid) == ("dropped thinking: the current tool turn began without it",)


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, None),
        (ToolChoice("auto"), None, {"type": "auto"}),
        (ToolChoice("none"), None, {"type": "none"}),
        (ToolChoice("required"), None, {"type": "any"}),
        (ToolChoice("tool", ("weather",)), None, {"type": "tool", "name": "weather"}),
        (ToolChoice("required", ("weather",)), None, {"type": "tool", "name": "weather"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice("required"), True, {"type": "any", "disable_parallel_tool_use": False}),
        (ToolChoice("none"), False, {"type": "none"}),
    ],
)
def test_tool_choice(choice: ToolChoice | None, parallel: bool | None, expected: Any) -> None:
    request = chat_request(HI, tools=(WEATHER,), tool_choice=choice, parallel_tool_calls=parallel)
    assert sent(request).get("tool_choice") == expected


def test_only_allowed_tools_are_offered() -> None:
    other = Tool("other")
    request = chat_request(HI, tools=(WEATHER, other), tool_choice=ToolChoice("auto", ("other",)))
    assert [tool["name"] for tool in sent(request)["tools"]] == ["other"]


def test_a_custom_tool_goes_as_a_function_with_one_text() -> None:
    patch = Tool(
        "apply_patch", "custom", "Edits.", format={"type": "grammar", "syntax": "lark", "definition": "x"}
    )
    [tool] = sent(chat_request(HI, tools=(patch,)))["tools"]
    assert tool["name"] == "apply_patch"
    assert tool["description"] == "Edits.\n\nThe input must follow this lark grammar:\nx"
    assert tool["input_schema"]["required"] == ["input"]


def test_a_namespaced_tool_goes_flat_and_its_calls_too() -> None:
    tool = Tool("send", namespace="mail", parameters={"type": "object"})
    request = chat_request(
        HI,
        Message("assistant", (ToolCall("a", "send", "{}", namespace="mail"),)),
        tools=(tool,),
        tool_choice=ToolChoice("tool", ("send",)),
    )
    body = sent(request)
    assert body["tools"][0]["name"] == "mail__send"
    assert body["tool_choice"]["name"] == "mail__send"
    assert body["messages"][1]["content"][0]["name"] == "mail__send"


@pytest.mark.parametrize("kind", [{}, {"type": ["object", "null"]}, {"type": None}])
def test_the_schema_of_a_tool_is_always_of_type_object(kind: dict[str, Any]) -> None:
    [tool] = sent(chat_request(HI, tools=(Tool("f", parameters={**kind, "properties": {}}),)))["tools"]
    assert tool["input_schema"] == {"type": "object", "properties": {}}


def test_tools_of_earlier_calls_are_declared() -> None:
    request = chat_request(HI, Message("assistant", (ToolCall("a", "gone", "{}"),)))
    body = sent(request)
    assert body["tools"] == [{"name": "gone", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


def test_structured_output_by_schema_or_by_instruction() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "description": "How many."}},
        "required": ["n"],
    }
    request = chat_request(HI, output=Output("json_schema", schema=schema))
    assert sent(request)["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": 'How many. {"minimum":1}'}},
            "required": ["n"],
            "additionalProperties": False,
        },
    }
    plain = replace(OPTIONS, dialect=Dialect(response_format="none"))
    assert '"minimum":1' in sent(request, plain)["system"][0]["text"]
    anything = sent(chat_request(HI, output=Output("json_object")))
    assert "one JSON object" in anything["system"][0]["text"]


def test_a_dialect_is_applied() -> None:
    dialect = Dialect(
        unsupported=("top_k",), tool_choice="no_required", parallel_tool_calls=False, image_urls=False
    )
    options = replace(OPTIONS, dialect=dialect)
    picture = Message("user", (Media("image", url="https://x/y.png"),))
    request = chat_request(
        picture, top_k=3, tools=(WEATHER,), tool_choice=ToolChoice("required"), parallel_tool_calls=False
    )
    assert notices(request, options) == (
        "dropped image by URL: this provider accepts only inline images",
        "dropped tool_choice required: this provider rejects it",
        "dropped parallel_tool_calls: this provider has no such setting",
        "dropped top_k: this provider rejects it",
    )
    assert sent(request, options).keys() == {"model", "max_tokens", "messages", "tools"}


def test_a_request_of_this_protocol_survives_the_round_trip() -> None:
    fields = {
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [
            {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True, "strict": False},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"later": 1, "effort": "high"},
        "metadata": {"user_id": "u", "later": 1},
        "service_tier": "standard_only",
        "container": "c",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "new": 1}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "t", "signature": "s"},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {
                        "type": "tool_use",
                        "id": "a",
                        "name": "f",
                        "input": {"x": 1},
                        "caller": {"type": "direct"},
                    },
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "fine"}],
            },
            {"role": "system", "content": [{"type": "text", "text": "mid"}]},
        ],
    }
    came = wire_request(**fields, stream=True)
    options = replace(OPTIONS, model="asked")
    encoded = encode_request(decode_request(came), options)
    assert json.decode(encoded.body) == json.decode(came.body)
    assert encoded.notices == ()
