"""Embeddings pass through to a provider that has them, tried and judged like any other request.

What the session or the operator has disabled or not allowed is not asked for them either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest, GatewayError, ProviderNotAvailable, UpstreamError
from routecodex.gateway.answer.failover import Attempts, Failover, Planner
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.context.identity import identify
from routecodex.gateway.request import RequestRecord
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols.control_fields import metadata_control_fields, strip_control_fields
from routecodex.providers.upstream import Upstream
from routecodex.routing.registry import PlanStep, Registry, Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.state import ServerState, SessionState
from routecodex.wire import json

_PROTOCOLS = ("chat", "responses")


class EmbeddingFields(Struct):
    """What we read of the request; the rest passes as it came."""

    model: str
    metadata: Any = None


_head = Decoder(EmbeddingFields)


class EmbeddingServices(Protocol):
    """What embedding needs of the gateway."""

    @property
    def registry(self) -> Registry: ...
    @property
    def upstreams(self) -> dict[str, Upstream]: ...
    @property
    def health(self) -> KeyHealth: ...
    @property
    def orders(self) -> OperatorState: ...
    @property
    def sessions(self) -> Sessions: ...
    def plan_for(self, asked: RouteQuery, session: SessionState) -> RoutePlan: ...
    def tries_of(self, attempts: Attempts, planner: Planner) -> Failover: ...


class EmbeddingRules(Struct, frozen=True):
    """What binds a request: the session's own word, and the operator's."""

    session: SessionState
    server: ServerState

    def not_allowed(self) -> ProviderNotAvailable:
        """The error that names the list that was asked, which is the session's own if it has one."""
        own = self.session.allow
        return ProviderNotAvailable.not_allowed(*(own or self.server.allow), by_operator=not own)

    def disabled(self, target: Target) -> ProviderNotAvailable:
        """The error that names what is disabled, by the provider where all of it is."""
        whole = target.provider in (*self.session.disable, *self.server.disable)
        return ProviderNotAvailable.disabled(target.provider if whole else str(target))


async def embed(
    parts: EmbeddingServices, body: bytes, *, headers: Mapping[str, str], record: RequestRecord
) -> bytes:
    """The upstream's own answer; the record tells who gave it."""
    head = json.read(body, _head)
    model = record.model = head.model
    if parts.health.stale():
        await parts.health.refresh()
    session = await _session(parts, head, headers=headers, record=record)
    rules = EmbeddingRules(session, await parts.orders.load())

    def planned(tried: frozenset[Target], must: str | None) -> RoutePlan:
        # What is sticky is a model to talk to: it has other vectors, or none.
        return _able(parts, parts.plan_for(RouteQuery(model=model, ignore_sticky=True, tried=tried), session))

    plan = planned(frozenset(), None)
    if plan.notices:
        raise rules.not_allowed()
    if not plan.steps and not plan.cooling:
        raise _nothing_able(parts, plan, rules, model=model)
    call = EmbeddingAttempt(parts, strip_control_fields(body, "chat"), record=record)
    await parts.tries_of(call, planned).run(plan)
    return call.answer


async def _session(
    parts: EmbeddingServices, head: EmbeddingFields, *, headers: Mapping[str, str], record: RequestRecord
) -> SessionState:
    """What the session of the request rules out; what it forces or sticks to is for talking."""
    told = metadata_control_fields(head.metadata)
    scope = identify("chat", headers, told, chain=None, request_id=record.id)
    record.session = scope.key if scope.lasts else ""
    state = parts.sessions.peek(scope) or await parts.sessions.load(scope)
    return SessionState(allow=state.allow, disable=state.disable)


def _nothing_able(
    parts: EmbeddingServices, plan: RoutePlan, rules: EmbeddingRules, *, model: str
) -> GatewayError:
    """Why nobody gives vectors: a rule keeps those from use that could, or there are none."""
    able = [row for row in plan.removed if _has_embeddings(parts, row.step)]
    disabled = next((row.step.target for row in able if row.cause == "disabled"), None)
    if disabled is not None:
        return rules.disabled(disabled)
    if any(row.cause == "not allowed" for row in able):
        return rules.not_allowed()
    return BadRequest(
        f"model: no provider with embeddings stands behind {model[:200]!r}",
        param="model",
        code="no_embeddings",
    )


def _able(parts: EmbeddingServices, plan: RoutePlan) -> RoutePlan:
    """The plan with the targets that have embeddings; what only cools down is waited for, not tried."""
    cooling = tuple(row for row in plan.cooling if _has_embeddings(parts, row.step))
    later = {row.step.target for row in cooling}
    able = (step for step in plan.steps if _has_embeddings(parts, step))
    steps = tuple(step for step in able if step.target not in later)
    # Named outright or not, no longer model can take the place of this one.
    return replace(plan, steps=steps, cooling=cooling, route="direct")


def _has_embeddings(parts: EmbeddingServices, step: PlanStep) -> bool:
    upstream = parts.upstreams.get(step.target.provider)
    return upstream is not None and upstream.codec.name in _PROTOCOLS


class EmbeddingAttempt:
    """The attempts at one request."""

    def __init__(self, parts: EmbeddingServices, body: bytes, *, record: RequestRecord) -> None:
        self._parts = parts
        self._body = body
        self.record = record
        self.answer = b""

    async def attempt(self, step: PlanStep, _keep_alive: KeepAlive | None) -> None:
        """Takes this target's answer; raises UpstreamError while another one may be tried."""
        target = step.target
        fields = json.read_fields(self._body)
        fields["model"] = Raw(json.encode(self._parts.registry.model(target).id))
        upstream = self._parts.upstreams[target.provider]
        self.record.target = target
        self.record.attempts += 1
        try:
            self.answer = await upstream.call(json.encode(fields), key=target.key, path="/embeddings")
        except UpstreamError as error:
            error.provider = error.provider or target.provider
            raise

    def note(self, plan: RoutePlan) -> None:
        """Notes why the next attempts are made; all of them are of one route."""
        self.record.reason = plan.reason

    def keep_alive(self) -> KeepAlive | None:
        """The answer comes whole."""
        return None
