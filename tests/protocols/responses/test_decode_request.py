from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.chat import CODEC as CHAT
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.responses.content import ITEM, PART, seal_call_signature, seal_reasoning
from routecodex.protocols.responses.decode_request import decode_request
from routecodex.protocols.responses.encode_request import encode_request
from routecodex.protocols.responses.validate import validate
from routecodex.protocols.sealed_signatures import seal


def decoded(**fields: Any) -> Request:
    return decode_request(validate(json.dumps({"model": "m", "input": "hi", **fields}).encode()))


def test_plain_text_is_a_user_message() -> None:
    assert decoded(instructions="be brief") == Request(
        model="m",
        source="responses",
        messages=(Message("user", (Text("hi"),)),),
        system=(Text("be brief"),),
        include_usage=True,
    )


def test_items_of_one_assistant_turn_are_one_message() -> None:
    request = decoded(
        input=[
            {"role": "user", "content": "go"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "message",
                "role": "assistant",
                "phase": "commentary",
                "content": [{"type": "output_text", "text": "I look"}],
            },
            {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}", "namespace": "fs"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
            {"type": "function_call_output", "call_id": "c1", "output": "a b"},
            {
                "type": "custom_tool_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "done"}],
            },
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    assert request.messages == (
        Message("user", (Text("go"),)),
        Message(
            "assistant",
            (
                Reasoning("hm", id="rs_1"),
                Text("I look", extras={ITEM: {"phase": "commentary"}}),
                ToolCall("c1", "ls", "{}", namespace="fs"),
                ToolCall("c2", "apply_patch", "*** Begin", custom=True),
            ),
        ),
        Message(
            "tool",
            (ToolResult("c1", (Text("a b"),)), ToolResult("c2", (Text("done"),), custom=True)),
        ),
        Message("assistant", (Refusal("no"),)),
    )


def test_leading_developer_items_are_system_text_and_later_ones_stay_in_place() -> None:
    request = decoded(
        instructions="base",
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": t} for t in ("one", "two")]},
            {"role": "user", "content": "hi"},
            {"role": "developer", "content": "mid"},
            {"role": "system", "content": "old style"},
        ],
    )
    assert [text.text for text in request.system] == ["base", "one", "two"]
    assert request.messages[1:] == (
        Message("system", (Text("mid"),)),
        Message("system", (Text("old style"),), extras={"role": "system"}),
    )


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "high"},
            Media("image", media_type="image/png", data="QUJD", detail="high"),
        ),
        ({"type": "input_image", "image_url": "https://a/b.png"}, Media("image", url="https://a/b.png")),
        ({"type": "input_image", "image_url": {"url": "https://a/b"}}, Media("image", url="https://a/b")),
        ({"type": "input_image", "file_id": "file_1"}, Media("image", file_id="file_1")),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
            Media("file", media_type="application/pdf", data="QQ==", name="a.pdf"),
        ),
        ({"type": "input_file", "file_url": "https://a/b.pdf"}, Media("file", url="https://a/b.pdf")),
        (
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}},
            Media("audio", media_type="audio/mpeg", data="QQ=="),
        ),
        (
            {"type": "input_smell", "smell": 1},
            Opaque("responses", {PART: {"type": "input_smell", "smell": 1}}),
        ),
    ],
)
def test_content_parts(content: dict[str, Any], part: Any) -> None:
    assert decoded(input=[{"role": "user", "content": [content]}]).messages == (Message("user", (part,)),)


def test_items_only_responses_has_are_opaque() -> None:
    call = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    output = {"type": "computer_call_output", "call_id": "x", "output": {"type": "computer_screenshot"}}
    assert decoded(input=[call, output]).messages == (
        Message("assistant", (Opaque("responses", call),)),
        Message("tool", (Opaque("responses", output),)),
    )


