"""Embeddings pass through to a provider that has them, tried and judged like any other request.

Targets that the session or the operator disabled or did not allow are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.accounting.clients import Client
from routecodex.canon.errors import BadRequest, GatewayError, ProviderNotAvailable
from routecodex.canon.events import Usage
from routecodex.gateway.answer.failover import Failover
from routecodex.gateway.context.identity import identify
from routecodex.gateway.request import RequestRecord
from routecodex.gateway.services import GatewayServices
from routecodex.protocols import large_body
from routecodex.protocols.chat.chunks import usage_of
from routecodex.protocols.chat.schema import WireUsage
from routecodex.protocols.control_fields import metadata_control_fields, strip_control_fields
from routecodex.providers.upstream import trace_headers
from routecodex.routing.instructions import strip
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.state import ServerState, SessionState
from routecodex.routing.tokens import estimate_by_size
from routecodex.wire import json

_PROTOCOLS = ("chat", "responses")
_GONE = 499


class EmbeddingFields(Struct):
    """The fields of the request that the gateway reads; the rest passes unchanged."""

    model: str
    metadata: Any = None


class EmbeddingAnswer(Struct):
    """The part of an answer that the gateway reads."""

    usage: WireUsage | None = None
    model: Any = None


_fields = Decoder(EmbeddingFields)
_answers = Decoder(EmbeddingAnswer)


class EmbeddingRules(Struct, frozen=True):
    """Rules that bind a request: those of the session and of the operator."""

    session: SessionState
    server: ServerState

    def not_allowed(self) -> ProviderNotAvailable:
        """Return the error that names the allow list in force: the session's own if it has one."""
        own = self.session.allow
        return ProviderNotAvailable.not_allowed(*(own or self.server.allow), by_operator=not own)

    def disabled(self, target: Target) -> ProviderNotAvailable:
        """Return the error that names the disabled target, or the provider if all of it is disabled."""
        whole = target.provider in (*self.session.disable, *self.server.disable)
        return ProviderNotAvailable.disabled(target.provider if whole else str(target))


async def embed(
    services: GatewayServices,
    body: bytes,
    *,
    headers: Mapping[str, str],
    record: RequestRecord,
    client: Client | None = None,
    owner: str = "",
) -> bytes:
    """Return the upstream's own answer; the record names the target."""
    fields = json.read(body, _fields)
    record.model = fields.model
    if services.health.stale():
        await services.health.refresh()
    session = await _session(services, fields, headers=headers, record=record, owner=owner)
    rules = EmbeddingRules(session, await services.operator.load())
    planner = _EmbeddingPlanner(services, fields.model, session=session, client=client)
    plan = planner.plan(frozenset(), None)
    if plan.notices:
        raise rules.not_allowed()
    if not plan.steps and not plan.cooling:
        raise _no_embeddings(services, plan, rules, model=fields.model)
    stripped = _strip_tags(strip_control_fields(body, "chat"))
    services.begin_counting(record)
    if record.limits is not None:
        record.limits.input_tokens = estimate_by_size(stripped)
    failover = Failover(services, planner, record=record, keep_route=True)
    try:
        answer = await failover.open(
            plan, lambda step: _attempt(services, step, stripped, trace=_trace_lines(record, headers))
        )
    except asyncio.CancelledError:
        if record.target is not None:
            usage = Usage(input=estimate_by_size(stripped), estimated=True)
            services.count_call(record, record.target, usage, certainty="observed", status=_GONE)
        raise
    failover.settle(None)
    if record.target is not None:
        found = json.try_read(answer, _answers)
        services.count_call(record, record.target, _usage(found, stripped))
        _note_model(record, found)
    return answer


def _trace_lines(record: RequestRecord, headers: Mapping[str, str]) -> bytes:
    return trace_headers(headers) if record.trace is None else record.trace.lines()


def _note_model(record: RequestRecord, found: EmbeddingAnswer | None) -> None:
    """Keep the model that answered, for the trace."""
    attempt = record.trace.attempt if record.trace is not None else None
    if attempt is not None and found is not None and isinstance(found.model, str):
        attempt.note(model=found.model, id="", finish="")


