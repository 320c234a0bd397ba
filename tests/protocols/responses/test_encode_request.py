from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages import CODEC as MESSAGES
from routecodex.protocols.responses.decode_request import decode_request
from routecodex.protocols.responses.encode_request import encode_request
from routecodex.protocols.responses.validate import validate

OPTIONS = EncodeOptions(model="up", provider="p")
USER_FIELDS = ("user", "safety_identifier")


def request_of(*messages: Message, **fields: Any) -> Request:
    return Request(**{"model": "m", "source": "chat", "messages": messages, **fields})


def encoded(request: Request, options: EncodeOptions = OPTIONS) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode_request(request, options).body)
    return value


def input_of(*parts: Part, role: Any = "assistant", **fields: Any) -> Any:
    return encoded(request_of(Message(role, parts), **fields))["input"]


def round_trip(sent: dict[str, Any]) -> dict[str, Any]:
    return encoded(
        decode_request(validate(json.dumps(sent).encode())), EncodeOptions(model=sent["model"], provider="p")
    )


CODEX: dict[str, Any] = {
    "model": "gpt",
    "instructions": "be",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "x"}, {"type": "summary_text", "text": "y"}],
            "content": None,
            "encrypted_content": "gAAA",
        },
        {
            "type": "message",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "spawn", "arguments": "{}", "namespace": "ag"},
        {
            "type": "custom_tool_call",
            "call_id": "c2",
            "name": "apply_patch",
            "input": "x",
            "status": "completed",
        },
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [
                {"type": "input_text", "text": "t"},
                {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "auto"},
            ],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "one"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "mid"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_smell", "smell": 1}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "strict": False, "parameters": {}},
        {"type": "custom", "name": "apply_patch", "description": "p", "format": {"type": "text"}},
        {
            "type": "namespace",
            "name": "ag",
            "description": "agents",
            "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
        },
        {"type": "web_search", "external_web_access": True},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "text": {"verbosity": "low"},
    "service_tier": "priority",
    "client_metadata": {"x": "y"},
}


def test_a_codex_request_survives_decoding_and_encoding() -> None:
    assert round_trip(CODEX) == CODEX


def test_system_becomes_instructions_and_mid_system_a_developer_item() -> None:
    body = encoded(
        request_of(
            Message("user", (Text("hi"),)), Message("system", (Text("now"),)), system=(Text("a"), Text("b"))
        )
    )
    assert body["instructions"] == "a\n\nb"
    assert body["input"][1]["role"] == "developer"


def test_requests_of_other_protocols_are_not_stored_and_get_encrypted_reasoning() -> None:
    body = encoded(request_of(Message("user", (Text("hi"),)), thinking=Thinking(budget=9000), stream=True))
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert body["stream"] is True


@pytest.mark.parametrize(
    ("display", "sent"),
    [("summarized", {"summary": "auto"}), ("omitted", None), (None, {"summary": "auto"})],
)
def test_display_of_messages_is_a_summary_that_openai_accepts(display: str | None, sent: Any) -> None:
    """Anthropic docs, extended thinking: `display` is `summarized` or `omitted`."""
    thinking = {"type": "adaptive"} | ({"display": display} if display else {})
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": thinking,
    }
    request = MESSAGES.decode_request(MESSAGES.validate(json.dumps(body).encode()))
    assert encoded(request).get("reasoning") == sent


def test_results_and_calls_become_items_of_their_kind() -> None:
    items = encoded(
        request_of(
            Message("assistant", (Text(""), ToolCall("c1", "f"), ToolCall("c2", "p", "free", custom=True))),
            Message(
                "user",
                (
                    ToolResult("c1", (Text("one"), Media("image", media_type="image/png", data="QQ=="))),
                    ToolResult("c2", (Text("two"),)),
                    Text("and?"),
                ),
            ),
        )
    )["input"]
    assert items == [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "free"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "one"},
                {"type": "input_image", "image_url": "data:image/png;base64,QQ=="},
            ],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "two"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]


def test_call_without_a_result_gets_one() -> None:
    assert [item["type"] for item in input_of(ToolCall("c1", "f"))] == [
        "function_call",
        "function_call_output",
    ]


def test_overlong_call_ids_are_mapped_alike_in_call_and_result() -> None:
    long = "x" * 90
    call, result = encoded(
        request_of(Message("assistant", (ToolCall(long, "f"),)), Message("tool", (ToolResult(long),)))
    )["input"]
    assert call["call_id"] == result["call_id"]
    assert len(call["call_id"]) <= 64


