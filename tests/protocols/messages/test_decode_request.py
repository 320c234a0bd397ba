from __future__ import annotations

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Thinking, Tool, ToolChoice
from routecodex.protocols import sealed_signatures
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.protocols.messages.thinking import carry_signature
from routecodex.protocols.messages.validate import validate
from tests.protocols.messages.samples import body, wire_request

EPHEMERAL = {"type": "ephemeral"}

BLOCKS: list[tuple[str, dict[str, object], Part]] = [
    ("user", {"type": "text", "text": "a", "cache_control": EPHEMERAL}, Text("a", cache=EPHEMERAL)),
    ("user", {"type": "text", "text": "a", "new": 1}, Text("a", extras={"new": 1})),
    ("assistant", {"type": "text", "text": "a", "citations": [{"c": 1}]}, Text("a", annotations=({"c": 1},))),
    (
        "user",
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}},
        Media("image", "image/png", "AA"),
    ),
    ("user", {"type": "image", "source": {"type": "url", "url": "u"}}, Media("image", url="u")),
    ("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}, Media("image", file_id="f")),
    (
        "user",
        {
            "type": "document",
            "title": "t",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
        },
        Media("file", "application/pdf", "AA", name="t"),
    ),
    (
        "user",
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
        Media("file", "text/plain", text="words"),
    ),
    (
        "user",
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "w"}]}},
        Media(
            "file",
            "text/plain",
            text="w",
            extras={"source": {"type": "content", "content": [{"type": "text", "text": "w"}]}},
        ),
    ),
    ("assistant", {"type": "thinking", "thinking": "t", "signature": "s"}, Reasoning("t", "s")),
    ("assistant", {"type": "thinking", "thinking": "t", "signature": ""}, Reasoning("t")),
    (
        "assistant",
        {"type": "thinking", "thinking": "t", "signature": sealed_signatures.seal("acme", "s")},
        Reasoning("t", "s", origin="acme"),
    ),
    (
        "assistant",
        {"type": "thinking", "thinking": "t", "signature": sealed_signatures.seal("acme", "")},
        Reasoning("t", origin="acme"),
    ),
    ("assistant", {"type": "redacted_thinking", "data": "d"}, Reasoning(signature="d", redacted=True)),
    (
        "assistant",
        {"type": "server_tool_use", "id": "s"},
        Opaque("messages", {"type": "server_tool_use", "id": "s"}),
    ),
]


@pytest.mark.parametrize(("role", "block", "part"), BLOCKS)
def test_blocks_become_parts(role: str, block: dict[str, object], part: Part) -> None:
    request = decode_request(wire_request(messages=[{"role": role, "content": [block]}]))
    assert request.messages[0].parts == (part,)


def test_calls_and_results_keep_their_ids() -> None:
    request = decode_request(
        wire_request(
            messages=[
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1, 2.5]}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "a",
                            "is_error": True,
                            "content": [
                                {"type": "text", "text": "no"},
                                {"type": "image", "source": {"type": "url", "url": "u"}},
                                {"type": "search_result"},
                            ],
                        },
                        {"type": "text", "text": "and now?"},
                    ],
                },
            ]
        )
    )
    call = ToolCall("a", "f", '{"x":[1,2.5]}')
    image = (Text("no"), Media("image", url="u"), Opaque("messages", {"type": "search_result"}))
    assert request.messages[1:] == (
        Message("assistant", (call,)),
        Message("user", (ToolResult("a", image, is_error=True), Text("and now?"))),
    )


def test_a_call_gets_back_the_signature_that_travelled_beside_it() -> None:
    content = [
        {"type": "redacted_thinking", "data": carry_signature("acme", "a", signature="s.1")},
        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
    ]
    request = decode_request(wire_request(messages=[{"role": "assistant", "content": content}]))
    assert request.messages[0].parts == (ToolCall("a", "f", "{}", signature="s.1", origin="acme"),)


def test_settings_have_their_homes() -> None:
    request = decode_request(
        wire_request(
            system=[{"type": "text", "text": "be brief", "cache_control": EPHEMERAL}],
            tools=[
                {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            metadata={"user_id": "u"},
            stop_sequences=["END"],
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            service_tier="standard_only",
            stream=True,
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}, "later": 1},
            container="c",
        )
    )
    assert request.system == (Text("be brief", cache=EPHEMERAL),)
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    assert request.tools == (
        Tool("f", description="d", parameters={"type": "object"}, strict=True),
        Tool("web_search", "hosted", hosted=hosted),
    )
    assert (request.tool_choice, request.parallel_tool_calls) == (ToolChoice("required"), False)
    assert (request.user, request.metadata, request.stop) == ("u", None, ("END",))
    assert (request.temperature, request.top_p, request.top_k, request.max_tokens) == (0.5, 0.9, 3, 100)
    assert (request.service_tier, request.stream, request.source) == ("default", True, "messages")
    assert request.output == Output("json_schema", schema={"type": "object"}, strict=True)
    assert request.extras == {"container": "c", "output_config": {"later": 1}}


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, Thinking(budget=2000)),
        ({"thinking": {"type": "adaptive"}}, Thinking(adaptive=True)),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, Thinking(adaptive=True, visible=False)),
        ({"output_config": {"effort": "high"}}, Thinking(effort="high")),
        ({"output_config": {"effort": "tomorrow"}}, None),
    ],
)
def test_thinking_is_understood(fields: dict[str, object], thinking: Thinking | None) -> None:
    assert decode_request(wire_request(**fields)).thinking == thinking


def test_an_invalid_value_in_an_unknown_field_is_a_client_error() -> None:
    broken = body(tomorrow="@").replace(b'"@"', b"1e999")
    with pytest.raises(BadRequest):
        decode_request(validate(broken))
