"""Embeddings pass through to a provider that has them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest, UpstreamError, UpstreamRejected
from routecodex.gateway.ask import Record
from routecodex.providers.upstream import Upstream
from routecodex.routing.plan import Asked, Plan
from routecodex.routing.registry import Registry
from routecodex.wire import json

_PROTOCOLS = ("chat", "responses")


class Head(Struct):
    """What we read of the request; the rest passes as it came."""

    model: str


_head = Decoder(Head)


class Parts(Protocol):
    """What embedding needs of the gateway."""

    @property
    def registry(self) -> Registry: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    @property
    def max_attempts(self) -> int: ...
    def plan_for(self, asked: Asked) -> Plan: ...


async def embed(parts: Parts, body: bytes, *, record: Record) -> bytes:
    """The upstream's own answer; the record tells who gave it."""
    model = record.model = json.read(body, _head).model
    steps = parts.plan_for(Asked(model=model)).steps
    able = [step for step in steps if _has_embeddings(parts.upstreams.get(step.target.provider))]
    failures: list[UpstreamError] = []
    for step in able[: parts.max_attempts]:
        fields = json.read_fields(body)
        fields["model"] = Raw(json.encode(parts.registry.model(step.target).id))
        upstream = parts.upstreams[step.target.provider]
        record.target = step.target
        record.attempts += 1
        try:
            return await upstream.call(json.encode(fields), key=step.target.key, below="/embeddings")
        except UpstreamRejected:
            raise
        except UpstreamError as error:
            failures.append(error)
    if failures:
        raise failures[-1]
    raise BadRequest(
        f"model: no provider with embeddings stands behind {model!r}", param="model", code="no_embeddings"
    )


def _has_embeddings(upstream: Upstream | None) -> bool:
    return upstream is not None and upstream.codec.name in _PROTOCOLS
