from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.chat.rewrite import rewrite
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.tool_mapping import CUSTOM_PARAMETERS
from routecodex.providers.catalog import PRESETS
from routecodex.wire import json
from tests.protocols.chat.samples import OPTIONS, decoded, foreign_request, notices_of, sent, with_dialect

HI = Message("user", (Text("hi"),))


def hi_request(**fields: Any) -> Request:
    return foreign_request(HI, **fields)


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("model", "messages")}


def test_the_smallest_request_has_nothing_but_its_messages() -> None:
    assert sent(hi_request()) == {"model": "m-1", "messages": [{"role": "user", "content": "hi"}]}


SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.0, "top_p": 0.5, "seed": 0}, {"temperature": 0.0, "top_p": 0.5, "seed": 0}),
    (
        {"frequency_penalty": 0.1, "presence_penalty": 0.2},
        {"frequency_penalty": 0.1, "presence_penalty": 0.2},
    ),
    ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
    ({"verbosity": "low"}, {"verbosity": "low"}),
    ({"max_tokens": 9}, {"max_completion_tokens": 9}),
    ({"stop": ("a", "b")}, {"stop": ["a", "b"]}),
    ({"user": "u", "cache_key": "k"}, {"user": "u", "prompt_cache_key": "k"}),
    ({"user": "x" * 65}, {"user": hashlib.sha256(b"x" * 65).hexdigest()}),
    ({"service_tier": "flex"}, {"service_tier": "flex"}),
    ({"service_tier": "standard_only"}, {}),
    ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    ({"output": Output("json_object")}, {"response_format": {"type": "json_object"}}),
    (
        {"output": Output("json_schema", schema={"type": "object"})},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            }
        },
    ),
    (
        {"output": Output("json_schema", "n", {"type": "object"}, True, "d")},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "n",
                    "schema": {"type": "object"},
                    "strict": True,
                    "description": "d",
                },
            }
        },
    ),
    ({"extras": {"store": True, "include": [], "stream_options": {}}}, {}),
    ({"parallel_tool_calls": False, "tool_choice": ToolChoice("auto")}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), SETTINGS, ids=range(len(SETTINGS)))
def test_settings_are_written(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert settings_of(sent(hi_request(**fields))) == expected
    assert notices_of(hi_request(**fields)) == ()


LOST: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ({"top_k": 5}, {}, {}, "dropped top_k: chat has no such field"),
    ({"metadata": {"a": "b"}}, {}, {}, "dropped metadata: chat has no such field"),
    ({"extras": {"speed": "fast"}}, {}, {}, "dropped speed: chat has no such field"),
    (
        {"stop": ("a", "b", "c", "d", "e")},
        {},
        {"stop": ["a", "b", "c", "d"]},
        "dropped stop sequences past the fourth: chat accepts four",
    ),
    ({"seed": 1}, {"unsupported": ("seed", "user")}, {}, "dropped seed: this upstream rejects it"),
    (
        {"output": Output("json_object")},
        {"response_format": "none"},
        {},
        "dropped response_format: this upstream has no structured output",
    ),
    (
        {"thinking": Thinking(effort="high")},
        {"reasoning_field": "none"},
        {},
        "dropped thinking: this upstream has no setting for it",
    ),
]


@pytest.mark.parametrize(("fields", "dialect", "expected", "notice"), LOST, ids=range(len(LOST)))
def test_settings_that_cannot_be_encoded_are_reported(
    fields: dict[str, Any], dialect: dict[str, Any], expected: dict[str, Any], notice: str
) -> None:
    to = with_dialect(**dialect)
    assert settings_of(sent(hi_request(**fields), to)) == expected
    assert notices_of(hi_request(**fields), to) == (notice,)


def test_a_chat_client_keeps_the_fields_only_chat_upstreams_know() -> None:
    fields = {
        "top_k": 5,
        "metadata": {"a": "b"},
        "logit_bias": {"1": 2},
        "n": 2,
        "service_tier": "standard_only",
    }
    assert settings_of(sent(decoded(**fields))) == fields


def test_the_token_limit_has_the_upstreams_field_name() -> None:
    assert settings_of(sent(hi_request(max_tokens=9), with_dialect(max_tokens_field="max_tokens"))) == {
        "max_tokens": 9
    }


