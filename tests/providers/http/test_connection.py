"""A response is the same however its bytes are split into reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.origin import origin_of
from routecodex.wire.buffers import WriteBatcher
from tests.providers.http.scripted_server import chunked
from tests.reference.installed import WAYS, using

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
EVENTS = (b"data: a\n\n", b"data: b\r\n\r\n", b"x" * 2000, b"1\r\nA\r\n")
TEXT = b"".join(EVENTS)

ANSWERS: dict[str, tuple[bytes, bytes, str]] = {
    "plain chunks": (HEAD + chunked(*EVENTS), TEXT, ""),
    "no chunk but the last": (HEAD + chunked(), b"", ""),
    "an extension in the middle": (HEAD + b"1\r\na\r\n2;x=y\r\nbc\r\n1\r\nd\r\n0\r\n\r\n", b"abcd", ""),
    "a trailer": (HEAD + b"1\r\na\r\n0\r\nTrailer: t\r\n\r\n", b"a", ""),
    "zeros before a size": (HEAD + b"000000000001\r\na\r\n1\r\nb\r\n0\r\n\r\n", b"ab", ""),
    "interim heads": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + HEAD + chunked(*EVENTS),
        TEXT,
        "",
    ),
    "two codings": (HEAD.replace(b"chunked", b"gzip, Chunked ") + chunked(*EVENTS), TEXT, ""),
    "codings in two lines": (
        HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: gzip\r\n\r\n") + chunked(*EVENTS),
        b"",
        "several Transfer-Encoding headers",
    ),
    "chunks in two lines": (
        HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + chunked(*EVENTS),
        b"",
        "several Transfer-Encoding headers",
    ),
    "a length": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1\r\na\r\n\r\n\r", b"1\r\na\r\n\r\n\r", ""),
    "a length and a kept connection": (
        b"HTTP/1.1 429 Too Many\r\nConnection: keep-alive\r\nContent-Length: 3\r\nX: a\r\n\r\nabc",
        b"abc",
        "",
    ),
    "no body": (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", b"", ""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", ""),
    "not plain and a length": (b"HTTP/1.1 200 \xe9\r\ncontent-length: 3\r\n\r\nabc", b"abc", ""),
    "a long body": (b"HTTP/1.1 200 OK\r\ncontent-length: 3000\r\n\r\n" + b"y" * 3000, b"y" * 3000, ""),
    "a short body": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", b"abc", ""),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        b"",
        "not valid HTTP/1.1",
    ),
    "a length and chunks": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"",
        "not valid HTTP/1.1",
    ),
    "a size that is none": (HEAD + b"1\r\na\r\nzz\r\nb\r\n", b"a", "not valid HTTP/1.1"),
    "a body longer than its size": (HEAD + b"1\r\na\r\n1\r\nbb\r\n", b"ab", "not valid HTTP/1.1"),
    "a bare line end": (HEAD + b"1\r\na\r\n1\nb\n", b"a", "not valid HTTP/1.1"),
    "not yet whole": (HEAD + chunked(*EVENTS)[:-2], TEXT, ""),
    "cut off in a chunk": (HEAD + b"1\r\na\r\n5\r\nbc", b"abc", ""),
}
INCOMPLETE = {"not yet whole", "cut off in a chunk", "a short body"}
WHOLE = sorted(name for name, (_, _, wrong) in ANSWERS.items() if not wrong and name not in INCOMPLETE)


@pytest.fixture(scope="module", autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with plain heads parsed by llhttp, and again with those that bypass it."""
    with using(request.param):
        yield


class Wire:
    """A transport that records whether it was aborted."""

    dropped = False

    def abort(self) -> None:
        self.dropped = True


def connected() -> tuple[UpstreamConnection, Wire]:
    origin = origin_of("http://127.0.0.1:1", environ={})
    connection = UpstreamConnection(
        origin, max_header_bytes=4096, on_lost=lambda _: None, batcher=WriteBatcher()
    )
    wire = Wire()
    connection.connection_made(cast(asyncio.Transport, wire))
    return connection, wire


