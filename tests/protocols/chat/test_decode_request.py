from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Thinking, Tool, ToolChoice
from routecodex.protocols.chat.decode_request import TOOL_EXTRAS
from tests.protocols.chat.samples import decoded, sent

FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": 5}, {"max_tokens": 5}),
    ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
    ({"max_tokens": -1}, {"max_tokens": None}),
    ({"temperature": 0.5, "top_p": 1, "top_k": 4}, {"temperature": 0.5, "top_p": 1, "top_k": 4}),
    ({"stop": "END"}, {"stop": ("END",)}),
    ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
    ({"stop": None}, {"stop": ()}),
    ({"seed": 7, "n": 2}, {"seed": 7, "n": 2}),
    ({"n": None}, {"n": 1}),
    (
        {"frequency_penalty": 0.1, "presence_penalty": 0.2},
        {"frequency_penalty": 0.1, "presence_penalty": 0.2},
    ),
    ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
    ({"user": "u", "prompt_cache_key": "k"}, {"user": "u", "cache_key": "k"}),
    ({"safety_identifier": "s"}, {"user": "s"}),
    ({"metadata": {"a": "b"}, "service_tier": "flex"}, {"metadata": {"a": "b"}, "service_tier": "flex"}),
    ({"verbosity": "low", "parallel_tool_calls": False}, {"verbosity": "low", "parallel_tool_calls": False}),
    ({"logit_bias": {"1": 2}, "store": True}, {"extras": {"logit_bias": {"1": 2}, "store": True}}),
    ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
    ({"response_format": {"type": "text"}}, {"output": None}),
    ({"response_format": {"type": "json_object"}}, {"output": Output("json_object")}),
    (
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
        {"output": Output("json_schema", "n", {"type": "object"}, True, "d")},
    ),
    ({"reasoning_effort": "high"}, {"thinking": Thinking(effort="high")}),
    ({"reasoning_effort": "none"}, {"thinking": Thinking(enabled=False, effort="none")}),
    ({"reasoning_effort": "gigantic"}, {"thinking": None}),
    ({"reasoning": {"effort": "low"}}, {"thinking": Thinking(effort="low")}),
    ({"reasoning": {"max_tokens": 99}}, {"thinking": Thinking(budget=99)}),
    ({"reasoning": {"effort": ["x"], "max_tokens": "y"}}, {"thinking": None}),
    ({"reasoning": "yes"}, {"thinking": None}),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": Thinking(budget=9)}),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, {"thinking": Thinking()}),
    ({"thinking": {"type": "disabled"}}, {"thinking": Thinking(enabled=False)}),
    ({"enable_thinking": True, "thinking_budget": 8}, {"thinking": Thinking(budget=8)}),
    ({"enable_thinking": False, "thinking_budget": "x"}, {"thinking": Thinking(enabled=False)}),
    ({"tool_choice": "required"}, {"tool_choice": ToolChoice("required")}),
    ({"tool_choice": "none"}, {"tool_choice": ToolChoice("none")}),
    ({"tool_choice": "whatever"}, {"tool_choice": ToolChoice("auto")}),
    (
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tool_choice": ToolChoice("tool", ("f",))},
    ),
    (
        {"tool_choice": {"type": "custom", "custom": {"name": "p"}}},
        {"tool_choice": ToolChoice("tool", ("p",))},
    ),
    ({"tool_choice": {"type": "function", "name": "f"}}, {"tool_choice": ToolChoice("tool", ("f",))}),
    ({"tool_choice": {"type": "web_search"}}, {"tool_choice": ToolChoice("auto")}),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [
                        {"type": "function", "function": {"name": "a"}},
                        {"type": "custom", "name": "b"},
                    ],
                },
            }
        },
        {"tool_choice": ToolChoice("required", ("a", "b"))},
    ),
    ({"tool_choice": {"type": "allowed_tools"}}, {"tool_choice": ToolChoice("auto")}),
    ({"function_call": {"name": "f"}}, {"tool_choice": ToolChoice("tool", ("f",))}),
    ({"function_call": "auto"}, {"tool_choice": ToolChoice("auto")}),
]