def test_max_tokens_is_capped_at_the_models_limit() -> None:
    to = replace(OPTIONS, max_output_tokens=100)
    assert settings_of(sent(hi_request(max_tokens=101), to)) == {"max_completion_tokens": 100}
    assert notices_of(hi_request(max_tokens=101), to) == (
        "dropped part of max_tokens: this model writes at most 100 tokens",
    )
    assert settings_of(sent(hi_request(max_tokens=100), to)) == {"max_completion_tokens": 100}
    assert notices_of(hi_request(max_tokens=100), to) == ()


def test_usage_is_not_requested_where_that_is_rejected() -> None:
    assert settings_of(sent(hi_request(stream=True), with_dialect(stream_usage=False))) == {"stream": True}


@pytest.mark.parametrize("source", ["messages", "responses", "gemini"])
def test_several_answers_are_refused_for_clients_that_cannot_read_them(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        sent(hi_request(n=2, source=source))
    assert caught.value.param == "n"


def test_several_answers_are_refused_where_the_upstream_gives_one() -> None:
    with pytest.raises(BadRequest) as caught:
        sent(decoded(n=2), with_dialect(n=False))
    assert caught.value.param == "n"


THINKING: list[tuple[str, Thinking, dict[str, Any]]] = [
    ("reasoning_effort", Thinking(effort="high"), {"reasoning_effort": "high"}),
    ("reasoning_effort", Thinking(), {"reasoning_effort": "medium"}),
    ("reasoning_effort", Thinking(adaptive=True), {"reasoning_effort": "medium"}),
    ("reasoning_effort", Thinking(budget=1024), {"reasoning_effort": "low"}),
    ("reasoning_effort", Thinking(budget=10_000), {"reasoning_effort": "medium"}),
    ("reasoning_effort", Thinking(budget=32_000), {"reasoning_effort": "high"}),
    ("reasoning_effort", Thinking(enabled=False), {}),
    ("reasoning_effort", Thinking(enabled=False, effort="none"), {"reasoning_effort": "none"}),
    ("thinking", Thinking(budget=1024), {"thinking": {"type": "enabled"}}),
    ("thinking", Thinking(enabled=False), {"thinking": {"type": "disabled"}}),
    ("thinking_and_effort", Thinking(), {"thinking": {"type": "enabled"}}),
    (
        "thinking_and_effort",
        Thinking(effort="max"),
        {"thinking": {"type": "enabled"}, "reasoning_effort": "max"},
    ),
    (
        "thinking_and_effort",
        Thinking(budget=1024),
        {"thinking": {"type": "enabled"}, "reasoning_effort": "low"},
    ),
    ("thinking_and_effort", Thinking(enabled=False, effort="none"), {"thinking": {"type": "disabled"}}),
    ("enable_thinking", Thinking(effort="low"), {"enable_thinking": True}),
    ("enable_thinking", Thinking(budget=99), {"enable_thinking": True, "thinking_budget": 99}),
    ("enable_thinking", Thinking(enabled=False, budget=99), {"enable_thinking": False}),
    ("reasoning", Thinking(effort="low"), {"reasoning": {"effort": "low"}}),
    ("reasoning", Thinking(budget=99), {"reasoning": {"max_tokens": 99}}),
    ("reasoning", Thinking(enabled=False), {"reasoning": {"enabled": False}}),
    ("none", Thinking(enabled=False), {}),
    ("three_efforts", Thinking(), {}),
    ("three_efforts", Thinking(effort="medium"), {"reasoning_effort": "high"}),
    ("three_efforts", Thinking(effort="xhigh"), {"reasoning_effort": "max"}),
    ("three_efforts", Thinking(budget=1024), {"reasoning_effort": "low"}),
    ("three_efforts", Thinking(enabled=False), {"reasoning_effort": "low"}),
]


@pytest.mark.parametrize(("style", "thinking", "expected"), THINKING, ids=range(len(THINKING)))
def test_thinking_has_the_upstreams_field(style: str, thinking: Thinking, expected: dict[str, Any]) -> None:
    assert settings_of(sent(hi_request(thinking=thinking), with_dialect(reasoning_field=style))) == expected


NO_DEPTH = "this upstream only switches thinking on and off"
LOST_DEPTH: list[tuple[str, Thinking, tuple[str, ...]]] = [
    ("thinking", Thinking(effort="high"), (f"dropped reasoning_effort: {NO_DEPTH}",)),
    ("thinking", Thinking(budget=1024), (f"dropped the thinking budget: {NO_DEPTH}",)),
    ("thinking", Thinking(), ()),
    ("thinking", Thinking(enabled=False, effort="none"), ()),
    (
        "reasoning_effort",
        Thinking(enabled=False),
        ("dropped thinking: chat has no general way to switch it off",),
    ),
    ("reasoning_effort", Thinking(enabled=False, effort="none"), ()),
    ("none", Thinking(enabled=False), ("dropped thinking: this upstream has no setting for it",)),
    (
        "enable_thinking",
        Thinking(effort="high"),
        ("dropped reasoning_effort: this upstream has budgets only",),
    ),
    ("enable_thinking", Thinking(budget=1024), ()),
    ("enable_thinking", Thinking(enabled=False, effort="none"), ()),
    ("thinking_and_effort", Thinking(effort="high"), ()),
    ("thinking_and_effort", Thinking(budget=1024), ()),
    ("reasoning_effort", Thinking(effort="high"), ()),
    ("reasoning", Thinking(effort="high"), ()),
    ("three_efforts", Thinking(effort="medium"), ()),
    (
        "three_efforts",
        Thinking(enabled=False),
        ("dropped thinking: disabled: this model always thinks",),
    ),
]


@pytest.mark.parametrize(("style", "thinking", "notices"), LOST_DEPTH, ids=range(len(LOST_DEPTH)))
def test_a_lost_depth_of_thinking_is_named(style: str, thinking: Thinking, notices: tuple[str, ...]) -> None:
    assert notices_of(hi_request(thinking=thinking), with_dialect(reasoning_field=style)) == notices


GLM: list[tuple[str, str, dict[str, Any]]] = [
    ("glm-4.7", "high", {"thinking": {"type": "enabled"}}),
    ("glm-5.1", "high", {"thinking": {"type": "enabled"}}),
    ("GLM-5.2", "high", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
    ("glm-5.3-flash", "medium", {"reasoning_effort": "high"}),
]


@pytest.mark.parametrize(("model", "effort", "expected"), GLM, ids=[row[0] for row in GLM])
def test_thinking_fits_the_version_of_glm(model: str, effort: Any, expected: dict[str, Any]) -> None:
    dialect = msgspec.convert(PRESETS["glm"].dialect, Dialect)
    options = EncodeOptions(model=model, provider="glm", dialect=dialect)
    assert settings_of(sent(hi_request(thinking=Thinking(effort=effort)), options)) == expected
    wire = json.encode(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort}
    )
    fields = json.decode(rewrite(validate(wire), options).body)
    assert {name: fields[name] for name in fields if name not in ("model", "messages")} == expected


def test_a_schema_becomes_an_instruction_in_json_mode() -> None:
    request = hi_request(output=Output("json_schema", schema={"type": "object"}))
    body = sent(request, with_dialect(response_format="json_object"))
    instruction = 'Answer with one JSON object that fits this JSON schema: {"type":"object"}'
    assert body["response_format"] == {"type": "json_object"}
    assert body["messages"] == [{"role": "system", "content": instruction}, {"role": "user", "content": "hi"}]


def test_the_schema_instruction_joins_the_system_text() -> None:
    request = hi_request(output=Output("json_schema", schema={}), system=(Text("Be brief."),))
    body = sent(
        request, with_dialect(response_format="json_object", system_role="developer", merge_system=True)
    )
    instruction = "Answer with one JSON object that fits this JSON schema: {}"
    assert body["messages"][0] == {"role": "developer", "content": f"Be brief.\n\n{instruction}"}
    assert len(body["messages"]) == 2


F = Tool("f", description="d", parameters={"type": "object"}, strict=True, extras={"type": "custom"})
WRITTEN = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
}


