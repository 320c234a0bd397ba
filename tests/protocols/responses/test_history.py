from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from routecodex.canon.errors import BadRequest
from routecodex.protocols.responses.history import (
    StoredTurn,
    expand,
    find_item,
    input_items,
    page,
    parent_response_id,
    resolve_references,
    stored_ids,
    submit,
)
from routecodex.protocols.responses.validate import validate
from tests.protocols.responses.streams import OUTPUT, call_item, response, text_item

CUSTOM = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "p", "input": "x"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **fields}).encode()


def turn(request: bytes, *output: Any) -> StoredTurn:
    return StoredTurn(Raw(request), Raw(json.dumps(response(output=list(output))).encode()))


def test_earlier_turns_come_before_the_new_input() -> None:
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
    validate(expanded)


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


@pytest.mark.parametrize(
    ("item_id", "answer"),
    [
        ("msg_0a1b2c_0", "resp_0a1b2c"),
        ("fc_0a1b2c_12", "resp_0a1b2c"),
        ("rs_0a1b2c_1", "resp_0a1b2c"),
        ("ctc_0a1b2c_1", "resp_0a1b2c"),
        ("item_0a1b2c_1", "resp_0a1b2c"),
        ("msg_resp_0a1b2c_0", "resp_0a1b2c"),
        ("msg_68af4030baa48193b0", None),
        ("msg_up", None),
        ("", None),
    ],
)
def test_item_ids_of_the_gateway_contain_the_answer_id(item_id: str, answer: str | None) -> None:
    assert parent_response_id(item_id) == answer


def test_only_items_whose_id_lacks_the_answer_are_listed() -> None:
    output: list[Any] = [{"id": "msg_0a_0"}, {"id": "rs_0b"}, {"id": None}, {"id": 7}, "odd", {}]
    assert stored_ids(json.dumps({"id": "resp_0a", "output": output}).encode()) == ("resp_0a", ["rs_0b"])
    assert stored_ids(b'{"id":"resp_0a","output":"odd"}') == ("resp_0a", [])
    assert stored_ids(b'{"output":[{"id":"x"}]}') == ("", [])


def test_an_item_is_found_in_the_output_and_in_the_input() -> None:
    stored = turn(
        body(input=[{"type": "item_reference", "id": "x"}, {"role": "user", "content": "q"}]), CUSTOM
    )
    found = find_item(stored, "ctc_1")
    assert found is not None
    assert json.loads(bytes(found)) == CUSTOM
    listed = find_item(stored, "msg_resp_1_1")
    assert listed is not None
    assert json.loads(bytes(listed))["content"] == [{"type": "input_text", "text": "q"}]
    assert find_item(stored, "x") is None


def test_items_replace_their_references() -> None:
    stored = turn(body(), CUSTOM)
    item = find_item(stored, "ctc_1")
    assert item is not None
    sent = body(input=[{"type": "item_reference", "id": "y"}, {"type": "item_reference", "id": "ctc_1"}])
    assert json.loads(resolve_references(sent, {1: item}))["input"] == [
        {"type": "item_reference", "id": "y"},
        CUSTOM,
    ]


ITEMS = [{"id": str(number)} for number in range(25)]


@pytest.mark.parametrize(
    ("query", "shown", "more"),
    [
        ({}, range(24, 4, -1), True),
        ({"limit": "100"}, range(24, -1, -1), False),
        ({"order": "asc", "limit": "2"}, range(2), True),
        ({"order": "asc", "limit": "2", "after": "22"}, range(23, 25), False),
        ({"order": "desc", "limit": "3", "after": "1"}, range(0, -1, -1), False),
        ({"after": "0"}, range(0), False),
    ],
)
def test_a_list_is_returned_in_pages(query: dict[str, str | None], shown: range, more: bool) -> None:
    numbers = [str(number) for number in shown]
    assert page(ITEMS, query) == {
        "object": "list",
        "data": [{"id": number} for number in numbers],
        "first_id": numbers[0] if numbers else None,
        "last_id": numbers[-1] if numbers else None,
        "has_more": more,
    }


@pytest.mark.parametrize(
    ("name", "value"), [("limit", "0"), ("limit", "101"), ("limit", "x"), ("order", "up"), ("after", "none")]
)
def test_a_wrong_query_for_a_page_is_named(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=f"^{name}: ") as refused:
        page(ITEMS, {name: value})
    assert refused.value.param == name


CALLED = turn(
    body(instructions="be", tools=[{"type": "function", "name": "f"}], temperature=0.5, stream=False),
    text_item("x"),
    call_item("{}"),
    CUSTOM,
)


def test_submitted_outputs_continue_with_the_same_settings() -> None:
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
    validate(new)
    validate(expand(new, [CALLED]))


@pytest.mark.parametrize(
    ("outputs", "param"),
    [
        ([{"tool_call_id": "zz", "output": "x"}], "'zz'"),
        ([{"tool_call_id": "c1", "output": "x"}], "'c2'"),
        ([], "'c1', 'c2'"),
        ([{"output": "x"}], r"tool_outputs\[0\].tool_call_id"),
        ([{"tool_call_id": "c1"}], r"tool_outputs\[0\].output"),
        ("x", "tool_outputs"),
    ],
)
def test_wrong_submissions_are_named(outputs: Any, param: str) -> None:
    with pytest.raises(BadRequest, match=param):
        submit(CALLED, json.dumps({"tool_outputs": outputs}).encode())


def test_response_without_calls_rejects_outputs() -> None:
    with pytest.raises(BadRequest, match="no open call"):
        submit(turn(body(), text_item("x")), b'{"tool_outputs":[]}')
