"""Keeps silent streams alive with comments, by one timer for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from routecodex.canon.errors import ClientDisconnected
from routecodex.gateway.request import ClientConnection, Headers

logger = logging.getLogger("routecodex.gateway")


class KeepAlive:
    """One watched stream; call `touch` after every write."""

    __slots__ = ("_streams", "client", "comment", "headers", "last")

    def __init__(
        self,
        streams: KeepAlives,
        client: ClientConnection,
        *,
        comment: bytes,
        headers: Callable[[], Headers],
    ) -> None:
        self._streams = streams
        self.client = client
        self.comment = comment
        self.headers = headers
        self.last = streams.now()

    def touch(self) -> None:
        self.last = self._streams.now()

    def stop(self) -> None:
        self._streams.unwatch(self)

    def send(self) -> None:
        """Send the comment, and the headers if they are not sent yet; skip a client that does not read."""
        if not self.client.writable:
            return
        if not self.client.started:
            self.client.start(200, self.headers())
        self.client.write_nowait(self.comment)
        self.touch()


class KeepAlives:
    """All open streams; one timer checks them four times in each `seconds`, the longest silence allowed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: set[KeepAlive] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, client: ClientConnection, *, comment: bytes, headers: Callable[[], Headers]) -> KeepAlive:
        """Watch a stream from now on, unless its protocol has no comments."""
        stream = KeepAlive(self, client, comment=comment, headers=headers)
        if self._seconds and comment:
            self._watched.add(stream)
            if self._timer is None:
                self._arm()
        return stream

    def unwatch(self, stream: KeepAlive) -> None:
        self._watched.discard(stream)

    def now(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def _arm(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(self._seconds / 4, self._check)

    def _check(self) -> None:
        due = self.now() - self._seconds
        for stream in [stream for stream in self._watched if stream.last <= due]:
            self._send(stream)
        self._timer = None
        if self._watched:
            self._arm()

    def _send(self, stream: KeepAlive) -> None:
        """Send the comment of one stream; an error ends its comments and does not affect the others."""
        try:
            stream.send()
        except ClientDisconnected:
            stream.stop()
        except Exception as exc:
            # The message is not logged: it may quote a request.
            logger.error("a stream is kept alive no longer: %s", type(exc).__qualname__)
            stream.stop()