def test_functions_are_written() -> None:
    assert settings_of(sent(hi_request(tools=(F, Tool("g"))))) == {
        "tools": [
            WRITTEN,
            {
                "type": "function",
                "function": {"name": "g", "parameters": {"type": "object", "properties": {}}},
            },
        ]
    }


def test_strictness_is_left_out_where_it_is_refused() -> None:
    (tool,) = sent(hi_request(tools=(F,)), with_dialect(strict_tools=False))["tools"]
    assert "strict" not in tool["function"]


def test_the_grammar_of_a_custom_tool_is_part_of_its_description() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
    (tool,) = sent(foreign_request(tools=(Tool("patch", "custom", description="Patches.", format=grammar),)))[
        "tools"
    ]
    assert tool["function"]["description"] == (
        "Patches.\n\nThe input must follow this lark grammar:\nstart: x"
    )


def test_custom_tools_become_functions_with_one_input() -> None:
    tool = Tool("patch", "custom", description="d", format={"type": "grammar"})
    assert sent(hi_request(tools=(tool,)))["tools"] == [
        {
            "type": "function",
            "function": {"name": "patch", "description": "d", "parameters": CUSTOM_PARAMETERS},
        }
    ]


def test_tools_of_a_chat_client_stay_as_they_are() -> None:
    tools = [
        {"type": "custom", "custom": {"name": "patch", "description": "d", "format": {"type": "text"}}},
        {"type": "web_search", "filters": {}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "x": 1}},
    ]
    assert sent(decoded(tools=tools))["tools"] == tools


