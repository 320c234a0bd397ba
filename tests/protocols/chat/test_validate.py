from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.validate import validate
from tests.protocols.chat.samples import body, wire_request

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def messages(*items: Any) -> dict[str, Any]:
    return {"messages": list(items)}


def user(*parts: Any) -> dict[str, Any]:
    return messages({"role": "user", "content": list(parts)})


def calls(*items: Any) -> dict[str, Any]:
    return messages({"role": "assistant", "tool_calls": list(items)})


def after_call(**result: Any) -> dict[str, Any]:
    return messages(CALLING, {"role": "tool", "content": "ok", **result})


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"model": "a\x00b"}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    (messages("hi"), "messages[0]"),
    (messages({"content": "x"}), "messages[0].role"),
    (messages({"role": "robot", "content": "x"}), "messages[0].role"),
    (messages({"role": 5, "content": "x"}), "messages[0].role"),
    (messages({"role": "user", "content": "a"}, {"role": "user", "content": 5}), "messages[1].content"),
    (messages({"role": "user"}), "messages[0].content"),
    (messages({"role": "user", "content": None}), "messages[0].content"),
    (messages({"role": "system"}), "messages[0].content"),
    (messages({"role": "developer"}), "messages[0].content"),
    (messages({"role": "user", "content": "x", "name": 5}), "messages[0].name"),
    (messages({"role": "assistant", "content": "x", "refusal": 5}), "messages[0].refusal"),
    (user("text"), "messages[0].content[0]"),
    (user({"text": "no type"}), "messages[0].content[0].type"),
    (user({"type": "text", "text": "a"}, {"type": "text", "text": 5}), "messages[0].content[1].text"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "image_url"}), "messages[0].content[0].image_url"),
    (user({"type": "image_url", "image_url": 5}), "messages[0].content[0].image_url"),
    (user({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url.url"),
    (user({"type": "image_url", "image_url": {"url": 5}}), "messages[0].content[0].image_url.url"),
    (user({"type": "image_url", "image_url": {"url": ""}}), "messages[0].content[0].image_url"),
    (user({"type": "image_url", "image_url": ""}), "messages[0].content[0].image_url"),
    (user({"type": "input_audio"}), "messages[0].content[0].input_audio"),
    (user({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].input_audio.data"),
    (user({"type": "file"}), "messages[0].content[0].file"),
    (user({"type": "file", "file": {}}), "messages[0].content[0].file"),
    (user({"type": "file", "file": {"file_data": 5}}), "messages[0].content[0].file.file_data"),
    (calls({"id": "a"}), "messages[0].tool_calls[0].function"),
    (calls({"id": "a", "type": "custom"}), "messages[0].tool_calls[0].custom"),
    (calls({"type": "function", "function": {"name": "f"}}), "messages[0].tool_calls[0].id"),
    (calls({**CALL, "id": ""}), "messages[0].tool_calls[0].id"),
    (calls({**CALL, "id": 5}), "messages[0].tool_calls[0].id"),
    (calls(CALL, CALL), "messages[0].tool_calls[1].id"),
    (calls({"id": "a", "function": {"arguments": "{}"}}), "messages[0].tool_calls[0].function.name"),
    (
        calls({"id": "a", "function": {"name": "f", "arguments": 5}}),
        "messages[0].tool_calls[0].function.arguments",
    ),
    (after_call(), "messages[1].tool_call_id"),
    (after_call(tool_call_id=""), "messages[1].tool_call_id"),
    (after_call(tool_call_id=5), "messages[1].tool_call_id"),
    (after_call(tool_call_id="b"), "messages[1].tool_call_id"),
    (after_call(tool_call_id="a", content=None), "messages[1].content"),
    (messages({"role": "tool", "tool_call_id": "a", "content": "x"}, CALLING), "messages[0].tool_call_id"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"n": -1}, "n"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": []}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"seed": "x"}, "seed"),
    ({"n": 0}, "n"),
    ({"n": "two"}, "n"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": "x"}, "top_logprobs"),
    ({"frequency_penalty": "x"}, "frequency_penalty"),
    ({"presence_penalty": "x"}, "presence_penalty"),
    ({"tools": {}}, "tools"),
    ({"tools": [{}]}, "tools[0].function"),
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "custom": {"name": "x"}}]}, "tools[0].function"),
    ({"tools": [{"type": "custom", "function": {"name": "x"}}]}, "tools[0].custom"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    (function(name=""), "tools[0].function.name"),
    (function(name="a\x00"), "tools[0].function.name"),
    (function(parameters="x"), "tools[0].function.parameters"),
    (function(strict="x"), "tools[0].function.strict"),
    ({"tools": [{"type": "custom", "custom": {"name": ""}}]}, "tools[0].custom.name"),
    ({"functions": [{"name": ""}]}, "functions[0].name"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": {"type": "custom"}}, "tool_choice.custom"),
    ({"tool_choice": {"type": "function", "function": {"name": 5}}}, "tool_choice.function.name"),
    ({"tool_choice": {"type": "function", "function": "f"}}, "tool_choice.function"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": "x"}}, "tool_choice.allowed_tools"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": ["a"]}}},
        "tool_choice.allowed_tools.tools[0]",
    ),
    ({"function_call": {"name": 5}}, "function_call.name"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format.json_schema.schema",
    ),
    ({"reasoning_effort": 5}, "reasoning_effort"),
    ({"verbosity": 5}, "verbosity"),
    ({"metadata": "x"}, "metadata"),
    ({"user": 5}, "user"),
    ({"safety_identifier": 5}, "safety_identifier"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"service_tier": 5}, "service_tier"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=[f"{at}-{row[1]}" for at, row in enumerate(WRONG)])
