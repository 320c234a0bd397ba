"""Messages validated without decoding are valid, and no part of the request is lost."""

from __future__ import annotations

import inspect
import json as standard
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from routecodex.protocols.chat import fast_validate as module
from routecodex.protocols.chat.schema import ROLES, RequestBody, WireMessage, WireTool
from routecodex.wire import json
from tests.reference import fast_validate as reference
from tests.reference import outline
from tests.wire.twins import functions, twin

fast_validate = module.fast_validate if IS_COMPILED else reference.fast_validate
"""The C version, or the reference where it is not built."""
Row = dict[str, Any]
Rebuilt = tuple[RequestBody, int]
Parts = tuple[bytes, bytes, int, bytes]

_request = msgspec.json.Decoder(RequestBody)
_messages = msgspec.json.Decoder(list[WireMessage])
_tools = msgspec.json.Decoder(list[WireTool])


def put_together(parts: Parts | None) -> Rebuilt | None:
    """Rebuild the request from its parts; return it with the reported number of messages."""
    if parts is None:
        return None
    request = _request.decode(parts[0])
    assert request.messages == []
    request.messages = _messages.decode(parts[1])
    if parts[3]:
        assert request.tools == []
        request.tools = _tools.decode(parts[3])
    return request, parts[2]


def rebuilt(body: bytes) -> Rebuilt | None:
    """Validate and rebuild a request; check that the reference agrees."""
    result = put_together(fast_validate(body))
    assert result is None or result == put_together(reference.fast_validate(body))
    return result


def request_body(*rows: Any, **more: Any) -> bytes:
    return json.encode({"model": "m", "messages": list(rows), **more})


def call(name: str | None, **more: Any) -> Row:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}


def calling(*calls: Row) -> Row:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(name: str | None) -> Row:
    return {"role": "tool", "tool_call_id": name, "content": "done"}


def user_message(content: Any, **more: Any) -> Row:
    return {"role": "user", "content": content, **more}


CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "c", "input": "x"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,x", "detail": "low"}}

USUAL: dict[str, list[Row]] = {
    "one message": [user_message("hi")],
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
    "parts": [user_message([{"type": "text", "text": "x"}, IMAGE]), user_message([])],
    "hints for a cache": [
        user_message([{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}])
    ],
    "texts with signs": [
        user_message('"\\ \n\t→ \U0001f600 {"a": [1]}'),
        user_message("\\"),
        user_message('"'),
    ],
    "names and reasoning": [
        user_message("x", name="Ann", refusal=None),
        {**calling(), "reasoning_content": "hm"},
    ],
    "unknown fields": [user_message("x", zz={"a": [1, -2.5, 0, True, False, None, "s", {}, [[]]]}, b=[])],
    "the role behind the rest": [{"content": "x", "role": "user"}, {"tool_calls": [], "role": "assistant"}],
}


@pytest.mark.parametrize("rows", USUAL.values(), ids=USUAL)
def test_common_requests_are_split_and_can_be_rebuilt(rows: list[Row]) -> None:
    body = request_body(*rows, tools=[{"type": "function", "function": {"name": "f"}}], temperature=0.5)
    assert rebuilt(body) == (_request.decode(body), len(rows))


@pytest.mark.parametrize("rows", USUAL.values(), ids=USUAL)
def test_blanks_make_no_difference(rows: list[Row]) -> None:
    body = standard.dumps(
        {"messages": rows, "model": "m"}, indent="\t", separators=("\n ,", " \r\n: "), ensure_ascii=False
    ).encode()
    assert rebuilt(b" " + body + b"\n") == (_request.decode(body), len(rows))


