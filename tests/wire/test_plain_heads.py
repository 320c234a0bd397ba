"""Plain heads are parsed as llhttp parses them, by the reference and in C; llhttp gets anything else."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from routecodex.wire import plain_heads
from tests.reference import plain_heads as reference
from tests.wire.twins import functions, twin

PARSERS = [reference, plain_heads] if IS_COMPILED else [reference]
"""What parses plain heads here; from the sources `plain_heads` leaves them all to llhttp."""
NAMES = {b"Host": "host", b"host": "host", b"Content-Length": "content-length", b"X-App": "x-app"}
POST = b"POST / HTTP/1.1\r\n"
SIZED = POST + b"Host: x\r\nContent-Length: 5\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
SIZED_OK = OK + b"Content-Length: 5\r\n"


def test_what_is_tested_is_in_c_where_the_hot_path_is_compiled() -> None:
    assert (plain_heads.__file__ or "").endswith(".py") is not IS_COMPILED


def test_the_sources_leave_every_head_to_llhttp() -> None:
    source = twin("plain_heads")
    assert source.parse_request(SIZED + b"\r\n", NAMES) is None
    assert source.parse_response(SIZED_OK + b"\r\n") is None


def test_the_sources_the_reference_and_the_c_offer_the_same() -> None:
    source = twin("plain_heads")
    for name in functions(source):
        assert inspect.signature(getattr(source, name)) == inspect.signature(getattr(reference, name))
    assert functions(source) == functions(reference)
    assert {name for name in vars(plain_heads) if name[0] != "_"} - {"annotations"} == {
        *functions(reference),
        "MAX_BYTES",
    }
    assert plain_heads.MAX_BYTES == source.MAX_BYTES == reference.MAX_BYTES


def filled(head: bytes, size: int) -> bytes:
    """The head with one more header, so that it ends after so many bytes."""
    return head + b"A: " + b"a" * (size - len(head) - 7) + b"\r\n\r\n"


def many(head: bytes, count: int) -> bytes:
    return head + b"".join(b"A%d: b\r\n" % at for at in range(count)) + b"\r\n"


def fields(**more: str) -> dict[str, str]:
    return {"host": "x", "content-length": "5", **more}


REQUESTS: dict[str, tuple[bytes, tuple[bytes, dict[str, str], int] | None]] = {
    "a plain one": (SIZED + b"\r\n", (b"/", fields(), 5)),
    "a target with a query": (
        SIZED.replace(b"/ ", b"/a%20b?c=d&e ") + b"\r\n",
        (b"/a%20b?c=d&e", fields(), 5),
    ),
    "no body": (SIZED.replace(b"5", b"0") + b"\r\n", (b"/", {"host": "x", "content-length": "0"}, 0)),
    "zeros before the length": (
        SIZED.replace(b"5", b"005") + b"\r\n",
        (b"/", {"host": "x", "content-length": "005"}, 5),
    ),
    "fifteen digits": (
        SIZED.replace(b"5", b"9" * 15) + b"\r\n",
        (b"/", {"host": "x", "content-length": "9" * 15}, 10**15 - 1),
    ),
    "capitals": (SIZED.upper() + b"\r\n", (b"/", {"host": "X", "content-length": "5"}, 5)),
    "names that are known and others": (
        SIZED + b"X-App: a\r\nx-App: b\r\n"[:10] + b"X_Y.z: B\r\n\r\n",
        (b"/", fields(**{"x-app": "a", "x_y.z": "B"}), 5),
    ),
    "blanks around a value": (SIZED + b"A: \t b c\t \r\n\r\n", (b"/", fields(a="b c"), 5)),
    "no blank before a value": (SIZED + b"A:b\r\n\r\n", (b"/", fields(a="b"), 5)),
    "no value": (SIZED + b"A:\r\nB: \t\r\n\r\n", (b"/", fields(a="", b=""), 5)),
    "a tab in a long value": (
        SIZED + b"A: bbbbbbbb\tbbbbbbbbb~\r\n\r\n",
        (b"/", fields(a="bbbbbbbb\tbbbbbbbbb~"), 5),
    ),
    "a connection that is kept": (
        SIZED + b"Connection: Keep-Alive\r\n\r\n",
        (b"/", fields(connection="Keep-Alive"), 5),
    ),
    "the longest": (filled(SIZED, 8192), (b"/", fields(a="a" * (8192 - len(SIZED) - 7)), 5)),
    "longer": (filled(SIZED, 8193), None),
    "as many headers as may be": (
        many(SIZED, 62),
        (b"/", fields(**{f"a{at}": "b" for at in range(62)}), 5),
    ),
    "one more": (many(SIZED, 63), None),
    "nothing": (b"", None),
    "cut off": (SIZED + b"\r", None),
    "another method": (SIZED.replace(b"POST", b"PUT") + b"\r\n", None),
    "a method in small letters": (SIZED.replace(b"POST", b"post") + b"\r\n", None),
    "a line end before": (b"\r\n" + SIZED + b"\r\n", None),
    "two blanks": (SIZED.replace(b"POST ", b"POST  ") + b"\r\n", None),
    "a target that is a whole URL": (SIZED.replace(b"/ ", b"http://x/ ") + b"\r\n", None),
    "a target that is no path": (SIZED.replace(b"/ ", b"* ") + b"\r\n", None),
    "no target": (SIZED.replace(b"/ ", b"") + b"\r\n", None),
    "a target with a fragment": (SIZED.replace(b"/ ", b"/#a ") + b"\r\n", None),
    "a target with a blank": (SIZED.replace(b"/ ", b"/a b ") + b"\r\n", None),
    "a target with a high byte": (SIZED.replace(b"/ ", b"/\xe9 ") + b"\r\n", None),
    "HTTP/1.0": (SIZED.replace(b"1.1", b"1.0") + b"\r\n", None),
    "HTTP/1.10": (SIZED.replace(b"1.1", b"1.10") + b"\r\n", None),
    "no version": (SIZED.replace(b" HTTP/1.1", b"") + b"\r\n", None),
    "a bare line end": (SIZED.replace(b"x\r\n", b"x\n") + b"\r\n", None),
    "a bare line end at the end": (SIZED + b"\n", None),
    "a bare return": (SIZED + b"A: b\rC: d\r\n\r\n", None),
    "a folded header": (SIZED + b"A: b\r\n c\r\n\r\n", None),
    "a header that begins with a blank": (POST + b" Host: x\r\nContent-Length: 5\r\n\r\n", None),
    "NUL in a value": (SIZED + b"A: b\0c\r\n\r\n", None),
    "DEL in a value": (SIZED + b"A: b\x7fc\r\n\r\n", None),
    "a high byte in a value": (SIZED + b"A: b\xe9c\r\n\r\n", None),
    "a high byte in a long value": (SIZED + b"A: bbbbbbbbb\xe9c\r\n\r\n", None),
    "a high byte in a name": (SIZED + b"\xe9: b\r\n\r\n", None),
    "a blank before the colon": (SIZED + b"A : b\r\n\r\n", None),
    "a name with a bracket": (SIZED + b"A(: b\r\n\r\n", None),
    "no name": (SIZED + b": b\r\n\r\n", None),
    "no colon": (SIZED + b"A\r\n\r\n", None),
    "no host": (POST + b"Content-Length: 5\r\n\r\n", None),
    "two hosts": (SIZED + b"host: x\r\n\r\n", None),
    "no length": (POST + b"Host: x\r\n\r\n", None),
    "two lengths": (SIZED + b"content-length: 6\r\n\r\n", None),
    "the same length twice": (SIZED + b"Content-Length: 5\r\n\r\n", None),
    "a list of lengths": (SIZED.replace(b"5", b"5,5") + b"\r\n", None),
    "a length with a sign": (SIZED.replace(b"5", b"+5") + b"\r\n", None),
    "a length below zero": (SIZED.replace(b"5", b"-5") + b"\r\n", None),
    "a length of other digits": (SIZED.replace(b"5", b"0x5") + b"\r\n", None),
    "a length with a blank": (SIZED.replace(b"5", b"5 5") + b"\r\n", None),
    "a length before a blank": (SIZED.replace(b"5", b"5 ") + b"\r\n", None),
    "an empty length": (SIZED.replace(b"5", b"") + b"\r\n", None),
    "sixteen digits": (SIZED.replace(b"5", b"0" * 15 + b"5") + b"\r\n", None),
    "chunks and a length": (SIZED + b"Transfer-Encoding: chunked\r\n\r\n", None),
    "chunks": (POST + b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n", None),
    "a connection that is closed": (SIZED + b"Connection: close\r\n\r\n", None),
    "a connection of two minds": (SIZED + b"Connection: keep-alive, close\r\n\r\n", None),
    "a connection of two headers": (
        SIZED + b"Connection: keep-alive\r\nconnection: keep-alive\r\n\r\n",
        None,
    ),
    "a proxy's connection": (SIZED + b"Proxy-Connection: keep-alive\r\n\r\n", None),
    "another protocol": (SIZED + b"Upgrade: h2c\r\n\r\n", None),
    "an expectation": (SIZED + b"Expect: 100-continue\r\n\r\n", None),
    "trailers": (SIZED + b"Trailer: a\r\n\r\n", None),
    "codings": (SIZED + b"TE: trailers\r\n\r\n", None),
    "a header twice": (SIZED + b"A: b\r\na: c\r\n\r\n", None),
    "a header of two known spellings": (SIZED + b"X-App: b\r\nx-app: c\r\n\r\n", None),
}


@pytest.mark.parametrize("behind", [b"", b"12345", b"\0" * 9000])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_plain_or_left_alone(name: str, behind: bytes) -> None:
    head, read = REQUESTS[name]
    expected = read and (*read[:2], len(head), read[2])
    for parser in PARSERS:
        assert parser.parse_request(head + behind, NAMES) == expected


def pairs(**more: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-length", b"5"), *((name.encode(), text.encode()) for name, text in more.items())]


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n"
ANSWERS: dict[str, tuple[bytes, tuple[int, list[tuple[bytes, bytes]], int] | None]] = {
    "a length": (SIZED_OK + b"\r\n", (200, pairs(), 5)),
    "no body": (SIZED_OK.replace(b"5", b"0") + b"\r\n", (200, [(b"content-length", b"0")], 0)),
    "chunks": (CHUNKED + b"\r\n", (200, [(b"transfer-encoding", b"chunked")], -1)),
    "chunks in capitals": (
        CHUNKED.replace(b"chunked", b"CHUNKED") + b"\r\n",
        (200, [(b"transfer-encoding", b"CHUNKED")], -1),
    ),
    "an error": (SIZED_OK.replace(b"200 OK", b"529 Site is overloaded") + b"\r\n", (529, pairs(), 5)),
    "no reason": (SIZED_OK.replace(b"OK", b"") + b"\r\n", (200, pairs(), 5)),
    "a header twice": (
        SIZED_OK + b"Set-Cookie: a\r\nset-cookie: b\r\n\r\n",
        (200, [*pairs(), (b"set-cookie", b"a"), (b"set-cookie", b"b")], 5),
    ),
    "blanks around a value": (SIZED_OK + b"A: \t b c\t \r\n\r\n", (200, pairs(a="b c\t "), 5)),
    "no value": (SIZED_OK + b"A:\r\nB: \t\r\n\r\n", (200, pairs(a="", b=""), 5)),
    "a connection that is kept": (
        SIZED_OK + b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n\r\n",
        (200, [*pairs(connection="keep-alive"), (b"keep-alive", b"timeout=5")], 5),
    ),
    "the longest": (filled(SIZED_OK, 8192), (200, pairs(a="a" * (8192 - len(SIZED_OK) - 7)), 5)),
    "longer": (filled(SIZED_OK, 8193), None),
    "as many headers as may be": (
        many(SIZED_OK, 63),
        (200, pairs(**{f"a{at}": "b" for at in range(63)}), 5),
    ),
    "one more": (many(SIZED_OK, 64), None),
    "nothing": (b"", None),
    "cut off": (SIZED_OK + b"\r", None),
    "interim": (b"HTTP/1.1 100 Continue\r\n\r\n", None),
    "interim with a length": (SIZED_OK.replace(b"200", b"103") + b"\r\n", None),
    "another protocol": (SIZED_OK.replace(b"200", b"101") + b"\r\n", None),
    "another protocol offered": (SIZED_OK + b"Upgrade: h2c\r\n\r\n", None),
    "204": (SIZED_OK.replace(b"200", b"204") + b"\r\n", None),
    "304": (SIZED_OK.replace(b"200", b"304") + b"\r\n", None),
    "600": (SIZED_OK.replace(b"200", b"600") + b"\r\n", None),
    "a status of two digits": (SIZED_OK.replace(b"200", b"20") + b"\r\n", None),
    "a status of four digits": (SIZED_OK.replace(b"200", b"2000") + b"\r\n", None),
    "nothing behind the status": (SIZED_OK.replace(b" OK", b"") + b"\r\n", None),
    "a high byte in the reason": (SIZED_OK.replace(b"OK", b"\xe9") + b"\r\n", None),
    "HTTP/1.0": (SIZED_OK.replace(b"1.1", b"1.0") + b"\r\n", None),
    "a bare line end": (SIZED_OK.replace(b"5\r\n", b"5\n") + b"\r\n", None),
    "a folded header": (SIZED_OK + b"A: b\r\n c\r\n\r\n", None),
    "a high byte in a value": (SIZED_OK + b"A: b\xe9c\r\n\r\n", None),
    "a blank before the colon": (SIZED_OK + b"A : b\r\n\r\n", None),
    "neither length nor chunks": (OK + b"A: b\r\n\r\n", None),
    "both": (SIZED_OK + b"Transfer-Encoding: chunked\r\n\r\n", None),
    "two lengths": (SIZED_OK + b"Content-Length: 6\r\n\r\n", None),
    "a list of lengths": (SIZED_OK.replace(b"5", b"5,5") + b"\r\n", None),
    "a length with a sign": (SIZED_OK.replace(b"5", b"+5") + b"\r\n", None),
    "a length before a blank": (SIZED_OK.replace(b"5", b"5 ") + b"\r\n", None),
    "two codings": (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n", None),
    "two codings in two headers": (CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n", None),
    "chunks before a blank": (CHUNKED.replace(b"chunked", b"chunked ") + b"\r\n", None),
    "trailers": (CHUNKED + b"Trailer: a\r\n\r\n", None),
    "a connection that is closed": (SIZED_OK + b"Connection: close\r\n\r\n", None),
    "a proxy's connection": (SIZED_OK + b"Proxy-Connection: close\r\n\r\n", None),
}


@pytest.mark.parametrize("behind", [b"", b"12345", b"\0" * 9000])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_plain_or_left_alone(name: str, behind: bytes) -> None:
    head, read = ANSWERS[name]
    expected = read and (*read[:2], len(head), read[2])
    for parser in PARSERS:
        assert parser.parse_response(head + behind) == expected


class Told:
    """What llhttp tells of a message."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.kept = self.upgrades = self.complete = False
        self.parser: httptools.HttpRequestParser | httptools.HttpResponseParser | None = None

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.kept, self.upgrades = self.parser.should_keep_alive(), self.parser.should_upgrade()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True


