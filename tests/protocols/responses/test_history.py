from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.protocols.responses.history import (
    StoredTurn,
    decode_turn,
    encode_turn,
    expand,
    input_items,
    stored_turn,
    submit,
)
from routecodex.protocols.responses.schema import read
from tests.protocols.responses.streams import OUTPUT, call_item, response, text_item

CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "p", "input": "x"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def turn(request: bytes, *output: Any) -> StoredTurn:
    return stored_turn(request, json.dumps(response(output=list(output))).encode())


def test_turn_survives_the_store() -> None:
    stored = turn(body(odd=1.50), text_item("x"))
    again = decode_turn(encode_turn(stored))
    assert bytes(again.request) == bytes(stored.request)
    assert bytes(again.response) == bytes(stored.response)


def test_earlier_turns_stand_before_the_new_input() -> None:
    first = turn(body(instructions="old", input="one"), text_item("two"))
    second = turn(body(input=[{"role": "user", "content": "three"}]), *OUTPUT)
    sent = body(
        previous_response_id="resp_1",
        input=[{"type": "function_call_output", "call_id": "c1", "output": "ok"}],
    )
    expanded = expand(sent, [first, second])
    value = json.loads(expanded)
    assert value["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]},
        text_item("two"),
        {"role": "user", "content": "three"},
        *OUTPUT,
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
    ]
    assert set(value) == {"model", "input"}
    read(expanded)


def test_text_input_becomes_an_item() -> None:
    value = json.loads(expand(body(previous_response_id="r"), []))
    assert value["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    ]


def test_input_items_are_listed_with_ids_and_parts() -> None:
    items = [{"role": "assistant", "content": "a"}, {"type": "item_reference", "id": "x"}]
    assert input_items(turn(body(input=items))) == [
        {
            "id": "msg_resp_1_0",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
            "type": "message",
        },
        {"type": "item_reference", "id": "x"},
    ]
    (listed,) = input_items(turn(body()))
    assert listed["content"] == [{"type": "input_text", "text": "hi"}]


CALLED = turn(
    body(instructions="be", tools=[{"type": "function", "name": "f"}], temperature=0.5, stream=False),
    text_item("x"),
    call_item("{}"),
    CUSTOM,
)


def test_submitted_outputs_go_on_with_the_same_settings() -> None:
    outputs = [{"tool_call_id": "c1", "output": "one"}, {"call_id": "c2", "output": {"a": 1}}]
    new = submit(CALLED, json.dumps({"tool_outputs": outputs, "stream": True}).encode())
    assert json.loads(new) == {
        "model": "m",
        "instructions": "be",
        "tools": [{"type": "function", "name": "f"}],
        "temperature": 0.5,
        "stream": True,
        "previous_response_id": "resp_1",
        "input": [
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": '{"a": 1}'},
        ],
    }
    read(new)
    read(expand(new, [CALLED]))


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        ([{"tool_call_id": "zz", "output": "x"}], "'zz'"),
        ([{"tool_call_id": "c1", "output": "x"}], "'c2'"),
        ([], "'c1', 'c2'"),
        ([{"output": "x"}], r"tool_outputs\[0\].tool_call_id"),
        ([{"tool_call_id": "c1"}], r"tool_outputs\[0\].output"),
        ("x", "tool_outputs"),
    ],
)
def test_wrong_submissions_are_named(outputs: Any, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        submit(CALLED, json.dumps({"tool_outputs": outputs}).encode())


def test_response_without_calls_takes_no_outputs() -> None:
    with pytest.raises(BadRequest, match="no open call"):
        submit(turn(body(), text_item("x")), b'{"tool_outputs":[]}')
