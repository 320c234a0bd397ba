"""What a body tells the gateway, and the body without it."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.control_fields import (
    NO_CONTROL_FIELDS,
    ControlFields,
    read_control_fields,
    strip_control_fields,
)

PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
SMALL: dict[ProtocolName, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "m", "input": "hi"},
    "gemini": {"contents": [{"parts": [{"text": "hi"}]}]},
}
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def heard(protocol: ProtocolName, body: bytes) -> WireRequest:
    return CODECS[protocol].validate(body, model="m", stream=False)


def asked(protocol: ProtocolName, **fields: Any) -> WireRequest:
    return heard(protocol, msgspec.json.encode({**SMALL[protocol], **fields}))


@every_protocol
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"sessionId": "s", "session_id": "other"}, ControlFields(session_id="s")),
        ({"session_id": "s"}, ControlFields(session_id="s")),
        ({"conversationId": "c"}, ControlFields(conversation_id="c")),
        ({"conversation_id": "c"}, ControlFields(conversation_id="c")),
        ({"routeHint": "thinking"}, ControlFields(route_hint="thinking")),
        ({"disableStickyRoutes": True}, ControlFields(disable_sticky=True)),
        ({"disableStickyRoutes": "true"}, ControlFields(disable_sticky=True)),
        ({"disableStickyRoutes": False}, NO_CONTROL_FIELDS),
        ({"disableStickyRoutes": "yes"}, NO_CONTROL_FIELDS),
        ({"disableStickyRoutes": 1}, NO_CONTROL_FIELDS),
        ({"sessionId": 7, "session_id": "s"}, ControlFields(session_id="s")),
        ({"sessionId": "", "conversationId": None, "routeHint": ["x"]}, NO_CONTROL_FIELDS),
        ({"nested": {"sessionId": "s"}}, NO_CONTROL_FIELDS),
        ({}, NO_CONTROL_FIELDS),
    ],
)
def test_metadata_speaks_to_the_gateway(
    protocol: ProtocolName, said: dict[str, Any], expected: ControlFields
) -> None:
    assert read_control_fields(asked(protocol, metadata=said)) == expected


@every_protocol
def test_a_body_without_metadata_says_nothing(protocol: ProtocolName) -> None:
    assert read_control_fields(asked(protocol)) is NO_CONTROL_FIELDS


@pytest.mark.parametrize("value", [None, "sessionId", 1, ["sessionId"]])
def test_metadata_of_another_type_says_nothing(value: Any) -> None:
    assert read_control_fields(asked("gemini", metadata=value)) == NO_CONTROL_FIELDS


def test_labels_speak_where_metadata_does_not() -> None:
    inbound = asked(
        "gemini", metadata={"sessionId": "m", "routeHint": 1}, labels={"sessionId": "l", "routeHint": "r"}
    )
    assert read_control_fields(inbound) == ControlFields(session_id="m", route_hint="r")


def test_the_user_is_named_by_messages_clients_alone() -> None:
    said = {"user_id": "user_1_session_2"}
    assert read_control_fields(asked("messages", metadata=said)) == ControlFields(user_id="user_1_session_2")
    assert read_control_fields(asked("chat", metadata=said)) == NO_CONTROL_FIELDS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt_cache_key": "k"}, ControlFields(prompt_cache_key="k")),
        ({"conversation": "conv"}, ControlFields(conversation="conv")),
        ({"conversation": {"id": "conv"}}, ControlFields(conversation="conv")),
        ({"conversation": {"id": 1}}, NO_CONTROL_FIELDS),
        ({"conversation": {}}, NO_CONTROL_FIELDS),
        (
            {"conversation": "c", "metadata": {"conversation": "x", "sessionId": "s"}},
            ControlFields(conversation="c", session_id="s"),
        ),
    ],
)
def test_responses_clients_name_a_conversation_in_fields_of_their_own(
    fields: dict[str, Any], expected: ControlFields
) -> None:
    assert read_control_fields(asked("responses", **fields)) == expected
    assert read_control_fields(asked("chat", prompt_cache_key="k", metadata={})) == NO_CONTROL_FIELDS


LONG = "x" * 5_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"sessionId":"s"},"model":"m","messages":[%s]}',
        b'{"model":"m","messages":[%s], "metadata" : {"sessionId":"s"} }',
        b'{"model":"m","messages":[%s],"\\u006detadata":{"sess\\u0069onId":"s"}}',
        b'{"model":"m","messages":[%s],"metadata":{"sessionId":"no"},"metadata":{"sessionId":"s"}}',
        b'{"model":"m","messages":[%s],"metadata":{"sessionId":"s"},"x":{"metadata":{"sessionId":"no"}}}',
        b'{"model":"m","messages":[%s],"metadata":{"sessionId":"s"},"x\\"metadata":{"sessionId":"no"}}',
        b'{"model":"m","messages":[%s],"metadata":{"sessionId":"s","x":"metadata"},"y":"metadata"}',
        b'{"metadata":{"sessionId":"s"},"model":"m","messages":[%s],"x":[{"metadata":{"sessionId":"no"}}]}',
    ],
)
def test_metadata_is_found_wherever_it_stands(body: bytes) -> None:
    message = msgspec.json.encode({"role": "user", "content": LONG, "metadata": {"sessionId": "no"}})
    assert read_control_fields(heard("chat", body % message)) == ControlFields(session_id="s")


@every_protocol
@pytest.mark.parametrize(
    ("said", "left"),
    [
        (b'{"sessionId":"s"}', None),
        (b'{ "sessionId":"s", "routeHint":"r" ,"conversationId":1,"disableStickyRoutes":true}', None),
        (b'{"sessionId":"s", "user_id" : "u"}', b'{"user_id" : "u"}'),
        (b'{"user_id":"u", "n":1.0 ,"routeHint":"r"}', b'{"user_id":"u", "n":1.0}'),
        (b'{"session_id":"s","conversation_id":"c"}', b'{"session_id":"s","conversation_id":"c"}'),
        (b'{"sess\\u0069onId":"s","a":"\\u003c"}', b'{"a":"\\u003c"}'),
        (b'{"sessionId":"s","a":1,"sessionId":2}', b'{"a":1}'),
        (b"{}", b"{}"),
        (b'{"x":{"sessionId":1}}', b'{"x":{"sessionId":1}}'),
    ],
)
def test_control_keys_never_reach_a_provider(protocol: ProtocolName, said: bytes, left: bytes | None) -> None:
    head = msgspec.json.encode(SMALL[protocol])[:-1]
    body = head + b' ,"metadata": ' + said + b' ,"x_more":1e3 }'
    expected = head + (b"" if left is None else b' ,"metadata": ' + left) + b' ,"x_more":1e3 }'
    told = strip_control_fields(body, protocol)
    assert told == expected
    assert (told is body) == (left == said)
    assert read_control_fields(heard(protocol, told)).route_hint is None


def test_labels_lose_them_too() -> None:
    body = b'{"contents":[],"labels":{"team":"a","routeHint":"r"},"metadata":{"sessionId":"s"}}'
    assert strip_control_fields(body, "gemini") == b'{"contents":[],"labels":{"team":"a"}}'
    assert strip_control_fields(body, "chat") == b'{"contents":[],"labels":{"team":"a","routeHint":"r"}}'


def test_metadata_said_twice_hides_no_control_key() -> None:
    body = b'{"model":"m","metadata":{"sessionId":"s"},"metadata":{"a":1}}'
    assert strip_control_fields(body, "chat") == b'{"model":"m","metadata":{"a":1}}'


@every_protocol
def test_control_words_in_a_text_are_nobodys_business(protocol: ProtocolName) -> None:
    body = msgspec.json.encode({**SMALL[protocol], "x_text": '"metadata":{"sessionId":"s"}', "x": "\u0001A"})
    assert strip_control_fields(body, protocol) is body
    assert read_control_fields(heard(protocol, body)) == NO_CONTROL_FIELDS


def test_a_large_body_keeps_every_other_byte() -> None:
    said = '\\ "sessionId" ' * 80_000
    body = msgspec.json.encode({"messages": said, "metadata": {"sessionId": "s"}, "stream": True})
    assert strip_control_fields(body, "chat") == msgspec.json.encode({"messages": said, "stream": True})


WORDS = st.sampled_from(["metadata", "sessionId", "routeHint", "a", '"', "\\", "x\\", '"metadata"'])
VALUES = st.recursive(
    WORDS | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(WORDS, VALUES, max_size=4), st.integers(0, 200))
def test_any_body_says_what_its_metadata_says(fields: dict[str, Any], padding: int) -> None:
    said = fields.get("metadata")
    if not isinstance(said, dict):
        said = fields["metadata"] = {}
    body = msgspec.json.encode({"pad": "p" * padding, **fields})
    told = read_control_fields(asked("chat", metadata=said))
    expected = [
        value if isinstance(value, str) else None for value in map(said.get, ("sessionId", "routeHint"))
    ]
    assert [told.session_id, told.route_hint] == expected
    left = {name: value for name, value in said.items() if name not in ("sessionId", "routeHint")}
    rest = {**fields, "metadata": left} if left != said else fields
    if left != said and not left:
        rest = {name: value for name, value in fields.items() if name != "metadata"}
    assert msgspec.json.decode(strip_control_fields(body, "chat")) == {"pad": "p" * padding, **rest}