def test_the_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        wire_request(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    assert caught.value.code


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_required_field_must_be_there(missing: str) -> None:
    whole = {"model": b'"m"', "messages": b'[{"role":"user","content":"x"}]'}
    rest = b",".join(b'"%s":%s' % (name.encode(), whole[name]) for name in whole if name != missing)
    with pytest.raises(BadRequest) as caught:
        validate(b"{" + rest + b"}")
    assert (caught.value.param, caught.value.code) == (missing, "missing_field")


def test_an_unknown_role_names_the_known_ones() -> None:
    with pytest.raises(
        BadRequest, match="unknown role 'robot'; use one of system, developer, user, assistant"
    ):
        wire_request(messages=[{"role": "robot", "content": "x"}])


CODES = [
    (after_call(tool_call_id="b"), "orphan_tool_result"),
    (calls(CALL, CALL), "duplicate_id"),
    (after_call(), "missing_field"),
]


@pytest.mark.parametrize(("fields", "code"), CODES)
def test_errors_of_calls_have_a_code(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(BadRequest) as caught:
        wire_request(**fields)
    assert caught.value.code == code


RIGHT: list[dict[str, Any]] = [
    {"tomorrow": {"a": [1]}},
    messages({"role": "user", "content": ""}),
    messages({"role": "user", "content": "odd \x00 \u202e \U0001f600"}),
    messages({"role": "assistant"}, {"role": "user", "content": "x", "weight": 1}),
    messages(CALLING, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "x"}]}),
    messages(
        CALLING,
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        CALLING,
        {"role": "tool", "tool_call_id": "a", "content": "2"},
    ),
    messages(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ),
    calls({"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}),
    calls({"id": "a", "function": {"name": "f", "arguments": {"a": 1}}}),
    user({"type": "hologram", "hologram": {}}),
    user({"type": "image_url", "image_url": "https://x/y.png"}),
    user({"type": "file", "file": {"file_id": "file-1"}}),
    {"tools": [{"type": "web_search", "filters": {}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}]},
    {"tool_choice": "any"},
    {"tool_choice": {"type": "function", "name": "f"}},
    {"tool_choice": {"type": "web_search"}},
    {"function_call": {"name": "f"}},
    {"temperature": 1, "n": 2, "stop": "x", "metadata": {"a": 1}},
    {"reasoning": {"effort": "low"}, "thinking": {"type": "enabled"}, "enable_thinking": True},
]


@pytest.mark.parametrize("fields", RIGHT, ids=range(len(RIGHT)))
def test_valid_and_unknown_values_are_accepted(fields: dict[str, Any]) -> None:
    assert wire_request(**fields).body == body(**fields)


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage"),
    [
        ({}, False, False),
        ({"stream": None, "stream_options": None}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
    ],
)
def test_streaming_and_usage_are_decided_by_the_body(
    fields: dict[str, Any], stream: bool, include_usage: bool
) -> None:
    found = wire_request(**fields)
    assert (found.protocol, found.model, found.stream, found.include_usage) == (
        "chat",
        "asked",
        stream,
        include_usage,
    )


def test_model_and_stream_of_the_path_win() -> None:
    found = validate(body(stream=True), model="other", stream=False)
    assert (found.model, found.stream) == ("other", False)
