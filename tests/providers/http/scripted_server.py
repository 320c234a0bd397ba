"""A TCP server whose connections follow scripts, so that a test controls each byte and its time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from routecodex.providers.http import HttpClient, HttpResponse, Origin, Timeouts, origin_of
from tests.kit.stream_server import StreamServer

FAST = Timeouts(connect=20.0, first_byte=20.0, idle=20.0)


def plain(body: bytes = b"ok", *extra: bytes, status: bytes = b"200 OK") -> bytes:
    """Return a whole response with a content-length."""
    head = [b"HTTP/1.1 " + status, *extra, b"content-length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    """Encode a body in chunks, the last one included."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Server) -> None:
        self.reader = reader
        self.writer = writer
        self._server = server

    async def head(self) -> bytes:
        """Read the head of the next request."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def request(self) -> bytes:
        """Read the next request with its body."""
        head = await self.head()
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        whole = head + await self.reader.readexactly(length)
        self._server.requests.append(whole)
        return whole

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Return when the client has closed its end."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer], Awaitable[None]]


class Server:
    """Requests and connections of the scripts."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.finished = 0
        self.port = 0
        self.changed = asyncio.Condition()

    def origin(self, scheme: str = "http", host: str = "127.0.0.1") -> Origin:
        return origin_of(f"{scheme}://{host}:{self.port}", environ={})

    async def until_finished(self, count: int) -> None:
        """Return when that many connections have played their script to its end."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.finished >= count)


@asynccontextmanager
async def serving(
    *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Server]:
    """Serve each connection by the next script; the last one repeats."""
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = scripts[min(server.connections, len(scripts) - 1)]
        server.connections += 1
        try:
            await script(Peer(reader, writer, server))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
        async with server.changed:
            server.finished += 1
            server.changed.notify_all()

    listener = StreamServer(serve, host=host, ssl=tls)
    await listener.start()
    server.port = listener.port
    try:
        yield server
    finally:
        await listener.close()


def answering(*responses: bytes) -> Script:
    """Answer each request with the next bytes; the last ones repeat."""

    async def script(peer: Peer) -> None:
        count = 0
        while True:
            await peer.request()
            await peer.send(responses[min(count, len(responses) - 1)])
            count += 1

    return script


def closing_after(response: bytes) -> Script:
    """Answer one request with these bytes and close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(response)
        peer.writer.close()
        await peer.gone()

    return script


async def post(
    client: HttpClient,
    origin: Origin,
    *,
    body: bytes | list[bytes] = b"{}",
    timeouts: Timeouts = FAST,
    path: bytes = b"/v1/x",
) -> HttpResponse:
    return await client.send(origin, method=b"POST", path=path, headers=[], body=body, timeouts=timeouts)


async def fetch(client: HttpClient, origin: Origin, *, timeouts: Timeouts = FAST) -> bytes:
    """Return the whole body of the response to a POST."""
    response = await post(client, origin, timeouts=timeouts)
    return await response.read(1 << 24)
