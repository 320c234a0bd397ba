"""A client that reads raw HTTP: status, headers, body, and whether the body ended as HTTP requires."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

_BODILESS = frozenset({204, 304})


@dataclass
class Answer:
    """One answer; `complete` is False when the connection broke before the body's end."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = False

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Call:
    """A request whose answer is still being read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    answer: Answer = field(default_factory=lambda: Answer(0, {}))

    async def head(self) -> Answer:
        """Wait for the status and headers of the answer."""
        block = await self.reader.readuntil(b"\r\n\r\n")
        lines = block.decode("latin-1").split("\r\n")
        self.answer.status = int(lines[0].split(" ")[1])
        fields = (line.partition(":") for line in lines[1:] if line)
        self.answer.headers = {name.lower(): value.strip() for name, _, value in fields}
        return self.answer

    async def piece(self) -> bytes:
        """Return the next chunk of a chunked body; b"" at its proper end or when the connection broke."""
        try:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        if size == 0:
            self.answer.complete = True
            return b""
        self.answer.body += data[:-2]
        return data[:-2]

    async def rest(self) -> Answer:
        """Read the rest of the answer."""
        if not self.answer.status:
            await self.head()
        length = "0" if self.answer.status in _BODILESS else self.answer.headers.get("content-length")
        if length is not None:
            self.answer.body = await self.reader.readexactly(int(length))
            self.answer.complete = True
            return self.answer
        while await self.piece():
            pass
        return self.answer

    async def leave(self) -> None:
        """Abort the connection, as a killed client does."""
        self.writer.transport.abort()
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


async def begin(
    port: int,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    address: str | None = None,
) -> Call:
    """Send a request without waiting for the answer; `address` is the loopback address it comes from."""
    local = None if address is None else (address, 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=local)
    payload = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
    fields = {"host": f"127.0.0.1:{port}", "content-type": "application/json", **(headers or {})}
    fields["content-length"] = str(len(payload))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + payload)
    return Call(reader, writer)


async def call(
    port: int,
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and read its whole answer."""
    request = await begin(port, path, body, method=method, headers=headers)
    try:
        return await request.rest()
    finally:
        await request.close()