RARE: dict[str, list[Row]] = {
    "a call of a person": [{**calling(call("a")), "role": "user", "content": "x"}],
    "arguments that are no text": [calling(call("a", function={"name": "f", "arguments": {"a": 1}}))],
    "an old kind of call": [{"role": "assistant", "function_call": {"name": "f"}}],
    "an id with an escape": [calling(call("a\n")), result("a\n")],
    "a result too much later": [calling(call("a")), calling(*map(call, map(str, range(64)))), result("a")],
    "more calls than are remembered": [calling(*map(call, map(str, range(65))))],
    "a sound": [user_message([{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}])],
    "a part of an unknown kind": [user_message([{"type": "hologram"}])],
    "a number that is hard to read": [user_message("x", zz=1e300)],
    "a long number": [user_message("x", zz=12345678901234567)],
}


@pytest.mark.parametrize("rows", RARE.values(), ids=RARE)
def test_rare_requests_are_left_to_be_decoded(rows: list[Row]) -> None:
    body = request_body(*rows)
    assert put_together(reference.fast_validate(body)) == (_request.decode(body), len(rows))
    assert (fast_validate(body) is None) is IS_COMPILED


def offering(*tools: Any) -> bytes:
    return request_body(user_message("hi"), tools=list(tools))


def function(name: Any = "f", **more: Any) -> Row:
    return {"type": "function", "function": {"name": name, **more}}


FUNCTIONS: dict[str, list[Row]] = {
    "none": [],
    "a name": [function()],
    "all there is": [
        function(description="d", parameters={"type": "object", "properties": {"a": {}}}, strict=True),
        function(description=None, parameters=None, strict=None),
    ],
    "unknown fields": [{**function(zz=[1]), "cache_control": {"type": "ephemeral"}}],
    "the type behind the rest": [{"function": {"name": "f"}, "type": "function"}],
    "no type": [function(), {"function": {"name": "f"}}],
}


