"""Sends calls that are made in the same turn of the event loop together, on one connection.

A call costs its sender mostly the system call, and Redis the same again: concurrent requests share them.
redis-py packs a command and passes it on in some twenty steps; here it is one. The calls of a batch share one
timer too: they were made in the same turn, and are late together.
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


class CallLate(TimeoutError):
    """A call without a reply at its `limit`; its batch was sent at `sent`: the limit, if it was not."""

    def __init__(self, limit: float, sent: float) -> None:
        super().__init__()
        self.limit = limit
        self.sent = sent


class _Batch:
    """Calls that are sent together; when nobody waits for them any more, their connection is dropped."""

    __slots__ = ("commands", "limit", "replies", "sent", "task", "timer", "waiting")

    def __init__(self, limit: float) -> None:
        self.commands: list[bytes] = []
        self.replies: list[Reply] = []
        self.waiting = 0
        self.limit = limit
        self.sent = limit
        self.timer: asyncio.TimerHandle | None = None
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

    def end(self) -> None:
        """Tell every caller that has no reply yet that the call is late."""
        for reply in self.replies:
            if not reply.done():
                reply.set_exception(CallLate(self.limit, self.sent))
        if self.task is not None:
            self.task.cancel()

    def fail(self, error: Exception) -> None:
        """Tell every caller that has no reply yet."""
        for reply in self.replies:
            if not reply.done():
                reply.set_exception(error)


class CallBatches:
    """Calls of one server, or of the master that sentinels name; each is bounded in time.

    At most `most` batches are under way, each on a connection; calls that are made meanwhile form the next.
    """

    def __init__(self, client: Redis, *, timeout: float, most: int) -> None:
        self._pool = client.connection_pool
        self._timeout = timeout
        self._most = most
        self._next: _Batch | None = None
        self._under_way: set[_Batch] = set()

    async def call(self, *args: Any) -> Any:
        """Send a command with others of this turn; return its reply, or raise its error or CallLate."""
        loop = asyncio.get_running_loop()
        batch = self._next
        if batch is None:
            batch = self._next = _Batch(loop.time() + self._timeout)
            batch.timer = loop.call_at(batch.limit, self._end, batch)
            loop.call_soon(self._start)
        reply: Reply = loop.create_future()
        batch.add(pack_command(args), reply)
        try:
            return await reply
        except asyncio.CancelledError:
            batch.leave()
            raise

    def end_all(self) -> None:
        """End all calls, as if they were late."""
        waiting = () if self._next is None else (self._next,)
        for batch in (*self._under_way, *waiting):
            self._end(batch)

    def _end(self, batch: _Batch) -> None:
        """End a batch; no later call may join it, because its time is over."""
        if batch is self._next:
            self._next = None
            if batch.timer is not None:
                batch.timer.cancel()
        batch.end()

    def _start(self) -> None:
        batch = self._next
        if batch is None or len(self._under_way) >= self._most:
            return
        self._next = None
        if any(not reply.done() for reply in batch.replies):
            self._under_way.add(batch)
            batch.sent = asyncio.get_running_loop().time()
            batch.task = asyncio.ensure_future(self._send(batch))
            batch.task.add_done_callback(lambda _: self._ended(batch))
        elif batch.timer is not None:
            batch.timer.cancel()

    def _ended(self, batch: _Batch) -> None:
        self._under_way.discard(batch)
        if batch.timer is not None:
            batch.timer.cancel()
        self._start()

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
