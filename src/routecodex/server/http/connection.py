"""One client connection: reads requests, has them handled one at a time, watches the client.

One task handles all of its requests (serving.py); it is made for the first and waits for each further one.

A client that closes its side (EOF) while its request is being handled has left: TCP shows the same FIN for a
process that was killed, an SDK that aborted and a client that only closed its sending half, and stopping the
work upstream at once matters more here than serving the last kind. The handler's task is cancelled, whether
or not a byte was answered, unless the answer is already complete. The one exception: while more than one
pipelined request waits, reading is paused, and a disconnect is noticed only by a failing write.

No timers are set per request. Every state writes `deadline`, on the server's coarse clock, and the server's
sweep calls `expire` on connections that are past it.

A connection that has sent large bodies: what it sends is read to where it stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from math import inf
from typing import TYPE_CHECKING, Final, cast

from routecodex.canon.errors import ClientDisconnected
from routecodex.server.http.reader import Fault, Phase, RequestReader
from routecodex.server.http.reply import Reply
from routecodex.server.http.request import HttpRequest
from routecodex.server.http.request_loop import serve_requests
from routecodex.wire.buffers import BodyBuffer

if TYPE_CHECKING:
    from routecodex.server.http.listener import HttpServer

logger = logging.getLogger("routecodex.server")

_WRITE_HIGH_WATER = 65536
_SLICE: Final = 65536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ServerConnection(asyncio.Protocol):
    """The server's end of one connection."""

    __slots__ = (
        "_called",
        "_closing",
        "_discarded",
        "_fills",
        "_keep",
        "_lingering",
        "_lost",
        "_phase",
        "_reader",
        "_reading_paused",
        "_refusal",
        "_reply",
        "_server",
        "_stall_ends",
        "_stall_size",
        "_stash",
        "_transport",
        "_unsent",
        "_waiters",
        "_worker",
        "deadline",
        "due",
        "gone",
        "paused",
        "running",
    )

    _transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._worker: asyncio.Task[None] | None = None
        self._called: asyncio.Future[None] | None = None
        self.due: HttpRequest | None = None
        """The request that is to be handled next."""
        self._reply: Reply | None = None
        """The answer to the request that is due or being handled."""
        self._refusal: Fault | None = None
        self._stash = self._unsent = b""
        self._waiters: list[asyncio.Future[None]] = []
        self._phase = Phase.IDLE
        self.running = self._keep = self._closing = self._lingering = self._lost = self._reading_paused = (
            False
        )
        self._fills = False
        self._discarded = self._stall_size = 0
        self._stall_ends = inf
        self.gone = False
        self.paused = False
        self.deadline = inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(self._server.limits, peer[:2] if peer else None)
        self.deadline = self._server.within(self._server.limits.header_seconds)
        self._refusal = self._server.admit(self)
        if self._refusal is not None:
            self._reader.finished = True
            self.deadline = self._server.within(self._server.limits.linger_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._lost = True
        if self._reply is None:
            self._server.forget(self)

    def eof_received(self) -> None:
        if self._reply is not None and not self._reply.ended:
            self.abort()
        elif not self._closing:
            self._close()

    def abort(self) -> None:
        """Drops the connection and cancels its handler."""
        self._transport.abort()
        self._leave()

    def _leave(self) -> None:
        if self.gone:
            return
        self.gone = self._closing = True
        self.deadline = inf
        self._stash = b""
        self._reader.close()
        self._wake()
        self._call()
        if self._worker is not None and self.running and self._reply is not None and not self._reply.ended:
            self._worker.cancel()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.finished:
            self._discard(len(data))
            return
        if len(data) <= _SLICE:
            reader.feed(data)
        else:
            self._feed_slices(data)
        if reader.room is not None and not self._fills:
            self._fills = True
            self._transport.set_protocol(BufferedConnection(self, self._server.shared_buffer))
        self._go_on()

    def _go_on(self) -> None:
        """Acts on what was read."""
        if self._reply is None:
            self._next()
        elif len(self._reader.ready) > 1:
            self._regulate()

    def room(self) -> BodyBuffer | None:
        """Where the next bytes belong, if that is known already."""
        return self._reader.room

    def is_between(self) -> bool:
        """Whether the next bytes begin a request."""
        return self._reader.phase is Phase.IDLE

    def filled(self, size: int) -> None:
        """Goes on after bytes were read to where they belong."""
        self._reader.filled(size)
        self._go_on()

    def _feed_slices(self, data: bytes) -> None:
        """Feeds piece by piece, so that one read cannot turn into an unbounded number of waiting requests."""
        reader, view = self._reader, memoryview(data)
        start = 0
        while start < len(data):
            if len(reader.ready) > 1:
                self._stash = data[start:]
                return
            size = max(_SLICE, reader.missing)
            reader.feed(view[start : start + size])
            start += size

    def _discard(self, size: int) -> None:
        if self._refusal is not None:
            fault, self._refusal = self._refusal, None
            self._refuse(fault)
            return
        self._reader.excess = True
        self._discarded += size
        if self._discarded <= self._server.limits.linger_bytes:
            return
        if self._lingering:
            self._transport.abort()
        else:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._closing:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()

    def _regulate(self) -> None:
        """Reads on only while at most one request waits, first what was read but not yet parsed."""
        waiting = self._reader.ready
        if self._stash and len(waiting) <= 1:
            data, self._stash = self._stash, b""
            self._feed_slices(data)
        if self._stash or len(waiting) > 1:
            self._pause_reading()
        else:
            self._resume_reading()

    def _next(self) -> None:
        """Takes up the next request read, or waits for one."""
        ready = self._reader.ready
        if not ready:
            self._wait()
            return
        item = ready.popleft()
        if isinstance(item, Fault):
            self._refuse(item)
            return
        self._handle(item)
        if ready or self._stash or self._reading_paused:
            self._regulate()

    def _wait(self) -> None:
        server, reader = self._server, self._reader
        phase = reader.phase
        if phase is Phase.BODY:
            self.deadline = server.within(server.limits.body_seconds)
            if reader.expects_continue:
                reader.expects_continue = False
                # Not before the answer to the request before, which may not have left yet.
                self._push()
                self._transport.write(_CONTINUE)
        elif phase is Phase.HEAD and self._phase is not Phase.HEAD:
            self.deadline = server.within(server.limits.header_seconds)
        self._phase = phase

    def _handle(self, request: HttpRequest) -> None:
        self.deadline = inf
        self._phase = Phase.IDLE
        self.due = request
        self._reply = Reply(
            self,
            head_only=request.method == "HEAD",
            keep_alive=request.keep_alive,
            http_1_0=request.http_1_0,
        )
        self._server.active += 1
        self._call()

    def _call(self) -> None:
        """Has the worker look at what has happened."""
        called = self._called
        if called is not None:
            self._called = None
            if not called.done():
                called.set_result(None)
        elif self.due is not None and (self._worker is None or self._worker.done()):
            self._worker = self._server.loop.create_task(serve_requests(self, self._server.handler))

    def called(self) -> asyncio.Future[None]:
        """Done once there is something to look at."""
        called = self._called = self._server.loop.create_future()
        return called

    def begin(self) -> Reply:
        """Where the answer to the due request goes, which is being handled from now on."""
        self.due = None
        assert self._reply is not None
        return self._reply

    def fail(self, request: HttpRequest, reply: Reply, *, cause: str) -> None:
        """Answers for a handler that broke, as far as it can still be answered."""
        logger.error("the handler of %s %r %s", request.method, request.path, cause)
        if self.gone or reply.ended:
            return
        if reply.started:
            reply.abort()
            return
        headers, body = self._server.explain(Fault(500, "internal error", request))
        with contextlib.suppress(ClientDisconnected):
            reply.send_nowait(500, headers, body)

    def answered(self) -> None:
        """Goes on after a request: with the next one, with waiting for it, or with the end."""
        self._reply = None
        self.running = False
        self._server.active -= 1
        if self._lost:
            self._server.forget(self)
        elif self._transport.is_closing() or self._closing:
            return
        elif not self._keep:
            self._finish()
        else:
            self.deadline = self._server.within(self._server.limits.keep_alive_seconds)
            self._next()
            self.retire()

    def _finish(self) -> None:
        """Closes after the last answer, lingering when the client has sent, and may go on sending, more."""
        reader = self._reader
        if reader.excess or reader.ready or reader.phase is not Phase.IDLE or self._stash:
            self._linger()
        else:
            self._close()

    def retire(self) -> None:
        """Closes the connection if it is idle while the server drains."""
        idle = self._reply is None and self._reader.phase is Phase.IDLE and self._refusal is None
        if self._server.draining and idle and not self._closing:
            self._close()

    def _refuse(self, fault: Fault) -> None:
        """Answers what the HTTP layer itself refuses, then lets the client read it before the close."""
        request = fault.request
        reply = Reply(self, head_only=request is not None and request.method == "HEAD", keep_alive=False)
        headers, body = self._server.explain(fault)
        reply.send_nowait(fault.status, headers, body)
        self._linger()

    def _linger(self) -> None:
        """Closes our side only, and throws away what still comes: a close with unread bytes would be a reset,
        which can destroy the answer before the client has read it."""
        self._closing = self._lingering = True
        self._reader.finished = True
        self._stash = b""
        self._discarded = 0
        self.deadline = self._server.within(self._server.limits.linger_seconds)
        self._push()
        self._transport.write_eof()
        self._resume_reading()

    def _close(self) -> None:
        self._closing = True
        self._reader.finished = True
        self._push()
        self._watch_stall()
        self._transport.close()

    def expire(self) -> None:
        """Acts on the deadline that has passed."""
        if self._lingering:
            self._transport.abort()
        elif self._closing or self.paused or self._transport.is_closing():
            self._check_stall()
        elif self._refusal is not None or self._reader.phase is Phase.IDLE:
            self._close()
        else:
            where = self._reader.phase.value
            self._reader.fail(408, f"the client stopped sending {where} of its request")
            self._next()

    def pause_writing(self) -> None:
        self.paused = True
        self._watch_stall()

    def resume_writing(self) -> None:
        self.paused = False
        if not self._closing:
            idle = self._server.within(self._server.limits.keep_alive_seconds)
            self.deadline = idle if self._reply is None else inf
        self._wake()

    def _watch_stall(self) -> None:
        self._stall_size = self._transport.get_write_buffer_size()
        self._stall_ends = self._server.within(self._server.limits.write_stall_seconds)
        self.deadline = self._server.within(self._server.limits.write_stall_seconds / 4)

    def _check_stall(self) -> None:
        """Cuts off a client that has read nothing for too long; one that reads slowly is left in peace."""
        before, self._stall_size = self._stall_size, self._transport.get_write_buffer_size()
        # What was written meanwhile is not what was read.
        if self._stall_size < before:
            self._watch_stall()
        elif self._server.now >= self._stall_ends:
            self.abort()
        else:
            self.deadline = self._server.within(self._server.limits.write_stall_seconds / 4)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def drained(self) -> None:
        """Returns once the client has read on; raises ClientGone when it left."""
        while self.paused and not self.gone:
            waiter = self._server.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self.gone:
            raise ClientDisconnected

    def write(self, data: bytes) -> None:
        """Hands bytes to the socket; raises ClientGone when an earlier write has already failed."""
        transport = self._transport
        if transport.is_closing():
            raise ClientDisconnected
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        transport.write(data)

    def write_last(self, data: bytes) -> None:
        """Hands over the last bytes of an answer, to leave with those of others that are due now."""
        if not self._keep or self._unsent or len(data) > _WRITE_HIGH_WATER:
            self.write(data)
        elif self._transport.is_closing():
            raise ClientDisconnected
        else:
            self._unsent = data
            self._server.outbox.add(self._push, self._server.loop)

    def _push(self) -> None:
        data, self._unsent = self._unsent, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def keep(self, possible: bool) -> bool:
        """Decides whether the connection outlives the answer being begun."""
        self._keep = possible and (not self._server.draining or bool(self._reader.ready))
        return self._keep

    def cut(self, *, hard: bool) -> None:
        """Closes without another byte; hard: by a reset, as a close would complete an unframed answer."""
        if self._closing:
            return
        if hard:
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
            self.abort()
        else:
            self._close()

    def date_line(self) -> bytes:
        """The Date header of this second."""
        return self._server.date_line


_ONE_READ: Final = 65536

_FIRST: Final = 16384
"""Bytes of a head and what follows it: few, as these are copied."""


class BufferedConnection(asyncio.BufferedProtocol):
    """Has a connection's bytes read into the room of a body, or else into what all connections share."""

    __slots__ = ("_connection", "_first", "_room", "_shared")

    def __init__(self, connection: ServerConnection, shared: memoryview) -> None:
        self._connection = connection
        self._shared = shared
        self._first = shared[:_FIRST]
        self._room = False

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._connection.room()
        self._room = room is not None
        if room is not None:
            return room.rest()
        return self._first if self._connection.is_between() else self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._room:
            self._connection.filled(nbytes)
        else:
            self._connection.data_received(bytes(self._shared[:nbytes]))

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def shared_buffer() -> memoryview:
    """What bytes are read into that do not belong to a large body: from there they are taken at once."""
    return memoryview(bytearray(_ONE_READ))
