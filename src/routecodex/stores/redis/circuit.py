"""Judges whether Redis can be used: the only timer of an outage.

The first call that fails or is late opens the circuit: all waiting calls fail at once, later ones without
waiting. Probes, ever less often, close it again. A server that takes no writes (a replica, out of memory, a
full disk) leaves it closed for reads.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from routecodex.stores.redis.failures import CallNotSent, WritesRefused
from routecodex.stores.store import Availability, StoreError

_FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

log = logging.getLogger("routecodex.stores")


class Circuit:
    """Whether Redis can be used; `probe` tries that, and raises StoreGone or WritesRefused if it cannot."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.status: Availability = "up"
        self.listeners: list[Callable[[Availability, StoreError | None], object]] = []
        self._probe = probe
        self._sleep = sleep
        self._jitter = jitter
        self._reason: StoreError | None = None
        self.waiting: set[asyncio.Timeout] = set()
        """Calls under way; they end when the circuit opens."""
        self.on_open: list[Callable[[], object]] = []
        """Called when it opens, to end other calls under way."""
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether calls fail without being sent."""
        return self.status == "down"

    def check(self, *, writes: bool) -> None:
        """Raise StoreError for a call that would not succeed."""
        if self._closed:
            raise CallNotSent("the Redis store is closed")
        if self.status == "down":
            raise CallNotSent(f"the Redis store is down: {self._reason}")
        if writes and self.status == "read_only":
            raise WritesRefused(f"the Redis store takes no writes: {self._reason}")

    def fail(self, reason: StoreError) -> None:
        """Open the circuit."""
        self._set("down", reason)
        loop = asyncio.get_running_loop()
        for one in tuple(self.waiting):
            if not one.expired():
                one.reschedule(loop.time())
        for end in self.on_open:
            end()

    def refuse_writes(self, reason: StoreError) -> None:
        """Note that writes are refused, while reads work."""
        if self.status == "up":
            self._set("read_only", reason)

    async def close(self) -> None:
        """Stop probing, and refuse all calls."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _set(self, status: Availability, reason: StoreError | None) -> None:
        if self._closed or status == self.status:
            return
        self.status, self._reason = status, reason
        if status != "up" and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._probe_until_back())
        for listener in self.listeners:
            listener(status, reason)

    async def _probe_until_back(self) -> None:
        pause = _FIRST_PAUSE
        while self.status != "up":
            await self._sleep(pause * (0.5 + self._jitter() / 2))
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                await self._probe()
            except WritesRefused as exc:
                self._set("read_only", exc)
            except StoreError as exc:
                log.debug("the Redis store is still down: %s", exc)
                self._set("down", exc)
            else:
                self._set("up", None)
