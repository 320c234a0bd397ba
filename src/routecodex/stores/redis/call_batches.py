"""Sends calls that are made in the same turn of the event loop together, on one connection.

A call costs its sender mostly the system call, and Redis the same again: concurrent requests share them.
redis-py packs a command and passes it on in some twenty steps; here it is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

Reply = asyncio.Future[Any]


def pack_command(args: Iterable[Any]) -> bytes:
    """Return a command as Redis reads it: an array of strings (RESP2)."""
    parts = [b""]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    parts[0] = b"*%d\r\n" % (len(parts) - 1)
    return b"".join(parts)


class _Batch:
    """Calls that are sent together; when nobody waits for them any more, their connection is dropped."""

    __slots__ = ("commands", "replies", "task", "waiting")

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.replies: list[Reply] = []
        self.waiting = 0
        self.task: asyncio.Task[None] | None = None

    def add(self, command: bytes, reply: Reply) -> None:
        self.commands.append(command)
        self.replies.append(reply)
        self.waiting += 1

    def leave(self) -> None:
        """Note that a caller has gone."""
        self.waiting -= 1
        if not self.waiting and self.task is not None:
            self.task.cancel()

    def fail(self, error: Exception) -> None:
        """Tell every caller that has no reply yet."""
        for reply in self.replies:
            if not reply.done():
                reply.set_exception(error)


class CallBatches:
    """Calls of one server, or of the master that sentinels name."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._next: _Batch | None = None

    async def call(self, *args: Any) -> Any:
        """Send a command with others of this turn; return its reply, or raise its error."""
        loop = asyncio.get_running_loop()
        batch = self._next
        if batch is None:
            batch = self._next = _Batch()
            loop.call_soon(self._start)
        reply: Reply = loop.create_future()
        batch.add(pack_command(args), reply)
        try:
            return await reply
        except asyncio.CancelledError:
            batch.leave()
            raise

    def _start(self) -> None:
        batch, self._next = self._next, None
        if batch is not None and batch.waiting:
            batch.task = asyncio.ensure_future(self._send(batch))

    async def _send(self, batch: _Batch) -> None:
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]  # redis-py
            try:
                await connection.send_packed_command(b"".join(batch.commands), check_health=False)
                for reply in batch.replies:
                    await self._read(connection, reply)
            finally:
                await self._pool.release(connection)
        except (RedisError, OSError) as exc:
            batch.fail(exc)

    async def _read(self, connection: Any, reply: Reply) -> None:
        """Read the next reply; errors of the connection, which it drops itself, are raised."""
        try:
            result = await connection.read_response()
        except ResponseError as exc:
            if not reply.done():
                reply.set_exception(exc)
        else:
            if not reply.done():
                reply.set_result(result)
