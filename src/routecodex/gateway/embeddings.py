"""Embeddings pass through to a provider that has them, tried and judged like any other request."""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, ProviderNotAvailable, UpstreamError
from routecodex.gateway.ask import Record
from routecodex.gateway.health import Health
from routecodex.gateway.keep_alive import KeepAlive
from routecodex.gateway.orders import Orders
from routecodex.gateway.tries import Attempts, Planner, Tries
from routecodex.providers.upstream import Upstream
from routecodex.routing.plan import Asked, Plan
from routecodex.routing.registry import Registry, Step, Target
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
    def health(self) -> Health: ...
    @property
    def orders(self) -> Orders: ...
    def plan_for(self, asked: Asked) -> Plan: ...
    def tries_of(self, attempts: Attempts, planner: Planner) -> Tries: ...


async def embed(parts: Parts, body: bytes, *, record: Record) -> bytes:
    """The upstream's own answer; the record tells who gave it."""
    model = record.model = json.read(body, _head).model
    if parts.health.stale():
        await parts.health.refresh()
    orders = await parts.orders.load()

    def planned(tried: frozenset[Target], must: str | None) -> Plan:
        # What the operator made sticky is a model to talk to: it has other vectors, or none.
        return _able(parts, parts.plan_for(Asked(model=model, ignore_sticky=True, tried=tried)))

    plan = planned(frozenset(), None)
    if plan.notices:
        raise ProviderNotAvailable.not_allowed(*orders.allow, by_operator=True)
    if not plan.steps and not plan.cooling:
        raise BadRequest(
            f"model: no provider with embeddings stands behind {model[:200]!r}",
            param="model",
            code="no_embeddings",
        )
    call = Call(parts, body, record=record)
    await parts.tries_of(call, planned).run(plan)
    return call.answer


def _able(parts: Parts, plan: Plan) -> Plan:
    """The plan with the targets that have embeddings; what only cools down is waited for, not tried."""
    cooling = tuple(row for row in plan.cooling if _has_embeddings(parts, row.step))
    later = {row.step.target for row in cooling}
    able = (step for step in plan.steps if _has_embeddings(parts, step))
    steps = tuple(step for step in able if step.target not in later)
    # Named outright or not, no longer model can take the place of this one.
    return replace(plan, steps=steps, cooling=cooling, route="direct")


def _has_embeddings(parts: Parts, step: Step) -> bool:
    upstream = parts.upstreams.get(step.target.provider)
    return upstream is not None and upstream.codec.name in _PROTOCOLS


class Call:
    """The attempts at one request."""

    def __init__(self, parts: Parts, body: bytes, *, record: Record) -> None:
        self._parts = parts
        self._body = body
        self.record = record
        self.answer = b""

    async def attempt(self, step: Step, _keep_alive: KeepAlive | None) -> None:
        """Takes this target's answer; raises UpstreamError while another one may be tried."""
        target = step.target
        fields = json.read_fields(self._body)
        fields["model"] = Raw(json.encode(self._parts.registry.model(target).id))
        upstream = self._parts.upstreams[target.provider]
        self.record.target = target
        self.record.attempts += 1
        try:
            self.answer = await upstream.call(json.encode(fields), key=target.key, below="/embeddings")
        except UpstreamError as error:
            error.provider = error.provider or target.provider
            raise

    def note(self, plan: Plan) -> None:
        """Notes why the next attempts are made; all of them are of one route."""
        self.record.reason = plan.reason

    def keep_alive(self) -> KeepAlive | None:
        """The answer comes whole."""
        return None
