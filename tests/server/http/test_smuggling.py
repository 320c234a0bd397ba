"""Requests that two parsers could read differently: rejected, and bytes behind them are never handled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from routecodex.server.http import HttpRequest, Reply
from tests.reference.installed import WAYS, using
from tests.server.http.wire import Stage, echo, get


@pytest.fixture(scope="module", autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with plain heads parsed by llhttp, and again with those that bypass it."""
    with using(request.param):
        yield


SMUGGLED = get("/smuggled")
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

CASES = {
    "content-length then transfer-encoding": (
        400, HEAD + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "transfer-encoding then content-length": (
        400, HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n"),
    "two different content-lengths": (400, HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
    "two equal content-lengths": (400, HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
    "list of content-lengths": (400, HEAD + b"Content-Length: 3, 3\r\n\r\nabc"),
    "signed content-length": (400, HEAD + b"Content-Length: +3\r\n\r\nabc"),
    "negative content-length": (400, HEAD + b"Content-Length: -3\r\n\r\nabc"),
    "hexadecimal content-length": (400, HEAD + b"Content-Length: 0x3\r\n\r\nabc"),
    "empty content-length": (400, HEAD + b"Content-Length:\r\n\r\n"),
    "overflowing content-length": (400, HEAD + b"Content-Length: 18446744073709551619\r\n\r\nabc"),
    "transfer-encoding of another name": (400, HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "transfer-encoding identity": (400, HEAD + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    "transfer-encoding behind chunked": (
        400, HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    "transfer-encoding twice": (
        400, HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "transfer-encoding with a vertical tab": (
        400, HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "transfer-encoding with a space before the colon": (
        400, HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "transfer-encoding in HTTP/1.0": (
        400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "compressed and chunked": (501, HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunk size that is no number": (400, CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n"),
    "chunk size below zero": (400, CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n"),
    "chunk size with a prefix": (400, CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n"),
    "chunk size past 64 bits": (400, CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"),
    "chunk size behind a space": (400, CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n"),
    "chunk longer than its size": (400, CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n"),
    "chunk lines ended by bare LF": (400, CHUNKED + b"3\nabc\n0\n\n"),
    "chunk extension with a bare LF": (400, CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    "content-length as a trailer": (400, CHUNKED + b"0\r\nContent-Length: 40\r\n\r\n"),
    "lines ended by bare LF": (400, b"GET / HTTP/1.1\nHost: x\n\n"),
    "header ended by bare LF": (400, HEAD + b"A: b\nContent-Length: 40\r\n\r\n"),
    "header with a bare CR": (400, HEAD + b"A: b\rContent-Length: 40\r\n\r\n"),
    "folded header": (400, HEAD + b"A: b\r\n Content-Length: 40\r\n\r\n"),
    "header that begins with a space": (400, b"GET / HTTP/1.1\r\n Host: x\r\n\r\n"),
    "NUL in a header": (400, HEAD + b"A: b\0c\r\n\r\n"),
    "header without a name": (400, HEAD + b": b\r\n\r\n"),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
    "path that does not decode": (400, b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n"),
    "path with a broken escape": (400, b"GET /%2 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "unknown method": (400, b"SMUGGLE / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "TLS on the plain port": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "HTTP/2 preface": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "version 2.0": (505, b"GET / HTTP/2.0\r\nHost: x\r\n\r\n"),
    "no version": (505, b"GET /\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "data"), CASES.values(), ids=CASES.keys())
async def test_ambiguous_request_is_refused_and_nothing_behind_it_is_handled(
    stage: Stage, status: int, data: bytes
) -> None:
    handled: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        handled.append(request.path)
        await echo(request, reply)

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(data + SMUGGLED)
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"], handled) == (status, "close", [])
    assert await wire.rest() == b""


async def test_body_that_looks_like_a_request_stays_a_body(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/", f"Content-Length: {len(SMUGGLED)}", method="POST") + SMUGGLED + get("/next"))
    assert (await wire.answer()).body == b"POST / " + SMUGGLED
    assert (await wire.answer()).body == b"GET /next "


@pytest.mark.parametrize("header", ["Upgrade: websocket", "Upgrade: h2c"])
async def test_bytes_behind_an_upgrade_are_never_handled(stage: Stage, header: str) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/ws", "Connection: Upgrade", header) + SMUGGLED)
    answer = await wire.answer()
    assert (answer.body, answer.headers["connection"]) == (b"GET /ws ", "close")
    assert await wire.rest() == b""


async def test_bytes_behind_a_connect_are_never_handled(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(b"CONNECT up.test:443 HTTP/1.1\r\nHost: up.test\r\n\r\n" + SMUGGLED)
    assert (await wire.answer()).body == b"CONNECT up.test:443 "
    assert await wire.rest() == b""


async def test_bytes_behind_a_closing_request_are_never_handled(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/last", "Connection: close") + SMUGGLED)
    assert (await wire.answer()).body == b"GET /last "
    assert await wire.rest() == b""


async def test_an_upgrade_with_a_coding_that_has_no_end_is_answered_400(stage: Stage) -> None:
    await stage.serve()
    asks = ("Connection: Upgrade", "Upgrade: websocket", "Transfer-Encoding: gzip")
    answer = await stage.request(get("/", *asks, method="POST") + b"\x1f\x8b")
    assert (answer.status, answer.headers["connection"]) == (400, "close")
