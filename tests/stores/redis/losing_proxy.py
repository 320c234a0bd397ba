"""A way to a server that loses answers, holds calls, or is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.kit.stream_server import StreamServer


class LosingProxy:
    """Passes bytes to the server, and drops its answers while `is_losing`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.is_losing = False
        self.is_cut = False
        """Nothing passes in either direction, and nobody is told: a cable that was pulled."""
        self.before: Callable[[bytes], Awaitable[object]] = _pass
        """Called with what is sent to the server before it gets that; an OSError closes the connection."""
        self.swallows = b""
        """What is sent to the server in one piece with this is lost."""
        self.swallowed = 0
        self._server = StreamServer(self._serve)
        self.is_holding = False
        """What is sent to the server now arrives only with `release`, as after a loss of packets."""
        self._released = asyncio.Event()
        self._held: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> LosingProxy:
        await self._server.start()
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}"

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._pump(reader, out), self._pump(upstream, writer, answers=True))
        finally:
            out.close()

    async def release(self) -> None:
        """Let everything arrive that was held, and wait until it has, and its connections have ended."""
        self._released.set()
        await asyncio.wait(self._held)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        try:
            while data := await source.read(65536):
                if self.is_holding and not answers:
                    task = asyncio.current_task()
                    assert task is not None
                    self._held.add(task)
                    await self._released.wait()
                if not answers:
                    await self.before(data)
                if self.swallows and self.swallows in data:
                    self.swallowed += 1
                    continue
                if not self.is_cut and not (answers and self.is_losing):
                    target.write(data)
                    await target.drain()
        except OSError:
            return
        finally:
            target.close()


async def _pass(data: bytes) -> None:
    """Let data through."""