@pytest.mark.parametrize(
    ("part", "source", "items"),
    [
        (Reasoning("t", signature="s", origin="p"), "messages", 1),
        (Reasoning("t", signature="s", origin="other"), "responses", 0),
        (Reasoning("t", signature="s"), "responses", 1),
        (Reasoning("t", signature="s"), "messages", 0),
        (Reasoning("t"), "chat", 0),
        (Reasoning("t", id="rs_1"), "responses", 1),
        (Reasoning("t", origin="p"), "responses", 0),
        (Reasoning(signature="s", origin="p", redacted=True), "messages", 0),
    ],
)
def test_reasoning_returns_only_to_its_owner(part: Reasoning, source: Any, items: int) -> None:
    encoded_request = encode_request(request_of(Message("assistant", (part,)), source=source), OPTIONS)
    assert len(json.loads(encoded_request.body)["input"]) == items
    assert bool(items) != ("dropped reasoning: made by another provider" in encoded_request.notices)


def test_signature_of_another_provider_is_not_sent() -> None:
    request = request_of(Message("assistant", (Reasoning(signature="s"),)), source="responses")
    options = EncodeOptions(model="up", provider="p", accepts_signature=lambda signature: False)
    assert encoded(request, options)["input"] == []


@pytest.mark.parametrize("source", ["chat", "responses"])
def test_user_and_safety_identifier_return_in_the_field_they_came_in(source: Any) -> None:
    alone = request_of(source=source, user="s", safety_identifier="s")
    assert {key: encoded(alone).get(key) for key in USER_FIELDS} == {"user": None, "safety_identifier": "s"}
    both = request_of(source=source, user="u", safety_identifier="s", extras={"safety_identifier": "s"})
    assert {key: encoded(both).get(key) for key in USER_FIELDS} == {"user": "u", "safety_identifier": "s"}
    assert encode_request(both, OPTIONS).notices == ()


@pytest.mark.parametrize(
    ("fields", "notice"),
    [
        ({"stop": ("x",)}, "dropped stop"),
        ({"top_k": 3}, "dropped top_k"),
        ({"seed": 1}, "dropped seed"),
        ({"frequency_penalty": 0.5}, "dropped frequency_penalty"),
        ({"extras": {"logit_bias": {}}}, "dropped logit_bias"),
        ({"service_tier": "gold"}, "dropped service_tier"),
        ({"metadata": {"k": "v" * 600}}, "dropped metadata"),
        ({"thinking": Thinking(enabled=False)}, "dropped thinking"),
        ({"tools": (Tool("bash", kind="hosted", hosted={"type": "bash_1"}),)}, "dropped tool"),
        ({"system": (Text("x", cache={"type": "ephemeral"}),)}, "dropped cache_control"),
        ({"messages": (Message("user", (Text("x"),), name="bob"),)}, "dropped name"),
        ({"extras": {"evil\r\nx: y \u00e9": 1}}, "dropped evil??x: y \u00e9"),
    ],
)
def test_unsupported_fields_are_reported(fields: dict[str, Any], notice: str) -> None:
    notices = encode_request(request_of(Message("user", (Text("hi"),)), **fields), OPTIONS).notices
    assert [line.startswith(notice) for line in notices] == [True]
    assert all(len(line) <= 120 and line.isprintable() for line in notices)


@pytest.mark.parametrize(
    ("part", "fragment"),
    [
        (Media("video", url="u"), "video"),
        (Media("image", file_id="f"), "image"),
        (Media("audio", url="u"), "audio"),
        (Opaque("messages", {}), "messages"),
    ],
)
def test_unsupported_parts_are_reported(part: Part, fragment: str) -> None:
    notices = encode_request(request_of(Message("user", (part,)), source="messages"), OPTIONS).notices
    assert len(notices) == 1
    assert fragment in notices[0]


def test_client_hints_are_dropped_without_a_notice() -> None:
    request = request_of(Message("user", (Text("hi"),)), extras={"store": True, "betas": []})
    assert encode_request(request, OPTIONS).notices == ()


def test_several_answers_are_rejected() -> None:
    with pytest.raises(BadRequest) as caught:
        encode_request(request_of(n=2), OPTIONS)
    assert caught.value.param == "n"


def test_dialect_is_honoured() -> None:
    dialect = Dialect(
        unsupported=("temperature", "store"),
        parallel_tool_calls=False,
        response_format="json_object",
        tool_choice="no_required",
        strict_tools=False,
        image_urls=False,
    )
    body = encoded(
        request_of(
            Message("user", (Text("hi"), Media("image", url="https://a"))),
            temperature=0.5,
            parallel_tool_calls=True,
            output=Output("json_schema", schema={}),
            tools=(Tool("f"),),
            tool_choice=ToolChoice("required"),
        ),
        EncodeOptions(model="up", provider="p", dialect=dialect),
    )
    assert set(body) == {"model", "input", "tools", "text"}
    assert body["text"] == {"format": {"type": "json_object"}}
    assert "strict" not in body["tools"][0]
    assert len(body["input"][0]["content"]) == 1


