"""The server of the tests closes every connection, whatever asyncio has done with it so far."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.kit.stream_server import StreamServer


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.readline():
        writer.write(data)
        await writer.drain()


async def rest(connection: socket.socket) -> bytes:
    """Return what still arrives until the connection is closed."""
    connection.setblocking(False)
    try:
        return await asyncio.get_running_loop().sock_recv(connection, 100)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_was_just_accepted_is_closed(turns: int) -> None:
    server = StreamServer(echo)
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        assert await rest(client) == b""


async def test_what_was_written_before_the_end_arrives() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    server = StreamServer(greet)
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        assert [await rest(client), await rest(client)] == [b"hello", b""]
    await server.close()
