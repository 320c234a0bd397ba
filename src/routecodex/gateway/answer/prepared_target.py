"""A target with the request parts that are constant for it: path, headers, encode options."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

from routecodex.canon.events import Event
from routecodex.canon.request import Request
from routecodex.gateway.state.signature_owners import SignatureOwners, is_owned_by, may_return_to
from routecodex.protocols.billing_header import strip_billing_header
from routecodex.protocols.codec import Codec, EncodeOptions
from routecodex.providers.http import HttpResponse
from routecodex.providers.upstream import Upstream
from routecodex.routing.registry import Model, Target

BuiltinProvider: TypeAlias = Callable[[Request], AsyncGenerator[Event, None]]
"""A provider that yields events without HTTP."""


class PreparedTarget:
    """Request parts that are constant for a target."""

    __slots__ = (
        "_headers",
        "_key",
        "_path",
        "_stream_headers",
        "_stream_path",
        "codec",
        "options",
        "plain_options",
        "target",
        "upstream",
    )

    def __init__(self, target: Target, upstream: Upstream, model: Model, owners: SignatureOwners) -> None:
        self.target = target
        self.upstream = upstream
        self.codec: Codec = upstream.codec
        self._key = target.key
        self._path = upstream.path(model.id, stream=False)
        self._stream_path = upstream.path(model.id, stream=True)
        self._headers = upstream.header_block(target.key, stream=False, headers=None)
        self._stream_headers = upstream.header_block(target.key, stream=True, headers=None)
        self.options = EncodeOptions(
            model=model.id,
            provider=target.provider,
            dialect=upstream.dialect,
            max_output_tokens=model.max_output_tokens,
            vision=model.vision,
            billing_header=upstream.billing_header,
            codex_items=upstream.codex_items,
            accepts_signature=may_return_to(owners, target.provider),
            issued_signature=is_owned_by(owners, target.provider),
        )

        self.plain_options = dataclasses.replace(self.options, codex_items="plain")

    def fit(self, request: Request) -> Request:
        """Return a canonical request without the text that this provider must not get."""
        return request if self.options.billing_header else strip_billing_header(request)

    def send(
        self,
        body: bytes,
        *,
        stream: bool,
        headers: Mapping[str, str] | None,
        query: str = "",
        trace: bytes = b"",
    ) -> Awaitable[HttpResponse]:
        """Send a body and return the response once its headers are here, whatever its status.

        `headers` and `query` are the client's, if client and provider use the same protocol.
        `trace` is its trace context, as header lines.
        """
        upstream = self.upstream
        path = self._stream_path if stream else self._path
        if headers is not None and upstream.forwards_any(headers):
            lines = upstream.header_block(self._key, stream=stream, headers=headers)
        else:
            lines = self._stream_headers if stream else self._headers
        return upstream.open(body, lines, upstream.with_query(path, query) if query else path, trace=trace)


AnyTarget: TypeAlias = PreparedTarget | BuiltinProvider
