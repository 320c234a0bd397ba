"""Gemini streams without `alt=sse`: one JSON array (Gemini API reference, streamGenerateContent)."""

from __future__ import annotations

from routecodex.gateway.answer.writer import SSE
from routecodex.gateway.request import ClientConnection, Headers
from routecodex.protocols.gemini.framing import JsonArray

_JSON_HEADERS = b"content-type: application/json; charset=utf-8\r\ncache-control: no-cache\r\n"


class JsonArrayReply:
    """A reply whose frames leave as elements of a JSON array."""

    def __init__(self, reply: ClientConnection) -> None:
        self._reply = reply
        self._array = JsonArray()

    @property
    def started(self) -> bool:
        return self._reply.started

    @property
    def writable(self) -> bool:
        return self._reply.writable

    @property
    def interrupted(self) -> bool:
        return self._reply.interrupted

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        await self._reply.send(status, headers, body)

    def start(self, status: int, headers: Headers) -> None:
        self._reply.start(status, [_JSON_HEADERS if field is SSE else field for field in headers])

    async def write(self, data: bytes) -> None:
        await self._reply.write(self._array.wrap(data))

    def write_nowait(self, data: bytes) -> bool:
        return self._reply.write_nowait(self._array.wrap(data))

    async def drain(self) -> None:
        await self._reply.drain()

    async def end(self, data: bytes = b"") -> None:
        await self._reply.end(self._array.wrap(data) + self._array.end())

    def abort(self) -> None:
        self._reply.abort()
