"""The scans do what is said of them, from their source and in C."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from routecodex import IS_COMPILED
from routecodex.wire import scan
from tests.wire.twins import functions, twin

HEAD, TAIL = b'data: {"text":"', b'"}\n\n'
ESCAPED = rb"say \"hi\", \\ and \u00e9"


def framed(*texts: bytes) -> bytes:
    return b"".join(HEAD + text + TAIL for text in texts)


TWIN = twin("scan")


def test_what_is_tested_is_in_c_where_the_hot_path_is_compiled() -> None:
    assert (scan.__file__ or "").endswith(".py") is not IS_COMPILED
    assert scan.IN_C is IS_COMPILED


ALIKE: list[tuple[str, bytes, int, bytes, bytes, int]] = [
    ("nothing", b"", 0, HEAD, TAIL, 0),
    ("one frame", framed(b"a"), 0, HEAD, TAIL, len(framed(b"a"))),
    ("an empty text", framed(b""), 0, HEAD, TAIL, len(framed(b""))),
    ("several", framed(b"a", b"", ESCAPED), 0, HEAD, TAIL, len(framed(b"a", b"", ESCAPED))),
    ("from where they begin", b"..." + framed(b"a"), 3, HEAD, TAIL, 3 + len(framed(b"a"))),
    ("none there", b"..." + framed(b"a"), 0, HEAD, TAIL, 0),
    ("another at the end", framed(b"a") + b"data: [DONE]\n\n", 0, HEAD, TAIL, len(framed(b"a"))),
    ("another tail", framed(b"a") + HEAD + b'b"]', 0, HEAD, TAIL, len(framed(b"a"))),
    ("cut off in the head", framed(b"a") + HEAD[:-1], 0, HEAD, TAIL, len(framed(b"a"))),
    ("cut off behind the head", framed(b"a") + HEAD, 0, HEAD, TAIL, len(framed(b"a"))),
    ("cut off in the text", framed(b"a") + HEAD + b"b", 0, HEAD, TAIL, len(framed(b"a"))),
    ("cut off in an escape", framed(b"a") + HEAD + b'\\"\\', 0, HEAD, TAIL, len(framed(b"a"))),
    ("cut off in the tail", framed(b"a", b"b")[:-1], 0, HEAD, TAIL, len(framed(b"a"))),
    ("an escaped quote", framed(rb"\""), 0, HEAD, TAIL, len(framed(rb"\""))),
    ("an escaped backslash", framed(rb"\\"), 0, HEAD, TAIL, len(framed(rb"\\"))),
    ("a quote that closes nothing", framed(rb"\\\""), 0, HEAD, TAIL, len(framed(rb"\\\""))),
    ("a quote swallowed", framed(b"\\"), 0, HEAD, TAIL, 0),
    ("a quote that swallows the next frame", framed(b"\\", b"a"), 0, HEAD, TAIL, 0),
    ("a backslash that escapes no sign", framed(b'a\\\nb\\"'), 0, HEAD, TAIL, 0),
    ("the same before a plain quote", framed(b"a\\\nb"), 0, HEAD, TAIL, len(framed(b"a\\\nb"))),
    ("a tail within the text", framed(rb"\"}"), 0, HEAD, TAIL, len(framed(rb"\"}"))),
    ("no head", framed(b"a"), 0, b"", TAIL, 0),
    ("no tail", b'<a"', 0, b"<", b"", 2),
    ("no tail and no quote", b"<a<a", 0, b"<", b"", 0),
    ("no tail, an escape, no quote", b'<\\"a', 0, b"<", b"", 0),
    ("no tail, and cut off in an escape", b'<\\"\\', 0, b"<", b"", 3),
    ("a head that ends with a backslash", b'<\\"><\\a">', 0, b"<\\", b'">', 9),
    ("at the end", framed(b"a"), len(framed(b"a")), HEAD, TAIL, len(framed(b"a"))),
    ("behind the end", framed(b"a"), 1000, HEAD, TAIL, 1000),
    ("far behind the end", framed(b"a"), 1 << 80, HEAD, TAIL, 1 << 80),
    ("before the beginning", framed(b"a"), -len(framed(b"a")), HEAD, TAIL, -len(framed(b"a"))),
    ("far before the beginning", framed(b"a"), -(1 << 80), HEAD, TAIL, -(1 << 80)),
]


@pytest.mark.parametrize(
    ("run", "at", "head", "tail", "end"), [row[1:] for row in ALIKE], ids=[r[0] for r in ALIKE]
)
def test_frames_alike_end_where_the_first_other_one_begins(
    run: bytes, at: int, head: bytes, tail: bytes, end: int
) -> None:
    assert scan.frames_end(run, at, head, tail) == end


SIGNS = st.lists(st.sampled_from([b'"', b"\\", b"a", b"}", b"u", b"\xc3\xa9", HEAD, TAIL]), max_size=12).map(
    b"".join
)
RUNS = st.lists(SIGNS | SIGNS.map(framed), max_size=5).map(b"".join)


@given(RUNS, st.integers(0, 40))
def test_frames_alike_are_those_of_a_pattern(run: bytes, at: int) -> None:
    frame = re.escape(HEAD) + rb'(?:[^"\\]|\\[^\n])*' + re.escape(TAIL)
    found = re.compile(rb"(?:" + frame + rb")*").match(run, at) if at <= len(run) else None
    assert scan.frames_end(run, at, HEAD, TAIL) == (found.end() if found else at)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (b"", 0),
        (b'"', 0),
        (b"abc", 3),
        (b'abc"def', 3),
        (ESCAPED, len(ESCAPED)),
        (ESCAPED + b'"', len(ESCAPED)),
        (b"a\\", 1),
        (b"a\\\\", 3),
        (b"a\\\nb", 1),
        (b'\\"\\', 2),
    ],
)
def test_the_inside_of_a_string_ends_at_its_quote_or_at_a_stray_backslash(text: bytes, end: int) -> None:
    assert scan.text_length(text) == end


@pytest.mark.parametrize(
    ("text", "at", "end"),
    [
        (b"", 0, -1),
        (b'"', 0, 0),
        (b'"', 1, -1),
        (b'abc"def"', 0, 3),
        (b'abc"def"', 3, 3),
        (b'abc"def"', 4, 7),
        (b"abc", 0, -1),
        (ESCAPED, 0, -1),
        (ESCAPED + b'"', 0, len(ESCAPED)),
        (rb"\"", 0, -1),
        (rb"\"", 1, 1),
        (rb"\\" + b'"', 0, 2),
        (rb"\\\"" + b'"', 0, 4),
        (b'\\\n"', 0, 2),
        (b'"', -1, -1),
        (b'"', 2, -1),
        (b'"', 1 << 80, -1),
        (b'"', -(1 << 80), -1),
    ],
)
def test_a_string_closes_at_the_first_quote_that_is_not_escaped(text: bytes, at: int, end: int) -> None:
    assert scan.string_end(text, at) == end


@given(st.text(), st.binary(max_size=9))
def test_a_string_closes_where_json_says_so(text: str, behind: bytes) -> None:
    string = msgspec.json.encode(text)
    assert scan.string_end(string + behind, 1) == len(string) - 1


NAMES = (b"id", b"at", b"id_2")
MEMBERS: list[tuple[str, bytes, tuple[str | int | None, ...], int]] = [
    ("nothing", b"", (None, None, None), 0),
    ("a string", b'"id":"a b~!#[]"}', ("a b~!#[]", None, None), 15),
    ("an empty string", b'"id":""}', ("", None, None), 7),
    ("a number", b'"id":120}', (120, None, None), 8),
    ("no number less than nothing", b'"id":-1}', (None, None, None), 0),
    ("nothing as a number", b'"id":0,', (0, None, None), 6),
    ("null", b'"id":null}', (None, None, None), 9),
    ("in any order", b'"at":1,"id_2":"x","id":2}', (2, 1, "x"), 24),
    ("up to a list", b'"id":1,"at":[]}', (1, None, None), 6),
    ("up to another name", b'"id":1,"other":1}', (1, None, None), 6),
    ("up to a name again", b'"id":1,"id":2}', (1, None, None), 6),
    ("up to a name that was null", b'"id":null,"id":2}', (None, None, None), 9),
    ("up to a blank", b'"id":1, "at":1}', (1, None, None), 6),
    ("up to an escape", b'"id":1,"at":"\\n"}', (1, None, None), 6),
    ("up to an escaped quote", b'"id":1,"at":"\\""}', (1, None, None), 6),
    ("up to a line end", b'"id":1,"at":"\n"}', (1, None, None), 6),
    ("up to a delete", b'"id":1,"at":"\x7f"}', (1, None, None), 6),
    ("up to what is no ASCII", b'"id":1,"at":"\xc3\xa9"}', (1, None, None), 6),
    ("fifteen digits", b'"id":123456789012345}', (123456789012345, None, None), 20),
    ("sixteen digits", b'"id":1234567890123456}', (None, None, None), 0),
    ("a number that begins with nothing", b'"id":01}', (None, None, None), 0),
    ("a fraction", b'"id":1.5}', (None, None, None), 0),
    ("an exponent", b'"id":1e5}', (None, None, None), 0),
    ("a word", b'"id":true}', (None, None, None), 0),
    ("more than null", b'"id":nullx}', (None, None, None), 0),
    ("blanks", b'"id": 1}', (None, None, None), 0),
    ("cut off in a name", b'"id', (None, None, None), 0),
    ("cut off behind a name", b'"id":', (None, None, None), 0),
    ("cut off in a string", b'"id":"a', (None, None, None), 0),
    ("cut off behind a string", b'"id":"a"', (None, None, None), 0),
    ("cut off in a number", b'"id":12', (None, None, None), 0),
    ("cut off in null", b'"id":nul', (None, None, None), 0),
    ("cut off behind a comma", b'"id":1,', (1, None, None), 6),
]


@pytest.mark.parametrize(
    ("run", "values", "end"), [row[1:] for row in MEMBERS], ids=[row[0] for row in MEMBERS]
)
def test_plain_members_are_read_up_to_the_first_other(
    run: bytes, values: tuple[str | int | None, ...], end: int
) -> None:
    assert scan.plain_members(run, 0, NAMES) == (values, end)
    assert scan.plain_members(b"{" + run, 1, NAMES) == (values, end + 1)


@pytest.mark.parametrize("at", [-1, -(1 << 80), 7, 1 << 80])
def test_there_are_no_members_before_the_beginning_or_behind_the_end(at: int) -> None:
    assert scan.plain_members(b'"id":1', at, NAMES) == ((None, None, None), at)
    assert scan.plain_members(b'"id":1}', 0, ()) == ((), 0)


MEMBER_SIGNS = st.lists(
    st.sampled_from(
        [
            b'"id":',
            b'"at":',
            b'"id_2":',
            b'"',
            b",",
            b"}",
            b"null",
            b"0",
            b"12",
            b"345678",
            b"a",
            b"\\",
            b"\xff",
        ]
    )
    | st.sampled_from([b'"id":"a",', b'"at":12,', b'"id_2":null,']),
    max_size=12,
).map(b"".join)
PLAIN = st.none() | st.integers(0, 10**15 - 1) | st.text("azAZ09 .:,{}[]/#!~")


@given(st.permutations(NAMES), st.lists(PLAIN, min_size=3, max_size=3))
def test_members_are_what_json_says(order: list[bytes], values: list[str | int | None]) -> None:
    given_ = dict(zip((name.decode() for name in order), values, strict=True))
    text = msgspec.json.encode(given_)
    expected = tuple(given_[name.decode()] for name in NAMES)
    assert scan.plain_members(text, 1, NAMES) == (expected, len(text) - 1)


CHUNKS: list[tuple[str, bytes, int, bytes, int]] = [
    ("nothing", b"", 0, b"", 0),
    ("one", b"3\r\nabc\r\n", 0, b"abc", 8),
    ("several", b"3\r\nabc\r\n1\r\nd\r\n", 0, b"abcd", 14),
    ("from where they begin", b"..1\r\na\r\n", 2, b"a", 8),
    ("digits of both sizes", b"0aB\r\n" + b"x" * 0xAB + b"\r\n", 0, b"x" * 0xAB, 178),
    ("eight digits", b"00000001\r\na\r\n", 0, b"a", 13),
    ("nine digits", b"000000001\r\na\r\n", 0, b"", 0),
    ("up to the last", b"1\r\na\r\n0\r\n\r\n", 0, b"a", 6),
    ("up to an extension", b"1\r\na\r\n1;x=y\r\nb\r\n", 0, b"a", 6),
    ("up to a blank", b"1\r\na\r\n1 \r\nb\r\n", 0, b"a", 6),
    ("up to a sign", b"1\r\na\r\n+1\r\nb\r\n", 0, b"a", 6),
    ("up to a bare line end", b"1\r\na\r\n1\nb\n", 0, b"a", 6),
    ("up to a chunk that is too long", b"1\r\na\r\n1\r\nbb\r\n", 0, b"a", 6),
    ("up to a chunk that is too short", b"1\r\na\r\n2\r\nb\r\n", 0, b"a", 6),
    ("up to one of many bytes", b"1\r\na\r\nffffffff\r\nb\r\n", 0, b"a", 6),
    ("cut off in a size", b"1\r\na\r\n1", 0, b"a", 6),
    ("cut off in the line of a size", b"1\r\na\r\n1\r", 0, b"a", 6),
    ("cut off before a body", b"1\r\na\r\n1\r\n", 0, b"a", 6),
    ("cut off in a body", b"1\r\na\r\n2\r\nb", 0, b"a", 6),
    ("cut off behind a body", b"1\r\na\r\n1\r\nb", 0, b"a", 6),
    ("cut off in its end", b"1\r\na\r\n1\r\nb\r", 0, b"a", 6),
    ("at the end", b"1\r\na\r\n", 6, b"", 6),
    ("behind the end", b"1\r\na\r\n", 7, b"", 7),
    ("far behind the end", b"1\r\na\r\n", 1 << 80, b"", 1 << 80),
    ("before the beginning", b"1\r\na\r\n", -6, b"", -6),
]


@pytest.mark.parametrize(
    ("data", "at", "body", "end"), [row[1:] for row in CHUNKS], ids=[r[0] for r in CHUNKS]
)
def test_plain_chunks_are_opened_as_far_as_they_are_here(data: bytes, at: int, body: bytes, end: int) -> None:
    assert scan.unchunk(data, at) == (body, end)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


FRAMED = st.lists(
    st.binary(max_size=40).map(chunked)
    | st.sampled_from([b"\r\n", b"1", b"f", b"\r", b"0\r\n\r\n", b"a;b\r\n"]),
    max_size=6,
).map(b"".join)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), FRAMED)
def test_chunks_hold_what_was_put_into_them(bodies: list[bytes], behind: bytes) -> None:
    data = b"".join(map(chunked, bodies))
    assert scan.unchunk(data, 0) == (b"".join(bodies), len(data))
    body, end = scan.unchunk(data + behind, 0)
    assert body.startswith(b"".join(bodies))
    assert end >= len(data)


EDGES = [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 130, 131, 1000, 8189, 8190, 8191, 8192, 8193]
WRONG = [
    b"\x80",
    b"\xbf",
    b"\xc0\x80",
    b"\xc1\xbf",
    b"\xc3(",
    b"\xe0\x9f\xbf",
    b"\xe2\x86",
    b"\xe2(\xa1",
    b"\xe2\x86(",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xf0\x9f\x98",
    b"\xf0\x9f(",
    b"\xf0\x9f\x98(",
    b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80",
    b"\xfe",
    b"\xff",
]
CHARACTERS = [
    "\x00",
    "a",
    "\x7f",
    "\x80",
    "\u07ff",
    "\u0800",
    "\ud7ff",
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
]


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("sign", CHARACTERS)
def test_characters_are_characters_wherever_they_stand(sign: str, at: int) -> None:
    assert scan.find_invalid_utf8(b"x" * at + sign.encode() * 9 + b"x" * at) == -1
    assert scan.find_invalid_utf8(b"x" * at + sign.encode()) == -1


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_character_is_found_where_it_begins(wrong: bytes, at: int) -> None:
    assert scan.find_invalid_utf8(b"x" * at + wrong) == at
    assert scan.find_invalid_utf8(b"x" * at + wrong + b"x" * 40) == at
    assert scan.find_invalid_utf8("é".encode() * at + wrong + b"\xff") == 2 * at
    assert scan.find_invalid_utf8("→".encode() * at + wrong + "→".encode() * 9) == 3 * at


def decoded_wrong(body: bytes) -> int:
    try:
        body.decode()
    except UnicodeDecodeError as exc:
        return exc.start
    return -1


PIECES = st.binary(max_size=4) | st.text(max_size=20).map(str.encode) | st.sampled_from([*WRONG, b"x" * 16])


@given(st.lists(PIECES, max_size=8).map(b"".join))
def test_utf8_is_what_python_decodes(body: bytes) -> None:
    assert scan.find_invalid_utf8(body) == decoded_wrong(body)


def test_every_two_bytes_are_utf8_as_python_decodes_them() -> None:
    for first in range(0x80, 0x100):
        for second in range(0x100):
            for body in (
                bytes([first, second]),
                bytes([first, second, 0x80]),
                bytes([first, second, 0x80, 0xBF]),
            ):
                assert scan.find_invalid_utf8(body) == decoded_wrong(body)


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("needle", [b"<", b"<*", b"<**", b"\\u00", b"abcdef" * 30])
def test_a_needle_is_found_wherever_it_stands(needle: bytes, at: int) -> None:
    near = needle[:-1] + b"?"
    for before in (b"x" * at, needle[:1] * at, (near * at)[:at]):
        for after in (b"", b"x" * 200, needle[:-1]):
            assert scan.contains(before + needle + after, needle) is True
            assert scan.contains(before + near + after, needle) is (needle in before + near + after)
            for body in (before + needle + after, before + near + after):
                assert scan.find(body, needle, 0) == body.find(needle)
                assert scan.find(body, needle, at // 2) == body.find(needle, at // 2)


@pytest.mark.parametrize("body", [b"", b"a"])
def test_nothing_stands_everywhere_and_more_than_there_is_nowhere(body: bytes) -> None:
    assert scan.contains(body, b"") is True
    assert scan.contains(body, b"ab") is False
    assert scan.find(body, b"", 0) == 0
    assert scan.find(body, b"ab", 0) == -1


@pytest.mark.parametrize("at", [-1, -(1 << 80), 4, 1 << 80])
@pytest.mark.parametrize("needle", [b"", b"a"])
def test_nothing_is_found_before_the_beginning_or_behind_the_end(needle: bytes, at: int) -> None:
    assert scan.find(b"aaa", needle, at) == -1


@pytest.mark.parametrize("at", EDGES)
def test_the_first_of_several_is_found_wherever_it_stands(at: int) -> None:
    needles = (b"<first>", b"<", b"second", b"nd<fi")
    for body in (
        b"x" * at + b"second<first>",
        b"<firs" * at + b"second",
        b"x" * at + b"<first>second",
        b"x" * at,
    ):
        places = [place for needle in needles if (place := body.find(needle, at // 2)) >= 0]
        assert scan.find_first(body, needles, at // 2) == min(places, default=-1)


@pytest.mark.parametrize("at", [-1, -(1 << 80), 4, 1 << 80])
def test_none_of_several_is_found_outside(at: int) -> None:
    assert scan.find_first(b"aaa", (b"a", b""), at) == -1
    assert scan.find_first(b"aaa", (), 0) == -1


FEW = st.lists(st.sampled_from([b"<", b"*", b"x", b"<*", b"*" * 60, b"<x*" * 50]), max_size=9).map(b"".join)


@given(FEW, FEW)
def test_what_is_held_is_what_is_in_it(body: bytes, needle: bytes) -> None:
    assert scan.contains(body, needle) is (needle in body)
    assert scan.contains(body, needle[:3]) is (needle[:3] in body)


@given(FEW, st.lists(FEW, max_size=4), st.integers(0, 99))
def test_the_first_of_several_stands_before_all_others(body: bytes, needles: list[bytes], at: int) -> None:
    several = (*needles, *(needle[:3] for needle in needles))
    places = [place for needle in several if (place := body.find(needle, at)) >= 0]
    assert scan.find_first(body, several, at) == min(places, default=-1)


@pytest.mark.skipif(not IS_COMPILED, reason="the source is what is loaded")
class TestBothTwins:
    """What is written in C does the same as the source that it stands for."""

    def test_they_have_the_same_functions(self) -> None:
        assert functions(TWIN) | {"IN_C"} == {name for name in vars(scan) if name[0] != "_"}

    @given(RUNS, st.integers(-99, 99) | st.integers(), SIGNS, SIGNS)
    def test_frames_alike_end_at_the_same_place(self, run: bytes, at: int, head: bytes, tail: bytes) -> None:
        for shape in ((HEAD, TAIL), (head, tail), (head[:1], tail[:1]), (HEAD, b"")):
            assert scan.frames_end(run, at, *shape) == TWIN.frames_end(run, at, *shape)

    @given(SIGNS | st.binary(), st.integers(-9, 99) | st.integers())
    def test_strings_close_at_the_same_place(self, text: bytes, at: int) -> None:
        assert scan.string_end(text, at) == TWIN.string_end(text, at)
        assert scan.string_end(text, 0) == TWIN.string_end(text, 0)

    @given(FRAMED, st.integers(-9, 99) | st.integers())
    def test_the_same_chunks_are_opened(self, data: bytes, at: int) -> None:
        assert scan.unchunk(data, at) == TWIN.unchunk(data, at)
        assert scan.unchunk(data, 0) == TWIN.unchunk(data, 0)

    @given(SIGNS | st.binary())
    def test_strings_end_at_the_same_place(self, text: bytes) -> None:
        assert scan.text_length(text) == TWIN.text_length(text)

    @given(st.lists(PIECES, max_size=8).map(b"".join))
    def test_the_same_is_not_utf8(self, body: bytes) -> None:
        assert scan.find_invalid_utf8(body) == TWIN.find_invalid_utf8(body)

    @given(FEW, FEW)
    def test_the_same_is_held(self, body: bytes, needle: bytes) -> None:
        assert scan.contains(body, needle) is TWIN.contains(body, needle)

    @given(FEW, FEW, st.integers(-9, 99) | st.integers())
    def test_the_same_is_found(self, body: bytes, needle: bytes, at: int) -> None:
        assert scan.find(body, needle, at) == TWIN.find(body, needle, at)

    @given(FEW, st.lists(FEW, max_size=4).map(tuple), st.integers(-9, 99) | st.integers())
    def test_the_same_of_several_is_found(self, body: bytes, needles: tuple[bytes, ...], at: int) -> None:
        assert scan.find_first(body, needles, at) == TWIN.find_first(body, needles, at)

    @given(MEMBER_SIGNS, st.integers(-9, 99) | st.integers())
    def test_the_same_members_are_read(self, run: bytes, at: int) -> None:
        assert scan.plain_members(run, at, NAMES) == TWIN.plain_members(run, at, NAMES)
        assert scan.plain_members(run, 0, NAMES) == TWIN.plain_members(run, 0, NAMES)

    @pytest.mark.parametrize(
        "odd", ["text", None, bytearray(b"x"), memoryview(b"x"), type("Own", (bytes,), {})(b"x")]
    )
    def test_what_is_no_bytes_is_refused(self, odd: object) -> None:
        calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
            (scan.frames_end, (odd, 0, b"x", b"x")),
            (scan.frames_end, (b"x", 0, odd, b"x")),
            (scan.frames_end, (b"x", 0, b"x", odd)),
            (scan.text_length, (odd,)),
            (scan.string_end, (odd, 0)),
            (scan.unchunk, (odd, 0)),
            (scan.contains, (odd, b"x")),
            (scan.contains, (b"x", odd)),
            (scan.find, (odd, b"x", 0)),
            (scan.find, (b"x", odd, 0)),
            (scan.find_first, (odd, (b"x",), 0)),
            (scan.find_first, (b"x", (b"x", odd), 0)),
            (scan.plain_members, (odd, 0, (b"x",))),
            (scan.plain_members, (b"x", 0, (b"x", odd))),
            (scan.find_invalid_utf8, (odd,)),
        ]
        for call, given_ in calls:
            with pytest.raises(TypeError, match="bytes expected, not "):
                call(*given_)

    @pytest.mark.parametrize("odd", ["0", None, 0.0, b"0"])
    def test_a_place_that_is_no_number_is_refused(self, odd: object) -> None:
        calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
            (scan.frames_end, (b"x", odd, b"x", b"x")),
            (scan.find, (b"x", b"x", odd)),
            (scan.find_first, (b"x", (b"x",), odd)),
            (scan.plain_members, (b"x", odd, (b"x",))),
            (scan.string_end, (b"x", odd)),
            (scan.unchunk, (b"x", odd)),
        ]
        for call, given_ in calls:
            with pytest.raises(TypeError, match="int expected, not "):
                call(*given_)

    @pytest.mark.parametrize("odd", [b"x", [b"x"], None])
    def test_names_that_are_no_tuple_are_refused(self, odd: Any) -> None:
        for call in (lambda: scan.find_first(b"x", odd, 0), lambda: scan.plain_members(b"x", 0, odd)):
            with pytest.raises(TypeError, match="tuple expected, not "):
                call()

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_another_number_of_arguments_is_refused(self, count: int) -> None:
        calls: list[Callable[..., object]] = [
            scan.frames_end,
            scan.contains,
            scan.find,
            scan.string_end,
            scan.unchunk,
        ]
        calls += [scan.find_first, scan.plain_members]
        for call in calls:
            with pytest.raises(TypeError, match="arguments expected, not "):
                call(*[b"x"] * count)


@pytest.mark.parametrize(
    ("value", "sign"), [(b"\0a", 0), (b'"a"', 0x22), (b"\xffa", 0xFF), (Raw(b"{}"), 0x7B), (Raw(b"5"), 0x35)]
)
def test_a_value_is_known_by_what_it_begins_with(value: bytes | Raw, sign: int) -> None:
    assert scan.first_byte(value) == TWIN.first_byte(value) == sign


def test_what_is_empty_or_has_no_bytes_begins_with_nothing() -> None:
    for nothing in (b"", Raw(b"")):
        with pytest.raises((ValueError, struct.error)):
            scan.first_byte(nothing)
    with pytest.raises(TypeError):
        scan.first_byte("text")  # type: ignore[arg-type]  # that is the point
