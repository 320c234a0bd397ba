"""Accepts connections on bound addresses, and pauses while too many are open.

During a pause the sockets still listen, and clients wait in the kernel's backlog. Event loops cannot pause a
server; it is closed instead, and opened again with a duplicate of its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger("routecodex.server")

_PAUSE = 0.05
"""Seconds until a pause may end."""
_REPORT_EVERY = 10.0


class Acceptor:
    """The listening sockets of one server.

    `has_room(descriptor)` decides after a pause whether to accept again; it is given the lowest descriptor
    that is free.
    """

    def __init__(
        self, connection: Callable[[], asyncio.BaseProtocol], has_room: Callable[[int], bool]
    ) -> None:
        self._connection = connection
        self._has_room = has_room
        self._backlog = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._reported = -_REPORT_EVERY
        self.pauses = 0

    async def listen(self, host: str, port: int, *, reuse_port: bool, backlog: int) -> tuple[str, int]:
        """Accept connections on an address; return the bound one."""
        loop = asyncio.get_running_loop()
        # Any: the server of uvloop has a list of sockets, that of asyncio a tuple.
        server: Any = await loop.create_server(
            self._connection, host, port, reuse_port=reuse_port or None, backlog=backlog
        )
        self._backlog = backlog
        self._servers.append(server)
        self._sockets += [socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets]
        address = server.sockets[0].getsockname()
        return address[0], address[1]

    def pause(self, reason: str) -> None:
        """Stop accepting until there is room again."""
        if not self._servers:
            return
        self.pauses += 1
        self._close_servers()
        loop = asyncio.get_running_loop()
        if loop.time() - self._reported >= _REPORT_EVERY:
            self._reported = loop.time()
            logger.warning("%s; new connections wait", reason)
        self._timer = loop.call_later(_PAUSE, self._check)

    async def finish(self) -> None:
        """Accept the connections that wait, for as many as there is room, and stop listening.

        To close a socket that listens is a reset for those that wait in its backlog, which may have sent a
        request: balancers must not send it a second time.
        """
        self._stop_accepting()
        waiting = [connection for sock in self._sockets for connection in self._waiting(sock)]
        self.close()
        loop = asyncio.get_running_loop()
        connecting = (loop.connect_accepted_socket(self._connection, sock) for sock in waiting)
        await asyncio.gather(*connecting, return_exceptions=True)

    def close(self) -> None:
        """Stop listening."""
        self._stop_accepting()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _stop_accepting(self) -> None:
        """Accept no more; the sockets still listen."""
        self._close_servers()
        if self._timer is not None:
            self._timer.cancel()
        if self._resuming is not None:
            self._resuming.cancel()

    def _waiting(self, sock: socket.socket) -> Iterator[socket.socket]:
        """Accept the connections in the backlog of a socket."""
        sock.setblocking(False)
        for _ in range(self._backlog):
            try:
                accepted, _ = sock.accept()
            except OSError:
                return  # there are no more, or no descriptors for them
            if not self._has_room(accepted.fileno()):
                accepted.close()
                return
            accepted.setblocking(False)
            yield accepted

    def _close_servers(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        duplicates = self._duplicates()
        if duplicates and self._has_room(max(sock.fileno() for sock in duplicates)):
            self._resuming = loop.create_task(self._resume(duplicates))
            return
        for sock in duplicates:
            sock.close()
        self._timer = loop.call_later(_PAUSE, self._check)

    def _duplicates(self) -> list[socket.socket]:
        """Return a duplicate of every socket; none if there are not enough descriptors."""
        with contextlib.ExitStack() as stack:
            try:
                duplicates = [stack.enter_context(sock.dup()) for sock in self._sockets]
            except OSError:
                return []
            stack.pop_all()
        return duplicates

    async def _resume(self, duplicates: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        for sock in duplicates:
            server = await loop.create_server(self._connection, sock=sock, backlog=self._backlog)
            self._servers.append(server)
