from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.responses.schema import RequestView, WireItem
from routecodex.protocols.responses.validate import validate

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def items(*values: Any) -> bytes:
    return body(input=list(values))


def view(request: WireRequest) -> RequestView:
    assert isinstance(request.view, RequestView)
    return request.view


def input_items(request: WireRequest) -> list[WireItem]:
    found = view(request).typed.input
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (b'{"input":"hi"}', "model"),
        (body(model=""), "model"),
        (body(model="a\0b"), "model"),
        (body(model=7), "model"),
        (b'{"model":"m"}', "input"),
        (body(input=[]), "input"),
        (body(input=7), "input"),
        (body(instructions=["x"]), "instructions"),
        (body(temperature="hot"), "temperature"),
        (body(max_output_tokens=1.5), "max_output_tokens"),
        (body(stream="yes"), "stream"),
        (body(background=True), "background"),
        (body(tools={}), "tools"),
        (body(tools=[{"name": "f"}]), "tools[0].type"),
        (body(tools=[{"type": "function"}]), "tools[0].name"),
        (body(tools=[{"type": "function", "name": "f", "parameters": "x"}]), "tools[0].parameters"),
        (
            body(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]),
            "tools[0].tools[0].name",
        ),
        (body(tool_choice="maybe"), "tool_choice"),
        (body(text={"format": "json"}), "text.format"),
        (body(reasoning={"effort": 3}), "reasoning.effort"),
        (items({"role": "wizard", "content": "x"}), "input[0].role"),
        (items({"type": "message", "content": "x"}), "input[0].role"),
        (items({"role": "user"}), "input[0].content"),
        (items({"role": "user", "content": [{"text": "x"}]}), "input[0].content[0].type"),
        (items({"content": "x"}), "input[0].type"),
        (items({**CALL, "call_id": ""}), "input[0].call_id"),
        (items({**CALL, "name": ""}), "input[0].name"),
        (items({**CALL, "arguments": {}}), "input[0].arguments"),
        (items({"type": "custom_tool_call", "call_id": "c", "name": "f"}), "input[0].input"),
        (items(CALL, CALL), "input[1].call_id"),
        (items(RESULT), "input[0].call_id"),
        (items(CALL, {**RESULT, "call_id": None}), "input[1].call_id"),
        (items(CALL, {**RESULT, "output": 5}), "input[1].output"),
        (items(CALL, {**RESULT, "output": ["x"]}), "input[1].output[0]"),
    ],
)
def test_wrong_field_is_named(sent: bytes, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        validate(sent)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}:")


def test_unknown_role_names_the_allowed_ones() -> None:
    with pytest.raises(BadRequest, match="'user', 'assistant', 'system', 'developer'"):
        validate(items({"role": "tool", "content": "x"}))


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 5000])
def test_a_body_that_is_not_a_json_object_is_rejected(sent: bytes) -> None:
    with pytest.raises(BadRequest):
        validate(sent)


def test_result_may_answer_a_call_of_an_earlier_response() -> None:
    request = validate(body(input=[RESULT], previous_response_id="resp_1"))
    assert view(request).previous_response_id == "resp_1"


def test_result_may_answer_a_referenced_or_hosted_call() -> None:
    referenced = validate(items({"type": "item_reference", "id": "fc_1"}, RESULT))
    assert view(referenced).references == ((0, "fc_1"),)
    hosted = validate(items({"type": "local_shell_call", "call_id": "c1", "action": {}}, RESULT))
    assert [item.type for item in input_items(hosted)] == ["local_shell_call", "function_call_output"]


def test_same_call_id_may_come_again_in_a_later_turn() -> None:
    request = validate(items(CALL, RESULT, CALL, RESULT))
    assert [item.call_id for item in input_items(request)] == ["c1"] * 4


def test_unknown_fields_and_items_pass() -> None:
    request = validate(
        body(
            input=[
                {"type": "hologram", "content": {"depth": 3}, "arguments": {"a": 1}, "output": 7},
                {"role": "user", "content": [{"type": "input_smell", "smell": "rose"}]},
            ],
            tools=[{"type": "time_travel", "until": 1999}],
            mood="good",
            stream=True,
        )
    )
    assert request.stream
    assert request.model == "m"


def test_odd_text_is_legal() -> None:
    for text in ("nul \0 and \u2028 and \U0001f600", ""):
        assert view(validate(body(input=text))).typed.input == text
