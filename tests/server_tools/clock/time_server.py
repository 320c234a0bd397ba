"""A time server on loopback that answers, lies or stays silent."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

FROM_1900 = 2_208_988_800
QUESTION = struct.Struct("!BBbbII4sQQQQ")

Reply = Callable[[bytes], list[bytes]]


def stamp(seconds: float) -> int:
    return int((seconds + FROM_1900) * 2**32) % 2**64


def answer(
    question: bytes,
    seconds: float,
    *,
    mode: int = 4,
    leap: int = 0,
    stratum: int = 2,
    name: bytes = b"GPS\0",
    origin: int | None = None,
    took: float = 0.0,
) -> bytes:
    """Return the reply of a server whose clock shows `seconds`."""
    asked = QUESTION.unpack(question)[-1]
    origin = asked if origin is None else origin
    head = leap << 6 | 4 << 3 | mode
    received, sent = stamp(seconds), stamp(seconds + took)
    return QUESTION.pack(head, stratum, 6, -20, 0, 0, name, received, origin, received, sent)


class Server(asyncio.DatagramProtocol):
    def __init__(self, reply: Reply) -> None:
        self.asked: list[bytes] = []
        self._reply = reply

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]  # only ever this kind
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self.asked.append(data)
        for packet in self._reply(data):
            self._transport.sendto(packet, addr)


@asynccontextmanager
async def time_server(reply: Reply) -> AsyncIterator[str]:
    """Run a server with these replies; yield its `host:port`."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Server(reply), local_addr=("127.0.0.1", 0))
    try:
        yield "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    finally:
        transport.close()
        await asyncio.sleep(0)
