"""Clients that send or read slowly, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.server.http import ClientDisconnected, HttpRequest, Reply
from tests.server.http.wire import Stage, get, post, until

CHUNK = b"x" * 32_768


class Fountain:
    """A handler that streams until it is stopped and counts the bytes."""

    def __init__(self) -> None:
        self.written = 0
        self.log: list[str] = []

    async def __call__(self, request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        try:
            while self.written < 200_000_000:
                await reply.write(CHUNK)
                self.written += len(CHUNK)
        except (asyncio.CancelledError, ClientDisconnected):
            self.log.append("stopped")
            raise


async def test_fresh_connection_that_says_nothing_is_closed(stage: Stage) -> None:
    await stage.serve(header_seconds=0.05)
    assert await (await stage.connect()).rest() == b""


async def test_blank_lines_do_not_keep_a_fresh_connection(stage: Stage) -> None:
    await stage.serve(header_seconds=0.05)
    wire = await stage.connect()
    await wire.send(b"\r\n")
    assert await wire.rest() == b""


async def test_head_that_never_ends_is_answered_408(stage: Stage) -> None:
    await stage.serve(header_seconds=0.05)
    wire = await stage.connect()
    await wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert await wire.rest() == b""


async def test_head_that_drips_is_answered_408_all_the_same(stage: Stage) -> None:
    await stage.serve(header_seconds=0.1)
    wire = await stage.connect()
    await wire.send(b"GET / HTTP/1.1\r\n")
    answer = asyncio.ensure_future(wire.answer())
    while not answer.done():
        await wire.send(b"X: y\r\n")
        await asyncio.sleep(0.01)
    assert answer.result().status == 408


async def test_head_has_its_time_again_on_a_kept_connection(stage: Stage) -> None:
    await stage.serve(header_seconds=0.05)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.answer()).status == 200
    await wire.send(b"GET / HT")
    assert (await wire.answer()).status == 408


async def test_body_without_progress_is_answered_408(stage: Stage) -> None:
    await stage.serve(body_seconds=0.05)
    answer = await stage.request(get("/slow", "Content-Length: 9", method="POST") + b"half")
    assert (answer.status, b'"path":"/slow"' in answer.body) == (408, True)


async def test_body_that_makes_progress_is_waited_for(stage: Stage) -> None:
    await stage.serve(body_seconds=1.5)
    wire = await stage.connect()
    await wire.send(get("/", "Content-Length: 9", method="POST"))
    for _ in range(9):
        await wire.send(b"x")
        await asyncio.sleep(0.2)
    assert (await wire.answer()).body == b"POST / " + b"x" * 9


async def test_idle_kept_connection_is_closed_after_its_time(stage: Stage) -> None:
    await stage.serve(keep_alive_seconds=0.05)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.answer()).status == 200
    assert await wire.rest() == b""


async def test_slow_handler_is_not_hurried_by_any_limit(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        await asyncio.sleep(0.75)
        await reply.send(200, [], b"late")

    await stage.serve(
        handler, header_seconds=0.25, body_seconds=0.25, keep_alive_seconds=0.25, write_stall_seconds=0.25
    )
    assert (await stage.request(post(b"x"))).body == b"late"


async def test_slow_reader_pauses_the_writer_and_loses_nothing(stage: Stage) -> None:
    body = [bytes([n % 251]) * 10_000 for n in range(600)]
    written = 0

    async def handler(request: HttpRequest, reply: Reply) -> None:
        nonlocal written
        reply.start(200, [])
        for part in body:
            if not reply.write_nowait(part):
                await reply.drain()
            written += 1
        await reply.end()

    await stage.serve(handler)
    wire, accepted = await stage.connect_observed(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: accepted.connection.paused)
    assert written < len(body)
    assert accepted.transport.get_write_buffer_size() < 65_536 + 20_000
    assert (await wire.answer()).body == b"".join(body)


async def test_client_that_reads_nothing_is_cut_off_and_its_handler_stopped(stage: Stage) -> None:
    fountain = Fountain()
    server = await stage.serve(fountain, write_stall_seconds=0.1)
    wire = await stage.connect(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: server.active == 1)
    await until(lambda: not server.connections)
    assert fountain.log == ["stopped"]
    assert fountain.written < 50_000_000


async def test_what_is_written_meanwhile_does_not_pass_for_reading(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        while reply.write_nowait(CHUNK):
            pass
        while not stopping.is_set():
            reply.write_nowait(b"and more")
            await asyncio.sleep(0.005)

    stopping = asyncio.Event()
    server = await stage.serve(handler, write_stall_seconds=0.1)
    wire = await stage.connect(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: server.active == 1)
    try:
        await until(lambda: not server.connections)
    finally:
        stopping.set()


async def test_client_that_reads_slowly_is_left_in_peace(stage: Stage) -> None:
    fountain = Fountain()
    server = await stage.serve(fountain, write_stall_seconds=1.5)
    wire, accepted = await stage.connect_observed(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: accepted.connection.paused)
    for _ in range(200):
        await wire.reader.read(65_536)
        await asyncio.sleep(0.01)
    assert (server.active, fountain.log) == (1, [])


async def test_whole_answer_that_nobody_reads_is_dropped(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        with pytest.raises(ClientDisconnected):
            await reply.send(200, [], b"x" * 20_000_000)
        log.append("gone")

    log: list[str] = []
    server = await stage.serve(handler, write_stall_seconds=0.1)
    wire = await stage.connect(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: log == ["gone"])
    await until(lambda: not server.connections)


async def test_aborted_stream_that_nobody_reads_does_not_stay_open(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        while reply.write_nowait(CHUNK):
            pass
        reply.abort()
        log.append("aborted")

    log: list[str] = []
    server = await stage.serve(handler, write_stall_seconds=0.1)
    wire = await stage.connect(receive_buffer=8192, limit=8192)
    await wire.send(get())
    await until(lambda: log == ["aborted"])
    await until(lambda: not server.connections)
