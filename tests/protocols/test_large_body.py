"""Large requests that are read without their long texts: nobody can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import BadRequest
from routecodex.canon.parts import Text
from routecodex.canon.request import Request
from routecodex.protocols.codec import EncodeOptions, WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.wire import json, outline
from tests.reference.installed import WAYS, using
from tests.wire.twins import twin

CHAT, MESSAGES = CODECS["chat"], CODECS["messages"]
LONG = 'It is → a "long" text,\nwith \\ and \u0007 in it. ' * 40

BULK = "bulk " * 8000
"""What makes any request a large one."""

Fields = dict[str, Any]

NOTHING_CUT = twin("outline").cut


@contextmanager
def outlining(wanted: bool) -> Iterator[None]:
    """Large requests are outlined, by the C or by the reference; or none is, as from the sources."""
    with using(WAYS[-1]), pytest.MonkeyPatch.context() as patch:
        if not wanted:
            patch.setattr(outline, "cut", NOTHING_CUT)
        yield


def read(protocol: str, body: bytes, *, outlined: bool) -> WireRequest:
    with outlining(outlined):
        found = CODECS[protocol].validate(body)
    assert bool(found.outline) == bool(found.original)
    return found


def both(protocol: str, fields: Fields) -> tuple[WireRequest, WireRequest]:
    """The request read in both ways."""
    body = json.encode(fields)
    cut, whole = read(protocol, body, outlined=True), read(protocol, body, outlined=False)
    assert (cut.original, whole.original) == (body, b"")
    assert len(cut.outline) < len(body)
    return cut, whole


def chat(*messages: Fields, **fields: Any) -> Fields:
    rest: list[Fields] = [{"role": "assistant", "content": BULK}, *messages]
    return {"model": "m", "messages": rest, **fields}


def spoken(*messages: Fields, **fields: Any) -> Fields:
    rest: list[Fields] = [{"role": "assistant", "content": [{"type": "text", "text": BULK}]}, *messages]
    return {"model": "m", "max_tokens": 9, "messages": rest, **fields}


MAKE: dict[str, Callable[..., Fields]] = {"chat": chat, "messages": spoken}
protocols = pytest.mark.parametrize("protocol", MAKE)


def part(text: str) -> Fields:
    return {"type": "text", "text": text}


REMINDED = "<system-reminder>\n" + LONG + "</system-reminder>\n"
SAID: dict[str, Any] = {
    "a text": LONG,
    "a short one": "short",
    "parts": [part(LONG), part("and this"), part(LONG)],
    "a reminder": REMINDED,
    "a reminder before": REMINDED + "Fix it",
    "reminders in parts": [part(REMINDED), part(LONG)],
    "one that is all escapes": '\n"\\\u0001' * 600,
    "one of characters": "→é😀" * 600,
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@protocols
def test_routing_sees_the_same(protocol: str, said: Any) -> None:
    codec = CODECS[protocol]
    tool: Fields = {"type": "function", "function": {"name": "web_search"}}
    if protocol == "messages":
        tool = {"name": "web_search", "input_schema": {}}
    for fields in ({}, {"tools": [tool]}):
        rows = [{"role": "user", "content": said}, {"role": "assistant", "content": LONG}]
        for messages in (rows[:1], rows, [*rows, rows[0]]):
            cut, whole = both(protocol, MAKE[protocol](*messages, **fields))
            assert codec.features(cut) == codec.features(whole)
            assert codec.fingerprint(cut) == codec.fingerprint(whole)


@pytest.mark.parametrize("told", ["text", "parts", "both"])
@protocols
def test_a_long_system_text_opens_the_conversation_as_ever(protocol: str, told: str) -> None:
    codec = CODECS[protocol]
    system: Any = LONG if told == "text" else [part(LONG), part("more")]
    asked = {"role": "user", "content": LONG}
    if protocol == "messages":
        fields = {**spoken(asked), "system": system}
        fields["messages"].reverse()
    else:
        first = [{"role": "system", "content": system}]
        fields = {"model": "m", "messages": [*first, *first, asked, {"role": "user", "content": BULK}]}
    cut, whole = both(protocol, fields)
    assert codec.features(cut) == codec.features(whole)
    assert codec.fingerprint(cut) == codec.fingerprint(whole)
    assert b"with \\ and" in codec.fingerprint(cut)


WORDS = st.sampled_from(["", "short", LONG, REMINDED, REMINDED + LONG, "<**!a.b**>" + LONG, "x" * 1022])
CONTENT = WORDS | st.lists(WORDS.map(part), min_size=1, max_size=3)
ROWS = st.lists(st.tuples(st.sampled_from(["user", "assistant"]), CONTENT), max_size=5)


@given(st.sampled_from(["chat", "messages"]), ROWS)
def test_routing_sees_the_same_of_any_conversation(protocol: str, rows: list[tuple[str, Any]]) -> None:
    codec = CODECS[protocol]
    messages = [{"role": role, "content": content} for role, content in rows]
    cut, whole = both(protocol, MAKE[protocol](*messages))
    assert codec.features(cut) == codec.features(whole)
    assert codec.fingerprint(cut) == codec.fingerprint(whole)


def test_results_of_tools_are_left_out_and_still_told() -> None:
    called = {"type": "tool_use", "id": "a", "name": "Read", "input": {"text": LONG, "content": LONG}}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": given}
        for given in (LONG, [part(LONG)], [part(LONG), part("and")])
    ]
    for result in results:
        answered = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
        cut, whole = both("messages", spoken(*answered))
        assert MESSAGES.features(cut) == MESSAGES.features(whole)
        assert MESSAGES.decode_request(cut) == MESSAGES.decode_request(whole)
        assert LONG[:20] in repr(MESSAGES.decode_request(cut))


@protocols
def test_a_converted_request_has_all_its_texts(protocol: str) -> None:
    cut, whole = both(protocol, MAKE[protocol]({"role": "user", "content": [part(LONG)]}))
    decoded: Request = CODECS[protocol].decode_request(cut)
    assert decoded == CODECS[protocol].decode_request(whole)
    assert decoded.messages[-1].parts == (Text(LONG),)


@protocols
def test_a_body_that_was_changed_since_is_looked_at_as_it_was_read(protocol: str) -> None:
    codec = CODECS[protocol]
    cut, whole = both(protocol, MAKE[protocol]({"role": "user", "content": LONG}))
    shorter = b" " * 7 + cut.body
    assert codec.features(cut.with_body(shorter)) == codec.features(whole)
    assert (cut.current_outline(), cut.with_body(shorter).current_outline()) == (cut.outline, b"")


MODELS: dict[str, tuple[bytes, bytes]] = {
    "as it came": (b'{ "model" : "m" ,%b}', b'{ "model" : "new" ,%b}'),
    "named twice": (b'{"model":"m",%b,"model":"m"}', b'{"model":"new",%b}'),
    "named in escapes": (b'{"model":"m",%b,"mod\\u0065l":"m"}', b'{"model":"new",%b}'),
    "within": (b'{"model":"m",%b,"x":{"model":"m"}}', b'{"model":"new",%b,"x":{"model":"m"}}'),
}


@pytest.mark.parametrize(("body", "sent"), MODELS.values(), ids=MODELS)
@protocols
def test_the_model_is_replaced_and_every_text_stays(protocol: str, body: bytes, sent: bytes) -> None:
    said = LONG + '{"model":"m"} \\"model\\"'
    fields = MAKE[protocol]({"role": "user", "content": said})
    del fields["model"]
    rest = json.encode(fields)[1:-1]
    found = read(protocol, body % rest, outlined=True)
    assert found.outline
    encoded = CODECS[protocol].rewrite(found, EncodeOptions(model="new", provider="p"))
    if b"{ " in sent:
        assert encoded.body == sent % rest
    assert json.decode(encoded.body) == json.decode(sent % rest)


TOO_MUCH: dict[str, Fields] = {
    "an unknown role": {"role": "boss", "content": LONG},
    "a number": {"role": "user", "content": 5},
    "a number as a text": {"role": "user", "content": [{"type": "text", "text": 12}]},
    "no text": {"role": "user", "content": [{"type": "text", "x": LONG}]},
    "an object": {"role": "user", "content": {"text": LONG}},
    "no role": {"content": LONG},
}


@pytest.mark.parametrize("message", TOO_MUCH.values(), ids=TOO_MUCH)
@protocols
def test_what_is_wrong_is_said_as_it_is_of_small_requests(protocol: str, message: Fields) -> None:
    body = json.encode(MAKE[protocol](message))
    told = []
    for outlined in (True, False):
        with pytest.raises(BadRequest) as caught:
            read(protocol, body, outlined=outlined)
        told.append((caught.value.message, caught.value.param, caught.value.code))
    assert told[0] == told[1]
    assert "messages[1]" in told[0][0]


BROKEN: dict[str, bytes] = {
    "no UTF-8": b"\xff",
    "a control character": b"\x01",
    "an escape": b"\\x",
    "a lone surrogate": b"\\ud800",
    "a quote": b'"',
}


@pytest.mark.parametrize("sign", BROKEN.values(), ids=BROKEN)
@protocols
def test_a_broken_text_is_refused_as_ever(protocol: str, sign: bytes) -> None:
    body = json.encode(MAKE[protocol]({"role": "user", "content": "HERE" + LONG})).replace(b"HERE", sign)
    told: list[object] = []
    for outlined in (True, False):
        try:
            told.append(bool(read(protocol, body, outlined=outlined).outline))
        except BadRequest as error:
            told.append((error.message, error.code))
    assert told[0] == told[1]


@protocols
def test_a_text_that_looks_like_what_stands_for_one_is_itself(protocol: str) -> None:
    codec = CODECS[protocol]
    fields = MAKE[protocol]({"role": "user", "content": "\x0012"})
    cut = read(protocol, json.encode(fields), outlined=True)
    assert cut.outline == b""
    assert codec.features(cut).text == "\x0012"


@protocols
def test_small_requests_and_those_without_long_texts_are_read_as_they_are(protocol: str) -> None:
    small = read(protocol, json.encode(MAKE[protocol]()).replace(BULK.encode(), b"hi"), outlined=True)
    assert small.outline == b""
    many = MAKE[protocol](*[{"role": "user", "content": "few words " * 9}] * 700)
    many["messages"].pop(0)
    found = read(protocol, json.encode(many), outlined=True)
    assert found.outline is found.body


@pytest.mark.parametrize(
    ("said", "lacks_tags"),
    [
        ("hello", True),
        ("a < b ** c", True),
        ("<**status**>", False),
        (LONG + "<**status**>", False),
        ("\u0007", False),
    ],
)
@protocols
def test_a_large_request_is_known_to_hold_no_tag_only_when_it_holds_none(
    protocol: str, said: str, lacks_tags: bool
) -> None:
    cut, whole = both(protocol, MAKE[protocol]({"role": "user", "content": said}))
    assert (cut.lacks_tags, whole.lacks_tags) == (lacks_tags, False)
    assert cut.with_body(b"{}").lacks_tags is lacks_tags


@pytest.mark.parametrize(
    "tag", [rb"\u003c**status**>", rb"<\u002a\u002astatus**>", rb"\u003C\u002A*status**>"]
)
@protocols
def test_a_tag_that_is_spelled_with_escapes_is_not_overlooked(protocol: str, tag: bytes) -> None:
    body = json.encode(MAKE[protocol]({"role": "user", "content": "HERE"})).replace(b"HERE", tag)
    assert not read(protocol, body, outlined=True).lacks_tags
