from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.rewrite import rewrite
from routecodex.protocols.chat.validate import validate
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.large_body import replace_model
from routecodex.wire import json
from tests.protocols.chat.samples import OPTIONS, value_of, wire_request, with_dialect

SPACED = (
    b' {\n  "messages" : [ {"role":"user", "content":"gr\\u00fc\\u00dfe \\"model\\": \\"x\\""} ],\r\n'
    b'\t"tomorrow": {"b":1.50e1,"a":[ ]} ,"model"  :  "as\\"ked" , "temperature":0.70 }\n'
)


def passed(body: bytes, to: EncodeOptions = OPTIONS) -> bytes:
    return rewrite(validate(body), to).body


def test_only_the_model_is_replaced_and_every_other_byte_stays() -> None:
    assert passed(SPACED) == SPACED.replace(b'"as\\"ked"', b'"m-1"')


def test_a_model_with_special_characters_is_escaped() -> None:
    body = passed(SPACED, EncodeOptions(model='a"b\\ü', provider="acme"))
    assert json.decode(body)["model"] == 'a"b\\ü'
    assert body == SPACED.replace(b'"as\\"ked"', '"a\\"b\\\\ü"'.encode())


MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'
SEVERAL: list[tuple[str, bytes, bytes]] = [
    (
        "in a nested object",
        b'{"metadata":{"model": "x"},"model":"asked",' + MESSAGES + b"}",
        b'{"metadata":{"model": "x"},"model":"m-1",' + MESSAGES + b"}",
    ),
    (
        "in a tool's schema",
        b'{"model":"asked","tools":[{"type":"function","function":{"name":"f","parameters":'
        b'{"properties": {"model": {"type": "string"}}}}}],' + MESSAGES + b"}",
        b'{"model":"m-1","tools":[{"type":"function","function":{"name":"f","parameters":'
        b'{"properties": {"model": {"type": "string"}}}}}],' + MESSAGES + b"}",
    ),
    (
        "as a value",
        b'{"model":"asked","messages":[{"role":"user","content":"model"}]}',
        b'{"model":"m-1","messages":[{"role":"user","content":"model"}]}',
    ),
    (
        "twice at the top",
        b'{"model":"first",' + MESSAGES + b',"model":"last"}',
        b'{"model":"m-1",' + MESSAGES + b"}",
    ),
    (
        "as an escaped key that would win at the upstream",
        b'{"model":"first",' + MESSAGES + b',"mod\\u0065l":"last"}',
        b'{"model":"m-1",' + MESSAGES + b"}",
    ),
    (
        "only as an escaped key",
        b'{"\\u006dodel":"first",' + MESSAGES + b',"metadata":{"model":"x"}}',
        b'{"model":"m-1",' + MESSAGES + b',"metadata":{"model":"x"}}',
    ),
]


@pytest.mark.parametrize(("body", "expected"), [row[1:] for row in SEVERAL], ids=[row[0] for row in SEVERAL])
def test_the_word_model_may_occur_several_times(body: bytes, expected: bytes) -> None:
    assert passed(body) == expected


def test_the_name_of_the_model_inside_text_is_text() -> None:
    body = json.encode(
        {"messages": [{"role": "user", "content": '{"model":"asked"}'}], "model": "asked", "user": "model"}
    )
    assert passed(body) == body.replace(b'"model":"asked","user"', b'"model":"m-1","user"')


def test_fields_the_upstream_refuses_are_taken_out_with_a_notice() -> None:
    body = (
        b'{"store": true, "messages": [ {"role":"user","content":"hi", "x":1.0} ],'
        b' "seed":1,"model":"asked","logit_bias":null}'
    )
    encoded = rewrite(validate(body), with_dialect(unsupported=("seed", "logit_bias", "user")))
    assert (
        encoded.body == b'{"store":true,"messages":[ {"role":"user","content":"hi", "x":1.0} ],"model":"m-1"}'
    )
    assert encoded.notices == (
        "dropped seed: this upstream rejects it",
        "dropped logit_bias: this upstream rejects it",
    )


def test_nothing_is_reported_when_nothing_is_taken_out() -> None:
    encoded = rewrite(validate(SPACED), with_dialect(unsupported=("seed",)))
    assert encoded.notices == ()
    assert json.decode(encoded.body) == {**json.decode(SPACED), "model": "m-1"}


DIALECTS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"max_completion_tokens": 5}, {"max_tokens_field": "max_tokens"}, {"max_tokens": 5}),
    ({"max_completion_tokens": 5}, {}, {"max_completion_tokens": 5}),
    ({"max_tokens": 5}, {}, {"max_tokens": 5}),
    ({"max_tokens": 5}, {"max_tokens_field": "max_completion_tokens"}, {"max_completion_tokens": 5}),
    (
        {"max_tokens": 5, "max_completion_tokens": 6},
        {"max_tokens_field": "max_completion_tokens"},
        {"max_completion_tokens": 6},
    ),
    (
        {"max_completion_tokens": None, "max_tokens": 5},
        {"max_tokens_field": "max_completion_tokens"},
        {"max_completion_tokens": 5},
    ),
    (
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream_usage": False},
        {"stream": True},
    ),
    ({"stream": True, "stream_options": {}}, {}, {"stream": True, "stream_options": {"include_usage": True}}),
    ({"stream": True}, {}, {"stream": True, "stream_options": {"include_usage": True}}),
    (
        {"stream": True, "stream_options": None},
        {},
        {"stream": True, "stream_options": {"include_usage": True}},
    ),
    (
        {"stream": True, "stream_options": {"include_usage": False, "include_obfuscation": False}},
        {},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ),
    ({"stream": True}, {"stream_usage": False}, {"stream": True}),
    ({"stream": False}, {}, {"stream": False}),
    (
        {"stream": True, "max_tokens": 9},
        {"max_tokens_field": "max_completion_tokens"},
        {"stream": True, "max_completion_tokens": 9, "stream_options": {"include_usage": True}},
    ),
    ({"n": 2}, {}, {"n": 2}),
    ({"max_tokens": -1}, {}, {"max_tokens": -1}),
    ({"max_completion_tokens": -1}, {"max_tokens_field": "max_tokens"}, {"max_tokens": -1}),
]


@pytest.mark.parametrize(("fields", "dialect", "expected"), DIALECTS, ids=range(len(DIALECTS)))
def test_fields_fit_the_dialect(
    fields: dict[str, Any], dialect: dict[str, Any], expected: dict[str, Any]
) -> None:
    encoded = rewrite(wire_request(**fields), with_dialect(**dialect))
    assert encoded.notices == ()
    assert json.decode(encoded.body) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "hi"}],
        **expected,
    }


def test_several_answers_are_refused_where_the_upstream_gives_one() -> None:
    with pytest.raises(BadRequest) as caught:
        rewrite(wire_request(n=2), with_dialect(n=False))
    assert caught.value.param == "n"


def test_a_body_without_a_model_gets_one() -> None:
    assert replace_model(b'{"input":"x"}', "m") == b'{"input":"x","model":"m"}'


@pytest.mark.parametrize("dialect", [{}, {"n": False}, {"parallel_tool_calls": False}])
def test_a_tool_without_type_stays_as_its_client_wrote_it(dialect: dict[str, Any]) -> None:
    # Mistral's SDK leaves the type out.
    tools = [{"function": {"name": "look"}}]
    request = wire_request(tools=tools, parallel_tool_calls=True)
    assert value_of(rewrite(request, with_dialect(**dialect)))["tools"] == tools
