"""A TCP proxy between one node and one Redis server that can be cut or stalled.

It stands in for a wire where network namespaces are not allowed.
"""

from __future__ import annotations

import asyncio
import contextlib


class RedisPath:
    """Forwards bytes; when cut, connections break and new ones are refused; when stalled, no byte passes."""

    host = "127.0.0.1"

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._loses_answers = False

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break all connections; new ones are closed at once."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def stall(self) -> None:
        """Let no byte pass, without a sign of it."""
        self._flows.clear()

    def lose_answers(self) -> None:
        """Let nothing of what the server sends arrive."""
        self._loses_answers = True

    def repair(self) -> None:
        self._is_cut = self._loses_answers = False
        self._flows.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._connect(reader, writer)
        writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        pair = {writer, server_writer}
        self._writers |= pair
        ways = [
            asyncio.ensure_future(self._forward(reader, server_writer)),
            asyncio.ensure_future(self._forward(server_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers -= pair
            server_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                if answers and self._loses_answers:
                    continue
                writer.write(data)
                await writer.drain()
