from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.server.http.reader import Fault, HttpLimits, Phase, RequestReader
from routecodex.server.http.request import HttpRequest
from tests.reference.installed import WAYS, using
from tests.server.http.wire import chunked, get, post


@pytest.fixture(scope="module", autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with plain heads parsed by llhttp, and again with those that bypass it."""
    with using(request.param):
        yield


def read(*pieces: bytes | memoryview, limits: HttpLimits | None = None) -> list[HttpRequest | Fault]:
    reader = RequestReader(limits or HttpLimits(), ("192.0.2.1", 9))
    for piece in pieces:
        reader.feed(piece)
    return list(reader.ready)


def parsed(*pieces: bytes | memoryview, limits: HttpLimits | None = None) -> list[object]:
    """Return the parsed requests and the status of faults as plain values."""
    return [plain(item) for item in read(*pieces, limits=limits)]


def plain(item: HttpRequest | Fault) -> object:
    if isinstance(item, Fault):
        return item.status
    return item.method, item.path, item.headers, item.body, item.keep_alive


def request(*pieces: bytes | memoryview) -> HttpRequest:
    [item] = read(*pieces)
    assert isinstance(item, HttpRequest)
    return item


CONVERSATION = (
    get("/first", "User-Agent: a", "X-A: 1  ", "x-a: 2")
    + post(b"some body", path="/second?q=1")
    + b"\r\n"
    + chunked(b"in ", b"three ", b"chunks", path="/third")
    + get("/last", "Connection: close")
)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
def test_requests_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[a:b] for a, b in pairwise(edges)]
    assert parsed(*pieces) == parsed(CONVERSATION)


PLAIN = (
    post(b"some body", "Connection: keep-alive", path="/first?q=1"),
    post(b"", "X-A: 1 ", "X-B:", path="/%73econd"),
    post(b"another body", "accept: */*", path="/third"),
)


@given(st.data())
def test_plain_requests_are_the_same_however_their_bytes_are_cut(data: st.DataObject) -> None:
    whole = b"".join(data.draw(st.lists(st.sampled_from([*PLAIN, get("/between"), b"\r\n"]), max_size=6)))
    cuts = data.draw(st.lists(st.integers(0, len(whole)) | st.sampled_from(ends(whole)), max_size=8))
    pieces = [whole[a:b] for a, b in pairwise([0, *sorted(cuts), len(whole)])]
    # What is read byte by byte is read by the parser: no piece has a whole head.
    expected = parsed(*[whole[at : at + 1] for at in range(len(whole))])
    assert parsed(*pieces) == parsed(*[memoryview(piece) for piece in pieces]) == expected


def ends(whole: bytes) -> list[int]:
    """Return positions around the ends of requests and of a head."""
    return [0, *(at for at in range(len(whole)) if whole.startswith((b"POST", b"GET", b"some", b"anot"), at))]


@pytest.mark.parametrize(
    ("wrong", "status", "limits"),
    [
        (post(b"a body", path="/%zz"), 400, HttpLimits()),
        (post(b"a body", path="/%ff"), 400, HttpLimits()),
        (post(b"a body", "X-A: " + "a" * 300), 431, HttpLimits(header_bytes=300)),
        (post(b"b" * 301), 413, HttpLimits(body_bytes=300)),
    ],
)
def test_what_is_wrong_with_a_plain_request_is_the_same_wherever_it_is_cut(
    wrong: bytes, status: int, limits: HttpLimits
) -> None:
    first = post(b"right", path="/right")
    [right] = parsed(first)
    for cut in range(len(wrong)):
        assert parsed(first, wrong[:cut], wrong[cut:], limits=limits) == [right, status]


def test_a_plain_request_is_in_its_body_until_that_is_whole() -> None:
    whole = post(b"some body")
    reader = RequestReader(HttpLimits(), None)
    phases = []
    for piece in (whole[:-9], whole[-9:-4], whole[-4:] + whole[:20], whole[20:]):
        reader.feed(piece)
        phases.append((reader.phase, len(reader.ready)))
    assert phases == [(Phase.BODY, 0), (Phase.BODY, 0), (Phase.HEAD, 1), (Phase.IDLE, 2)]
    assert [plain(item) for item in reader.ready] == parsed(whole, whole)


def test_a_plain_request_that_stops_in_its_body_is_named_in_the_fault() -> None:
    reader = RequestReader(HttpLimits(), None)
    reader.feed(post(b"some body", path="/stopped")[:-1])
    reader.fail(408, "too slow")
    [fault] = reader.ready
    assert isinstance(fault, Fault)
    assert fault.request is not None
    assert (fault.status, fault.request.path, reader.finished) == (408, "/stopped", True)


LARGE = b"0123456789abcdef" * 16_384
LARGE_HEAD = post(LARGE, path="/large").removesuffix(LARGE)
AROUND_LARGE = LARGE_HEAD + LARGE + CONVERSATION


@given(
    st.lists(st.integers(0, len(LARGE_HEAD) + 16), max_size=4),
    st.lists(st.integers(0, len(AROUND_LARGE)), max_size=8),
)
def test_a_large_body_and_what_follows_are_the_same_however_they_are_cut(
    early: list[int], anywhere: list[int]
) -> None:
    edges = [0, *sorted(early + anywhere), len(AROUND_LARGE)]
    pieces = [AROUND_LARGE[a:b] for a, b in pairwise(edges)]
    assert parsed(*pieces) == parsed(AROUND_LARGE)
    assert request(LARGE_HEAD, LARGE[:9], memoryview(LARGE)[9:]).body == LARGE


def test_what_comes_behind_a_large_body_that_ends_the_connection_is_never_read() -> None:
    head = get("/", f"Content-Length: {len(LARGE)}", "Connection: close", method="POST")
    reader = RequestReader(HttpLimits(), None)
    for piece in (head, LARGE[:100], LARGE[100:] + CONVERSATION):
        reader.feed(piece)
    [result] = reader.ready
    assert isinstance(result, HttpRequest)
    assert (result.body == LARGE, reader.finished, reader.excess) == (True, True, True)


def test_a_large_body_that_comes_byte_by_byte_is_one_body() -> None:
    assert request(LARGE_HEAD, *[LARGE[i : i + 1] for i in range(len(LARGE))]).body == LARGE


def test_every_single_byte_may_come_alone() -> None:
    assert parsed(*[CONVERSATION[i : i + 1] for i in range(len(CONVERSATION))]) == parsed(CONVERSATION)


def test_conversation_reads_as_written() -> None:
    host = {"host": "gateway.test"}
    assert parsed(CONVERSATION) == [
        ("GET", "/first", {**host, "user-agent": "a", "x-a": "1, 2"}, b"", True),
        ("POST", "/second", {**host, "content-length": "9"}, b"some body", True),
        ("POST", "/third", {**host, "transfer-encoding": "chunked"}, b"in three chunks", True),
        ("GET", "/last", {**host, "connection": "close"}, b"", False),
    ]


@given(st.binary(max_size=200))
def test_any_bytes_give_requests_or_one_fault(data: bytes) -> None:
    items = read(get() + data)
    assert isinstance(items[0], HttpRequest)
    assert not any(isinstance(item, Fault) for item in items[:-1])


@given(st.binary(max_size=60))
def test_any_bytes_in_a_head_give_requests_or_one_fault(data: bytes) -> None:
    items = read(b"GET / HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n")
    assert not any(isinstance(item, Fault) for item in items[:-1])


def test_client_address_is_passed_on() -> None:
    assert request(get()).client == ("192.0.2.1", 9)


def test_header_names_are_lower_case_and_values_latin_1() -> None:
    result = request(b"GET / HTTP/1.1\r\nHOST: x\r\nX-Odd-NAME: caf\xe9 \t\r\nEmpty:\r\n\r\n")
    assert result.headers == {"host": "x", "x-odd-name": "café", "empty": ""}


def test_last_user_agent_wins() -> None:
    assert request(get("/", "User-Agent: sdk", "User-Agent: agent")).headers["user-agent"] == "agent"


def test_trailers_and_chunk_extensions_are_dropped() -> None:
    head = get("/", "Transfer-Encoding: chunked", "X-Kept: 1", method="POST")
    result = request(head + b"3;ext=1\r\nabc\r\n0\r\nX-Kept: 2\r\nAuthorization: forged\r\n\r\n")
    assert result.body == b"abc"
    assert result.headers == {"host": "gateway.test", "transfer-encoding": "chunked", "x-kept": "1"}


def test_body_of_very_many_chunks_is_joined_in_order() -> None:
    data = b"".join(b"1\r\n%c\r\n" % (i % 256) for i in range(10_000))
    result = request(get("/", "Transfer-Encoding: chunked", method="POST") + data + b"0\r\n\r\n")
    assert result.body == bytes(i % 256 for i in range(10_000))


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.2", "3.0"])
def test_other_versions_are_faults_505(version: str) -> None:
    assert parsed(get(version=version)) == [505]


def test_http_2_preface_and_a_line_without_version_are_faults_505() -> None:
    assert parsed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == [505]
    assert parsed(b"GET /\r\n\r\n") == [505]


def test_http_1_0_needs_no_host_and_closes_unless_asked() -> None:
    assert parsed(b"GET / HTTP/1.0\r\n\r\n") == [("GET", "/", {}, b"", False)]
    keep_alive = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert parsed(keep_alive) == [("GET", "/", {"connection": "keep-alive"}, b"", True)]


def test_upgrade_request_is_ordinary_and_last() -> None:
    result = request(get("/", "Connection: Upgrade", "Upgrade: websocket") + get("/smuggled"))
    assert (result.path, result.headers["upgrade"], result.keep_alive) == ("/", "websocket", False)


@pytest.mark.parametrize("cut", range(1, 12))
def test_upgrade_request_keeps_its_body(cut: int) -> None:
    asks = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM")
    whole = post(b'{"a": 1}', *asks)
    assert request(whole[:-cut], whole[-cut:] + b"PRI * HTTP/2.0").body == b'{"a": 1}'
    framed = get("/", *asks, "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n"
    assert request(framed[:-cut], framed[-cut:]).body == b"abc"


FRAMINGS = (
    *("", "Content-Length: 5", "Content-Length: 0", "Content-Length: 05", "Content-Length: +5"),
    *("Content-Length: ", "Content-Length: 5 5", "Content-Length: 5\r\nContent-Length: 5"),
    *("Content-Length: 99999999999999999999", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
    *("Transfer-Encoding: chunked", "Transfer-Encoding: CHUNKED ", "Transfer-Encoding: ,chunked"),
    *("Transfer-Encoding: gzip", "Transfer-Encoding: identity", "Transfer-Encoding: xchunked"),
    *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: "),
    *('Transfer-Encoding: "chunked"', "Transfer-Encoding: chunked;a=b"),
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
)
CONTENTS = (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"5\r\nhelloX", b"\x00\xff")
UPGRADES = (
    "Connection: upgrade",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Connection: keep-alive, upgrade\r\nUpgrade: x",
    "Upgrade: h2c",
)


def bare(item: HttpRequest | Fault) -> object:
    return item.status if isinstance(item, Fault) else (item.method, item.body)


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_an_upgrade_changes_nothing_about_the_body(upgrade: str, version: str, framing: str) -> None:
    for method in ("POST", "GET", "HEAD"):
        for content in CONTENTS:
            head = [f"{method} / HTTP/{version}", "Host: x", *filter(None, [framing])]
            plain, asking = ("\r\n".join([*head, *more]) for more in ([], [upgrade]))
            expected = [bare(item) for item in read(f"{plain}\r\n\r\n".encode() + content)[:1]]
            whole = f"{asking}\r\n\r\n".encode() + content
            for size in (1, 7, len(whole)):
                pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
                assert [bare(item) for item in read(*pieces)[:1]] == expected, (whole, size)


@pytest.mark.parametrize("method", ["CONNECT", "PRI"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_a_request_that_pauses_the_parser_is_one_item_however_it_is_framed(method: str, framing: str) -> None:
    for content in CONTENTS:
        target = "up.test:443" if method == "CONNECT" else "*"
        lines = [f"{method} {target} HTTP/1.1", "Host: x", *filter(None, [framing])]
        whole = ("\r\n".join(lines) + "\r\n\r\n").encode() + content
        found = [[bare(item) for item in read(whole)], [bare(item) for item in read(whole[:30], whole[30:])]]
        assert [len(items) for items in found] == [1, 1], (whole, found)
        assert found[0] == found[1]


def test_connect_request_is_ordinary_and_last() -> None:
    result = request(b"CONNECT up.test:443 HTTP/1.1\r\nHost: up.test\r\n\r\n\x16\x03\x01")
    assert (result.method, result.path, result.keep_alive) == ("CONNECT", "up.test:443", False)


def test_unfinished_head_past_the_limit_is_a_fault_431() -> None:
    limits = HttpLimits(header_bytes=1000)
    assert parsed(b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 1000, limits=limits) == [431]
    assert parsed(b"GET /", b"a" * 1000, limits=limits) == [431]
    assert parsed(b"GET /", *[b"a"] * 999, limits=limits) == [431]


def test_whole_head_past_the_limit_is_a_fault_431() -> None:
    assert parsed(get("/", "X: " + "a" * 1000), limits=HttpLimits(header_bytes=1000)) == [431]


def test_head_within_the_limit_passes_beside_larger_bodies() -> None:
    limits = HttpLimits(header_bytes=200)
    stream = post(b"b" * 1000) + get("/next")
    assert [type(item) for item in read(stream, limits=limits)] == [HttpRequest, HttpRequest]
    assert [type(item) for item in read(stream[:-4], stream[-4:], limits=limits)] == [HttpRequest] * 2


def test_head_of_endless_repeats_is_a_fault_431() -> None:
    assert parsed(get("/", *["X: a"] * 102)) == [431]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (get("/named", "X : y", method="POST"), ("POST", "/named")),
        (get("/named", "Host: other", method="POST"), ("POST", "/named")),
        (get("/named", "Content-Length: 2", "Content-Length: 3", method="POST"), ("POST", "/named")),
        (get("/named", "X-A: " + "a" * 70_000, method="POST"), ("POST", "/named")),
        (get("/named", version="1.2", method="HEAD"), ("HEAD", "/named")),
        (b"POST /named HTTP/1.1\r\n\r\n", ("POST", "/named")),
        (get("/%ff"), None),
        (b"POST\r\n\r\n", None),
        (b"\0", None),
    ],
)
@pytest.mark.parametrize("before", [(), (get("/before"),)])
def test_a_fault_in_the_head_names_the_request_as_far_as_it_has_come(
    head: bytes, expected: tuple[str, str] | None, before: tuple[bytes, ...]
) -> None:
    for pieces in ((head,), (head[:20], head[20:])):
        *_, fault = read(*before, *pieces)
        assert isinstance(fault, Fault)
        partial = fault.request
        assert (None if partial is None else (partial.method, partial.path)) == expected


def test_announced_body_past_the_limit_is_a_fault_413_before_it_comes() -> None:
    head = get("/path", "Content-Length: 11", method="POST")
    [fault] = read(head, limits=HttpLimits(body_bytes=10))
    assert isinstance(fault, Fault)
    assert (fault.status, fault.request and fault.request.path) == (413, "/path")
    assert [type(item) for item in read(post(b"a" * 10), limits=HttpLimits(body_bytes=10))] == [HttpRequest]


def test_chunked_body_past_the_limit_is_a_fault_413() -> None:
    assert parsed(chunked(b"a" * 6, b"b" * 6), limits=HttpLimits(body_bytes=10)) == [413]


def test_endless_chunk_extension_or_trailer_is_a_fault_413() -> None:
    limits = HttpLimits(header_bytes=1000)
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    assert parsed(head, b"1;", *[b"x" * 100] * 11, limits=limits) == [413]
    assert parsed(head, b"0\r\nX: ", *[b"x" * 100] * 11, limits=limits) == [413]


def test_endless_small_chunks_are_not_mistaken_for_framing() -> None:
    head = get("/", "Transfer-Encoding: chunked", method="POST")
    items = read(head, *[b"1\r\nx\r\n"] * 2000, b"0\r\n\r\n", limits=HttpLimits(header_bytes=1000))
    assert [type(item) for item in items] == [HttpRequest]


def test_nothing_is_read_behind_a_fault() -> None:
    assert parsed(b"GARBAGE\r\n\r\n", get("/smuggled")) == [400]


def test_phase_follows_the_bytes() -> None:
    reader = RequestReader(HttpLimits(), None)
    phases = [reader.phase]
    for piece in (b"\r\n", b"P", post(b"ab")[1:-2], b"a", b"b"):
        reader.feed(piece)
        phases.append(reader.phase)
    assert phases == [Phase.IDLE, Phase.IDLE, Phase.HEAD, Phase.BODY, Phase.BODY, Phase.IDLE]


def test_expectation_stands_until_the_body_begins() -> None:
    reader = RequestReader(HttpLimits(), None)
    reader.feed(get("/", "Content-Length: 2", "Expect: 100-Continue", method="POST"))
    assert reader.expects_continue
    reader.feed(b"a")
    assert not reader.expects_continue


def test_http_1_0_client_expects_nothing() -> None:
    reader = RequestReader(HttpLimits(), None)
    reader.feed(get("/", "Content-Length: 2", "Expect: 100-continue", version="1.0", method="POST"))
    assert not reader.expects_continue