def received(loop: asyncio.AbstractEventLoop, reads: Iterable[bytes]) -> tuple[bytes, bool, str]:
    """Return the body, whether it is complete, and the error."""

    async def receive() -> tuple[bytes, bool, str]:
        connection, wire = connected()
        connection.start_request(False)
        for read in reads:
            if not wire.dropped:
                connection.data_received(read)
        body = connection.take()
        complete, error = connection.complete, connection.error
        connection.connection_lost(None)
        return body, complete, str(error or "")

    return loop.run_until_complete(receive())


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_wherever_it_is_cut_in_two(name: str, loop: asyncio.AbstractEventLoop) -> None:
    answer, body, wrong = ANSWERS[name]
    expected = received(loop, [answer])
    assert expected[:2] == (body, not wrong and name not in INCOMPLETE)
    assert wrong in expected[2]
    assert bool(wrong) is bool(expected[2])
    for cut in range(1, len(answer)):
        assert received(loop, [answer[:cut], answer[cut:]]) == expected, cut
    assert received(loop, [answer[at : at + 1] for at in range(len(answer))]) == expected


@given(st.data(), st.sampled_from(sorted(ANSWERS)))
def test_an_answer_is_the_same_in_however_many_pieces(data: st.DataObject, name: str) -> None:
    answer = ANSWERS[name][0]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=8)))
    reads = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    loop = asyncio.new_event_loop()
    try:
        assert received(loop, reads) == received(loop, [answer])
    finally:
        loop.close()


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\n", b"x", b"0\r\n\r\n"])
@pytest.mark.parametrize("name", WHOLE)
def test_what_comes_behind_an_answer_spoils_the_connection_wherever_it_is_cut(
    name: str, behind: bytes, loop: asyncio.AbstractEventLoop
) -> None:
    async def receive(cut: int) -> tuple[bytes, bool, bool]:
        connection, _ = connected()
        connection.start_request(False)
        for read in filter(None, (spoilt[:cut], spoilt[cut:])):
            connection.data_received(read)
        received = connection.take(), connection.complete, connection.keep_alive
        connection.connection_lost(None)
        return received

    answer, body, _ = ANSWERS[name]
    spoilt = answer + behind
    for cut in range(len(spoilt)):
        assert loop.run_until_complete(receive(cut)) == (body, True, False), cut


@given(st.data())
def test_answers_follow_each_other_however_each_is_read(data: st.DataObject) -> None:
    async def receive() -> None:
        connection, wire = connected()
        for name in data.draw(st.lists(st.sampled_from(WHOLE), min_size=2, max_size=5)):
            answer, body, _ = ANSWERS[name]
            connection.start_request(False)
            cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1), max_size=3)))
            for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
                connection.data_received(answer[start:end])
            state = connection.take(), connection.complete, connection.keep_alive, wire.dropped
            assert state == (body, True, True, False)
        connection.connection_lost(None)

    asyncio.run(receive())


def test_only_the_head_is_read_of_an_answer_that_has_no_more(loop: asyncio.AbstractEventLoop) -> None:
    async def receive() -> tuple[int, bytes, bool, bool]:
        connection, _ = connected()
        connection.start_request(True)
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
        received = connection.status, connection.take(), connection.complete, connection.keep_alive
        connection.connection_lost(None)
        return received

    assert loop.run_until_complete(receive()) == (200, b"", True, False)


def test_a_plain_head_past_the_limit_is_refused_wherever_it_is_cut(loop: asyncio.AbstractEventLoop) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX: " + b"a" * 5000 + b"\r\n\r\nok"
    for cut in range(1, len(answer), 7):
        assert "more than 4096 bytes" in received(loop, [answer[:cut], answer[cut:]])[2]
    assert "more than 4096 bytes" in received(loop, [answer])[2]