def test_tools_choice_and_settings_have_canonical_fields() -> None:
    request = decoded(
        tools=[
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "defer": 1},
            {"type": "custom", "name": "p", "format": {"type": "text"}},
            {
                "type": "namespace",
                "name": "ns",
                "description": "d",
                "tools": [{"type": "function", "name": "g"}],
            },
            {"type": "web_search"},
        ],
        tool_choice={"type": "function", "name": "f"},
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}},
        reasoning={"effort": "high", "summary": "auto"},
        include=["message.output_text.logprobs"],
        prompt_cache_key="key",
        safety_identifier="u1",
        store=False,
        previous_response_id="resp_0",
        max_output_tokens=100,
        top_logprobs=2,
        metadata={"a": "b"},
        service_tier="flex",
        parallel_tool_calls=False,
    )
    assert request.tools == (
        Tool("f", parameters={"type": "object"}, strict=True, extras={"defer": 1}),
        Tool("p", kind="custom", format={"type": "text"}),
        Tool("g", namespace="ns", namespace_description="d"),
        Tool("web_search", kind="hosted", hosted={"type": "web_search"}),
    )
    assert request.tool_choice == ToolChoice("tool", ("f",))
    assert request.output == Output("json_schema", name="n", schema={"a": 1})
    assert request.verbosity == "low"
    assert request.thinking == Thinking(effort="high", summary="auto")
    assert (request.logprobs, request.top_logprobs) == (True, 2)
    assert (request.cache_key, request.user, request.service_tier) == ("key", "u1", "flex")
    assert (request.max_tokens, request.parallel_tool_calls) == (100, False)
    assert request.extras == {
        "include": ["message.output_text.logprobs"],
        "store": False,
        "previous_response_id": "resp_0",
    }


@pytest.mark.parametrize(
    ("sent", "choice"),
    [
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "custom", "name": "p"}, ToolChoice("tool", ("p",))),
        ({"type": "web_search_preview"}, ToolChoice("tool", ("web_search_preview",))),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
            },
            ToolChoice("required", ("f", "web_search")),
        ),
    ],
)
def test_tool_choices(sent: Any, choice: ToolChoice) -> None:
    assert decoded(tool_choice=sent).tool_choice == choice


def reasoning(encrypted: str | None) -> Request:
    return decoded(
        input=[
            {"type": "reasoning", "summary": [], "encrypted_content": encrypted},
            {"type": "function_call", "call_id": "c.1", "name": "f", "arguments": "{}"},
        ]
    )


def test_sealed_reasoning_has_its_owner() -> None:
    assert reasoning(seal("p", "sig")).messages[0].parts[0] == Reasoning(signature="sig", origin="p")


def test_unsealed_signature_has_no_owner() -> None:
    assert reasoning("gAAA").messages[0].parts[0] == Reasoning(signature="gAAA")


def test_sealed_redacted_and_unsigned_reasoning_are_recognised() -> None:
    redacted = seal_reasoning("p", "data", redacted=True)
    assert reasoning(redacted).messages[0].parts[0] == Reasoning(signature="data", redacted=True, origin="p")
    unsigned = seal_reasoning("p", "", redacted=False)
    assert reasoning(unsigned).messages[0].parts[0] == Reasoning(origin="p")


def test_signature_of_a_call_returns_to_the_call() -> None:
    parts = reasoning(seal_call_signature("p", "c.1", "sig")).messages[0].parts
    assert parts == (ToolCall("c.1", "f", "{}", signature="sig", origin="p"),)


def test_penalties_of_open_responses_reach_other_protocols() -> None:
    request = decoded(presence_penalty=0.5, frequency_penalty=-1)
    assert (request.presence_penalty, request.frequency_penalty, request.extras) == (0.5, -1, None)
    options = EncodeOptions(model="m", provider="p")
    for encode in (encode_request, CHAT.encode_request):
        sent = encode(request, options)
        fields = json.loads(sent.body)
        assert (fields["presence_penalty"], fields["frequency_penalty"], sent.notices) == (0.5, -1, ())


@pytest.mark.parametrize("length", ["²", "9" * 5000])
def test_a_seal_with_a_length_that_is_not_one_is_reasoning(length: str) -> None:
    part = reasoning(f"rcx1.up.call:{length}:x").messages[0].parts[0]
    assert part == Reasoning(signature=f"call:{length}:x", origin="up")
