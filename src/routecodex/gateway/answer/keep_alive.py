"""Streams on which nothing happens are kept alive by comments: one timer for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from routecodex.canon.errors import ClientDisconnected
from routecodex.gateway.request import ClientConnection, Headers

logger = logging.getLogger("routecodex.gateway")


class KeepAlive:
    """One stream that is watched; `touch` it when something was written."""

    __slots__ = ("_all", "client", "comment", "head", "last")

    def __init__(
        self,
        all_of_them: KeepAlives,
        client: ClientConnection,
        *,
        comment: bytes,
        head: Callable[[], Headers],
    ) -> None:
        self._all = all_of_them
        self.client = client
        self.comment = comment
        self.head = head
        self.last = all_of_them.now()

    def touch(self) -> None:
        self.last = self._all.now()

    def stop(self) -> None:
        self._all.forget(self)

    def send(self) -> None:
        """Sends the comment; begins the answer if it must. A client that takes nothing now gets none."""
        if not self.client.writable:
            return
        if not self.client.started:
            self.client.start(200, self.head())
        self.client.write_nowait(self.comment)
        self.touch()


class KeepAlives:
    """All streams under way; looked through by one timer, four times in the silence that is allowed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: set[KeepAlive] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, client: ClientConnection, *, comment: bytes, head: Callable[[], Headers]) -> KeepAlive:
        """Watches a stream from now on, unless its protocol has no comments."""
        stream = KeepAlive(self, client, comment=comment, head=head)
        if self._seconds and comment:
            self._watched.add(stream)
            if self._timer is None:
                self._arm()
        return stream

    def forget(self, stream: KeepAlive) -> None:
        self._watched.discard(stream)

    def now(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def _arm(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self._seconds / 4, self._look)

    def _look(self) -> None:
        due = self.now() - self._seconds
        for stream in [stream for stream in self._watched if stream.last <= due]:
            self._keep(stream)
        self._timer = None
        if self._watched:
            self._arm()

    def _keep(self, stream: KeepAlive) -> None:
        """Keeps one stream alive; whatever is wrong with it, the others are looked after as before."""
        try:
            stream.send()
        except ClientDisconnected:
            stream.stop()
        except Exception as exc:
            # Without its message, which may quote a request.
            logger.error("a stream is kept alive no longer: %s", type(exc).__qualname__)
            stream.stop()
