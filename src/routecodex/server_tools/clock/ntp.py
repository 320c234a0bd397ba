"""One time server asked over UDP."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from routecodex.server_tools.clock.sntp import BadReply, ForeignReply, Sample, decode_reply, encode_query

PORT = 123
SMALLEST_PORT, LARGEST_PORT = 1, 65_535


def address_of(server: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port` or `[v6]:port`; ValueError when it is none of them."""
    host, port = server, str(PORT)
    if server.startswith("["):
        host, bracket, rest = server[1:].partition("]")
        port = rest.removeprefix(":") if bracket and rest else port
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{server!r} is no time server; use host:port")
    if not SMALLEST_PORT <= int(port) <= LARGEST_PORT:
        raise ValueError(f"{server!r} has no port a server can have")
    return host, int(port)


async def query_server(server: str, *, timeout: float, clock: Callable[[], float], cookie: bytes) -> Sample:
    """What the server says; BadAnswer, OSError or TimeoutError when it says nothing of use."""
    listener = NtpProtocol(server, cookie, clock=clock)
    try:
        async with asyncio.timeout(timeout):
            try:
                host, port = address_of(server)
            except ValueError as exc:
                raise BadReply(str(exc)) from exc
            address = await resolve(host, port)
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: listener, remote_addr=address)
            return await listener.answer
    except TimeoutError as exc:
        heard = f" ({listener.stranger})" if listener.stranger is not None else ""
        raise TimeoutError(f"no answer within {timeout * 1000:.0f} ms{heard}") from exc
    finally:
        listener.close()


class NtpProtocol(asyncio.DatagramProtocol):
    """Sends the question and takes the first answer to it; anything else that comes in is passed over."""

    def __init__(self, server: str, cookie: bytes, *, clock: Callable[[], float]) -> None:
        self._server = server
        self._cookie = cookie
        self._clock = clock
        self._transport: asyncio.DatagramTransport | None = None
        self._sent_ms = self._sent_at = 0.0
        self.stranger: ForeignReply | None = None
        self.answer: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # only ever this kind
        self._transport = transport
        self._sent_ms, self._sent_at = self._clock() * 1000, time.monotonic()
        transport.sendto(encode_query(self._cookie))

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        # How long it took is read from a clock that nobody sets, and not the loop's, which may stand still.
        elapsed_ms = (time.monotonic() - self._sent_at) * 1000
        if self.answer.done():
            return
        try:
            sample = decode_reply(
                data,
                cookie=self._cookie,
                server=self._server,
                sent_ms=self._sent_ms,
                elapsed_ms=elapsed_ms,
            )
        except ForeignReply as exc:
            self.stranger = exc
        except BadReply as exc:
            self.answer.set_exception(exc)
        else:
            self.answer.set_result(sample)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)

    def close(self) -> None:
        if not self.answer.cancel() and not self.answer.cancelled():
            # What came too late to be heard is not to be complained about either.
            self.answer.exception()
        if self._transport is not None:
            self._transport.close()


async def resolve(host: str, port: int) -> tuple[str, int]:
    """The first address of the host.

    The thread is a daemon of its own: a name server that does not answer must not hold up the end of the
    process, as the threads of the loop would.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[tuple[str, int]] = loop.create_future()

    def settle(outcome: tuple[str, int] | OSError) -> None:
        if found.done():
            return
        if isinstance(outcome, OSError):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def look_up() -> None:
        outcome: tuple[str, int] | OSError
        try:
            outcome = _preferred(host, port)
        except (OSError, UnicodeError) as exc:
            outcome = exc if isinstance(exc, OSError) else OSError(f"{host!r} is no name of a host")
        # The loop may be gone by now, and then nobody is waiting.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=look_up, name="ntp-resolve", daemon=True).start()
    return await found


def _preferred(host: str, port: int) -> tuple[str, int]:
    """An address of the host, of the older protocol where there is a choice: time servers all have one."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    address = min(found, key=lambda entry: entry[0] != socket.AF_INET)[4]
    return str(address[0]), port