def test_tools_of_other_protocols_have_parameters_and_are_strict_only_on_request() -> None:
    tools = encoded(request_of(tools=(Tool("f"), Tool("g", strict=True, parameters={"type": "object"}))))[
        "tools"
    ]
    assert [tool["strict"] for tool in tools] == [False, True]
    assert tools[0]["parameters"] == {"type": "object", "properties": {}}


def test_grammar_of_chat_and_hosted_search_of_others_are_converted() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}}
    tools = encoded(
        request_of(
            tools=(
                Tool("p", kind="custom", format=grammar),
                Tool("web_search", kind="hosted", hosted={"type": "web_search_20250305"}),
            )
        )
    )["tools"]
    assert tools[0]["format"] == {"type": "grammar", "syntax": "lark", "definition": "x"}
    assert tools[1] == {"type": "web_search"}


HOSTED: list[tuple[str, str, bool]] = [
    ("web_search", "web_search_20250305", True),
    ("my_search", "web_search_20260209", True),
    ("google_search", "", True),
    ("enterprise_web_search", "", True),
    ("tool_search_tool_regex", "tool_search_tool_regex_20251119", False),
    ("tool_search_tool_bm25", "tool_search_tool_bm25_20251119", False),
    ("file_search", "file_search", False),
]


@pytest.mark.parametrize(("name", "kind", "is_search"), HOSTED)
def test_only_a_web_search_becomes_a_web_search(name: str, kind: str, is_search: bool) -> None:
    hosted = Tool(name, kind="hosted", hosted={"type": kind} if kind else {name: {}})
    body = encoded(request_of(tools=(Tool("f"), hosted), tool_choice=ToolChoice("tool", (name,))))
    assert [tool["type"] for tool in body["tools"]] == ["function", *(["web_search"] if is_search else [])]
    assert body.get("tool_choice") == ({"type": "web_search"} if is_search else None)


def test_limits_of_the_upstream_are_respected() -> None:
    small = encoded(request_of(max_tokens=1, user="u" * 300, cache_key="k" * 300))
    assert small["max_output_tokens"] == 16
    assert len(small["user"]) == len(small["prompt_cache_key"]) == 64
    capped = encoded(
        request_of(max_tokens=9999), EncodeOptions(model="m", provider="p", max_output_tokens=100)
    )
    assert capped["max_output_tokens"] == 100


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice("auto"), "auto"),
        (ToolChoice("required"), "required"),
        (ToolChoice("tool", ("f",)), {"type": "function", "name": "f"}),
        (ToolChoice("tool", ("p",)), {"type": "custom", "name": "p"}),
        (
            ToolChoice("required", ("f",)),
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
        ),
    ],
)
def test_tool_choices(choice: ToolChoice, sent: Any) -> None:
    tools = (Tool("f"), Tool("p", kind="custom"))
    assert encoded(request_of(tools=tools, tool_choice=choice))["tool_choice"] == sent


texts = st.builds(Text, st.text(min_size=1))
ids = st.text("abcdef", min_size=1, max_size=8)
content_parts = st.one_of(
    texts,
    st.builds(Media, st.just("image"), url=st.just("https://a/b")),
    st.builds(Media, st.just("image"), media_type=st.just("image/png"), data=st.just("QQ==")),
)
turns = st.lists(
    st.one_of(
        st.builds(Message, st.just("user"), st.lists(content_parts, min_size=1, max_size=3).map(tuple)),
        st.builds(Message, st.just("assistant"), st.lists(texts, min_size=1, max_size=2).map(tuple)),
    ),
    min_size=1,
    max_size=5,
)


@given(turns, st.none() | st.floats(0, 2), st.none() | st.integers(16, 9000), st.booleans())
def test_supported_messages_survive_the_round_trip(
    messages: list[Message], temperature: float | None, limit: int | None, stream: bool
) -> None:
    request = request_of(
        *messages,
        source="responses",
        temperature=temperature,
        max_tokens=limit,
        stream=stream,
        include_usage=True,
    )
    back = decode_request(validate(encode_request(request, EncodeOptions(model="m", provider="p")).body))
    assert _merged(back) == _merged(request)
    assert (back.temperature, back.max_tokens, back.stream) == (temperature, limit, stream)


def _merged(request: Request) -> list[tuple[str, list[Any]]]:
    """Merge neighbours of one role: the protocol has no boundary between assistant turns."""
    merged: list[tuple[str, list[Any]]] = []
    for message in request.messages:
        parts = [part.text if isinstance(part, Text | Refusal) else part for part in message.parts]
        if merged and merged[-1][0] == message.role == "assistant":
            merged[-1][1].extend(parts)
        else:
            merged.append((message.role, parts))
    return merged
