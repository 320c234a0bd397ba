from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct

import pytest

from routecodex.server.http import ClientDisconnected, HttpRequest, Reply
from tests.server.http.wire import Stage, chunked, echo, get, post, until


class HeldHandler:
    """A handler that records its calls and answers when an event is set."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.log: list[str] = []

    async def __call__(self, request: HttpRequest, reply: Reply) -> None:
        self.log.append(f"began {request.path}")
        try:
            await self.opened.wait()
            await echo(request, reply)
            self.log.append(f"ended {request.path}")
        except asyncio.CancelledError:
            self.log.append(f"cancelled {request.path}")
            raise

    async def began(self) -> None:
        await until(lambda: bool(self.log))


async def test_answer_has_a_date_and_names_no_server(stage: Stage) -> None:
    await stage.serve()
    answer = await stage.request(get("/a"))
    assert answer.body == b"GET /a "
    assert sorted(answer.headers) == ["content-length", "content-type", "date"]
    assert answer.headers["date"].endswith(" GMT")


async def test_connection_is_kept_for_the_next_request(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    for body in (b"one", b"two" * 100_000, b""):
        await wire.send(post(body))
        assert (await wire.answer()).body == b"POST / " + body
    await wire.send(chunked(b"th", b"ree"))
    assert (await wire.answer()).body == b"POST / three"


async def test_head_answer_has_the_length_and_no_body(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/a", method="HEAD") + get("/b"))
    assert (await wire.answer(head_only=True)).headers["content-length"] == "8"
    assert (await wire.answer()).body == b"GET /b "


async def test_connection_closes_when_the_client_asks(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/", "Connection: close"))
    assert (await wire.answer()).headers["connection"] == "close"
    assert await wire.rest() == b""


async def test_http_1_0_closes_unless_asked_to_keep(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/", "Connection: keep-alive", version="1.0"))
    assert (await wire.answer()).headers["connection"] == "keep-alive"
    await wire.send(get("/", version="1.0"))
    assert (await wire.answer()).headers["connection"] == "close"
    assert await wire.rest() == b""


async def test_http_1_0_stream_ends_with_the_connection(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"a")
        await reply.end(b"b")

    await stage.serve(handler)
    answer = await stage.request(get("/", "Connection: keep-alive", version="1.0"))
    assert (answer.body, answer.headers["connection"]) == (b"ab", "close")
    assert "transfer-encoding" not in answer.headers


async def test_small_packets_leave_at_once(stage: Stage) -> None:
    await stage.serve()
    _, accepted = await stage.connect_observed()
    sock = accepted.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_client_address_is_known(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        await reply.send(200, [], repr(request.client).encode())

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.answer()).body.decode() == repr(wire.writer.get_extra_info("sockname"))


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(stage: Stage) -> None:
    running: list[str] = []
    most = 0

    async def handler(request: HttpRequest, reply: Reply) -> None:
        nonlocal most
        running.append(request.path)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.remove(request.path)
        await echo(request, reply)

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(b"".join(post(b"x" * n, path=f"/{n}") for n in range(50)))
    assert [(await wire.answer()).body for _ in range(50)] == [b"POST /%d " % n + b"x" * n for n in range(50)]
    assert most == 1


async def test_reading_pauses_while_more_than_one_request_waits(stage: Stage) -> None:
    held = HeldHandler()
    await stage.serve(held)
    wire, accepted = await stage.connect_observed()
    wire.writer.write(get("/0"))
    await held.began()
    total = 8_000
    wire.writer.write(b"".join(post(b"x" * 1000, path=f"/{n}") for n in range(1, total)))
    await until(lambda: not accepted.transport.is_reading())
    assert accepted.connection.queued <= 130
    held.opened.set()
    for n in range(total):
        assert (await wire.answer()).body.startswith(b"POST /%d " % n if n else b"GET /0 ")
    await until(lambda: accepted.transport.is_reading())


async def test_garbage_behind_a_request_is_refused_after_its_answer(stage: Stage) -> None:
    held = HeldHandler()
    await stage.serve(held)
    wire = await stage.connect()
    await wire.send(get("/good") + b"GARBAGE\r\n\r\n")
    await held.began()
    held.opened.set()
    assert [(await wire.answer()).status, (await wire.answer()).status] == [200, 400]
    assert await wire.rest() == b""


async def test_expectation_is_met_before_the_body(stage: Stage) -> None:
    await stage.serve()
    wire = await stage.connect()
    await wire.send(get("/", "Content-Length: 4", "Expect: 100-continue", method="POST"))
    assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.send(b"body")
    assert (await wire.answer()).body == b"POST / body"


async def test_body_that_did_not_wait_gets_no_interim_answer(stage: Stage) -> None:
    await stage.serve()
    assert (await stage.request(post(b"body", "Expect: 100-continue"))).status == 200


async def test_between_pipelined_requests_others_have_their_turn(stage: Stage) -> None:
    order: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        order.append(request.path)
        asyncio.get_running_loop().call_soon(order.append, "another")
        await echo(request, reply)

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get("/a") + get("/b") + get("/c"))
    for _ in range(3):
        await wire.answer()
    assert order[:5] == ["/a", "another", "/b", "another", "/c"]


async def test_expectation_of_a_pipelined_request_is_met_after_the_answer_before_it(stage: Stage) -> None:
    held = HeldHandler()
    await stage.serve(held)
    wire = await stage.connect()
    await wire.send(get("/a") + get("/b", "Content-Length: 1", "Expect: 100-continue", method="POST"))
    await held.began()
    held.opened.set()
    assert (await wire.answer()).body == b"GET /a "
    assert (await wire.answer()).status == 100
    await wire.send(b"x")
    assert (await wire.answer()).body == b"POST /b x"


async def test_expectation_of_too_large_a_body_is_refused_at_once(stage: Stage) -> None:
    await stage.serve(body_bytes=10)
    wire = await stage.connect()
    await wire.send(get("/big", "Content-Length: 11", "Expect: 100-continue", method="POST"))
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert b'"path":"/big"' in answer.body
    assert await wire.rest() == b""


async def test_client_that_sends_too_large_a_body_can_read_why(stage: Stage) -> None:
    await stage.serve(body_bytes=10, linger_bytes=8_000_000)
    wire = await stage.connect()
    await wire.send(get("/", "Content-Length: 4000000", method="POST"))
    await wire.send(b"x" * 4_000_000)
    assert (await wire.answer()).status == 413
    assert await wire.rest() == b""


async def test_lingering_ends_when_the_client_closes(stage: Stage) -> None:
    await stage.serve(linger_seconds=3600)
    wire = await stage.connect()
    await wire.send(b"GARBAGE\r\n\r\n")
    assert (await wire.answer()).status == 400
    wire.leave()
    await until(lambda: not stage.server.connections)


async def test_lingering_ends_after_its_time(stage: Stage) -> None:
    await stage.serve(linger_seconds=0.05)
    wire = await stage.connect()
    await wire.send(b"GARBAGE\r\n\r\n")
    await until(lambda: not stage.server.connections)
    assert (await wire.answer()).status == 400


async def test_lingering_ends_after_its_bytes(stage: Stage) -> None:
    await stage.serve(linger_seconds=3600, linger_bytes=100_000)
    wire = await stage.connect()
    await wire.send(b"GARBAGE\r\n\r\n")
    assert (await wire.answer()).status == 400
    with contextlib.suppress(ConnectionError):
        while stage.server.connections:
            await wire.send(b"x" * 100_000)
    await until(lambda: not stage.server.connections)


async def test_streamed_body_past_the_limit_is_refused(stage: Stage) -> None:
    await stage.serve(body_bytes=10)
    assert (await stage.request(chunked(b"a" * 6, b"b" * 6))).status == 413


async def test_head_past_the_limit_is_refused(stage: Stage) -> None:
    await stage.serve(header_bytes=500)
    assert (await stage.request(get("/", "X: " + "a" * 500))).status == 431
    assert (await stage.request(b"GET /" + b"a" * 600)).status == 431


async def test_faults_name_the_path_once_the_head_is_read(stage: Stage) -> None:
    await stage.serve()
    answer = await stage.request(get("/v1/messages", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n")
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
    assert b'"path":"/v1/messages"' in answer.body


@pytest.mark.parametrize("farewell", ["leave", "reset"])
async def test_handler_is_cancelled_when_the_client_goes_before_the_first_byte(
    stage: Stage, farewell: str
) -> None:
    held = HeldHandler()
    server = await stage.serve(held)
    wire = await stage.connect()
    await wire.send(post(b"body"))
    await held.began()
    assert server.active == 1
    getattr(wire, farewell)()
    await until(lambda: server.active == 0)
    assert held.log == ["began /", "cancelled /"]


async def test_handler_is_cancelled_when_the_client_goes_in_mid_stream(stage: Stage) -> None:
    log: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"first\n")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    await wire.reader.readuntil(b"first\n")
    wire.leave()
    await until(lambda: server.active == 0)
    assert log == ["cancelled"]


async def test_closing_the_sending_half_counts_as_leaving(stage: Stage) -> None:
    held = HeldHandler()
    await stage.serve(held)
    wire = await stage.connect()
    await wire.send(get())
    await held.began()
    wire.writer.write_eof()
    await until(lambda: held.log == ["began /", "cancelled /"])


async def test_request_and_close_in_one_go_leave_nothing_behind(stage: Stage) -> None:
    held = HeldHandler()
    server = await stage.serve(held)
    for _ in range(20):
        wire = await stage.connect()
        wire.writer.write(get())
        wire.leave()
    await until(lambda: not server.connections)
    assert server.active == 0
    assert [line for line in held.log if line.startswith("ended")] == []


async def test_client_that_goes_in_mid_request_reaches_no_handler(stage: Stage) -> None:
    held = HeldHandler()
    server = await stage.serve(held)
    wire = await stage.connect()
    await wire.send(get("/", "Content-Length: 9", method="POST") + b"half")
    await until(lambda: server.connections == 1)
    wire.leave()
    await until(lambda: not server.connections)
    assert held.log == []


async def test_work_after_a_complete_answer_is_not_cancelled(stage: Stage) -> None:
    left = asyncio.Event()
    log: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        await reply.send(200, [], b"whole")
        await left.wait()
        log.append("recorded")

    server = await stage.serve(handler)
    wire, accepted = await stage.connect_observed()
    await wire.send(get())
    assert (await wire.answer()).body == b"whole"
    wire.leave()
    await until(lambda: accepted.connection.gone)
    left.set()
    await until(lambda: not server.connections)
    assert (log, server.active) == (["recorded"], 0)


async def test_writes_to_a_client_that_left_raise(stage: Stage) -> None:
    raised: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                await reply.write(b"too late")
            except ClientDisconnected:
                raised.append("write")
            try:
                await reply.drain()
            except ClientDisconnected:
                raised.append("drain")
            raise

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    await until(lambda: server.active == 1)
    await asyncio.sleep(0)
    wire.leave()
    await until(lambda: raised == ["write", "drain"])


async def test_failed_write_is_noticed_by_a_handler_that_never_pauses(stage: Stage) -> None:
    written = 0

    async def handler(request: HttpRequest, reply: Reply) -> None:
        nonlocal written
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        reply.start(200, [])
        for written in range(1000):  # noqa: B007 the count is looked at afterwards
            reply.write_nowait(b"x" * 10_000)

    server = await stage.serve(handler)
    client = socket.create_connection(stage.address)
    client.sendall(get() + get("/pipelined"))
    await until(lambda: written > 0)
    await until(lambda: not server.connections)
    assert (written < 100, server.active) == (True, 0)


async def test_handler_that_raises_is_answered_500_and_the_connection_kept(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        if request.path == "/bad":
            raise LookupError(f"secret {request.headers['authorization']}")
        await echo(request, reply)

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get("/bad?key=secret", "Authorization: Bearer secret") + get("/good"))
    answer = await wire.answer()
    assert (answer.status, b'"path":"/bad"' in answer.body) == (500, True)
    assert (await wire.answer()).body == b"GET /good "
    [record] = [r for r in caplog.records if r.name == "routecodex.server"]
    message = record.getMessage()
    assert message.startswith("handler of GET '/bad' raised LookupError\n")
    assert "test_connection.py" in message
    assert "Bearer" not in message


async def test_handler_that_raises_in_mid_stream_cuts_the_stream(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"part")
        raise LookupError

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.rest()).endswith(b"4\r\npart\r\n")
    assert [r.levelno for r in caplog.records if r.name == "routecodex.server"] == [logging.ERROR]


async def test_handler_that_forgets_to_answer_is_answered_500(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        return

    await stage.serve(handler)
    assert (await stage.request(get())).status == 500


async def test_handler_that_forgets_to_end_cuts_the_stream(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"part")

    await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert (await wire.rest()).endswith(b"4\r\npart\r\n")


async def test_handler_cancelled_from_outside_drops_the_connection(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    assert await wire.rest() == b""
    await until(lambda: not server.connections)
    assert server.active == 0
