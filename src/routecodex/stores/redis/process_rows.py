"""One row of every process that uses the store: figures for people, of which nobody is told.

Values of a space would be published to all processes with every change; these are read when somebody asks.
"""

from __future__ import annotations

import contextlib

from routecodex.stores.redis.key_names import KeyNames
from routecodex.stores.redis.link import RedisLink
from routecodex.stores.store import StoreError

_FORGOTTEN_MS = 60_000


class RedisProcessRows:
    """Rows by topic, in one hash each; the row of a process begins with the server's time in milliseconds."""

    def __init__(self, link: RedisLink, names: KeyNames, *, writer: str) -> None:
        self._link = link
        self._names = names
        self._writer = writer

    async def write(self, topic: str, row: bytes | None) -> None:
        """Replace the row of this process; None removes it."""
        name = self._names.processes(topic)
        if row is None:
            await self._link.command("HDEL", name, self._writer, writes=True)
            return
        await self._link.start()
        stamped = b"%d %b" % (self._now_ms(), row)
        await self._link.command("HSET", name, self._writer, stamped, writes=True)

    async def read_others(self, topic: str, *, within: float) -> list[bytes]:
        """Return the rows of other processes that were written in the last `within` seconds."""
        name = self._names.processes(topic)
        found = await self._link.command("HGETALL", name)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        rows = {writer.decode(): value.partition(b" ") for writer, value in pairs}
        now = self._now_ms()
        ended = [writer for writer, (ms, _, _) in rows.items() if now - int(ms) > _FORGOTTEN_MS]
        if ended:
            # They were killed, or had no store when they stopped.
            with contextlib.suppress(StoreError):
                await self._link.command("HDEL", name, *ended, writes=True)
        return [
            row
            for writer, (ms, _, row) in rows.items()
            if writer != self._writer and now - int(ms) <= within * 1000
        ]

    def _now_ms(self) -> int:
        return int(self._link.now_us() // 1000)
