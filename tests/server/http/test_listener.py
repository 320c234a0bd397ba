from __future__ import annotations

import asyncio
import socket

import pytest

from routecodex.server.http import HttpLimits, HttpRequest, HttpServer, Reply
from tests.server.http.wire import Stage, Wire, echo, get, post, until


class Slow:
    """A handler that streams a first line, then waits for an event."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"first\n")
        await self.go.wait()
        await reply.end(b"last")


async def streaming(stage: Stage) -> Wire:
    wire = await stage.connect()
    await wire.send(get())
    await wire.reader.readuntil(b"first\n")
    return wire


async def idle_connection(stage: Stage) -> Wire:
    wire = await stage.connect()
    await wire.send(get())
    await wire.answer()
    return wire


async def test_bound_address_is_returned(stage: Stage) -> None:
    server = await stage.serve()
    host, port = stage.address
    assert (host, port > 0) == ("127.0.0.1", True)
    other = await server.listen("127.0.0.1", 0)
    assert other != stage.address
    stage.address = other
    assert (await stage.request(get("/other"))).body == b"GET /other "


async def test_two_servers_share_a_port_when_asked(stage: Stage) -> None:
    first = await stage.serve()
    host, port = await first.listen("127.0.0.1", 0, reuse_port=True)
    second = await stage.serve()
    assert await second.listen(host, port, reuse_port=True) == (host, port)


async def test_taken_port_is_an_error(stage: Stage) -> None:
    await stage.serve()
    other = HttpServer(
        echo, limits=HttpLimits(), on_protocol_error=lambda status, message, request: ([], b"")
    )
    with pytest.raises(OSError):
        await other.listen(*stage.address)
    await other.close()


async def test_requests_in_flight_are_counted(stage: Stage) -> None:
    slow = Slow()
    server = await stage.serve(slow)
    wires = [await streaming(stage) for _ in range(3)]
    assert server.active == 3
    slow.go.set()
    for wire in wires:
        assert await wire.reader.readuntil(b"0\r\n\r\n") == b"\r\n4\r\nlast\r\n0\r\n\r\n"
    await until(lambda: server.active == 0)


async def test_surplus_connection_is_answered_503(stage: Stage) -> None:
    server = await stage.serve(connections=2)
    first, second = await idle_connection(stage), await idle_connection(stage)
    surplus = await stage.connect()
    await surplus.send(get())
    answer = await surplus.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert await surplus.rest() == b""
    await second.send(get("/still"))
    assert (await second.answer()).body == b"GET /still "
    first.leave()
    surplus.leave()
    await until(lambda: server.connections == 1)
    assert (await stage.request(get())).status == 200


async def test_surplus_connection_answers_essential_requests_once(stage: Stage) -> None:
    await stage.serve(connections=0, is_essential=lambda request: request.path == "/health")
    wire = await stage.connect()
    await wire.send(get("/health") + get("/health"))
    answer = await wire.answer()
    assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"GET /health ", "close")
    assert await wire.rest() == b""
    whole = post(b"x" * 100_000, path="/health")
    assert (await stage.request(whole)).status == 200
    for refused in (get("/v1/models"), post(b"x"), post(b"x" * 9)[:-3], b"POST / HTTP/1.1\r\n\r\n"):
        found = await stage.request(refused)
        assert (found.status, found.headers["connection"]) in {(503, "close"), (400, "close")}


async def test_surplus_connection_that_drips_its_head_is_closed(stage: Stage) -> None:
    await stage.serve(connections=0, linger_seconds=0.1, header_seconds=3600)
    wire = await stage.connect()
    await wire.send(b"GET /health HTTP/1.1\r\nHost: ")
    assert await wire.rest() == b""


async def test_surplus_connection_that_says_nothing_is_closed(stage: Stage) -> None:
    await stage.serve(connections=0, linger_seconds=0.05)
    assert await (await stage.connect()).rest() == b""


async def test_flood_of_surplus_connections_is_dropped(stage: Stage) -> None:
    server = await stage.serve(connections=0, linger_seconds=3600)
    for _ in range(256):
        await stage.connect()
    await until(lambda: server.connections == 256)
    assert await (await stage.connect()).rest() == b""
    assert server.connections == 256


async def test_drain_refuses_new_connections_and_closes_idle_ones(stage: Stage) -> None:
    server = await stage.serve()
    idle = await idle_connection(stage)
    assert await server.drain(20)
    assert await idle.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        await stage.connect()


async def test_requests_that_wait_to_be_accepted_are_answered_by_a_drain(stage: Stage) -> None:
    server = await stage.serve()
    # The loop does nothing else meanwhile: all of them wait in the backlog.
    clients = [socket.create_connection(stage.address) for _ in range(20)]
    for number, client in enumerate(clients):
        client.sendall(get(f"/{number}"))
    assert await server.drain(20)
    for number, client in enumerate(clients):
        answer = await read_all(client)
        assert b"connection: close\r\n" in answer
        assert answer.endswith(b"\r\n\r\nGET /%d " % number)
    with pytest.raises(ConnectionRefusedError):
        await stage.connect()


async def test_a_request_that_was_sent_on_an_idle_connection_is_answered_by_a_drain(stage: Stage) -> None:
    server = await stage.serve()
    with socket.create_connection(stage.address) as client:
        client.sendall(get("/first"))
        await until(lambda: server.connections == 1 and server.active == 0)
        await asyncio.to_thread(client.recv, 10_000)
        client.sendall(get("/second"))
        assert await server.drain(20)
        assert (await read_all(client)).endswith(b"\r\n\r\nGET /second ")


async def test_a_client_that_has_just_connected_may_send_its_request_during_a_drain(stage: Stage) -> None:
    server = await stage.serve()
    wire, silent = await stage.connect(), await stage.connect()
    await until(lambda: server.connections == 2)
    drained = asyncio.ensure_future(server.drain(20))
    await until(lambda: server.draining)
    await wire.send(get("/late"))
    assert (await wire.answer()).body == b"GET /late "
    assert await silent.rest() == b""
    assert await drained


async def read_all(client: socket.socket) -> bytes:
    """Read from a client until the server closes."""
    client.settimeout(20)
    pieces: list[bytes] = []
    while piece := await asyncio.to_thread(client.recv, 10_000):
        pieces.append(piece)
    client.close()
    return b"".join(pieces)


async def test_answers_close_their_connections_once_a_drain_is_announced(stage: Stage) -> None:
    server = await stage.serve()
    idle, used = await idle_connection(stage), await idle_connection(stage)
    server.keeps_connections = False
    await used.send(get())
    assert (await used.answer()).headers["connection"] == "close"
    assert await used.rest() == b""
    assert (await stage.request(get("/new"))).body == b"GET /new "
    await idle.send(get("/again"))
    assert (await idle.answer()).body == b"GET /again "


async def test_an_answer_that_is_due_leaves_before_a_drain_closes_its_connection(stage: Stage) -> None:
    async def last_words(request: HttpRequest, reply: Reply) -> None:
        await echo(request, reply)
        stage.server.draining = True
        stage.server.keeps_connections = False

    await stage.serve(last_words)
    wire = await stage.connect()
    await wire.send(get("/last"))
    assert (await wire.answer()).body == b"GET /last "
    assert await wire.rest() == b""


async def test_drain_lets_streams_finish(stage: Stage) -> None:
    slow = Slow()
    server = await stage.serve(slow)
    wire = await streaming(stage)
    drained = asyncio.ensure_future(server.drain(20))
    await until(lambda: server.draining)
    slow.go.set()
    assert await wire.rest() == b"\r\n4\r\nlast\r\n0\r\n\r\n"
    assert await drained
    assert server.active == 0


async def test_answers_begun_while_draining_close_the_connection(stage: Stage) -> None:
    server = await stage.serve()
    wire, accepted = await stage.connect_observed()
    request = post(b"body")
    await wire.send(request[:-1])
    await until(lambda: not accepted.connection.is_idle())
    drained = asyncio.ensure_future(server.drain(20))
    await until(lambda: server.draining)
    await wire.send(request[-1:])
    answer = await wire.answer()
    assert (answer.body, answer.headers["connection"]) == (b"POST / body", "close")
    assert await wire.rest() == b""
    assert await drained


async def test_requests_already_read_are_answered_while_draining(stage: Stage) -> None:
    slow = Slow()
    server = await stage.serve(slow)
    wire = await stage.connect()
    await wire.send(get("/a") + get("/b"))
    await wire.reader.readuntil(b"first\n")
    drained = asyncio.ensure_future(server.drain(20))
    await until(lambda: server.draining)
    slow.go.set()
    rest = await wire.rest()
    assert (rest.count(b"last"), rest.count(b"connection: close")) == (2, 1)
    assert await drained


async def test_drain_refuses_what_has_not_begun_after_its_time(stage: Stage) -> None:
    cancelled = asyncio.Event()

    async def handler(request: HttpRequest, reply: Reply) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    await until(lambda: server.active == 1)
    assert not await server.drain(0.01)
    assert (await wire.answer()).status == 503
    assert await wire.rest() == b""
    await asyncio.wait_for(cancelled.wait(), 20)


async def test_drain_lets_a_handler_end_its_stream_and_cuts_off_one_that_does_not(stage: Stage) -> None:
    async def handler(request: HttpRequest, reply: Reply) -> None:
        reply.start(200, [])
        await reply.write(b"begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert reply.interrupted
            if request.path == "/careless":
                raise
            await reply.end(b", ended")

    server = await stage.serve(handler)
    careful, careless = await stage.connect(), await stage.connect()
    await careful.send(get("/careful") + get("/next"))
    await careless.send(get("/careless"))
    await until(lambda: server.active == 2)
    assert not await server.drain(0.01)
    assert (await careful.answer()).body == b"begun, ended"
    assert await careful.rest() == b""
    assert (await careless.rest()).endswith(b"5\r\nbegun\r\n")


async def test_close_waits_for_cancelled_handlers_to_clean_up(stage: Stage) -> None:
    log: list[str] = []

    async def handler(request: HttpRequest, reply: Reply) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned up")

    server = await stage.serve(handler)
    wire = await stage.connect()
    await wire.send(get())
    await until(lambda: server.active == 1)
    await asyncio.sleep(0)
    await server.close()
    assert (log, server.active) == (["cleaned up"], 0)


async def test_server_that_never_listened_closes_and_drains() -> None:
    server = HttpServer(
        echo, limits=HttpLimits(), on_protocol_error=lambda status, message, request: ([], b"")
    )
    assert await server.drain(1)
    await server.close()


@pytest.mark.parametrize("headers", [None, [(b"a", b"b\r\nc")]])
async def test_fault_is_told_plainly_when_its_body_cannot_be_built(
    headers: list[tuple[bytes, bytes]] | None,
) -> None:
    def broken(status: int, message: str, request: object) -> tuple[list[tuple[bytes, bytes]], bytes]:
        if headers is None:
            raise LookupError
        return headers, b""

    stage = Stage()
    server = HttpServer(echo, limits=HttpLimits(), on_protocol_error=broken)
    stage.address = await server.listen("127.0.0.1", 0)
    answer = await stage.request(b"GET / HTTP/1.1\r\n\r\n")
    assert (answer.status, answer.body) == (400, b"the Host header is missing")
    await stage.clear()
    await server.close()


def test_sweep_is_as_fine_as_the_shortest_limit_needs() -> None:
    assert HttpLimits().sweep_seconds() == 0.5
    assert HttpLimits(linger_seconds=60).sweep_seconds() == 1.0
    assert HttpLimits(header_seconds=0.04).sweep_seconds() == 0.01
    assert HttpLimits(header_seconds=0.0).sweep_seconds() == 0.005
