"""Heads are checked before the body is read, and a body has a total time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from routecodex.server.http import HttpRequest, Reply
from routecodex.server.http.reply import WholeReply
from tests.reference.installed import WAYS, using
from tests.server.http.wire import Stage, chunked, get, post

MB = 1024 * 1024


@pytest.fixture(scope="module", autouse=True, params=WAYS)
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with plain heads parsed by llhttp, and again with those that bypass it."""
    with using(request.param):
        yield


class Guard:
    """Refuses every path but `/open`, and notes the paths that it was asked about."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, request: HttpRequest) -> WholeReply | None:
        assert request.body == b""
        self.paths.append(request.path)
        return None if request.path == "/open" else (401, [(b"x-why", b"no key")], b"no")


def large(path: str, *headers: str) -> bytes:
    return get(path, f"Content-Length: {30 * MB}", *headers, method="POST")


@pytest.mark.parametrize(
    "head",
    [
        large("/"),
        large("/", "Expect: 100-continue"),
        large("/") + b"x" * 100_000,
        large("/", "Connection: Upgrade", "Upgrade: h2c"),
        get("/", "Transfer-Encoding: chunked", method="POST"),
        get("/", "Transfer-Encoding: chunked", method="POST") + b"5\r\nhello\r\n",
    ],
    ids=["no body yet", "expects 100", "a part of the body", "upgrade", "chunked", "one chunk"],
)
async def test_a_refused_head_is_answered_before_its_body_arrives(stage: Stage, head: bytes) -> None:
    guard = Guard()
    await stage.serve(check_head=guard)
    wire = await stage.connect()
    await wire.send(head)
    answer = await wire.answer()
    assert (answer.status, answer.headers["x-why"], answer.body) == (401, "no key", b"no")
    assert answer.headers["connection"] == "close"
    assert guard.paths == ["/"]


async def test_an_admitted_head_is_checked_once_and_its_body_is_read(stage: Stage) -> None:
    guard = Guard()
    await stage.serve(check_head=guard)
    wire = await stage.connect()
    body = b"x" * 300_000
    whole = post(body, "Expect: 100-continue", path="/open")
    await wire.send(whole[: -len(body)])
    assert await wire.line() == b"HTTP/1.1 100 Continue\r\n"
    assert await wire.line() == b"\r\n"
    for at in range(0, len(body), 50_000):
        await wire.send(body[at : at + 50_000])
    assert (await wire.answer()).body == b"POST /open " + body
    assert guard.paths == ["/open"]


async def test_a_request_that_arrives_in_one_piece_is_left_to_the_handler(stage: Stage) -> None:
    guard = Guard()
    await stage.serve(check_head=guard)
    assert (await stage.request(post(b"all of it"))).body == b"POST / all of it"
    assert (await stage.request(chunked(b"all", b" of it"))).body == b"POST / all of it"
    assert guard.paths == []


async def test_a_refused_head_behind_a_request_in_work_is_answered_in_turn(stage: Stage) -> None:
    release = asyncio.Event()
    guard = Guard()

    async def handler(request: HttpRequest, reply: Reply) -> None:
        await release.wait()
        await reply.send(200, [], b"first")

    server = await stage.serve(handler, check_head=guard)
    wire = await stage.connect()
    await wire.send(post(b"x", path="/open") + large("/second"))
    async with asyncio.timeout(20):
        while guard.paths != ["/second"]:
            await wire.send(b"x" * 1000)
            await asyncio.sleep(0.001)
    assert server.active == 1
    release.set()
    assert (await wire.answer()).body == b"first"
    assert (await wire.answer()).status == 401


async def test_refused_connections_keep_no_body(stage: Stage) -> None:
    """Each declares 30 MB and sends 2 MB at once; what was read with the head is released at once."""
    await stage.serve(check_head=Guard(), linger_seconds=20.0)
    wires = [await stage.connect() for _ in range(40)]
    for wire in wires:
        await wire.send(large("/") + b"x" * 2 * MB)
        assert (await wire.answer()).status == 401
    buffers = [found for found in gc.get_objects() if isinstance(found, bytearray) and len(found) > MB]
    assert buffers == []


async def test_a_body_that_drips_is_answered_408_in_the_end(stage: Stage) -> None:
    await stage.serve(body_seconds=30.0, body_total_seconds=0.2, body_bytes_per_second=1000)
    wire = await stage.connect()
    await wire.send(get("/slow", "Content-Length: 100000", method="POST"))
    answer = asyncio.ensure_future(wire.answer())
    while not answer.done():
        await wire.send(b"x")
        await asyncio.sleep(0.01)
    assert answer.result().status == 408
    assert b"server.max_body_seconds" in answer.result().body


async def test_every_byte_gives_a_body_more_time(stage: Stage) -> None:
    await stage.serve(body_seconds=30.0, body_total_seconds=0.05, body_bytes_per_second=1)
    wire = await stage.connect()
    await wire.send(get("/", "Content-Length: 20", method="POST") + b"x" * 10)
    await asyncio.sleep(0.3)
    await wire.send(b"x" * 10)
    assert (await wire.answer()).body == b"POST / " + b"x" * 20


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_a_body_that_means_nothing_is_bounded(stage: Stage, method: str) -> None:
    await stage.serve()
    answer = await stage.request(get("/", "Content-Length: 70000", method=method))
    framed = await stage.request(
        get("/", "Transfer-Encoding: chunked", method=method) + b"11170\r\n" + b"x" * 70_000
    )
    assert (answer.status, framed.status) == (413, 413)
