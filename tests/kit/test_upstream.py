from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kit.steps import Answer, CloseClean, CutOff, Hang, Json, Pause, Raw, Send, Sse, Steps, Wait
from tests.kit.upstream import Request, Upstream

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
POST = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-Two: b\r\nContent-Length: 7\r\n\r\n" + b'{"a":1}'


@asynccontextmanager
async def dial(up: Upstream) -> AsyncIterator[Pair]:
    reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def head(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readuntil(b"\r\n\r\n")).lower()


async def test_requests_are_recorded_and_the_queue_answers_on_one_connection() -> None:
    async with Upstream() as up, dial(up) as (reader, writer):
        up.queue(Json(201, {"b": 2}, {"X-Mine": "yes"}), Json(429, b"slow down"))
        writer.write(POST + POST)
        first = await head(reader)
        assert first.startswith(b"http/1.1 201 created\r\n")
        assert b"x-mine: yes" in first
        assert await reader.readexactly(7) == b'{"b":2}'
        assert (await head(reader)).startswith(b"http/1.1 429 ")
        assert await reader.readexactly(9) == b"slow down"
        assert [(r.method, r.path, r.json) for r in up.requests] == [("POST", "/v1/x?y=1", {"a": 1})] * 2
        assert up.requests[0].headers["x-two"] == "b"
        assert (up.connections, up.requests[1].connection) == (1, 1)
        await up.requests[1].answered.wait()
        assert not up.requests[1].disconnected


async def test_chunked_requests_are_joined() -> None:
    async with Upstream(lambda _: Json()) as up, dial(up) as (reader, writer):
        writer.write(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n"
        )
        await head(reader)
        assert up.requests[0].body == b"abcde"


async def test_a_function_answers_and_may_be_async() -> None:
    async def answer(request: Request) -> Answer:
        return Json(200, {"path": request.path})

    async with Upstream() as up, dial(up) as (reader, writer):
        up.answer_with(answer)
        writer.write(POST)
        await head(reader)
        assert await reader.readexactly(20) == b'{"path":"/v1/x?y=1"}'


async def body_of(answer: Answer) -> bytes:
    async with Upstream(lambda _: answer) as up, dial(up) as (reader, writer):
        writer.write(POST)
        await head(reader)
        return await reader.readuntil(b"0\r\n\r\n")


async def test_streams_are_chunked_frame_by_frame_or_cut_anew() -> None:
    frames = [b"data: 1\n\n", b"data: 2\n\n"]
    assert await body_of(Sse(frames)) == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"
    assert (
        await body_of(Sse(frames, chunks=8)) == b"8\r\ndata: 1\n\r\n8\r\n\ndata: 2\r\n2\r\n\n\n\r\n0\r\n\r\n"
    )


async def test_a_paced_frame_is_held_until_its_event_is_set() -> None:
    event = asyncio.Event()
    async with Upstream() as up, dial(up) as (reader, writer):
        up.queue(Sse([b"one", b"two"], pace={1: event}))
        writer.write(POST)
        await head(reader)
        assert await reader.readexactly(8) == b"3\r\none\r\n"
        assert not up.requests[0].answered.is_set()
        event.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"


async def test_a_clean_close_ends_the_body_and_the_connection() -> None:
    async with Upstream() as up, dial(up) as (reader, writer):
        up.queue(Steps([Send(b"one"), Pause(0), CloseClean()]))
        writer.write(POST)
        await head(reader)
        assert await reader.read() == b"3\r\none\r\n0\r\n\r\n"


async def test_a_cut_off_body_has_no_end() -> None:
    async with Upstream() as up, dial(up) as (reader, writer):
        up.queue(Sse([b"one"], end=CutOff()))
        writer.write(POST)
        await head(reader)
        assert await reader.read() == b"3\r\none\r\n"


async def test_a_raw_answer_is_sent_as_it_is() -> None:
    async with Upstream() as up, dial(up) as (reader, writer):
        up.queue(Raw([Send(b"SSH-2.0-what\r\n")]))
        writer.write(POST)
        assert await reader.read() == b"SSH-2.0-what\r\n"


@pytest.mark.parametrize("last", [Hang(), Wait(asyncio.Event())])
async def test_a_disconnect_is_recorded_at_once(last: Hang | Wait) -> None:
    async with Upstream() as up:
        up.queue(Steps([Send(b"one"), last]))
        async with dial(up) as (reader, writer):
            writer.write(POST)
            await head(reader)
            await reader.readexactly(8)
            request = await up.received()
            assert not request.disconnected
        await request.gone.wait()
        assert request.disconnected
        assert request.gone_at is not None
        assert request.steps_done == 1
        assert not request.answered.is_set()


async def test_a_disconnect_before_the_first_byte_is_recorded() -> None:
    async with Upstream(lambda _: Raw([Hang()])) as up:
        async with dial(up) as (_, writer):
            writer.write(POST)
            request = await up.received()
        await request.gone.wait()
        assert request.steps_done == 0


async def test_closing_after_the_answer_is_not_a_disconnect() -> None:
    async with Upstream(lambda _: Json()) as up:
        async with dial(up) as (reader, writer):
            writer.write(POST)
            await head(reader)
            await reader.readexactly(2)
        await up.requests[0].answered.wait()
        assert not up.requests[0].disconnected


async def test_an_unscripted_request_gets_500() -> None:
    async with Upstream() as up, dial(up) as (reader, writer):
        writer.write(POST)
        assert (await head(reader)).startswith(b"http/1.1 500 ")


async def test_a_script_that_raises_fails_the_test() -> None:
    async def send() -> None:
        async with Upstream(lambda _: 1 / 0) as up, dial(up) as (reader, writer):  # type: ignore[arg-type,return-value]  # wrong on purpose
            writer.write(POST)
            assert (await head(reader)).startswith(b"http/1.1 500 ")

    with pytest.raises(ZeroDivisionError):
        await send()