def test_namespaced_tools_are_flattened() -> None:
    tools = (Tool("read", namespace="files"), Tool("read"))
    request = hi_request(tools=tools, tool_choice=ToolChoice("tool", ("read",)))
    body = sent(request)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["files__read", "read"]


def test_hosted_tools_of_others_are_dropped_with_a_notice() -> None:
    request = hi_request(tools=(F, Tool("web_search", "hosted", hosted={"type": "web_search"})))
    assert sent(request)["tools"] == [WRITTEN]
    assert notices_of(request) == ("dropped tool web_search: it runs only at its own provider",)


CHOICES: list[tuple[ToolChoice, dict[str, Any], Any, tuple[str, ...]]] = [
    (ToolChoice("auto"), {}, "auto", ()),
    (ToolChoice("none"), {}, "none", ()),
    (ToolChoice("required"), {}, "required", ()),
    (ToolChoice("tool", ("f",)), {}, {"type": "function", "function": {"name": "f"}}, ()),
    (ToolChoice("required", ("f",)), {}, {"type": "function", "function": {"name": "f"}}, ()),
    (
        ToolChoice("required", ("f", "g")),
        {},
        "required",
        ("dropped the list of allowed tools: chat upstreams accept one tool or all",),
    ),
    (ToolChoice("auto"), {"tool_choice": "auto_only"}, "auto", ()),
    (
        ToolChoice("tool", ("f",)),
        {"tool_choice": "auto_only"},
        "auto",
        ("dropped tool_choice: this upstream accepts only auto and none",),
    ),
    (
        ToolChoice("required"),
        {"tool_choice": "no_required"},
        "auto",
        ("dropped tool_choice required: this upstream has no such mode",),
    ),
    (
        ToolChoice("tool", ("f",)),
        {"tool_choice": "no_required"},
        {"type": "function", "function": {"name": "f"}},
        (),
    ),
]


@pytest.mark.parametrize(("choice", "dialect", "expected", "notices"), CHOICES, ids=range(len(CHOICES)))
def test_the_choice_of_tools_is_written(
    choice: ToolChoice, dialect: dict[str, Any], expected: Any, notices: tuple[str, ...]
) -> None:
    request, to = hi_request(tools=(F, Tool("g")), tool_choice=choice), with_dialect(**dialect)
    assert sent(request, to)["tool_choice"] == expected
    assert notices_of(request, to) == notices


def test_a_chosen_custom_tool_of_a_chat_client_is_chosen_as_custom() -> None:
    chosen = {"type": "custom", "custom": {"name": "patch"}}
    tools = [{"type": "custom", "custom": {"name": "patch"}}]
    assert sent(decoded(tools=tools, tool_choice=chosen))["tool_choice"] == chosen


def test_parallel_tool_calls_is_sent_where_it_is_supported() -> None:
    request = hi_request(tools=(F,), parallel_tool_calls=False)
    assert sent(request)["parallel_tool_calls"] is False
    to = with_dialect(parallel_tool_calls=False)
    assert "parallel_tool_calls" not in sent(request, to)
    assert notices_of(request, to) == ("dropped parallel_tool_calls: this upstream has no such setting",)


def test_a_notice_is_given_once_in_short_lines() -> None:
    request = hi_request(extras={"größe" + "x" * 200: 1, "a": 1}, tools=(), top_k=1)
    lines = notices_of(request)
    assert lines[0] == "dropped top_k: chat has no such field"
    assert all(line.isprintable() and len(line) <= 120 for line in lines)
    assert len(lines) == 3
