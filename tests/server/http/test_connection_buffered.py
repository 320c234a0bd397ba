"""Large bodies are read into their final buffer; nothing else about the connection changes."""

from __future__ import annotations

import asyncio
import random

import pytest

from routecodex.server.http import HttpLimits, HttpRequest, Reply
from routecodex.server.http.connection import BufferedConnection
from routecodex.server.http.reader import Fault, RequestReader
from tests.server.http.wire import Stage, Wire, chunked, get, post, until

LARGE = random.Random(1).randbytes(700_000)
MARKED = b"POST / "


async def answered(wire: Wire, body: bytes) -> bool:
    await wire.send(post(body))
    return (await wire.answer()).body == MARKED + body


async def test_bodies_of_all_sizes_come_whole_one_after_the_other(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    for size in (700_000, 0, 5, 65_536, 65_537, 131_072, 200_000, 3, 699_999, 70_000, 140_001):
        assert await answered(wire, LARGE[:size]), size
    await wire.send(chunked(LARGE[:100_000], b"end"))
    assert (await wire.answer()).body == MARKED + LARGE[:100_000] + b"end"
    assert await answered(wire, LARGE)


async def test_a_body_that_comes_in_drops_comes_whole(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    assert await answered(wire, LARGE)
    data = post(LARGE[:300_000])
    for start in range(0, len(data), 30_011):
        await wire.send(data[start : start + 30_011])
        await asyncio.sleep(0)
    assert (await wire.answer()).body == MARKED + LARGE[:300_000]


async def test_requests_behind_a_large_one_are_answered_in_order(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    for _ in range(2):
        await wire.send(post(LARGE) + post(b"small") + post(LARGE[:200_000]) + get("/last"))
        answers = [(await wire.answer()).body for _ in range(4)]
        assert answers == [MARKED + LARGE, MARKED + b"small", MARKED + LARGE[:200_000], b"GET /last "]


async def test_garbage_behind_a_large_body_is_refused_after_its_answer(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    assert await answered(wire, LARGE)
    await wire.send(post(LARGE) + b"\x00garbage\r\n\r\n")
    assert (await wire.answer()).body == MARKED + LARGE
    assert (await wire.answer()).status == 400


async def test_a_client_that_goes_in_a_large_body_reaches_no_handler(stage: Stage) -> None:
    handled: list[int] = []

    async def note(request: HttpRequest, reply: Reply) -> None:
        handled.append(len(request.body))
        await reply.send(200, [], b"")

    server = await stage.serve(note)
    wire, accepted = await stage.connect_observed()
    await wire.send(post(LARGE))
    await wire.answer()
    await wire.send(post(LARGE)[:-1])
    await until(lambda: accepted.connection.body_buffer() is not None)
    wire.leave()
    await until(lambda: not server.connections)
    assert handled == [len(LARGE)]


async def test_a_client_that_goes_while_its_large_request_is_handled_cancels_it(stage: Stage) -> None:
    log: list[str] = []

    async def wait(request: HttpRequest, reply: Reply) -> None:
        log.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    server = await stage.serve(wait)
    wire = await stage.connect()
    await wire.send(post(LARGE))
    await until(lambda: log == ["began"])
    wire.leave()
    await until(lambda: log == ["began", "ended"] and not server.connections)


async def test_a_large_body_without_progress_is_answered_408(stage: Stage) -> None:
    await stage.serve(body_seconds=0.05)
    wire = await stage.connect()
    assert await answered(wire, LARGE)
    await wire.send(post(LARGE)[:-1])
    answer = await wire.answer()
    assert (answer.status, await wire.rest()) == (408, b"")


async def test_a_slow_reader_of_a_large_answer_loses_nothing(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect(receive_buffer=4096)
    body = LARGE * 4
    await wire.send(post(body))
    await asyncio.sleep(0)
    assert (await wire.answer()).body == MARKED + body


async def test_bytes_are_read_to_where_they_stay_from_the_first_large_body_on(stage: Stage) -> None:
    await stage.serve()
    wire, accepted = await stage.connect_observed()
    assert await answered(wire, b"small")
    assert not isinstance(accepted.transport.get_protocol(), BufferedConnection)
    assert await answered(wire, LARGE)
    assert isinstance(accepted.transport.get_protocol(), BufferedConnection)
    assert await answered(wire, b"small")


@pytest.mark.parametrize(("sent", "allocated"), [(0, False), (30_000, False), (40_000, True)])
def test_a_content_length_alone_allocates_no_buffer(sent: int, allocated: bool) -> None:
    reader = RequestReader(HttpLimits(), None)
    body = bytes(1_100_000)
    reader.feed(post(body).removesuffix(body))
    for start in range(0, sent, 10_000):
        reader.feed(body[start : start + 10_000])
    assert (reader.body_buffer is not None, reader.body_left) == (allocated, 1_100_000 - sent)
    # A connection closes its reader: Python 3.13 reports a buffer that the collector finds in a circle.
    reader.close()


def test_the_buffer_of_a_rejected_request_is_released() -> None:
    reader = RequestReader(HttpLimits(), None)
    reader.feed(post(LARGE)[:300_000])
    allocated = [reader.body_buffer is not None]
    reader.fail(408, "too slow")
    allocated.append(reader.body_buffer is not None)
    assert (allocated, [type(item) for item in reader.ready]) == ([True, False], [Fault])
