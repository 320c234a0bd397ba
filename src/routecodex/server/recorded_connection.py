"""The connection of a client whose response is captured as it is written."""

from __future__ import annotations

from routecodex.gateway.capture import RequestCapture
from routecodex.gateway.request import ClientConnection, Headers
from routecodex.server.http.reply import encode_fields


class RecordedConnection:
    """Passes everything on to the client's connection and records it."""

    def __init__(self, client: ClientConnection, capture: RequestCapture) -> None:
        self._client = client
        self._capture = capture

    @property
    def started(self) -> bool:
        return self._client.started

    @property
    def writable(self) -> bool:
        return self._client.writable

    @property
    def interrupted(self) -> bool:
        return self._client.interrupted

    async def send(self, status: int, headers: Headers, body: bytes) -> None:
        self._capture.replied(status, encode_fields(headers), body)
        await self._client.send(status, headers, body)

    def start(self, status: int, headers: Headers) -> None:
        self._client.start(status, headers)
        self._capture.replied(status, encode_fields(headers))

    async def write(self, data: bytes) -> None:
        self._record(data)
        await self._client.write(data)

    def write_nowait(self, data: bytes) -> bool:
        self._record(data)
        return self._client.write_nowait(data)

    async def drain(self) -> None:
        await self._client.drain()

    async def end(self, data: bytes = b"") -> None:
        self._record(data)
        await self._client.end(data)

    def abort(self) -> None:
        self._client.abort()

    def _record(self, data: bytes) -> None:
        if data:
            self._capture.response.add(self._capture.ms, data)
