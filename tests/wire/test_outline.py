"""A body without its long texts: what is cut out, what is left alone, and that nothing wrong gets past it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from routecodex.wire import outline, scan
from tests.reference import outline as reference
from tests.wire.twins import functions, twin

PLACES = ((b"content", 3), (b"text", 5), (b"text", 1))
LONG = b'"' + b"long " * 4 + b'"'
SHORTEST = 20
OPENING = b"<**"

use_width: Callable[[int], int] = getattr(outline, "use_width", lambda width: 0)
"""Chooses how many bytes what is compiled looks at together."""

WIDTHS = sorted({use_width(width) for width in (16, 32)})
"""Those that this processor has; what was used last is the largest."""


def cut(body: bytes, shortest: int = SHORTEST) -> bytes | None:
    """What is left of a body."""
    found = told(body, shortest)
    return None if found is None else found[0]


def told(body: bytes, shortest: int = SHORTEST) -> tuple[bytes, bool] | None:
    """What the reference returns, and the C with vectors of every size."""
    expected = reference.cut(body, PLACES, shortest, OPENING)
    for width in WIDTHS if IS_COMPILED else ():
        assert use_width(width) == width
        found = outline.cut(body, PLACES, shortest, OPENING)
        assert found == expected
        assert found is None or (found[0] is body) is (found[0] == body)
    return expected


def test_what_is_tested_is_in_c_where_the_hot_path_is_compiled() -> None:
    assert (outline.__file__ or "").endswith(".py") is not IS_COMPILED


def test_the_sources_cut_nothing_out_and_offer_what_the_reference_offers() -> None:
    source = twin("outline")
    assert source.cut(CUT["at the top"][0], PLACES, SHORTEST, OPENING) is None
    assert functions(source) == functions(reference) == {"cut"}
    assert inspect.signature(source.cut) == inspect.signature(reference.cut)


def marked(place: int) -> bytes:
    return b'"\\u0000%d"' % place


CUT: dict[str, tuple[bytes, bytes]] = {
    "at the top": (b'{"text":' + LONG + b"}", b'{"text":' + marked(8) + b"}"),
    "in a list": (b'{"a":[{"content":' + LONG + b"}]}", b'{"a":[{"content":' + marked(17) + b"}]}"),
    "in a list of a list": (
        b'{"a":[{"b":[{"text":' + LONG + b"}]}]}",
        b'{"a":[{"b":[{"text":' + marked(20) + b"}]}]}",
    ),
    "several": (
        b'{"a":[{"content":' + LONG + b'},{"content":' + LONG + b"}]}",
        b'{"a":[{"content":' + marked(17) + b'},{"content":' + marked(52) + b"}]}",
    ),
    "with blanks": (
        b' { "a" : [ {\n"content" \t:\r\n ' + LONG + b" } ] } ",
        b' { "a" : [ {\n"content" \t:\r\n ' + marked(28) + b" } ] } ",
    ),
    "behind others": (
        b'{"x":{"text":[{}]},"a":[[],{"y":1,"content":' + LONG + b',"z":"s"}]}',
        b'{"x":{"text":[{}]},"a":[[],{"y":1,"content":' + marked(44) + b',"z":"s"}]}',
    ),
    "brackets in texts": (
        b'{"a":[{"x":"}]{[","content":' + LONG + b"}]}",
        b'{"a":[{"x":"}]{[","content":' + marked(28) + b"}]}",
    ),
}


@pytest.mark.parametrize(("body", "left"), CUT.values(), ids=CUT)
def test_a_long_text_in_its_place_is_cut_out(body: bytes, left: bytes) -> None:
    assert cut(body) == left


LEFT: dict[str, bytes] = {
    "nothing": b"",
    "no object": b"5",
    "a short one": b'{"text":"short"}',
    "one byte too short": b'{"text":' + LONG[: SHORTEST - 2] + b'"}',
    "another key": b'{"other":' + LONG + b"}",
    "the end of a key": b'{"a text":' + LONG + b"}",
    "the end of a key behind a quote": b'{"a\\"text":' + LONG + b"}",
    "the beginning of a key": b'{"texts":' + LONG + b"}",
    "an escaped key": b'{"te\\u0078t":' + LONG + b"}",
    "the key itself": b"{" + LONG + b":1}",
    "in no object": b'[["text",' + LONG + b"]]",
    "another depth": b'{"content":' + LONG + b"}",
    "an object in an object": b'{"a":{"b":{"content":' + LONG + b"}}}",
    "a list in a list": b'[[{"content":' + LONG + b"}]]",
    "a list of the place": b'{"text":[' + LONG + b"]}",
}


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_short_or_elsewhere_stays(body: bytes) -> None:
    assert cut(body) is body


def test_a_text_counts_with_its_quotes() -> None:
    body = b'{"text":"four"}'
    assert (cut(body, 6), cut(body, 7)) == (b'{"text":' + marked(8) + b"}", body)


def placed(text: bytes) -> bytes:
    return b'{"text":"' + text + b'"}'


ODD: dict[str, bytes] = {
    "a mark": placed(b"\\u0000 and so on"),
    "a mark elsewhere": b'{"a":"\\u0000","text":' + LONG + b"}",
    "a control character": placed(b"a\x01b"),
    "a line end": placed(b"a\nb"),
    "an unknown escape": placed(b"a\\xb"),
    "an escape without digits": placed(b"\\u12g4"),
    "an escape that ends early": b'{"text":"\\u12"}',
    "a lone first half": placed(b"\\ud83d!"),
    "a lone second half": placed(b"\\ude00"),
    "two first halves": placed(b"\\ud83d\\ud83d"),
    "a half behind what only looks like one": placed(b"\\\\ud83d\\ude00"),
    "a byte of no character": placed(b"\xff"),
    "a byte that follows nothing": placed(b"\x80"),
    "a character cut short": placed(b"\xe2\x86"),
    "a character at the end": b'{"a":1}\xe2\x86',
    "a character longer than need be": placed(b"\xc0\x80"),
    "three bytes for two": placed(b"\xe0\x9f\xbf"),
    "four bytes for three": placed(b"\xf0\x8f\xbf\xbf"),
    "a surrogate": placed(b"\xed\xa0\x80"),
    "beyond the last character": placed(b"\xf4\x90\x80\x80"),
    "no such byte": placed(b"\xf8\x88\x80\x80\x80"),
    "a string that never ends": b'{"text":"abc',
    "a string that ends in a backslash": b'{"text":"abc\\',
    "a backslash outside": b'{\\"text":1}',
    "an object that never ends": b'{"a":{}',
    "more ends than beginnings": b"{}}",
    "too deep": b"[" * 61 + b"]" * 61,
}


@pytest.mark.parametrize("behind", [b"", LONG[1:-1], b"x" * 57])
@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_what_is_odd_is_left_to_who_reads_it_all(body: bytes, behind: bytes) -> None:
    assert cut(body) is None
    assert cut(b'{"x":"' + behind + b'","a":' + body + b"}") is None


GOOD = [
    b"\\ud83d\\ude00",
    b"\\uD83D\\uDE00 \\u00e9",
    b"\\\\u12",
    b'\\"\\\\\\/\\b\\f\\n\\r\\t',
    "é→😀\u0800\ud7ff\ue000\U00010000\U0010ffff".encode(),
    b"a\x7fb",
    b"x\\u0000",
]


@pytest.mark.parametrize("before", [0, 1, 40, 55, 61, 62, 63, 64, 120])
@pytest.mark.parametrize("text", GOOD)
def test_every_character_and_every_escape_may_stand_anywhere(text: bytes, before: int) -> None:
    body = placed(b"x" * before + text + b"y" * 20)
    assert cut(body) == b'{"text":' + marked(8) + b"}"


@pytest.mark.parametrize("size", [62, 63, 64, 65, 66, 127, 128, 129, 200])
def test_a_text_is_as_long_wherever_it_begins(size: int) -> None:
    text = b'"' + b"x" * (size - 2) + b'"'
    for before in range(66):
        body = b'{"x":"' + b"b" * before + b'","y":[{"content":' + text + b',"z":{}}],"text":' + text + b"}"
        places = [body.index(text), body.rindex(text)]
        left = body.replace(text, b"%b")
        for shortest in (size - 1, size):
            assert cut(body, shortest) == left % tuple(map(marked, places))
        assert cut(body, size + 1) is body


PIECES = [
    *(b'\\" \\\\ \\n \\t \\r \\/ \\b \\f \\u00e9 \\ud83d \\ude00 \\uD83D\\uDE00 \\x \\u12g4 \\u0000'.split()),
    *(b'" \\ { } [ ] : , < a word'.split()),
    *("é → 😀 \u0800 \ud7ff \U0010ffff".encode().split()),
    *b"\xe2\x86 \xed\xa0\x80 \xf4\x90\x80\x80 \xc0\x80 \xe0\x80\x80 \x80 \xff".split(b" "),
    *(b"\x01", b"\n", b" " * 5, b"x" * 31, b"y" * 63, b"z" * 64),
]

SIZES = [2, 12, 40, 64, 65, 90]
"""A text of more than 64 bytes is found another way than shorter ones."""
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)
PLAIN = st.text(max_size=90).map(msgspec.json.encode)
STRINGS = PLAIN | PLAIN | TEXTS.map(lambda text: b'"' + text + b'"')
KEYS = st.sampled_from([b'"content"', b'"text"', b'"a\\"text"', b'"x"']) | STRINGS
BLANKS = st.sampled_from([b"", b"", b"", b" ", b"\n\t"])
SCALARS = STRINGS | STRINGS | st.sampled_from([b"1", b"-2.5e3", b"null", b"true", b"nul", b""])


def _lists(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.lists(values, max_size=3).map(lambda given: b"[" + b",".join(given) + b"]")


def _objects(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    rows = st.tuples(BLANKS, KEYS, BLANKS, values, BLANKS)
    row = rows.map(lambda row: row[0] + row[1] + row[2] + b":" + row[2] + row[3] + row[4])
    return st.lists(row, max_size=3).map(lambda given: b"{" + b",".join(given) + b"}")


# As deep as the places are, an object in a list of an object; what lies there may be anything.
VALUES = st.recursive(SCALARS, lambda inner: _lists(inner) | _objects(inner), max_leaves=6)
DOCUMENTS = _objects(VALUES | _lists(_objects(VALUES | _lists(_objects(SCALARS)))))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ValueError


def _restored(value: Any, body: bytes) -> Any:
    if isinstance(value, dict):
        return {_restored(key, body): _restored(inner, body) for key, inner in value.items()}
    if isinstance(value, list):
        return [_restored(inner, body) for inner in value]
    if isinstance(value, str) and value.startswith("\0"):
        start = int(value[1:])
        return msgspec.json.decode(body[start : scan.string_end(body, start + 1) + 1])
    return value


@given(DOCUMENTS, st.sampled_from(SIZES), st.integers(0, 1000), st.sampled_from([b"", *PIECES]))
def test_an_outline_is_json_where_the_body_is_and_says_the_same(
    body: bytes, shortest: int, place: int, put: bytes
) -> None:
    place %= len(body) + 1
    body = body[:place] + put + body[place:]
    left = cut(body, shortest)
    if left is None:
        return
    assert scan.find_invalid_utf8(body) < 0
    whole, outlined = _decoded(body), _decoded(left)
    assert (whole is ValueError) == (outlined is ValueError)
    assert _restored(outlined, body) == whole


@given(st.lists(PLAIN, max_size=4), st.sampled_from(SIZES))
def test_a_good_body_is_never_odd(texts: list[bytes], shortest: int) -> None:
    rows = [b'{"content":%b,"parts":[{"text":%b}]}' % (text, text) for text in texts]
    body = b'{"rows":[' + b",".join(rows) + b"]}"
    left = cut(body, shortest)
    if any(b'"\\u0000' in text for text in texts):
        return
    assert left is not None
    assert left.count(b'"\\u0000') == 2 * sum(len(text) >= shortest for text in texts)
    assert _restored(_decoded(left), body) == _decoded(body)


OPEN: dict[str, tuple[bytes, bool]] = {
    "nothing": (b"", False),
    "a text": (b"a < b ** c", False),
    "the opening": (b"a <**b**>", True),
    "at the end": (b"a" * 200 + b"<**", True),
    "half of it": (b"a <*", False),
    "another before it": (b"<<**", True),
    "far behind": (b"<" * 300 + b"**", True),
    "an escape with a number": (b"a\\u003c**", True),
    "one of another character": (b"\\u0041", True),
    "one beyond these": (b"\\u0141 \\ud83d\\ude00", False),
    "what only looks like one": (b"\\\\u003c**", False),
    "other escapes": (b'\\n\\t\\/\\"', False),
}


@pytest.mark.parametrize(("text", "may"), OPEN.values(), ids=OPEN)
@pytest.mark.parametrize("before", [0, 1, 31, 61, 62, 63, 64])
def test_it_is_told_whether_the_opening_may_stand_somewhere(text: bytes, may: bool, before: int) -> None:
    body = b'{"x":"' + b"x" * before + text + b'","text":' + LONG + b"}"
    found = told(body)
    assert found is not None
    assert found[1] is may


@given(st.lists(st.sampled_from(["<", "*", "**", "x", "\\n", "\\u003c", "\\u2192", "\\\\", "é"])))
def test_where_it_may_not_stand_it_does_not(pieces: list[str]) -> None:
    body = b'{"x":"' + "".join(pieces).encode() + b'"}'
    found = told(body)
    assert found is not None
    assert found[1] or "<**" not in msgspec.json.decode(body)["x"]


WRONG: list[tuple[Any, ...]] = [
    (),
    (b"", PLACES, 1),
    ("", PLACES, 1, OPENING),
    (bytearray(b"{}"), PLACES, 1, OPENING),
    (b"{}", [], 1, OPENING),
    (b"{}", (b"text",), 1, OPENING),
    (b"{}", ((b"text",),), 1, OPENING),
    (b"{}", (("text", 1),), 1, OPENING),
    (b"{}", ((b"text", "1"),), 1, OPENING),
    (b"{}", PLACES * 9, 1, OPENING),
    (b"{}", PLACES, "1", OPENING),
    (b"{}", PLACES, 1, "<"),
    (b"{}", PLACES, 1, None),
]


@pytest.mark.skipif(not IS_COMPILED, reason="the source leaves such things to the type checker")
@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_body_and_no_place_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        outline.cut(*given)


@pytest.mark.skipif(not IS_COMPILED, reason="the source does not mind")
def test_an_opening_must_be_something() -> None:
    with pytest.raises(ValueError, match="opens"):
        outline.cut(b"{}", PLACES, 1, b"")
