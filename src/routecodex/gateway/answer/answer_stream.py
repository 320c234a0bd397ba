"""An opened answer: a stream of client bytes relayed from HTTP, or a whole body."""

from __future__ import annotations

from typing import Protocol

from routecodex.canon.errors import GatewayError
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.request import ClientConnection
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.protocols.codec import AnswerOutcome, Pipe
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream


class AnswerStream(Protocol):
    """An opened answer, as relayed bytes or events.

    It was read up to its first content: `first` holds the client bytes so far. `recorder` has
    recorded its events; None without events.
    """

    first: bytes
    recorder: ReasoningRecorder | None

    @property
    def pipe(self) -> Pipe: ...
    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        """Write the answer to the client until the pipe has ended; return the last bytes unwritten.

        The provider is not read while the client does not read.
        """

    def redacted(self, data: bytes) -> bytes:
        """Remove secrets from the bytes of an error."""

    def hide(self, error: GatewayError) -> None:
        """Remove secrets from an error."""

    def close(self) -> None:
        """Close the connection to the upstream."""


class WholeAnswer:
    """An answer that does not stream: its body for the client."""

    __slots__ = ("body", "outcome", "recorder")

    def __init__(
        self, body: bytes, outcome: AnswerOutcome, *, recorder: ReasoningRecorder | None = None
    ) -> None:
        self.body = body
        self.outcome = outcome
        self.recorder = recorder


class RelayedStream:
    """An answer that comes over HTTP, through a pipe."""

    def __init__(
        self, response: HttpResponse, pipe: Pipe, upstream: Upstream, recorder: ReasoningRecorder | None
    ) -> None:
        self.pipe = pipe
        self.recorder = recorder
        self.first = b""
        self._response = response
        self.redacted = upstream.redact
        self.hide = upstream.redact_error

    async def open(self) -> None:
        """Read up to the first content; UpstreamError: another target may be tried."""
        response, pipe = self._response, self.pipe
        while not (pipe.started or pipe.ended):
            data = await response.chunk()
            self.first = pipe.close() if data is None else pipe.feed(data)

    async def carry(self, client: ClientConnection, keep_alive: KeepAlive) -> bytes:
        if self.first:
            await client.write(self.first)
            keep_alive.touch()
        response, passage = self._response, _Passage(self.pipe, client, keep_alive)
        while True:
            await response.pour(passage.take)
            if self.pipe.ended:
                return passage.last
            if response.ended:
                return self.pipe.close()
            await client.drain()

    def close(self) -> None:
        self._response.close()


class _Passage:
    """Writes to the client's connection in the read callback of the provider's, without a task in between."""

    def __init__(self, pipe: Pipe, client: ClientConnection, keep_alive: KeepAlive) -> None:
        self.last = b""
        self._pipe = pipe
        self._client = client
        self._keep_alive = keep_alive

    def take(self, data: bytes) -> bool:
        """Pass data on; return False after the end, and while the client does not read."""
        pipe = self._pipe
        out = pipe.feed(data)
        if pipe.ended:
            self.last = out
            return False
        if not out:
            return True
        self._keep_alive.touch()
        return self._client.write_nowait(out)
