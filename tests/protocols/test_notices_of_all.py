"""What one protocol has and another has not is named, whichever the other is."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Media, Opaque, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, ProtocolName, Request, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.lost_fields import SERVER_HINTS
from routecodex.wire import json

OWN: dict[str, dict[str, Any]] = {
    "chat": {"logit_bias": {"1": 1}, "prediction": {}, "prompt_cache_retention": "24h"},
    "responses": {"truncation": "auto", "max_tool_calls": 3, "moderation": {}},
    "messages": {"context_management": {"edits": []}, "mcp_servers": [], "container": "c"},
    "gemini": {"safetySettings": [], "labels": {"a": "b"}, "cachedContent": "cachedContents/1"},
}
PAIRS = [(source, target) for source in get_args(ProtocolName) for target in CODECS if source != target]


def encoded(source: Any, target: str, **more: Any) -> tuple[dict[str, Any], str]:
    said = {"messages": (Message("user", (Text("Hi"),)),), "max_tokens": 100, **more}
    request = Request(model="m", source=source, **said)
    sent = CODECS[target].encode_request(request, EncodeOptions(model="m", provider="p"))
    return json.decode(sent.body), "; ".join(sent.notices)


def notices(source: Any, target: str, **more: Any) -> str:
    return encoded(source, target, **more)[1]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_field_without_a_home_is_named(source: Any, target: str) -> None:
    told = notices(source, target, extras=OWN[source])
    assert [name for name in OWN[source] if f"dropped {name}:" not in told] == []


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_what_only_speaks_to_its_own_server_is_not(source: Any, target: str) -> None:
    assert notices(source, target, extras=dict.fromkeys(SERVER_HINTS, True)) == ""


@pytest.mark.parametrize("field", ["conversation", "prompt"])
@pytest.mark.parametrize("target", ["chat", "messages", "gemini"])
def test_what_stands_for_something_kept_at_its_provider_is_refused(target: str, field: str) -> None:
    with pytest.raises(BadRequest, match=f"^{field}: ") as refused:
        notices("responses", target, extras={field: "x"})
    assert refused.value.param == field
    assert notices("responses", "responses", extras={field: "x"}) == ""
    assert f"dropped {field}:" in notices(
        "gemini" if target != "gemini" else "chat", target, extras={field: 1}
    )


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
def test_cache_hints_that_are_lost_are_named(target: str) -> None:
    told = notices("messages", target, system=(Text("s", cache={"type": "ephemeral"}),))
    assert "dropped cache_control:" in told


HINT = {"type": "ephemeral"}
HINTS = {
    "image": Message("user", (Media("image", "image/png", "AA", cache=HINT),)),
    "call": Message("assistant", (ToolCall("c", "f", "{}", cache=HINT),)),
    "result": Message("tool", (ToolResult("c", (Text("ok"),), cache=HINT),)),
}


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
@pytest.mark.parametrize("holder", HINTS)
def test_cache_hints_of_every_part_are_named(target: str, holder: str) -> None:
    call = Message("assistant", (ToolCall("c", "f", "{}"),))
    messages = (call, HINTS[holder]) if holder == "result" else (HINTS[holder],)
    assert "dropped cache_control:" in notices("messages", target, messages=messages)


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
def test_a_part_of_a_result_that_only_messages_has_is_named(target: str) -> None:
    part = Opaque("messages", {"type": "tool_reference", "tool_name": "f"})
    call = Message("assistant", (ToolCall("c", "f", "{}"),))
    told = notices("messages", target, messages=(call, Message("tool", (ToolResult("c", (part,)),))))
    assert told.count("dropped ") == 1


@pytest.mark.parametrize("target", ["chat", "responses"])
def test_an_image_of_an_answer_is_named_where_answers_cannot_have_one(target: str) -> None:
    answer = Message("assistant", (Media("image", "image/png", "AA"), Text("Here.")))
    assert notices("gemini", target, messages=(answer,)).startswith("dropped image")


@pytest.mark.parametrize("target", ["responses", "messages", "gemini"])
def test_the_name_of_a_message_is_named(target: str) -> None:
    assert "dropped name:" in notices("chat", target, messages=(Message("user", (Text("Hi"),), name="Ann"),))


CODE = Tool("code_execution", "hosted", hosted={"type": "code_execution_20250825", "name": "code_execution"})
CHOICES = (ToolChoice("required"), ToolChoice("tool", ("code_execution",)))


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
@pytest.mark.parametrize("choice", CHOICES, ids=["any", "named"])
def test_a_choice_goes_with_the_last_tool(target: str, choice: ToolChoice) -> None:
    body, told = encoded("messages", target, tools=(CODE,), tool_choice=choice)
    assert body.keys().isdisjoint({"tools", "tool_choice", "toolConfig"})
    assert "dropped tool_choice:" in told


@pytest.mark.parametrize("target", ["chat", "responses", "messages", "gemini"])
def test_a_choice_goes_with_the_tool_it_names(target: str) -> None:
    tools, choice = (Tool("t"), CODE), ToolChoice("tool", ("code_execution",))
    source: Any = "chat" if target == "messages" else "messages"
    body, told = encoded(source, target, tools=tools, tool_choice=choice)
    assert body["tools"]
    assert body.keys().isdisjoint({"tool_choice", "toolConfig"})
    assert "dropped tool_choice:" in told


@pytest.mark.parametrize("target", ["chat", "responses", "gemini"])
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_a_choice_that_forces_nothing_goes_without_a_word(target: str, mode: Any) -> None:
    body, told = encoded("messages", target, tools=(CODE,), tool_choice=ToolChoice(mode))
    assert body.keys().isdisjoint({"tools", "tool_choice", "toolConfig"})
    assert "tool_choice" not in told


DOCUMENT = Media("file", text="t", extras={"context": "c", "citations": {"enabled": True}, "source": {}})
FILM = Media("video", "video/mp4", "AA", extras={"videoMetadata": {"fps": 1}, "thoughtSignature": "s"})
CALLED = Message("assistant", (ToolCall("c", "f", "{}", extras={"caller": {"type": "direct"}}),))
GAVE = ToolResult("c", (Text("ok", extras={"partMetadata": {}, "odd": 1}),), extras={"wrapper": "output"})
LOST: list[tuple[Any, dict[str, Any], list[str]]] = [
    (
        "messages",
        {"tools": (Tool("f", extras={"type": "custom", "defer_loading": True, "input_examples": [{}]}),)},
        ["tool.defer_loading", "tool.input_examples"],
    ),
    ("messages", {"messages": (Message("user", (DOCUMENT,)),)}, ["file.context", "file.citations"]),
    ("gemini", {"messages": (Message("user", (FILM, FILM)),)}, ["video.videoMetadata"]),
    (
        "gemini",
        {"tools": (Tool("f", extras={"behavior": "BLOCKING", "response": {"type": "OBJECT"}}),)},
        ["tool.behavior", "tool.response"],
    ),
    ("gemini", {"messages": (CALLED, Message("tool", (GAVE,)))}, ["text.odd"]),
    ("messages", {"tools": (Tool("f", extras={"defer_loading": False, "input_examples": []}),)}, []),
    (
        "messages",
        {
            "messages": (
                Message("user", (Media("file", text="t", extras={"citations": {"enabled": False}}),)),
            )
        },
        [],
    ),
    (
        "responses",
        {
            "messages": (
                Message("assistant", (Text("a", extras={"responses.item": {"id": "m"}, "logprobs": [1]}),)),
            )
        },
        [],
    ),
]


@pytest.mark.parametrize("target", ["chat", "responses", "messages", "gemini"])
@pytest.mark.parametrize(("source", "fields", "lost"), LOST, ids=range(len(LOST)))
def test_fields_of_parts_and_tools_are_named_once(
    source: Any, fields: dict[str, Any], lost: list[str], target: str
) -> None:
    told = notices(source, target, **fields).split("; ")
    named = [line for line in told if line.startswith("dropped ") and "." in line.partition(":")[0]]
    assert named == ([] if source == target else [f"dropped {name}: only {source} has it" for name in lost])


@pytest.mark.parametrize("target", ["chat", "responses", "messages"])
def test_settings_of_gemini_are_named_one_by_one(target: str) -> None:
    config = {"temperature": 0.5, "responseModalities": ["TEXT"], "speechConfig": {}}
    asked = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": config}
    gemini = CODECS["gemini"]
    request = gemini.decode_request(gemini.validate(json.encode(asked), model="m", stream=False))
    told = "; ".join(CODECS[target].encode_request(request, EncodeOptions(model="m", provider="p")).notices)
    assert "dropped generationConfig.responseModalities:" in told
    assert "dropped generationConfig.speechConfig:" in told
    assert "temperature" not in told
