from __future__ import annotations

import asyncio

import pytest

from routecodex.server.http import ClientDisconnected, HttpRequest, Reply
from routecodex.server.http.reply import encode_fields
from tests.server.http.wire import Stage, get, until

SSE = [(b"content-type", b"text/event-stream")]


class RecordedTransport:
    """A transport that records every write."""

    def __init__(self) -> None:
        self.gone = False
        self.interrupted = False
        self.paused = False
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def write_last(self, data: bytes) -> None:
        self.writes.append(data)

    def decide_keep_alive(self, possible: bool) -> bool:
        return possible

    def close_unfinished(self, *, reset: bool) -> None:
        self.writes.append(b"<reset>" if reset else b"<close>")

    def date_line(self) -> bytes:
        return b"date: now\r\n"

    async def drained(self) -> None:
        self.writes.append(b"<drained>")


async def test_whole_answer_is_one_write() -> None:
    transport = RecordedTransport()
    await Reply(transport).send(200, [(b"content-type", b"text/plain"), (b"x-a", b"1")], b"hello")
    assert transport.writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-a: 1\r\n"
        b"date: now\r\ncontent-length: 5\r\n\r\nhello"
    ]


async def test_stream_sends_its_head_with_the_first_chunk_and_its_end_with_the_last() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    reply.start(200, SSE)
    assert (transport.writes, reply.started, reply.ended) == ([], True, False)
    await reply.write(b"one")
    assert reply.write_nowait(b"two" * 6)
    await reply.end(b"three")
    assert transport.writes == [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ndate: now\r\n"
        b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n",
        b"12\r\ntwotwotwotwotwotwo\r\n",
        b"5\r\nthree\r\n0\r\n\r\n",
    ]
    assert reply.ended


async def test_empty_write_sends_the_head_and_no_terminating_chunk() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    reply.start(200, [])
    await reply.write(b"")
    await reply.write(b"")
    await reply.end()
    head = b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n"
    assert transport.writes == [head, b"0\r\n\r\n"]


async def test_stream_that_ends_at_once_is_one_write() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    reply.start(200, [])
    await reply.end(b"all")
    assert [len(transport.writes), transport.writes[0][-13:]] == [1, b"3\r\nall\r\n0\r\n\r\n"]


async def test_writes_wait_while_the_client_is_not_reading() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    reply.start(200, [])
    transport.paused = True
    await reply.write(b"a")
    assert not reply.write_nowait(b"b")
    await reply.drain()
    await reply.end()
    assert [w for w in transport.writes if w == b"<drained>"] == [b"<drained>"] * 3


async def test_a_client_takes_more_until_the_end_unless_it_is_gone_or_not_reading() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    assert reply.writable
    transport.paused = True
    assert not reply.writable
    transport.paused, transport.gone = False, True
    assert not reply.writable
    transport.gone = False
    reply.start(200, [])
    assert reply.writable
    await reply.end()
    assert not reply.writable


async def test_http_1_0_stream_is_unframed_and_closes() -> None:
    transport = RecordedTransport()
    reply = Reply(transport, http_1_0=True)
    reply.start(200, [])
    await reply.write(b"one")
    await reply.end(b"two")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\nconnection: close\r\n\r\none", b"two"]


async def test_http_1_0_answer_names_the_kept_connection() -> None:
    transport = RecordedTransport()
    await Reply(transport, http_1_0=True).send(200, [], b"")
    assert b"\r\nconnection: keep-alive\r\n" in transport.writes[0]


@pytest.mark.parametrize("status", [204, 304])
async def test_statuses_without_a_body_have_no_framing(status: int) -> None:
    sent, streamed = RecordedTransport(), RecordedTransport()
    await Reply(sent).send(status, [], b"dropped")
    reply = Reply(streamed)
    reply.start(status, [])
    await reply.write(b"dropped")
    await reply.end()
    assert sent.writes == streamed.writes
    assert sent.writes[0].split(b"\r\n")[1:] == [b"date: now", b"", b""]


async def test_head_answers_carry_no_body() -> None:
    sent, streamed = RecordedTransport(), RecordedTransport()
    await Reply(sent, head_only=True).send(200, [], b"12345")
    assert sent.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 5\r\n\r\n"]
    reply = Reply(streamed, head_only=True)
    reply.start(200, [])
    await reply.write(b"dropped")
    await reply.end(b"dropped")
    assert streamed.writes == [b"HTTP/1.1 200 OK\r\ndate: now\r\ntransfer-encoding: chunked\r\n\r\n"]


@pytest.mark.parametrize(("status", "phrase"), [(529, b"Overloaded"), (599, b"Unknown")])
async def test_statuses_outside_the_registry_have_a_phrase(status: int, phrase: bytes) -> None:
    transport = RecordedTransport()
    await Reply(transport).send(status, [], b"")
    assert transport.writes[0].startswith(b"HTTP/1.1 %d %b\r\n" % (status, phrase))


async def test_answer_is_started_once_and_written_only_while_open() -> None:
    reply = Reply(RecordedTransport())
    with pytest.raises(RuntimeError, match="never started"):
        await reply.write(b"early")
    await reply.send(200, [], b"")
    with pytest.raises(RuntimeError, match="already been started"):
        reply.start(200, [])
    with pytest.raises(RuntimeError, match="ended"):
        await reply.end()


async def test_nothing_is_written_to_a_client_that_left() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    reply.start(200, [])
    transport.gone = True
    for attempt in (reply.write(b"a"), reply.end(), Reply(transport).send(200, [], b"")):
        with pytest.raises(ClientDisconnected):
            await attempt
    reply.abort()
    assert transport.writes == []


@pytest.mark.parametrize("field", [(b"a", b"b\r\nc: d"), (b"a", b"b\nc"), (b"a\r\nb", b"c"), (b"a", b"\r")])
def test_line_breaks_in_headers_are_refused(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError):
        encode_fields([field])


async def test_refused_header_leaves_the_answer_open() -> None:
    transport = RecordedTransport()
    reply = Reply(transport)
    with pytest.raises(ValueError):
        reply.start(200, [(b"a", b"\n")])
    await reply.send(500, [], b"")
    assert len(transport.writes) == 1


async def test_abort_keeps_a_stream_from_looking_complete(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, SSE)
        await reply.write(b"data: 1\n\n")
        reply.abort()

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.rest()).endswith(b"\r\n9\r\ndata: 1\n\n\r\n")


async def test_aborted_http_1_0_stream_is_reset_as_a_close_would_complete_it(stage: Stage) -> None:
    read = asyncio.Event()

    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, SSE)
        await reply.write(b"data: 1\n\n")
        await read.wait()
        reply.abort()

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get(version="1.0"))
    assert await wire.line() == b"HTTP/1.1 200 OK\r\n"
    read.set()
    with pytest.raises(ConnectionResetError):
        await wire.rest()


async def test_abort_before_the_first_write_sends_nothing(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, SSE)
        reply.abort()
        assert reply.ended

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert await wire.rest() == b""
    await until(lambda: server.active == 0)


async def test_large_answer_arrives_whole(stage: Stage) -> None:
    body = bytes(range(256)) * 40_000

    async def handler(request: HttpRequest, reply: Reply) -> None:
        await reply.send(200, [], body)

    await stage.serve(handler)
    assert (await stage.request(get())).body == body