@pytest.mark.parametrize("tools", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("before", [True, False])
def test_tools_that_are_functions_are_taken_out_too(tools: list[Row], before: bool) -> None:
    rows = {"messages": [user_message("hi")]}
    body = json.encode({"tools": tools, **rows} if before else {**rows, "tools": tools} | {"model": "m"})
    body = json.encode({"model": "m", **json.decode(body)})
    parts = fast_validate(body)
    assert parts is not None
    assert (rebuilt(body), json.decode(parts[3])) == ((_request.decode(body), 1), tools)


OTHERS: dict[str, list[Any]] = {
    "a custom one": [function(), {"type": "custom", "custom": {"name": "c"}}],
    "both at once": [{**function(), "custom": {"name": "c"}, "type": "custom"}],
    "one that runs elsewhere": [{"type": "web_search"}],
    "one without a name": [{"type": "function", "function": {}}],
    "one with an empty name": [function("")],
    "one with half a name": [function("a\0b")],
    "a number for a name": [function(5)],
    "no function": [{"type": "function"}],
    "a number": [5],
    "parameters that are none": [function(parameters=[])],
    "a description that is none": [function(description=5)],
    "strictness that is none": [function(strict=1)],
}


@pytest.mark.parametrize("tools", OTHERS.values(), ids=OTHERS)
def test_tools_stay_in_the_request_if_one_is_invalid_or_not_a_function(tools: list[Any]) -> None:
    for known in (fast_validate(offering(*tools)), reference.fast_validate(offering(*tools))):
        assert known is not None
        assert (json.decode(known[0])["tools"], known[2:]) == (tools, (1, b""))


def test_a_request_without_tools_has_none_to_take_out() -> None:
    for tools in ({}, {"tools": None}):
        parts = fast_validate(request_body(user_message("hi"), **tools))
        assert parts is not None
        assert (parts[3], rebuilt(request_body(user_message("hi"), **tools))) == (
            b"",
            (_request.decode(request_body(user_message("hi"), **tools)), 1),
        )


WRONG: dict[str, list[Any]] = {
    "no messages": [],
    "no message": [5],
    "an empty message": [{}],
    "an unknown role": [{"role": "oracle", "content": "x"}],
    "an empty role": [{"role": "", "content": "x"}],
    "a role that only begins right": [{"role": "users", "content": "x"}],
    "a role that is no text": [{"role": 5, "content": "x"}],
    "a user without content": [user_message(None)],
    "a system without content": [{"role": "system"}],
    "a number": [{"role": "assistant", "content": 5}],
    "a name that is none": [user_message("x", name=5)],
    "reasoning that is not a string": [user_message("x", reasoning_content=["x"])],
    "a refusal that is none": [user_message("x", refusal=False)],
    "a result without a call": [result("a")],
    "a result of another": [calling(call("a")), result("b")],
    "a result before its call": [result("a"), calling(call("a"))],
    "a result without an id": [calling(call("a")), result(None)],
    "a result with an empty id": [calling(call("a")), result("")],
    "a result without content": [calling(call("a")), {"role": "tool", "tool_call_id": "a"}],
    "calls that are none": [{**calling(), "tool_calls": {}}],
    "a call that is none": [calling("a")],  # type: ignore[arg-type]  # that is the case
    "a call without an id": [calling(call(None))],
    "a call with an empty id": [calling(call(""))],
    "a call without a function": [calling(call("a", function=None))],
    "a call without a name": [calling(call("a", function={"arguments": "{}"}))],
    "a call of an unknown kind": [calling(call("a", type=5))],
    "arguments that are a number": [calling(call("a", function={"name": "f", "arguments": 5}))],
    "the same id in one message": [calling(call("a"), call("b"), call("a"))],
    "a part that is none": [user_message(["x"])],
    "a part without a type": [user_message([{"text": "x"}])],
    "a text without text": [user_message([{"type": "text"}])],
    "a text that is none": [user_message([{"type": "text", "text": 5}])],
    "an image without an address": [user_message([{"type": "image_url", "image_url": {"detail": "low"}}])],
    "an image with an empty address": [user_message([{"type": "image_url", "image_url": {"url": ""}}])],
    "an image with half an address": [user_message([{"type": "image_url", "image_url": {"url": 5}}])],
    "an image that is shown how": [
        user_message([{"type": "image_url", "image_url": {"url": "x", "detail": 5}}])
    ],
}


@pytest.mark.parametrize("rows", WRONG.values(), ids=WRONG)
def test_an_invalid_request_is_never_accepted(rows: list[Any]) -> None:
    body = request_body(*rows)
    assert (fast_validate(body), reference.fast_validate(body)) == (None, None)


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "blanks": b"  ",
    "a list": b"[]",
    "no messages": b'{"model":"m"}',
    "messages that are none": b'{"messages":{}}',
    "something behind it": b'{"messages":[{"role":"user","content":"x"}]}x',
    "a comma too many": b'{"messages":[{"role":"user","content":"x"},]}',
    "a comma at the end": b'{"messages":[{"role":"user","content":"x"}],}',
    "a comma too few": b'{"messages":[{"role":"user" "content":"x"}]}',
    "no colon": b'{"messages":[{"role" "user","content":"x"}]}',
    "no bracket": b'{"messages":[{"role":"user","content":"x"}',
    "the wrong bracket": b'{"messages":[{"role":"user","content":"x"]]}',
    "half a literal": b'{"messages":[{"role":"assistant","content":nul}]}',
    "half a number": b'{"messages":[{"role":"user","content":"x","a":1.}]}',
    "a number with a nought": b'{"messages":[{"role":"user","content":"x","a":01}]}',
    "no number": b'{"messages":[{"role":"user","content":"x","a":-}]}',
    "a key that is none": b'{"messages":[{"role":"user","content":"x",1:2}]}',
    "a text without end": b'{"messages":[{"role":"user","content":"x',
    "a text that ends escaped": b'{"messages":[{"role":"user","content":"x\\',
    "a blank that is none": b'{"messages":\x0b[{"role":"user","content":"x"}]}',
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_invalid_json_is_never_accepted_as_a_request(body: bytes) -> None:
    assert (fast_validate(body), reference.fast_validate(body)) == (None, None)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"x"}],"messages":[{"role":"user","content":"y"}]}',
        b'{"messages":[{"role":"user","content":"x","content":"y"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"tools":[],"tools":[]}',
        b'{"messages":[{"role":"user","role":"assistant","content":"x"}]}',
        b'{"m\\u0065ssages":[{"role":"oracle"}],"messages":[{"role":"user","content":"x"}]}',
        b'{"messages":[{"role":"user","content":"x","r\\u006fle":"oracle"}]}',
        b'{"messages":[{"role":"\\u0075ser","content":"x"}]}',
    ],
)
@pytest.mark.skipif(not IS_COMPILED, reason="the source knows which of them counts")
def test_repeated_or_escaped_keys_are_left_to_be_decoded(body: bytes) -> None:
    assert fast_validate(body) is None