def _usage(found: EmbeddingAnswer | None, body: bytes) -> Usage:
    """Return the counts of an answer, estimated if it has none."""
    counts = found.usage if found is not None else None
    if counts is not None and counts.prompt_tokens is None:
        # Voyage and Jina report the total alone.
        counts.prompt_tokens = counts.total_tokens
    usage = usage_of(counts, None) if counts is not None else None
    return usage or Usage(input=estimate_by_size(body), estimated=True)


def _strip_tags(body: bytes) -> bytes:
    """Return the body without instruction tags in the input: no provider may see one."""
    if not large_body.may_hold_tags(body):
        return body
    fields = json.read_fields(body)
    if "input" in fields:
        fields["input"] = Raw(json.encode(_strip_texts(json.read_values(body)["input"])))
    return json.encode(fields)


def _strip_texts(value: Any) -> Any:
    """Return the input with its texts stripped; Jina and Voyage accept objects with texts in a list."""
    if isinstance(value, str):
        return strip(value)
    if isinstance(value, list):
        return [_strip_texts(one) for one in value]
    return {name: _strip_texts(one) for name, one in value.items()} if isinstance(value, dict) else value


async def _attempt(services: GatewayServices, step: PlanStep, body: bytes, *, trace: bytes) -> bytes:
    """Return one target's answer; UpstreamError: the next target may be tried."""
    target = step.target
    fields = json.read_fields(body)
    fields["model"] = Raw(json.encode(services.registry.model(target).id))
    upstream = services.upstreams[target.provider]
    return await upstream.call(json.encode(fields), key=target.key, path="/embeddings", trace=trace)


class _EmbeddingPlanner:
    """Plans a request for embeddings within the rules of its session."""

    def __init__(
        self, services: GatewayServices, model: str, *, session: SessionState, client: Client | None
    ) -> None:
        self._client = client
        self._services = services
        self._model = model
        self._session = session

    def plan(self, tried: frozenset[Target], must: str | None) -> RoutePlan:
        """Plan over targets with embeddings; one that is cooling down is waited for, not tried."""
        services = self._services
        # A sticky target is a chat model: it has other vectors, or none.
        query = RouteQuery(model=self._model, ignore_sticky=True, tried=tried)
        server = services.operator.peek() or ServerState()
        plan = services.plan(query, session=self._session, server=server, client=self._client)
        steps = tuple(step for step in plan.steps if _has_embeddings(services, step))
        cooling = tuple(row for row in plan.cooling if _has_embeddings(services, row.step))
        # Route `direct`: no model with a longer context can take the place of this one.
        return replace(plan, steps=steps, cooling=cooling, route="direct")

    async def clear_sticky(self) -> None:
        """Leave the session alone: its sticky target is ignored."""

    def use_route(self, route: str) -> None:
        """Keep the model: another one has other vectors."""


async def _session(
    services: GatewayServices,
    fields: EmbeddingFields,
    *,
    headers: Mapping[str, str],
    record: RequestRecord,
    owner: str,
) -> SessionState:
    """Return the allow and disable rules of the session; its forced and sticky targets are chat models."""
    controls = metadata_control_fields(fields.metadata)
    scope = identify("chat", headers, controls, chain=None, request_id=record.id, owner=owner)
    record.session = scope.name if scope.lasts else ""
    state = services.sessions.peek(scope) or await services.sessions.load(scope)
    return SessionState(allow=state.allow, disable=state.disable)


def _no_embeddings(
    services: GatewayServices, plan: RoutePlan, rules: EmbeddingRules, *, model: str
) -> GatewayError:
    """Return why no target is left: a rule excludes those with embeddings, or there are none."""
    able = [row for row in plan.removed if _has_embeddings(services, row.step)]
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


def _has_embeddings(services: GatewayServices, step: PlanStep) -> bool:
    upstream = services.upstreams.get(step.target.provider)
    return upstream is not None and upstream.codec.name in _PROTOCOLS