def agree_on_request(data: bytes) -> bool:
    """Whether the request is plain, for all parsers; llhttp then reads the same."""
    read, *others = [parser.parse_request(data, NAMES) for parser in PARSERS]
    assert others == [read] * len(others)
    if read is None:
        return False
    target, headers, start, length = read
    parsed = Told()
    parser = parsed.parser = httptools.HttpRequestParser(parsed)
    body = b"b" * min(length, 1000)
    parser.feed_data(data[:start] + body)
    assert (parser.get_method(), parser.get_http_version()) == (b"POST", "1.1")
    assert (parsed.kept, parsed.upgrades) == (True, False)
    assert (parsed.target, parsed.body, parsed.complete) == (target, body, length <= 1000)
    assert headers == {name.decode(): value.decode().rstrip(" \t") for name, value in parsed.headers}
    assert list(headers) == [name.decode() for name, _ in parsed.headers]
    return True


def agree_on_answer(data: bytes) -> bool:
    """Whether the answer is plain, for all parsers; llhttp then reads the same."""
    read, *others = [parser.parse_response(data) for parser in PARSERS]
    assert others == [read] * len(others)
    if read is None:
        return False
    status, headers, start, length = read
    parsed = Told()
    parser = parsed.parser = httptools.HttpResponseParser(parsed)
    body = b"b" * min(length, 1000)
    parser.feed_data(data[:start] + (body if length >= 0 else b"1\r\nb\r\n0\r\n\r\n"))
    assert (parser.get_status_code(), parser.get_http_version()) == (status, "1.1")
    assert (parsed.kept, parsed.upgrades) == (True, False)
    assert (parsed.body, parsed.complete) == (body or b"b" * (length < 0), length <= 1000)
    assert headers == parsed.headers
    return True


