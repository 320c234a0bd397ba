"""Where an answer comes from: bytes over HTTP through a pipe, or events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from routecodex.canon.errors import GatewayError
from routecodex.canon.events import Event
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.request import ClientConnection
from routecodex.protocols import upstream_errors
from routecodex.protocols.codec import Pipe
from routecodex.protocols.translation import Translation
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream


class AnswerStream(Protocol):
    """Where an answer comes from."""

    @property
    def pipe(self) -> Pipe: ...
    async def pull(self) -> bytes:
        """The next client bytes; the pipe tells when there will be no more."""
        ...

    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        """Writes to the client what comes until the pipe has ended; the last bytes are left to be written.

        While the client does not read, nothing is asked of the provider.
        """
        ...

    def redacted(self, data: bytes) -> bytes:
        """Bytes that tell of a failure, without secrets of ours."""
        ...

    def hide(self, error: GatewayError) -> None:
        """Hides secrets of ours in the error."""
        ...


class RelayedStream:
    """An answer that comes over HTTP, through a pipe."""

    def __init__(self, response: HttpResponse, pipe: Pipe, upstream: Upstream) -> None:
        self.pipe = pipe
        self._response = response
        self.redacted = upstream.redact
        self.hide = upstream.redact_error

    async def pull(self) -> bytes:
        pipe = self.pipe
        while True:
            data = await self._response.chunk()
            out = pipe.close() if data is None else pipe.feed(data)
            if out or data is None or pipe.ended or pipe.started:
                return out

    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        response, passage = self._response, _Passage(self.pipe, client, keep_alive)
        while True:
            await response.pour(passage.take)
            if self.pipe.ended:
                return passage.last
            if response.ended:
                return self.pipe.close()
            await client.drain()


class _Passage:
    """From the provider's connection to the client's, without a task between them."""

    def __init__(self, pipe: Pipe, client: ClientConnection, keep_alive: KeepAlive) -> None:
        self.last = b""
        self._pipe = pipe
        self._client = client
        self._keep_alive = keep_alive

    def take(self, data: bytes) -> bool:
        """Passes it on; whether there may be more: not behind the end, nor while the client does not read."""
        pipe = self._pipe
        out = pipe.feed(data)
        if pipe.ended:
            self.last = out
            return False
        if not out:
            return True
        self._keep_alive.touch()
        return self._client.write_nowait(out)


class EventStream:
    """An answer that comes as events."""

    def __init__(self, events: AsyncGenerator[Event, None], pipe: Translation) -> None:
        self.pipe = pipe
        self._events = events

    async def pull(self) -> bytes:
        event = await anext(self._events, None)
        if event is not None:
            return self.pipe.tell((event,))
        if self.pipe.started:
            return self.pipe.fail(upstream_errors.stream_truncated())
        raise upstream_errors.stream_truncated()

    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        while True:
            out = await self.pull()
            if self.pipe.ended:
                return out
            if out:
                await client.write(out)
                keep_alive.touch()

    def redacted(self, data: bytes) -> bytes:
        return data

    def hide(self, error: GatewayError) -> None:
        """There are none."""
