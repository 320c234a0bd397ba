from __future__ import annotations

from typing import Any

import pytest

from routecodex import IS_COMPILED
from routecodex.canon.errors import BadRequest
from routecodex.protocols.messages.validate import validate, validate_count
from routecodex.wire import json
from tests.protocols.messages.samples import body

CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def after_call(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "go"}, CALL, {"role": "user", "content": list(blocks)}]}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"model": "a\x00b"}, "model"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (user({"text": "no type"}), "messages[0].content[0].type"),
    (user({"type": "text"}), "messages[0].content[0].text"),
    (user({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (user({"type": "image"}), "messages[0].content[0].source"),
    (user({"type": "image", "source": {"type": "base64"}}), "messages[0].content[0].source.media_type"),
    (user({"type": "image", "source": {"type": "url", "url": 5}}), "messages[0].content[0].source.url"),
    (
        user({"type": "document", "title": {"a": 1}, "source": {"type": "url", "url": "https://a.example"}}),
        "messages[0].content[0].title",
    ),
    (user({"type": "tool_result", "tool_use_id": "a"}), "messages[0].content[0].tool_use_id"),
    (after_call({"type": "tool_result"}), "messages[2].content[0].tool_use_id"),
    (after_call({"type": "tool_result", "tool_use_id": ""}), "messages[2].content[0].tool_use_id"),
    (after_call({"type": "tool_result", "tool_use_id": "b"}), "messages[2].content[0].tool_use_id"),
    (
        after_call({"type": "tool_result", "tool_use_id": "a", "content": 5}),
        "messages[2].content[0].content",
    ),
    (
        after_call({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": 5}]}),
        "messages[2].content[0].content[0].text",
    ),
    (
        after_call({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}]}),
        "messages[2].content[0].content[0].text",
    ),
    (
        {"messages": [{"role": "assistant", "content": [*CALL["content"], *CALL["content"]]}]},
        "messages[0].content[1].id",
    ),
    (user({"type": "tool_use", "id": "a", "name": "", "input": {}}), "messages[0].content[0].name"),
    (user({"type": "tool_use", "id": "a", "name": "f"}), "messages[0].content[0].input"),
    (user({"type": "tool_use", "id": "a", "name": "f", "input": []}), "messages[0].content[0].input"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a\x00", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [{"name": "a", "input_schema": "x"}]}, "tools[0].input_schema"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": 0.5}, "top_k"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences[0]"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"output_config": {"format": "x"}}, "output_config.format"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_the_invalid_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        validate(body(**fields))
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_required_fields_are_required(name: str) -> None:
    fields = json.decode(body())
    del fields[name]
    with pytest.raises(BadRequest) as caught:
        validate(json.encode(fields))
    assert (caught.value.param, caught.value.code) == (name, "missing_field")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"[" * 5000])
def test_a_body_that_is_not_an_object_is_rejected(data: bytes) -> None:
    with pytest.raises(BadRequest):
        validate(data)


def test_an_unknown_role_names_the_allowed_ones() -> None:
    with pytest.raises(BadRequest, match="user, assistant, system; got 'robot'"):
        validate(body(messages=[{"role": "robot", "content": "x"}]))


TOLERATED: list[dict[str, Any]] = [
    {"tomorrow": {"x": 1}},
    user({"type": "hologram", "content": {"a": 1}, "source": "s"}),
    user({"type": "search_result", "source": "https://x", "title": "t", "content": []}),
    user({"type": "text", "text": "NUL \x00 and \ufffd are content"}),
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "mcp_toolset"}]},
    {"thinking": {"type": "tomorrow"}},
    {"system": None, "tools": None, "tool_choice": None, "metadata": {"user_id": None}, "stream": None},
    {"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
    {"max_tokens": 0},
    after_call({"type": "tool_result", "tool_use_id": "a"}),
    after_call({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference"}]}),
]


@pytest.mark.parametrize("fields", TOLERATED)
def test_unknown_fields_are_accepted(fields: dict[str, Any]) -> None:
    assert validate(body(**fields)).model == "asked"


RESULTS: dict[str, tuple[bytes, str]] = {
    "one text": (b'[{"type":"text","text":"done"}]', ""),
    "one text with blanks": (b'[{"type": "text", "text": "done"}]', ""),
    "other blanks": (b'[ {"type":"text" ,"text":"done"}]', ""),
    "escapes": (b'[{"type":"text","text":"a \\"b\\" \\\\"}]', ""),
    "an empty text": (b'[{"type":"text","text":""}]', ""),
    "two texts": (b'[{"type":"text","text":"a"},{"type":"text","text":"b"}]', ""),
    "another field": (b'[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]', ""),
    "a number for a text": (b'[{"type":"text","text":5}]', "content[0].text"),
    "a text and a number": (b'[{"type":"text","text":"a"},5]', "content[1]"),
    "a second text that is a number": (b'[{"type":"text","text":"a","text":5}]', "content[0].text"),
}


@pytest.mark.parametrize("scans", [False, True] if not IS_COMPILED else [True])
@pytest.mark.parametrize(("result", "wrong"), RESULTS.values(), ids=RESULTS)
def test_a_result_is_accepted_or_refused_the_same_with_and_without_a_scan(
    result: bytes, wrong: str, scans: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not IS_COMPILED:
        monkeypatch.setattr("routecodex.protocols.messages.validate._SCANS", scans)
    fields = after_call({"type": "tool_result", "tool_use_id": "a", "content": "HERE"})
    data = body(**fields).replace(b'"HERE"', result)
    if not wrong:
        assert validate(data).body is data
        return
    with pytest.raises(BadRequest) as caught:
        validate(data)
    assert caught.value.param == f"messages[2].content[0].{wrong}"


def test_the_body_decides_whether_to_stream() -> None:
    assert not validate(body()).stream
    assert validate(body(stream=True)).stream


def test_a_count_needs_no_max_tokens() -> None:
    data = json.encode({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert validate_count(data).model == "m"
    with pytest.raises(BadRequest, match="messages"):
        validate_count(b'{"model":"m"}')