@pytest.mark.parametrize("name", REQUESTS)
def test_a_plain_request_is_what_llhttp_reads(name: str) -> None:
    head, read = REQUESTS[name]
    assert agree_on_request(head) is (read is not None)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_plain_answer_is_what_llhttp_reads(name: str) -> None:
    head, read = ANSWERS[name]
    assert agree_on_answer(head) is (read is not None)


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_is_taken_everywhere_as_llhttp_takes_it(byte: int) -> None:
    sign = bytes([byte])
    for head in (REQUESTS["blanks around a value"][0], REQUESTS["a connection that is kept"][0]):
        for at in range(len(head)):
            for data in (head[:at] + sign + head[at:], head[:at] + sign + head[at + 1 :]):
                agree_on_request(data)
    for head in (ANSWERS["blanks around a value"][0], ANSWERS["chunks"][0]):
        for at in range(len(head)):
            for data in (head[:at] + sign + head[at:], head[:at] + sign + head[at + 1 :]):
                agree_on_answer(data)


LINES = st.sampled_from(
    [
        b"Host: x",
        b"host: y",
        b"Content-Length: 5",
        b"content-length: 70",
        b"Content-Length: 5, 5",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: gzip",
        b"Connection: keep-alive",
        b"Connection: close",
        b"X-App: a",
        b"x-app:b ",
        b"Accept:\t*/*\t",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"A b: c",
        b" folded",
        b"",
    ]
)
LINE_ENDS = st.sampled_from([b"\r\n"] * 20 + [b"\n", b"\r", b"\r\n\r\n", b"\0", b" \r\n"])
FIRST = st.sampled_from(
    [b"POST / HTTP/1.1", b"POST /v1/a?b HTTP/1.1", b"GET / HTTP/1.1", b"HTTP/1.1 200 OK", b"HTTP/1.1 204 No"]
)
MADE_UP = st.tuples(FIRST, st.lists(LINES, max_size=6), st.lists(LINE_ENDS, min_size=8, max_size=8)).map(
    lambda made: b"".join(a + b for a, b in zip((made[0], *made[1], b""), made[2], strict=False))
)
KNOWN = st.sampled_from([head for head, _ in (*REQUESTS.values(), *ANSWERS.values()) if len(head) < 999])


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A head from the tables with a few bytes changed."""
    head = bytearray(draw(KNOWN))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(head)))
        head[at : at + draw(st.integers(0, 3))] = draw(
            st.binary(max_size=3) | st.sampled_from([b"\r\n", b":", b" ", b"\t", b"5", b"A: b\r\n"])
        )
    return bytes(head)


@given(MADE_UP | mutated() | st.binary())
def test_what_is_plain_is_what_llhttp_reads(data: bytes) -> None:
    agree_on_request(data)
    agree_on_answer(data)


@pytest.mark.skipif(not IS_COMPILED, reason="the type checker holds Python to this")
class TestArgumentsInC:
    """What C does with its arguments."""

    def test_names_are_those_that_are_given(self) -> None:
        for names in (NAMES, {}, dict(NAMES), NAMES):
            read = plain_heads.parse_request(SIZED + b"\r\n", names)
            assert read == (b"/", fields(), len(SIZED) + 2, 5)
            assert [name is names.get(name.title().encode()) for name in read[1]] == [bool(names)] * 2

    @pytest.mark.parametrize(
        "odd", ["text", None, bytearray(b"x"), memoryview(b"x"), type("Own", (bytes,), {})(b"x")]
    )
    def test_what_is_no_bytes_is_refused(self, odd: object) -> None:
        calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
            (plain_heads.parse_request, (odd, NAMES)),
            (plain_heads.parse_response, (odd,)),
        ]
        for call, given_ in calls:
            with pytest.raises(TypeError, match="bytes expected, not "):
                call(*given_)

    def test_other_arguments_are_refused(self) -> None:
        call: Callable[..., object] = plain_heads.parse_request
        with pytest.raises(TypeError, match="dict expected, not list"):
            call(b"", [])
        with pytest.raises(TypeError, match="2 arguments expected, not 1"):
            call(b"")
