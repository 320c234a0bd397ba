"""How the HTTP readers of server and client read bytes, as values that can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.origin import origin_of
from routecodex.server.http.reader import Fault, HttpLimits, RequestReader
from routecodex.wire.buffers import WriteBatcher

LIMITS = HttpLimits(body_bytes=100_000, header_bytes=16_384)


class _Transport:
    """A transport that only knows whether it was aborted or paused."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return


def read_requests(reads: Sequence[bytes]) -> list[Any]:
    """Return the requests and the fault in these reads, and whether bytes were left over."""
    reader = RequestReader(LIMITS, ("127.0.0.1", 1))
    for data in reads:
        if not reader.finished:
            reader.feed(data)
    items: list[Any] = []
    for item in reader.ready:
        if isinstance(item, Fault):
            items.append(["fault", item.status, item.message])
        else:
            keeps = item.keep_alive
            items.append(
                [item.method, item.path, item.query, dict(item.headers), bytes(item.body).hex(), keeps]
            )
    return [items, reader.phase.value, reader.finished]


def read_response(reads: Sequence[bytes]) -> list[Any]:
    """Return status, headers, body, completeness and error of a response after the peer closed."""

    async def receive() -> list[Any]:
        origin = origin_of("http://127.0.0.1:1", environ={})
        connection = UpstreamConnection(
            origin, max_header_bytes=16_384, on_lost=lambda _: None, batcher=WriteBatcher()
        )
        transport = _Transport()
        connection.connection_made(cast(asyncio.Transport, transport))
        connection.start_request(False)
        body: list[bytes] = []
        for data in reads:
            if not transport.aborted and data:
                connection.data_received(data)
                body.append(connection.take())
        kept = connection.keep_alive and connection.complete and not transport.aborted
        connection.connection_lost(None)
        error = str(connection.error or "")
        head = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in connection.headers]
        head = head if connection.head_done else []
        return [
            connection.head_done and connection.status,
            head,
            b"".join(body).hex(),
            connection.complete,
            error,
            kept,
        ]

    return asyncio.run(receive())