@pytest.mark.parametrize(("fields", "expected"), FIELDS, ids=range(len(FIELDS)))
def test_fields_become_canon(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    request = decoded(**fields)
    assert {name: getattr(request, name) for name in expected} == expected
    assert (request.model, request.source) == ("asked", "chat")


def test_a_thinking_budget_is_a_known_field() -> None:
    assert decoded(enable_thinking=True, thinking_budget=5).extras is None


PARTS: list[tuple[Any, tuple[Part, ...]]] = [
    ("hello", (Text("hello"),)),
    ("", ()),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}], (Text("a"), Text(""))),
    (
        [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "x": 1}],
        (Text("a", cache={"type": "ephemeral"}, extras={"x": 1}),),
    ),
    (
        [{"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}}],
        (Media("image", url="https://x/y.png", detail="low"),),
    ),
    ([{"type": "image_url", "image_url": "https://x/y.png"}], (Media("image", url="https://x/y.png"),)),
    (
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        (Media("image", "image/png", "AAAA"),),
    ),
    (
        [{"type": "image_url", "image_url": "data:image/svg,<svg>"}],
        (Media("image", url="data:image/svg,<svg>"),),
    ),
    ([{"type": "video_url", "video_url": {"url": "https://x/v"}}], (Media("video", url="https://x/v"),)),
    (
        [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}],
        (Media("audio", "audio/mp3", "AAAA"),),
    ),
    ([{"type": "input_audio", "input_audio": {"data": "AAAA"}}], (Media("audio", "audio/wav", "AAAA"),)),
    (
        [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}],
        (Media("file", "application/pdf", "AAAA", name="a.pdf"),),
    ),
    ([{"type": "file", "file": {"file_data": "AAAA"}}], (Media("file", "application/pdf", "AAAA"),)),
    (
        [{"type": "file", "file": {"file_data": "https://x/a.pdf", "filename": "a.pdf"}}],
        (Media("file", url="https://x/a.pdf", name="a.pdf"),),
    ),
    ([{"type": "file", "file": {"file_id": "file-1"}}], (Media("file", file_id="file-1"),)),
    ([{"type": "hologram", "x": 1}], (Opaque("chat", {"type": "hologram", "x": 1}),)),
]


@pytest.mark.parametrize(("content", "parts"), PARTS, ids=range(len(PARTS)))
def test_content_becomes_parts(content: Any, parts: tuple[Part, ...]) -> None:
    assert decoded(messages=[{"role": "user", "content": content}]).messages == (Message("user", parts),)


def test_leading_system_text_is_the_system_and_later_one_stays_in_place() -> None:
    request = decoded(
        messages=[
            {"role": "system", "content": "one"},
            {"role": "developer", "content": [{"type": "text", "text": "two"}]},
            {"role": "user", "content": "hi", "name": "ann", "weight": 1},
            {"role": "system", "content": "three"},
        ]
    )
    assert request.system == (Text("one"), Text("two"))
    assert request.messages == (
        Message("user", (Text("hi"),), name="ann", extras={"weight": 1}),
        Message("system", (Text("three"),)),
    )


def test_an_assistant_message_keeps_reasoning_text_refusal_and_calls_in_order() -> None:
    assistant = {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": "text",
        "refusal": "no",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}, "new": 1},
            {"id": "b", "type": "custom", "custom": {"name": "p", "input": "free"}},
            {"id": "c", "function": {"name": "g", "arguments": {"y": 2}}},
            {"id": "d", "function": {"name": "h"}},
        ],
        "odd": True,
    }
    assert decoded(messages=[assistant]).messages == (
        Message(
            "assistant",
            (
                Reasoning("hm"),
                Text("text"),
                Refusal("no"),
                ToolCall("a", "f", '{"x": 1}', extras={"new": 1}),
                ToolCall("b", "p", "free", custom=True),
                ToolCall("c", "g", '{"y":2}'),
                ToolCall("d", "h"),
            ),
            extras={"odd": True, "reasoning_content": "hm"},
        ),
    )


def test_results_name_their_calls() -> None:
    request = decoded(
        messages=[
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            {
                "role": "tool",
                "tool_call_id": "a",
                "name": "f",
                "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": "https://i"}],
            },
        ]
    )
    result = ToolResult("a", (Text("x"), Media("image", url="https://i")), name="f")
    assert request.messages[1] == Message("tool", (result,))


def test_old_function_calls_and_their_results_belong_together() -> None:
    request = decoded(
        functions=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        messages=[
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "1"},
        ],
    )
    assert request.tools == (Tool("f", description="d", parameters={"type": "object"}),)
    assert request.messages == (
        Message("assistant", (ToolCall("call_f", "f", "{}"),)),
        Message("tool", (ToolResult("call_f", (Text("1"),), name="f"),)),
    )


def test_tools_of_every_kind_are_read() -> None:
    search = {"type": "web_search", "filters": {"a": 1}}
    request = decoded(
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": {"type": "object"},
                    "strict": True,
                    "x": 1,
                },
                "cache_control": {"type": "ephemeral"},
            },
            {"type": "custom", "custom": {"name": "p", "description": "q", "format": {"type": "text"}}},
            search,
        ]
    )
    assert request.tools == (
        Tool(
            "f",
            description="d",
            parameters={"type": "object"},
            strict=True,
            cache={"type": "ephemeral"},
            extras={"x": 1},
        ),
        Tool("p", "custom", description="q", format={"type": "text"}),
        Tool("web_search", "hosted", hosted=search),
    )


def test_a_tool_without_type_is_a_function() -> None:
    # Mistral's SDK leaves the type out.
    function = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    tools = [{"function": function}, {"function": {"name": "f"}, "x": 1}]
    request = decoded(tools=tools, tool_choice="any")
    assert request.tools == (
        Tool("look", description="Looks.", parameters={"type": "object"}),
        Tool("f", extras={TOOL_EXTRAS: {"x": 1}}),
    )
    assert request.tool_choice == ToolChoice("required")
    plain = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert sent(request)["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": plain, "x": 1},
    ]
