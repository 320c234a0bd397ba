"""A server on a free port and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any, cast

import msgspec

from routecodex.server.http import Handler, HttpLimits, HttpRequest, HttpServer, Reply
from routecodex.server.http.connection import ServerConnection
from routecodex.server.http.listener import CheckHead

SECONDS = 20.0


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """A client that sends and reads raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head_only: bool = False) -> Answer:
        """Read one answer by its framing; one framed by the close is read to the end."""
        async with asyncio.timeout(SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head[:-4].split("\r\n")
            headers = dict(field.split(": ", 1) for field in fields)
            status = int(line.split(" ")[1])
            bodiless = head_only or status in (100, 204, 304)
            return Answer(status, headers, b"" if bodiless else await self._body(headers))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.read()
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def rest(self) -> bytes:
        """Read until the server closes."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()

    async def line(self) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readline()

    def leave(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


class Accepted(asyncio.Protocol):
    """Forwards every call to a connection of the server and records its transport."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self.connection = ServerConnection(server)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connection.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.connection.data_received(data)

    def eof_received(self) -> None:
        self.connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()


class Stage:
    """The servers and clients of one test; all are closed after it."""

    def __init__(self) -> None:
        self.server: HttpServer
        self.address: tuple[str, int]
        self._servers: list[HttpServer] = []
        self._listeners: list[asyncio.Server] = []
        self._wires: list[Wire] = []

    async def serve(
        self,
        handler: Handler | None = None,
        check_head: CheckHead = lambda request: None,
        is_essential: Callable[[HttpRequest], bool] = lambda request: False,
        **limits: Any,
    ) -> HttpServer:
        self.server = HttpServer(
            handler or echo,
            limits=HttpLimits(**limits),
            on_protocol_error=describe_error,
            check_head=check_head,
            is_essential=is_essential,
        )
        self._servers.append(self.server)
        self.address = await self.server.listen("127.0.0.1", 0)
        return self.server

    async def connect(self, *, receive_buffer: int | None = None, limit: int = 2**20) -> Wire:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self.address)
        except OSError:
            sock.close()
            raise
        wire = Wire(*await asyncio.open_connection(sock=sock, limit=limit))
        self._wires.append(wire)
        return wire

    async def connect_observed(
        self, *, receive_buffer: int | None = None, limit: int = 2**20
    ) -> tuple[Wire, Accepted]:
        """Connect through another listener of the server, which shows the server's end too."""
        accepted: list[Accepted] = []

        def accept() -> Accepted:
            accepted.append(Accepted(self.server))
            return accepted[0]

        listener = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        self._listeners.append(listener)
        self.address = listener.sockets[0].getsockname()
        wire = await self.connect(receive_buffer=receive_buffer, limit=limit)
        await until(lambda: self.server.connections > 0)
        return wire, accepted[0]

    async def request(self, data: bytes) -> Answer:
        wire = await self.connect()
        await wire.send(data)
        return await wire.answer()

    async def clear(self) -> None:
        for wire in self._wires:
            wire.reset()
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()
        for listener in self._listeners:
            listener.close()
        for server in self._servers:
            await server.close()


async def echo(request: HttpRequest, reply: Reply) -> None:
    """Answer with method, path and body of the request."""
    body = f"{request.method} {request.path} ".encode() + request.body
    await reply.send(200, [(b"content-type", b"text/plain")], body)


def describe_error(
    status: int, message: str, request: HttpRequest | None
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    where = None if request is None else request.path
    body = msgspec.json.encode({"status": status, "message": message, "path": where})
    return [(b"content-type", b"application/json")], body


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


def get(path: str = "/", *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: gateway.test", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(body: bytes, *headers: str, path: str = "/") -> bytes:
    return get(path, f"Content-Length: {len(body)}", *headers, method="POST") + body


def chunked(*chunks: bytes, path: str = "/") -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return get(path, "Transfer-Encoding: chunked", method="POST") + framed + b"0\r\n\r\n"
