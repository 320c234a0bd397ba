"""Queries a time server: packets of SNTP (RFC 4330) as pure functions, then the UDP query.

The query has a random cookie in place of the client's transmit time. The server copies it into its reply, so
that only a host that saw the query can answer it, and the local time is not disclosed.

Times on the wire are 32 bits of seconds since 1900 and 32 bits of fraction. Only differences modulo 2**64 are
used, so the overflow of the seconds in 2036 has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

COOKIE_BYTES = 8

MAX_OFFSET_MS = 86_400_000
"""A larger offset than one day is rejected as false."""
AGREE_MS = 250.0

_PACKET = struct.Struct("!BBbb II4s QQQQ")
_VERSION_4_CLIENT = 0b00_100_011
_SERVER_MODE = 4
_UNSYNCHRONIZED = 3
_FROM_1900_MS = 2_208_988_800_000
_WRAP = 1 << 64


class BadReply(Exception):
    """A server sent a reply that cannot be used."""


class ForeignReply(BadReply):
    """The reply does not belong to the query."""


class LargeOffset(BadReply):
    """The reply differs from the local clock by more than a day."""


class Sample(Struct, frozen=True):
    """One measurement: the offset of the server's clock to the local clock, and the round-trip delay."""

    server: str
    offset_ms: float
    delay_ms: float


def encode_query(cookie: bytes) -> bytes:
    """Encode the packet of a query."""
    return _PACKET.pack(_VERSION_4_CLIENT, 0, 0, 0, 0, 0, b"", 0, 0, 0, int.from_bytes(cookie))


def decode_reply(packet: bytes, *, cookie: bytes, server: str, sent_ms: float, elapsed_ms: float) -> Sample:
    """Decode a reply; `sent_ms` is the local time of the query."""
    if len(packet) < _PACKET.size:
        raise ForeignReply(f"{len(packet)} bytes are too short for a reply")
    head, stratum, _, _, _, _, name, _, origin, received, sent = _PACKET.unpack_from(packet)
    if origin != int.from_bytes(cookie):
        raise ForeignReply("the reply does not match the query")
    _check(head, stratum, name=name, sent=sent)
    query_stamp, reply_stamp = _stamp(sent_ms), _stamp(sent_ms + elapsed_ms)
    delay_ms = elapsed_ms - _apart_ms(sent, received)
    offset_ms = (_apart_ms(received, query_stamp) + _apart_ms(sent, reply_stamp)) / 2
    if _apart_ms(sent, received) < 0 or delay_ms < -1:
        raise BadReply("the reply was sent before the query")
    if abs(offset_ms) > MAX_OFFSET_MS:
        raise LargeOffset(f"an offset of {offset_ms / 1000:.0f} s is more than a day")
    return Sample(server, offset_ms, max(0.0, delay_ms))


def _check(head: int, stratum: int, *, name: bytes, sent: int) -> None:
    if head & 0b111 != _SERVER_MODE:
        raise BadReply(f"mode {head & 0b111} is not that of a server")
    if stratum == 0:
        code = name.rstrip(b"\0").decode("ascii", "replace")
        raise BadReply(f"kiss of death {code!r}: the server rejects queries")
    if stratum > 15 or head >> 6 == _UNSYNCHRONIZED:
        raise BadReply("the server is not synchronized")
    if sent == 0:
        raise BadReply("the reply has no transmit time")


def agreed_offset(samples: Sequence[Sample]) -> Sample:
    """Return the sample with the shortest delay in the majority; one wrong server in three is outvoted."""
    if not samples:
        raise BadReply("no server answered")
    groups = [[other for other in samples if _agree(one, other)] for one in samples]
    largest = max(groups, key=len)
    if 2 * len(largest) <= len(samples):
        offsets = ", ".join(f"{sample.server} {sample.offset_ms:+.0f} ms" for sample in samples)
        raise BadReply(f"the servers disagree: {offsets}")
    return min(largest, key=lambda sample: sample.delay_ms)


