"""A server for tests that leaves no connection open when it is closed.

asyncio accepts a connection some turns of the loop before it runs the task that serves it. If the server is
closed in between, `Server.close` of Python 3.11 loses the connection, or the task is cancelled before its
first line, and no `finally` closes it: the garbage collector finds it later, in another test.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class StreamServer:
    """Calls `serve` for each connection on a free port; `close` ends all of them."""

    def __init__(self, serve: Serve, *, host: str = "127.0.0.1", ssl: tls.SSLContext | None = None) -> None:
        self.port = 0
        self._serve = serve
        self._host = host
        self._ssl = ssl
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._ssl)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, cancel what serves a connection, and close every connection."""
        assert self._server is not None
        self._is_closed = True
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await _turns()
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        await _turns()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, writer))

    def _end(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            writer.transport.abort()
        else:
            writer.close()


async def _turns() -> None:
    """Let asyncio finish what it has begun with a connection: to accept it, or to close it."""
    for _ in range(3):
        await asyncio.sleep(0)
