"""Messages that are right at first sight: never one of them is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat import plain, reading
from routecodex.protocols.chat.schema import ROLES, Message
from routecodex.wire import json
from tests.wire.twins import twin

TWIN = twin("plain", "protocols.chat")
Row = dict[str, Any]


def read(rows: list[Row]) -> list[Message]:
    request = {"model": "m", "messages": rows}
    messages: list[Message] = json.read(json.encode(request), reading._decoder).messages
    return messages


def are_plain(rows: list[Row]) -> bool:
    """What both say, the source and what is compiled."""
    messages = read(rows)
    said: bool = TWIN.are_plain(messages)
    assert plain.are_plain(messages) is said
    return said


def test_what_is_tested_is_in_c_where_the_hot_path_is_compiled() -> None:
    assert (plain.__file__ or "").endswith(".py") is not IS_COMPILED


def call(name: str, **more: Any) -> Row:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}


def calling(*calls: Row) -> Row:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(name: str | None) -> Row:
    return {"role": "tool", "tool_call_id": name, "content": "done"}


CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "c", "input": "x"}}

PLAIN: dict[str, list[Row]] = {
    "nothing": [],
    "one word": [{"role": "user", "content": "hi"}],
    "every role": [
        {"role": role, "content": ""} for role in ("system", "developer", "user", "assistant", "function")
    ],
    "silence": [{"role": "assistant"}, {"role": "assistant", "content": None}, {"role": "function"}],
    "no calls": [calling(), {"role": "assistant", "content": "a", "tool_calls": None}],
    "a call and its result": [calling(call("a")), result("a")],
    "results in another order": [calling(call("a"), call("b"), call("é")), *map(result, ("é", "b", "a"))],
    "a result twice": [calling(call("a")), result("a"), result("a")],
    "an id twice": [calling(call("a")), result("a"), calling(call("a")), result("a")],
    "another kind of call": [calling(CUSTOM), result("a")],
    "a result much later": [calling(*map(call, map(str, range(64)))), result("0")],
}


@pytest.mark.parametrize("rows", PLAIN.values(), ids=PLAIN)
def test_what_is_usual_is_plain(rows: list[Row]) -> None:
    assert are_plain(rows)


RARE: dict[str, list[Row]] = {
    "an unknown role": [{"role": "oracle", "content": "x"}],
    "an empty role": [{"role": "", "content": "x"}],
    "a role that only begins right": [{"role": "users", "content": "x"}],
    "a person who says nothing": [{"role": "user", "content": None}],
    "a system that says nothing": [{"role": "system"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "a number": [{"role": "assistant", "content": 5}],
    "a result of nothing": [result("a")],
    "a result of another": [calling(call("a")), result("b")],
    "a result before its call": [result("a"), calling(call("a"))],
    "a result without an id": [calling(call("a")), result(None)],
    "a result with an empty id": [calling(call("a")), result("")],
    "a result without content": [calling(call("a")), {"role": "tool", "tool_call_id": "a"}],
    "a call of a person": [{**calling(call("a")), "role": "user", "content": "x"}, result("a")],
    "a call without an id": [calling(call("a", id=None))],
    "a call with an empty id": [calling(call(""))],
    "a call of nothing": [calling(call("a", function=None))],
    "the same id in one message": [calling(call("a"), call("b"), call("a"))],
    "a result too much later": [calling(call("a")), calling(*map(call, map(str, range(64)))), result("a")],
    "more calls than are remembered": [calling(*map(call, map(str, range(65))))],
}


@pytest.mark.parametrize("rows", RARE.values(), ids=RARE)
def test_what_is_wrong_or_rare_is_not(rows: list[Row]) -> None:
    assert not are_plain(rows)


IDS = st.sampled_from(["a", "b", "c", "é", "→", "", None])
CALLS = st.builds(call, IDS) | st.builds(call, IDS, function=st.none()) | st.just(CUSTOM)
CONTENTS = st.sampled_from(["", "x", "x", None, [{"type": "text", "text": "x"}], 5])
SPOKEN = st.fixed_dictionaries(
    {"role": st.sampled_from([*ROLES, "oracle"])},
    optional={
        "content": CONTENTS,
        "tool_calls": st.none() | st.lists(CALLS, max_size=3),
        "tool_call_id": IDS,
    },
)
USUAL = st.builds(call, st.sampled_from("abc")).map(calling) | st.builds(result, st.sampled_from("abc"))


@given(st.lists(USUAL | USUAL | SPOKEN, max_size=8))
def test_what_is_plain_is_never_refused(rows: list[Row]) -> None:
    if not are_plain(rows):
        return
    try:
        reading._check_messages(read(rows))
    except BadRequest as refusal:
        pytest.fail(str(refusal))


@pytest.mark.skipif(not IS_COMPILED, reason="the source leaves such things to the type checker")
@pytest.mark.parametrize("given", [None, (), "", {}])
def test_what_is_no_list_is_refused(given: Any) -> None:
    with pytest.raises(TypeError):
        plain.are_plain(given)


@pytest.mark.skipif(not IS_COMPILED, reason="the source leaves such things to the type checker")
def test_what_is_no_message_is_not_plain() -> None:
    rows: list[Any] = [None, "x", 5]
    assert not any(plain.are_plain([row]) for row in rows)
