"""One client connection: reads requests, has them handled one at a time, watches for disconnects.

One task handles all requests of a connection (`request_loop`); it starts with the first and waits for each
further one.

A client that closes its side (EOF) while its request is handled counts as disconnected: TCP shows the same
FIN for a killed process, an SDK that aborted and a client that only closed its sending half, and stopping the
upstream request at once matters more than serving the last kind. The handler's task is cancelled, even if the
response has started, unless it is already complete. One exception: while more than one pipelined request
waits, reading is paused, and a disconnect is noticed only by a failing write.

No timers are set per request. Every state sets `deadline`, on the server's coarse clock, and the server's
sweep calls `expire` on connections that are past it.

After its first large body a connection is a `BufferedConnection`, which reads bodies into their final buffer.
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
_PARSE_BYTES: Final = 65536
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ServerConnection(asyncio.Protocol):
    """The server's end of one connection."""

    __slots__ = (
        "_body_ends",
        "_body_grace_ends",
        "_buffered",
        "_closing",
        "_discarded",
        "_keep_alive",
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
        "_transport",
        "_unparsed",
        "_unsent",
        "_waiters",
        "_wakeup",
        "_worker",
        "deadline",
        "gone",
        "interrupted",
        "paused",
        "pending",
        "running",
    )

    _transport: asyncio.Transport
    _reader: RequestReader

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._worker: asyncio.Task[None] | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self.pending: HttpRequest | None = None
        """The request to handle next."""
        self._reply: Reply | None = None
        """The reply to the pending or running request."""
        self._refusal: Fault | None = None
        self._unparsed = self._unsent = b""
        self._waiters: list[asyncio.Future[None]] = []
        self._phase = Phase.IDLE
        self.running = self._keep_alive = self._closing = self._lingering = self._lost = (
            self._reading_paused
        ) = False
        self._buffered = False
        self._discarded = self._stall_size = 0
        self._stall_ends = inf
        self._body_grace_ends = 0.0
        self._body_ends = inf
        self.gone = False
        self.interrupted = False
        self.paused = False
        self.deadline = inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER)
        peer = transport.get_extra_info("peername")
        self._reader = RequestReader(self._server.limits, peer[:2] if peer else None)
        self.deadline = self._server.deadline_in(self._server.limits.header_seconds)
        self._refusal = self._server.admit(self, sock.fileno())
        if self._refusal is not None:
            self.deadline = self._server.deadline_in(self._server.limits.linger_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_disconnect()
        self._lost = True
        if self._reply is None:
            self._server.remove(self)

    def eof_received(self) -> None:
        if self._reply is not None and not self._reply.ended:
            self.abort()
        elif not self._closing:
            self._close()

    def abort(self) -> None:
        """Drop the connection and cancel its handler."""
        self._transport.abort()
        self._on_disconnect()

    def interrupt(self) -> None:
        """Cancel the handler, which can still end its response with an error."""
        reply = self._reply
        if self._worker is not None and self.running and reply is not None and not reply.ended:
            self.interrupted = True
            self._keep_alive = False
            self._worker.cancel()

    def _on_disconnect(self) -> None:
        if self.gone:
            return
        self.gone = self._closing = True
        self.deadline = inf
        self._unparsed = b""
        self._reader.close()
        self._wake()
        self._wake_worker()
        if self._worker is not None and self.running and self._reply is not None and not self._reply.ended:
            self._worker.cancel()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.finished:
            self._discard(len(data))
            return
        if len(data) <= _PARSE_BYTES:
            reader.feed(data)
        else:
            self._feed_slices(data)
        if reader.body_buffer is not None and not self._buffered:
            self._buffered = True
            self._transport.set_protocol(BufferedConnection(self, self._server.shared_buffer))
        self._advance()

    def _advance(self) -> None:
        """Act on the bytes read."""
        if self._reply is None:
            self._take_next()
            return
        if self._reader.phase is Phase.BODY:
            self._check_head()
        if len(self._reader.ready) > 1:
            self._limit_pipelining()

    def body_buffer(self) -> BodyBuffer | None:
        """Return the buffer of the body being read, if it has one."""
        return self._reader.body_buffer

    @property
    def queued(self) -> int:
        """Number of requests read but not yet handled."""
        return len(self._reader.ready)

    def is_idle(self) -> bool:
        """Whether the next bytes start a request."""
        return self._reader.phase is Phase.IDLE

    def body_advanced(self, size: int) -> None:
        """Continue after bytes were read into the body buffer."""
        self._reader.advance(size)
        self._advance()

    def _feed_slices(self, data: bytes) -> None:
        """Parse piece by piece, so that one read cannot become an unbounded number of waiting requests."""
        reader, view = self._reader, memoryview(data)
        start = 0
        while start < len(data):
            if len(reader.ready) > 1:
                self._unparsed = data[start:]
                return
            size = max(_PARSE_BYTES, reader.body_left)
            reader.feed(view[start : start + size])
            start += size

    def _discard(self, size: int) -> None:
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

    def _limit_pipelining(self) -> None:
        """Read only while at most one request waits; parse bytes already read first."""
        waiting = self._reader.ready
        if self._unparsed and len(waiting) <= 1:
            data, self._unparsed = self._unparsed, b""
            self._feed_slices(data)
        if self._unparsed or len(waiting) > 1:
            self._pause_reading()
        else:
            self._resume_reading()

    def _take_next(self) -> None:
        """Handle the next request that was read, or wait for one."""
        ready = self._reader.ready
        if not ready:
            self._await_more()
            return
        item = ready.popleft()
        if isinstance(item, Fault):
            self._refuse(item)
            return
        self._handle(item)
        if ready or self._unparsed or self._reading_paused:
            self._limit_pipelining()

    def _await_more(self) -> None:
        server, reader = self._server, self._reader
        phase = reader.phase
        if phase is Phase.BODY:
            if not self._check_head():
                self._take_next()
                return
            limits = server.limits
            if self._phase is not Phase.BODY:
                self._body_grace_ends = server.deadline_in(limits.body_total_seconds)
            self._body_ends = self._body_grace_ends + reader.body_size / limits.body_bytes_per_second
            self.deadline = min(server.deadline_in(limits.body_seconds), self._body_ends)
            if reader.expects_continue:
                reader.expects_continue = False
                # The last response may still be batched, and must leave before this.
                self._flush()
                self._transport.write(_CONTINUE)
        elif phase is Phase.HEAD and self._phase is not Phase.HEAD and self._refusal is None:
            self.deadline = server.deadline_in(server.limits.header_seconds)
        self._phase = phase

    def _check_head(self) -> bool:
        """Check a request once, when its head is complete; a refused one becomes a fault without its body."""
        reader, server = self._reader, self._server
        request = reader.head
        if reader.head_checked or request is None:
            return True
        reader.head_checked = True
        surplus = self._surplus_fault(request) if self._refusal is not None else None
        if surplus is not None:
            reader.fail(surplus.status, surplus.message)
            return False
        reply = server.check_head(request)
        if reply is None:
            return True
        reader.fail(reply[0], "", reply)
        return False

    def _surplus_fault(self, request: HttpRequest) -> Fault | None:
        """Return the fault for the first request of a surplus connection, None for an essential request."""
        fault, self._refusal = self._refusal, None
        if fault is None or not self._server.is_essential(request):
            return fault
        request.keep_alive = False
        return None

    def _handle(self, request: HttpRequest) -> None:
        if self._refusal is not None:
            surplus = self._surplus_fault(request)
            if surplus is not None:
                surplus.request = request
                self._refuse(surplus)
                return
        self.deadline = inf
        self._phase = Phase.IDLE
        self.pending = request
        self._reply = Reply(
            self,
            head_only=request.method == "HEAD",
            keep_alive=request.keep_alive,
            http_1_0=request.http_1_0,
        )
        self._server.active += 1
        self._wake_worker()

    def _wake_worker(self) -> None:
        """Wake the task of this connection, or start it for a pending request."""
        wait_for_request = self._wakeup
        if wait_for_request is not None:
            self._wakeup = None
            if not wait_for_request.done():
                wait_for_request.set_result(None)
        elif self.pending is not None and (self._worker is None or self._worker.done()):
            self._worker = self._server.loop.create_task(serve_requests(self, self._server.handler))

    def wait_for_request(self) -> asyncio.Future[None]:
        """Return a future that completes at the next request or disconnect."""
        wait_for_request = self._wakeup = self._server.loop.create_future()
        return wait_for_request

    def start_request(self) -> Reply:
        """Take the pending request as running and return its reply."""
        self.pending = None
        assert self._reply is not None
        return self._reply

    def fail(self, request: HttpRequest, reply: Reply, *, cause: str) -> None:
        """Send HTTP 500 for a handler that failed, or abort a response that has started."""
        logger.error("handler of %s %r %s", request.method, request.path, cause)
        if self.gone or reply.ended:
            return
        if reply.started:
            reply.abort()
            return
        self._send_fault(reply, Fault(500, "internal error", request))

    def refuse_interrupted(self, request: HttpRequest, reply: Reply) -> None:
        """Send HTTP 503 for a handler that did not end its response when the server stops."""
        if reply.started:
            reply.abort()
            return
        self._send_fault(reply, Fault(503, "the server is shutting down", request))

    def _send_fault(self, reply: Reply, fault: Fault) -> None:
        headers, body = self._server.error_reply(fault)
        reply.extra_lines = b""  # the headers of a fault are complete
        with contextlib.suppress(ClientDisconnected):
            reply.send_nowait(fault.status, headers, body)

    def finish_request(self) -> None:
        """Continue after a request: handle the next one, wait for it, or close."""
        self._reply = None
        self.running = False
        self._server.active -= 1
        if self._lost:
            self._server.remove(self)
        elif self._transport.is_closing() or self._closing:
            return
        elif not self._keep_alive:
            self._finish()
        else:
            self.deadline = self._server.deadline_in(self._server.limits.keep_alive_seconds)
            self._take_next()
            if self._server.draining:
                self.close_if_waiting()

    def _finish(self) -> None:
        """Close after the last response; linger if the client has sent more than its request."""
        reader = self._reader
        if reader.excess or reader.ready or reader.phase is not Phase.IDLE or self._unparsed:
            self._linger()
        else:
            self._close()

    @property
    def is_waiting(self) -> bool:
        """Whether it is open, and nothing of a next request was read."""
        is_open = not self._closing and self._reply is None and self._refusal is None
        return is_open and self._reader.phase is Phase.IDLE

    @property
    def is_used(self) -> bool:
        """Whether it has had a request."""
        return self._worker is not None

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket."""
        found: int = self._transport.get_extra_info("socket").fileno()
        return found

    def close_if_waiting(self) -> None:
        """Close the connection if no request has begun."""
        if self.is_waiting:
            self._close()

    def _refuse(self, fault: Fault) -> None:
        """Send the error for a request that the HTTP layer rejects, and let the client read it."""
        request = fault.request
        reply = Reply(self, head_only=request is not None and request.method == "HEAD", keep_alive=False)
        headers, body = self._server.error_reply(fault)
        reply.send_nowait(fault.status, headers, body)
        self._linger()

    def _linger(self) -> None:
        """Close our side only and discard what still arrives (RFC 9112, 9.6).

        A close with unread bytes would be a reset, which can destroy the response before the client reads it.
        """
        self._closing = self._lingering = True
        self._reader.finished = True
        self._unparsed = b""
        self._discarded = 0
        self.deadline = self._server.deadline_in(self._server.limits.linger_seconds)
        self._flush()
        self._transport.write_eof()
        self._resume_reading()

    def _close(self) -> None:
        self._closing = True
        self._reader.finished = True
        self._flush()
        self._watch_stall()
        self._transport.close()

    def expire(self) -> None:
        """Act on the deadline that has passed."""
        if self._lingering:
            self._transport.abort()
        elif self._closing or self.paused or self._transport.is_closing():
            self._check_stall()
        elif self._refusal is not None or self._reader.phase is Phase.IDLE:
            self._close()
        else:
            self._reader.fail(408, self._late())
            self._take_next()

    def _late(self) -> str:
        """Describe the client whose request did not arrive in time."""
        phase = self._reader.phase
        if phase is Phase.BODY and self._server.now >= self._body_ends:
            return "the request body took too long; see server.max_body_seconds"
        return f"the client stopped sending {phase.value} of its request"

    def pause_writing(self) -> None:
        self.paused = True
        self._watch_stall()

    def resume_writing(self) -> None:
        self.paused = False
        if not self._closing:
            idle = self._server.deadline_in(self._server.limits.keep_alive_seconds)
            self.deadline = idle if self._reply is None else inf
        self._wake()

    def _watch_stall(self) -> None:
        self._stall_size = self._transport.get_write_buffer_size()
        self._stall_ends = self._server.deadline_in(self._server.limits.write_stall_seconds)
        self.deadline = self._server.deadline_in(self._server.limits.write_stall_seconds / 4)

    def _check_stall(self) -> None:
        """Abort if the client has read nothing for too long; a slow reader may go on."""
        before, self._stall_size = self._stall_size, self._transport.get_write_buffer_size()
        # The buffer may also have grown; only a smaller one proves that the client reads.
        if self._stall_size < before:
            self._watch_stall()
        elif self._server.now >= self._stall_ends:
            self.abort()
        else:
            self.deadline = self._server.deadline_in(self._server.limits.write_stall_seconds / 4)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def drained(self) -> None:
        """Wait until the client has read enough; raise ClientDisconnected if it is gone."""
        while self.paused and not self.gone:
            waiter = self._server.loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self.gone:
            raise ClientDisconnected

    def write(self, data: bytes) -> None:
        """Write to the socket; raise ClientDisconnected if an earlier write has failed."""
        transport = self._transport
        if transport.is_closing():
            raise ClientDisconnected
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        transport.write(data)

    def write_last(self, data: bytes) -> None:
        """Write the last bytes of a response, batched with those of other connections."""
        if not self._keep_alive or self._unsent or len(data) > _WRITE_HIGH_WATER:
            self.write(data)
        elif self._transport.is_closing():
            raise ClientDisconnected
        else:
            self._unsent = data
            self._server.batcher.add(self._flush, self._server.loop)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, b""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def decide_keep_alive(self, possible: bool) -> bool:
        """Decide whether the connection stays open after the response that starts now."""
        more = bool(self._reader.ready) and not self.interrupted
        self._keep_alive = possible and (self._server.keeps_connections or more)
        return self._keep_alive

    def close_unfinished(self, *, reset: bool) -> None:
        """Close without another byte; `reset` because a plain close would complete an unframed response."""
        if self._closing:
            return
        if reset:
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
            self.abort()
        else:
            self._close()

    def date_line(self) -> bytes:
        """Return the Date header of this second."""
        return self._server.date_line


_SHARED_BUFFER_BYTES: Final = 65536

_HEAD_READ: Final = 16384
"""Bytes to read at the start of a request: few, because body bytes among them are copied."""


class BufferedConnection(asyncio.BufferedProtocol):
    """Reads bytes of a connection into its body buffer, or else into a buffer that all connections share."""

    __slots__ = ("_connection", "_head_buffer", "_into_body", "_shared")

    def __init__(self, connection: ServerConnection, shared: memoryview) -> None:
        self._connection = connection
        self._shared = shared
        self._head_buffer = shared[:_HEAD_READ]
        self._into_body = False

    def get_buffer(self, sizehint: int) -> memoryview:
        body_buffer = self._connection.body_buffer()
        self._into_body = body_buffer is not None
        if body_buffer is not None:
            return body_buffer.rest()
        return self._head_buffer if self._connection.is_idle() else self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._into_body:
            self._connection.body_advanced(nbytes)
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
    """Create the buffer for reads outside large bodies; its content is copied at once."""
    return memoryview(bytearray(_SHARED_BUFFER_BYTES))
