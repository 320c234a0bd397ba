from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.request import Effort, Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.gemini import CODEC

HI = (Message("user", (Text("Hi"),)),)
LOOK = Tool("look", parameters={"$schema": "x", "properties": {}})


def encode(
    model: str = "gemini-2.5-flash", *, dialect: Dialect | None = None, **fields: Any
) -> tuple[Any, tuple[str, ...]]:
    options = EncodeOptions(
        model=model, provider="google", dialect=dialect or Dialect(), max_output_tokens=1000
    )
    encoded = CODEC.encode_request(Request(model="m", messages=HI, source="chat", **fields), options)
    return json.loads(encoded.body), encoded.notices


THINKING: list[tuple[str, Thinking, dict[str, Any] | None]] = [
    ("gemini-2.5-flash", Thinking(budget=2000), {"thinkingBudget": 2000, "includeThoughts": True}),
    ("gemini-2.5-flash", Thinking(budget=31999), {"thinkingBudget": 24576, "includeThoughts": True}),
    ("gemini-2.5-pro", Thinking(budget=31999, visible=False), {"thinkingBudget": 31999}),
    ("gemini-2.5-flash", Thinking(enabled=False), {"thinkingBudget": 0}),
    ("gemini-2.5-pro", Thinking(enabled=False), {"thinkingBudget": 128}),
    ("gemini-2.5-flash", Thinking(adaptive=True), {"thinkingBudget": -1, "includeThoughts": True}),
    ("gemini-3-pro-preview", Thinking(effort="medium"), {"thinkingLevel": "high", "includeThoughts": True}),
    ("gemini-3.1-pro", Thinking(effort="medium"), {"thinkingLevel": "medium", "includeThoughts": True}),
    ("gemini-3-flash", Thinking(enabled=False), {"thinkingLevel": "minimal"}),
    ("gemini-3-flash", Thinking(budget=5), {"thinkingBudget": 5, "includeThoughts": True}),
    ("gemini-2.0-flash", Thinking(effort="high"), None),
]


@pytest.mark.parametrize(("model", "thinking", "config"), THINKING)
def test_thinking_in_the_form_of_each_model(
    model: str, thinking: Thinking, config: dict[str, Any] | None
) -> None:
    body, _ = encode(model, thinking=thinking)
    assert body.get("generationConfig", {}).get("thinkingConfig") == config


EFFORTS: list[tuple[Effort, int]] = [
    ("none", 0),
    ("minimal", 512),
    ("low", 1024),
    ("medium", 8192),
    ("high", 24576),
    ("max", 24576),
]


@pytest.mark.parametrize(("effort", "budget"), EFFORTS)
def test_effort_is_a_budget_for_gemini_2_5(effort: Effort, budget: int) -> None:
    body, _ = encode(thinking=Thinking(effort=effort, visible=False))
    assert body["generationConfig"] == {"thinkingConfig": {"thinkingBudget": budget}}


def test_tools_of_every_kind() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    tools = (
        LOOK,
        Tool("plain"),
        Tool("patch", "custom", description="Patches.", format=grammar),
        Tool("read", namespace="files", parameters={"type": "object"}),
        Tool("web_search", "hosted", hosted={"type": "web_search"}),
    )
    body, notices = encode(tools=tools, tool_choice=ToolChoice("tool", ("read",)), parallel_tool_calls=False)
    declared = body["tools"][0]["functionDeclarations"]
    assert [tool["name"] for tool in declared] == ["look", "plain", "patch", "files__read"]
    assert declared[0]["parametersJsonSchema"] == {"type": "object", "properties": {}}
    assert declared[1] == {"name": "plain"}
    assert declared[2]["description"] == "Patches.\n\nThe input must follow this lark grammar:\nstart: WORD"
    assert declared[2]["parametersJsonSchema"]["required"] == ["input"]
    calling = body["toolConfig"]["functionCallingConfig"]
    assert calling == {"mode": "ANY", "allowedFunctionNames": ["files__read"]}
    assert notices == (
        "dropped tool web_search: hosted by a provider of chat",
        "dropped parallel_tool_calls: Gemini may always call several tools",
    )


def test_unsupported_fields_are_reported_once() -> None:
    body, notices = encode(
        stop=("a", "b", "c", "d", "e", "f"),
        metadata={"a": "b"},
        user="u",
        cache_key="k",
        verbosity="low",
        service_tier="scale",
        max_tokens=5000,
        extras={"store": True, "logit_bias": {}},
        system=(Text("S", cache={"type": "ephemeral"}),),
    )
    assert body["generationConfig"] == {"maxOutputTokens": 1000, "stopSequences": ["a", "b", "c", "d", "e"]}
    whats = [notice.split(":")[0].removeprefix("dropped ") for notice in notices]
    assert whats == [
        "cache_control",
        "stop",
        "service_tier",
        "logit_bias",
        "verbosity",
        "metadata",
        "user",
        "cache_key",
    ]
    assert all(len(notice) <= 120 and notice.isascii() for notice in notices)


def test_json_output_with_tools_needs_gemini_3() -> None:
    output = Output("json_schema", schema={"type": "object", "$schema": "x"})
    new, _ = encode("gemini-3-flash", tools=(LOOK,), output=output)
    assert new["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }
    old, notices = encode(tools=(LOOK,), output=output)
    assert "generationConfig" not in old
    assert notices == ("dropped response_format: this model takes no JSON output together with tools",)


def test_a_dialect_is_honoured() -> None:
    dialect = Dialect(
        unsupported=("topK", "tools"),
        tool_choice="auto_only",
        response_format="json_object",
        reasoning_field="none",
    )
    body, notices = encode(
        dialect=dialect,
        top_k=3,
        tool_choice=ToolChoice("required"),
        tools=(LOOK,),
        thinking=Thinking(effort="low"),
    )
    assert body["generationConfig"] == {}
    assert "tools" not in body
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}
    assert len(notices) == 4


@pytest.mark.parametrize(
    ("model", "stream", "path"),
    [
        ("gemini-2.5-pro", False, "/v1beta/models/gemini-2.5-pro:generateContent"),
        ("models/gemini-x", True, "/v1beta/models/gemini-x:streamGenerateContent?alt=sse"),
        ("odd?name", False, "/v1beta/models/odd%3Fname:generateContent"),
    ],
)
def test_the_path_names_model_and_method(model: str, stream: bool, path: str) -> None:
    assert CODEC.path(model, stream) == path
