"""A subscriber of /admin/events over raw HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from tests.kit.raw_client import Answer, Call, begin
from tests.server.console_client import BEARER

PATIENCE = 20.0


class Event(NamedTuple):
    """One event as a browser gets it."""

    id: str
    event: str
    data: Any


@dataclass
class EventStream:
    """An open stream; `events` are all that came, `comments` how many comments did."""

    call: Call
    events: list[Event] = field(default_factory=list)
    comments: int = 0
    largest: int = 0
    head: Answer | None = None
    ended: bool = False
    _rest: bytes = b""
    _read: int = 0

    async def next(self) -> Event:
        """Return the next event; EOFError at the end of the stream."""
        while True:
            if self._read < len(self.events):
                self._read += 1
                return self.events[self._read - 1]
            piece = await asyncio.wait_for(self.call.piece(), PATIENCE)
            self.call.answer.body = b""
            if not piece:
                self.ended = True
                raise EOFError
            self._feed(piece)

    def _feed(self, piece: bytes) -> None:
        *frames, self._rest = (self._rest + piece).split(b"\n\n")
        for frame in frames:
            self.largest = max(self.largest, len(frame) + 2)
            lines = frame.decode().split("\n")
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            self.comments += sum(line.startswith(":") for line in lines)
            if "event" in fields:
                data = msgspec.json.decode(fields["data"])
                self.events.append(Event(fields.get("id", ""), fields["event"], data))

    async def until(self, name: str, **wanted: Any) -> Event:
        """Return the next event of that name whose data has these values."""
        while True:
            found = await self.next()
            if found.event == name and all(found.data[key] == value for key, value in wanted.items()):
                return found

    async def finished(self, *ids: str) -> dict[str, dict[str, Any]]:
        """Return the rows of these requests, as soon as all have ended."""
        while not (rows := self.rows("finished")).keys() >= set(ids):
            await self.next()
        return rows

    def rows(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the rows of a kind that came until now."""
        frames = [one.data[kind] for one in self.events if one.event == "requests"]
        return {row["request"]: row for rows in frames for row in rows}

    async def to_end(self) -> list[Event]:
        """Read to the end of the stream; return what came from here on."""
        start = self._read
        try:
            while True:
                await self.next()
        except EOFError:
            return self.events[start:]

    async def close(self) -> None:
        await self.call.close()


async def subscribe_slowly(port: int, *, query: str) -> EventStream:
    """Open a stream whose receive buffer is small, so that unread events soon wait in the gateway."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    fields = "".join(f"{name}: {value}\r\n" for name, value in {"host": "localhost", **BEARER}.items())
    writer.write(f"GET /admin/events{query} HTTP/1.1\r\n{fields}\r\n".encode())
    call = Call(reader, writer)
    return EventStream(call, head=await call.head())


async def subscribe(
    port: int, *, query: str = "", headers: Mapping[str, str] = BEARER, address: str | None = None
) -> EventStream:
    """Open a stream; its `hello` is the first event."""
    call = await begin(port, f"/admin/events{query}", method="GET", headers=headers, address=address)
    head = await asyncio.wait_for(call.head(), PATIENCE)
    if head.status != 200:
        head = await call.rest()
        await call.close()
    return EventStream(call, head=head)