def _agree(one: Sample, other: Sample) -> bool:
    return abs(one.offset_ms - other.offset_ms) <= AGREE_MS + (one.delay_ms + other.delay_ms) / 2


def _stamp(moment_ms: float) -> int:
    return round((moment_ms + _FROM_1900_MS) * (1 << 32) / 1000) % _WRAP


def _apart_ms(later: int, earlier: int) -> float:
    apart = (later - earlier) % _WRAP
    return (apart - _WRAP if apart >= _WRAP // 2 else apart) * 1000 / (1 << 32)


PORT = 123
SMALLEST_PORT, LARGEST_PORT = 1, 65_535


def address_of(server: str) -> tuple[str, int]:
    """Return host and port of `host`, `host:port` or `[v6]:port`; ValueError for anything else."""
    host, port = server, str(PORT)
    if server.startswith("["):
        host, bracket, rest = server[1:].partition("]")
        port = rest.removeprefix(":") if bracket and rest else port
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ValueError(f"{server!r} is not a valid time server; use host:port")
    if not SMALLEST_PORT <= int(port) <= LARGEST_PORT:
        raise ValueError(f"{server!r} has an invalid port; use {SMALLEST_PORT} to {LARGEST_PORT}")
    return host, int(port)


async def query_server(server: str, *, timeout: float, clock: Callable[[], float], cookie: bytes) -> Sample:
    """Query a server; BadReply, OSError or TimeoutError if it does not send a usable reply."""
    protocol = NtpProtocol(server, cookie, clock=clock)
    try:
        async with asyncio.timeout(timeout):
            try:
                host, port = address_of(server)
            except ValueError as exc:
                raise BadReply(str(exc)) from exc
            address = await resolve(host, port)
            await asyncio.get_running_loop().create_datagram_endpoint(lambda: protocol, remote_addr=address)
            return await protocol.answer
    except TimeoutError as exc:
        foreign = f" ({protocol.foreign})" if protocol.foreign is not None else ""
        raise TimeoutError(f"no answer within {timeout * 1000:.0f} ms{foreign}") from exc
    finally:
        protocol.close()


class NtpProtocol(asyncio.DatagramProtocol):
    """Sends the query and takes the first matching reply; ignores other packets."""

    def __init__(self, server: str, cookie: bytes, *, clock: Callable[[], float]) -> None:
        self._server = server
        self._cookie = cookie
        self._clock = clock
        self._transport: asyncio.DatagramTransport | None = None
        self._sent_ms = self._sent_at = 0.0
        self.foreign: ForeignReply | None = None
        self.answer: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # only ever this kind
        self._transport = transport
        self._sent_ms, self._sent_at = self._clock() * 1000, time.monotonic()
        transport.sendto(encode_query(self._cookie))

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        # The monotonic clock cannot be set, and the loop's time may be stale while a callback runs.
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
            self.foreign = exc
        except BadReply as exc:
            self.answer.set_exception(exc)
        else:
            self.answer.set_result(sample)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)

    def close(self) -> None:
        if not self.answer.cancel() and not self.answer.cancelled():
            # Retrieved, so that asyncio does not log an error that came too late.
            self.answer.exception()
        if self._transport is not None:
            self._transport.close()


async def resolve(host: str, port: int) -> tuple[str, int]:
    """Resolve the host in a daemon thread.

    The loop's threads would delay the end of the process while a name server does not answer.
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
            outcome = exc if isinstance(exc, OSError) else OSError(f"{host!r} is not a valid host name")
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=look_up, name="ntp-resolve", daemon=True).start()
    return await found


def _preferred(host: str, port: int) -> tuple[str, int]:
    """Return an address of the host, IPv4 if there is one: all time servers are reachable over it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    address = min(found, key=lambda entry: entry[0] != socket.AF_INET)[4]
    return str(address[0]), port
