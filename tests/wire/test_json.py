from __future__ import annotations

import pytest
from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.wire import json
from routecodex.wire.json import ABSENT


class Inner(Struct):
    role: str
    count: int | None = None
    more: dict[str, int] | None = None


class Outer(Struct):
    model: str
    items: list[Inner] = []
    names: list[str] | None = None
    raw: Raw = ABSENT


DECODER = Decoder(Outer)

WRONG: list[tuple[bytes, str | None, str, str]] = [
    (b"{}", "model", "missing_field", "model: this field is required"),
    (b'{"model":5}', "model", "invalid_type", "model: expected 'str', got 'int'"),
    (b'{"model":null}', "model", "invalid_type", "model: expected 'str', got 'null'"),
    (b'{"model":"m","items":{}}', "items", "invalid_type", "items: expected 'array', got 'object'"),
    (
        b'{"model":"m","items":[{"role":"a"},{}]}',
        "items[1].role",
        "missing_field",
        "items[1].role: this field is required",
    ),
    (
        b'{"model":"m","items":[{"role":"a","count":"many"}]}',
        "items[0].count",
        "invalid_type",
        "items[0].count: expected 'int | null', got 'str'",
    ),
    (
        b'{"model":"m","items":[{"role":"a","more":{"x":"y"}}]}',
        "items[0].more[...]",
        "invalid_type",
        "items[0].more[...]: expected 'int', got 'str'",
    ),
    (b'{"model":"m","names":["a",5]}', "names[1]", "invalid_type", "names[1]: expected 'str', got 'int'"),
    (b"[]", None, "invalid_type", "the request body: expected 'object', got 'array'"),
    (b'"text"', None, "invalid_type", "the request body: expected 'object', got 'str'"),
]


@pytest.mark.parametrize(("body", "param", "code", "message"), WRONG)
def test_the_wrong_field_is_named(body: bytes, param: str | None, code: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        json.read(body, DECODER)
    assert (caught.value.param, caught.value.code, caught.value.message) == (param, code, message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"model":"m"',
        b'{"model":"m",}',
        b"NaN",
        b"{'model':'m'}",
        b'{"model":"m"} x',
        b"<",
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the request body is not valid JSON") as caught:
        json.read(body, DECODER)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("text", [b"\xff", b"ok\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_what_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest, match="the request body is not valid UTF-8") as caught:
        json.read(b'{"model":"' + text + b'"}', DECODER)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00 lone", rb"a\ud83d\ud83d", rb"\ud83dx"])
def test_lone_surrogates_are_refused(text: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        json.read(b'{"model":"' + text + b'"}', DECODER)
    assert caught.value.code == "invalid_json"


def test_nul_bytes_and_odd_signs_in_text_are_content() -> None:
    read = json.read(rb'{"model":"a\u0000b\ud83d\ude00\u202e"}', DECODER)
    assert read.model == "a\x00b\U0001f600\u202e"


@pytest.mark.parametrize("opening", [b'{"model":"m","x":' + b"[" * 100_000, b'{"raw":' + b'{"a":' * 100_000])
def test_what_is_nested_too_deeply_is_refused(opening: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        json.read(opening, Decoder())
    assert caught.value.code == "nested_too_deeply"


def test_deep_nesting_breaks_no_reader() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert json.try_read(deep, Decoder()) is None
    assert not json.is_whole(deep)
    with pytest.raises(ValueError, match="recursion"):
        json.decode(deep)


def test_unknown_fields_pass() -> None:
    assert json.read(b'{"model":"m","tomorrow":[1]}', DECODER) == Outer("m")


def test_fields_keep_the_bytes_they_came_as() -> None:
    fields = json.read_fields(b'{ "b" : {"x": 1.50, "y":"\\u00e9"} , "a":[1,  2] }')
    assert {name: bytes(value) for name, value in fields.items()} == {
        "b": b'{"x": 1.50, "y":"\\u00e9"}',
        "a": b"[1,  2]",
    }
    assert json.encode(fields) == b'{"b":{"x": 1.50, "y":"\\u00e9"},"a":[1,  2]}'


@pytest.mark.parametrize("data", [b"", b"[1", b'"\xff"', b'"\\ud800"', b"x", "\ud800", "{"])
def test_provider_bytes_that_do_not_fit_are_none(data: bytes | str) -> None:
    assert json.try_read(data, Decoder()) is None
    assert not json.is_whole(data)
    with pytest.raises(ValueError):
        json.decode(data)


@pytest.mark.parametrize("data", [b"{}", b" [1] ", "5", '"é"', b"null"])
def test_whole_values_are_whole(data: bytes | str) -> None:
    assert json.is_whole(data)


def test_raw_fields_tell_whether_they_were_there() -> None:
    absent, null, there = (
        json.read(body, DECODER).raw
        for body in (b'{"model":"m"}', b'{"model":"m","raw":null}', b'{"model":"m","raw":{"a":[1]}}')
    )
    assert [json.is_present(raw) for raw in (absent, null, there)] == [False, False, True]
    assert [json.decode_raw(raw) for raw in (absent, null, there)] == [None, None, {"a": [1]}]


def test_what_is_not_utf_8_in_a_raw_field_is_replaced() -> None:
    raw = json.read(b'{"model":"m","raw":{"a":"x\xffy"}}', DECODER).raw
    assert json.decode_raw(raw) == {"a": "x\ufffdy"}


LONG = 30_000


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("sign", ["a", "é", "→", "😀"])
def test_a_long_text_is_utf_8_wherever_its_characters_stand(sign: str, shift: int) -> None:
    json.check_utf8(b"x" * shift + sign.encode() * LONG)


@pytest.mark.parametrize("at", [0, 1, 8190, 8191, 8192, 8193, 20_000, LONG - 2, LONG])
@pytest.mark.parametrize(
    ("wrong", "why"), [(b"\xff", "invalid start byte"), (b"\xe2\x86", "invalid continuation byte")]
)
def test_a_wrong_byte_is_named_by_its_place_in_the_whole_text(at: int, wrong: bytes, why: str) -> None:
    with pytest.raises(BadRequest) as caught:
        json.check_utf8("é".encode() * (LONG // 2) + b"x" * at + wrong + b"x" * (LONG - at) + b"\n")
    assert caught.value.message == f"the request body is not valid UTF-8 ({why} at byte {LONG + at})"
    assert caught.value.code == "invalid_json"


def test_a_text_that_ends_within_a_character_is_no_utf_8() -> None:
    with pytest.raises(BadRequest, match=r"\(unexpected end of data at byte 16384\)"):
        json.check_utf8(b"x" * 16_384 + "→".encode()[:2])
