"""A body with its model replaced and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from routecodex.protocols.large_body import replace_model

BIG = b'"' + b"x" * 40_000 + b'"'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{ "model" : "old" ,"x":1.0}', b'{ "model" : "new" ,"x":1.0}'),
        (b'{"x":{"model":"inner"},"model":"old"}', b'{"x":{"model":"inner"},"model":"new"}'),
        (b'{"x":1.50, "model":"a\\"b"}', b'{"x":1.50, "model":"new"}'),
        (b'{"mod\\u0065l":"sly","model":"old"}', b'{"model":"new"}'),
        (b'{"model":"old","mod\\u0065l":"sly"}', b'{"model":"new"}'),
        (b'{"model":"one","model":"two"}', b'{"model":"new"}'),
        (b'{"text":"\\"model\\": \\"x\\"","model":"old"}', b'{"text":"\\"model\\": \\"x\\"","model":"new"}'),
        (b'{"big":' + BIG + b',"model":"old","n":1e2}', b'{"big":' + BIG + b',"model":"new","n":1e2}'),
        (b'{"model":"old","n":1e2,"big":' + BIG + b"}", b'{"model":"new","n":1e2,"big":' + BIG + b"}"),
        (b'{"a":"model","model":"old","b":' + BIG + b"}", b'{"a":"model","model":"new","b":' + BIG + b"}"),
        (b'{"model":"one","big":' + BIG + b',"model":"two"}', b'{"model":"new","big":' + BIG + b"}"),
        (b'{"model":"one","big":' + BIG + b',"mod\\u0065l":"two"}', b'{"model":"new","big":' + BIG + b"}"),
        (b'{"model":"new", "x":1}', b'{"model":"new", "x":1}'),
    ],
)
def test_the_model_is_replaced_and_every_other_value_stays(body: bytes, expected: bytes) -> None:
    assert replace_model(body, "new") == expected


def test_a_large_body_keeps_its_white_space_too() -> None:
    assert replace_model(b'{ "big": ' + BIG + b' , "model" : "old"}', "new") == (
        b'{ "big": ' + BIG + b' , "model" : "new"}'
    )


def test_a_model_name_is_escaped_as_json_wants_it() -> None:
    assert msgspec.json.decode(replace_model(b'{"model":"old"}', 'a"b\\c')) == {"model": 'a"b\\c'}


@pytest.mark.parametrize("body", [b'{"model" :"new","x":1.0}', b'{"big":' + BIG + b', "model" :"new"}'])
def test_a_body_that_is_known_to_name_the_model_stays_the_same_object(body: bytes) -> None:
    assert replace_model(body, "new", named="new") is body


def test_a_model_named_otherwise_is_replaced() -> None:
    assert replace_model(b'{"model":"old"}', "new", named="old") == b'{"model":"new"}'
