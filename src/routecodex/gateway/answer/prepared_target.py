"""A target made ready: everything about sending to it that is the same for every request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.gateway.state.signature_owners import is_ours, made_by
from routecodex.protocols.codec import Codec, EncodeOptions
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream
from routecodex.routing.registry import Model, Target

BuiltinProvider = Callable[[Request], AsyncGenerator[Event, None]]


class PreparedTarget:
    """How one target is reached over HTTP."""

    __slots__ = (
        "_head",
        "_key",
        "_path",
        "_stream_head",
        "_stream_path",
        "aim",
        "codec",
        "target",
        "upstream",
    )

    def __init__(self, target: Target, upstream: Upstream, model: Model, memory: ReasoningCache) -> None:
        self.target = target
        self.upstream = upstream
        self.codec: Codec = upstream.codec
        self._key = target.key
        self._path = upstream.path(model.id, stream=False)
        self._stream_path = upstream.path(model.id, stream=True)
        self._head = upstream.header_block(target.key, stream=False, headers=None)
        self._stream_head = upstream.header_block(target.key, stream=True, headers=None)
        self.aim = EncodeOptions(
            model=model.id,
            provider=target.provider,
            dialect=upstream.dialect,
            max_output_tokens=model.max_output_tokens,
            vision=model.vision,
            is_ours=is_ours(memory.makers, target.provider),
            made_here=made_by(memory.makers, target.provider),
        )

    def send(
        self, body: bytes, *, stream: bool, headers: Mapping[str, str] | None, query: str = ""
    ) -> Awaitable[HttpResponse]:
        """The head of the answer, whatever its status.

        `headers` and `query` are the client's, given when both speak the same protocol.
        """
        upstream = self.upstream
        path = self._stream_path if stream else self._path
        if headers is not None and upstream.forwards_any(headers):
            head = upstream.header_block(self._key, stream=stream, headers=headers)
        else:
            head = self._stream_head if stream else self._head
        return upstream.open(body, head, upstream.with_query(path, query) if query else path)