def test_deep_nesting_does_no_harm() -> None:
    for depth in (10, 100, 100_000):
        body = b'{"messages":[{"role":"user","content":"x","a":%b%b}]}' % (b"[" * depth, b"]" * depth)
        assert (fast_validate(body) is not None) is (depth == 10 or (depth == 100 and not IS_COMPILED))


IDS = st.sampled_from(["a", "b", "c", "é", "→", "", None])
CALLS = st.builds(call, IDS) | st.builds(call, IDS, function=st.none()) | st.just(CUSTOM)
CONTENTS = st.sampled_from(
    ["", "x", 'a"b\\', None, [{"type": "text", "text": "x"}, IMAGE], [{"type": "text"}], 5]
)
RANDOM_MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from([*ROLES, "oracle"])},
    optional={
        "content": CONTENTS,
        "tool_calls": st.none() | st.lists(CALLS, max_size=3),
        "tool_call_id": IDS,
        "name": st.none() | st.text(max_size=2),
        "extra": st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=2), st.lists),
    },
)
GOOD = st.builds(call, st.sampled_from("abc")).map(calling) | st.builds(result, st.sampled_from("abc"))


@given(st.lists(GOOD | GOOD | RANDOM_MESSAGES, max_size=8))
def test_a_split_request_equals_the_decoded_one(rows: list[Row]) -> None:
    body = request_body(*rows)
    result = rebuilt(body)
    assert result is None or result == (_request.decode(body), len(rows))


WHOLE = request_body(
    {"role": "system", "content": 'Be "brief".'},
    user_message([{"type": "text", "text": "a\nb", "n": -1.5}, IMAGE], name=None),
    calling(call("a", index=0), CUSTOM | {"id": "b"}),
    result("b"),
    result("a"),
    stream=True,
    stop=["x", 1, {}],
)


@given(
    st.integers(0, len(WHOLE)), st.integers(0, 3), st.binary(max_size=2) | st.sampled_from([b'"', b"]", b","])
)
@example(0, 0, b"")
def test_a_request_that_was_damaged_is_read_as_it_is_read_whole(at: int, gone: int, put: bytes) -> None:
    """Strings are validated before, so damage inside one is not covered."""
    body = WHOLE[:at] + put + WHOLE[at + gone :]
    if outline.cut(body, (), 1 << 30, b"<**") is None:
        return
    result, expected = fast_validate(body), reference.fast_validate(body)
    assert result is None or (expected is not None and result[1:] == expected[1:])


@pytest.mark.skipif(not IS_COMPILED, reason="the source leaves such things to the type checker")
@pytest.mark.parametrize("argument", [None, (), "", bytearray(b"{}")])
def test_arguments_other_than_bytes_are_rejected(argument: Any) -> None:
    with pytest.raises(TypeError):
        fast_validate(argument)


def test_the_tested_function_is_in_c_where_the_hot_path_is_compiled() -> None:
    assert (module.__file__ or "").endswith(".py") is not IS_COMPILED


def test_the_python_module_validates_nothing_and_has_the_names_of_the_reference() -> None:
    source = twin("fast_validate", "protocols.chat")
    assert source.fast_validate(request_body(user_message("hi"))) is None
    assert functions(source) == functions(reference) == {"fast_validate"}
    assert inspect.signature(source.fast_validate) == inspect.signature(reference.fast_validate)
