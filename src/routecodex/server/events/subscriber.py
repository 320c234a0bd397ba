"""The queue of one event stream: bounded, and open about what it dropped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from time import monotonic
from typing import Final

from routecodex.server.events.frames import COMMENT, LARGEST_FRAME, encode_frame

QUEUE_BYTES: Final = 512 * 1024
COMMENT_SECONDS: Final = 15.0


class Subscriber:
    """One stream as the hub sees it; `first` are the frames that it begins with."""

    def __init__(
        self,
        topics: Collection[str],
        first: Iterable[bytes] = (),
        *,
        comment_seconds: float = COMMENT_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.topics: Final = frozenset(topics)
        self._frames = deque(first)
        self._bytes = sum(map(len, self._frames))
        self._dropped = 0
        self._is_open = True
        self._news = asyncio.Event()
        self._news.set()
        self._clock = clock
        self._comment_seconds = comment_seconds
        self._comment_at = clock() + comment_seconds

    @property
    def waiting(self) -> int:
        """Bytes that wait to be read."""
        return self._bytes

    def offer(self, topic: str, frame: bytes) -> None:
        """Queue a frame of one of its topics.

        Once one had to be dropped, all are until the queue is empty: the reader is told how many, and asks
        again for what it shows.
        """
        if topic not in self.topics:
            return
        if self._dropped or self._bytes + len(frame) > QUEUE_BYTES:
            self._dropped += 1
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self._news.set()

    def close(self) -> None:
        """End the stream behind what is queued."""
        self._is_open = False
        self._news.set()

    async def next(self) -> bytes:
        """Return the next bytes to send, a comment after some silence; b"" at the end."""
        while not self._frames:
            if not self._is_open:
                return b""
            self._news.clear()
            try:
                async with asyncio.timeout(max(0.0, self._comment_at - self._clock())):
                    await self._news.wait()
            except TimeoutError:
                self._comment_at = self._clock() + self._comment_seconds
                return COMMENT
        return self._take()

    def _take(self) -> bytes:
        """Return some frames together, at least one."""
        taken = [self._frames.popleft()]
        size = len(taken[0])
        while self._frames and size + len(self._frames[0]) <= LARGEST_FRAME:
            taken.append(self._frames.popleft())
            size += len(taken[-1])
        self._bytes -= size
        if self._dropped and not self._frames:
            lag = encode_frame("lag", {"dropped": self._dropped})
            self._frames.append(lag)
            self._bytes, self._dropped = len(lag), 0
        return b"".join(taken)
