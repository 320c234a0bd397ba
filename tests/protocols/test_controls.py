"""What a body tells the gateway, and the body without it."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import Inbound
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.controls import NOTHING, Controls, controls, without_controls

PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
SMALL: dict[ProtocolName, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "responses": {"model": "m", "input": "hi"},
    "gemini": {"contents": [{"parts": [{"text": "hi"}]}]},
}
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def heard(protocol: ProtocolName, body: bytes) -> Inbound:
    return CODECS[protocol].read(body, model="m", stream=False)


def asked(protocol: ProtocolName, **fields: Any) -> Inbound:
    return heard(protocol, msgspec.json.encode({**SMALL[protocol], **fields}))


@every_protocol
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"sessionId": "s", "session_id": "other"}, Controls(session_id="s")),
        ({"session_id": "s"}, Controls(session_id="s")),
        ({"conversationId": "c"}, Controls(conversation_id="c")),
        ({"conversation_id": "c"}, Controls(conversation_id="c")),
        ({"routeHint": "thinking"}, Controls(route_hint="thinking")),
        ({"disableStickyRoutes": True}, Controls(disable_sticky=True)),
        ({"disableStickyRoutes": "true"}, Controls(disable_sticky=True)),
        ({"disableStickyRoutes": False}, NOTHING),
        ({"disableStickyRoutes": "yes"}, NOTHING),
        ({"disableStickyRoutes": 1}, NOTHING),
        ({"sessionId": 7, "session_id": "s"}, Controls(session_id="s")),
        ({"sessionId": "", "conversationId": None, "routeHint": ["x"]}, NOTHING),
        ({"nested": {"sessionId": "s"}}, NOTHING),
        ({}, NOTHING),
    ],
)
def test_metadata_speaks_to_the_gateway(
    protocol: ProtocolName, said: dict[str, Any], expected: Controls
) -> None:
    assert controls(asked(protocol, metadata=said)) == expected


@every_protocol
def test_a_body_without_metadata_says_nothing(protocol: ProtocolName) -> None:
    assert controls(asked(protocol)) is NOTHING


@pytest.mark.parametrize("value", [None, "sessionId", 1, ["sessionId"]])
def test_metadata_of_another_type_says_nothing(value: Any) -> None:
    assert controls(asked("gemini", metadata=value)) == NOTHING


def test_labels_speak_where_metadata_does_not() -> None:
    inbound = asked(
        "gemini", metadata={"sessionId": "m", "routeHint": 1}, labels={"sessionId": "l", "routeHint": "r"}
    )
    assert controls(inbound) == Controls(session_id="m", route_hint="r")


def test_the_user_is_named_by_messages_clients_alone() -> None:
    said = {"user_id": "user_1_session_2"}
    assert controls(asked("messages", metadata=said)) == Controls(user_id="user_1_session_2")
    assert controls(asked("chat", metadata=said)) == NOTHING


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt_cache_key": "k"}, Controls(prompt_cache_key="k")),
        ({"conversation": "conv"}, Controls(conversation="conv")),
        ({"conversation": {"id": "conv"}}, Controls(conversation="conv")),
        ({"conversation": {"id": 1}}, NOTHING),
        ({"conversation": {}}, NOTHING),
        (
            {"conversation": "c", "metadata": {"conversation": "x", "sessionId": "s"}},
            Controls(conversation="c", session_id="s"),
        ),
    ],
)
def test_responses_clients_name_a_conversation_in_fields_of_their_own(
    fields: dict[str, Any], expected: Controls
) -> None:
    assert controls(asked("responses", **fields)) == expected
    assert controls(asked("chat", prompt_cache_key="k", metadata={})) == NOTHING


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
    assert controls(heard("chat", body % message)) == Controls(session_id="s")


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
    told = without_controls(body, protocol)
    assert told == expected
    assert (told is body) == (left == said)
    assert controls(heard(protocol, told)).route_hint is None


def test_labels_lose_them_too() -> None:
    body = b'{"contents":[],"labels":{"team":"a","routeHint":"r"},"metadata":{"sessionId":"s"}}'
    assert without_controls(body, "gemini") == b'{"contents":[],"labels":{"team":"a"}}'
    assert without_controls(body, "chat") == b'{"contents":[],"labels":{"team":"a","routeHint":"r"}}'


def test_metadata_said_twice_hides_no_control_key() -> None:
    body = b'{"model":"m","metadata":{"sessionId":"s"},"metadata":{"a":1}}'
    assert without_controls(body, "chat") == b'{"model":"m","metadata":{"a":1}}'


@every_protocol
def test_control_words_in_a_text_are_nobodys_business(protocol: ProtocolName) -> None:
    body = msgspec.json.encode({**SMALL[protocol], "x_text": '"metadata":{"sessionId":"s"}', "x": "\u0001A"})
    assert without_controls(body, protocol) is body
    assert controls(heard(protocol, body)) == NOTHING


def test_a_large_body_keeps_every_other_byte() -> None:
    said = '\\ "sessionId" ' * 80_000
    body = msgspec.json.encode({"messages": said, "metadata": {"sessionId": "s"}, "stream": True})
    assert without_controls(body, "chat") == msgspec.json.encode({"messages": said, "stream": True})


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
    told = controls(asked("chat", metadata=said))
    expected = [
        value if isinstance(value, str) else None for value in map(said.get, ("sessionId", "routeHint"))
    ]
    assert [told.session_id, told.route_hint] == expected
    left = {name: value for name, value in said.items() if name not in ("sessionId", "routeHint")}
    rest = {**fields, "metadata": left} if left != said else fields
    if left != said and not left:
        rest = {name: value for name, value in fields.items() if name != "metadata"}
    assert msgspec.json.decode(without_controls(body, "chat")) == {"pad": "p" * padding, **rest}
