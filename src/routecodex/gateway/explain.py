"""Explains a plan: every step and every target that was left out, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from routecodex.accounting.clients import Client
from routecodex.gateway.context.gateway_replies import GATEWAY_REASON, GATEWAY_ROUTE, ignored_notices
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.routing.request_role import RequestRole
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.state import for_subagents

if TYPE_CHECKING:
    from routecodex.gateway.gateway import Gateway


def explain(plan: RoutePlan | None, context: RoutingContext, *, now: float) -> dict[str, Any]:
    """Return the plan as plain values; a message for the gateway itself has no steps."""
    query = context.query
    if plan is None or context.for_gateway:
        plan = RoutePlan(route=GATEWAY_ROUTE, steps=(), reason=GATEWAY_REASON)
    found = context.instructions
    ignored = [] if found is None else ignored_notices(found.ignored, found.malformed)
    return {
        "route": plan.route,
        "reason": plan.reason,
        "class": {"route": query.route, "reason": query.why},
        "role": context.role.name,
        "role_signal": context.role.signal or None,
        **({} if context.session.agents is None else {"agents": asdict(context.session.agents)}),
        "model": query.model,
        "tokens": query.tokens,
        "session": context.scope.name if context.scope.lasts else None,
        "steps": [
            {"target": str(step.target), "reason": step.reason, "route": step.route} for step in plan.steps
        ],
        "removed": [{"target": str(row.step.target), "reason": row.reason} for row in plan.removed],
        "cooling": [
            {
                "target": str(row.step.target),
                "until": row.until,
                "seconds": max(0.0, row.until - now),
                "reason": row.reason,
            }
            for row in plan.cooling
        ],
        "clears_sticky": plan.clears_sticky,
        "notices": [*ignored, *plan.notices],
    }


async def explain_again(
    gateway: Gateway,
    query: RouteQuery,
    *,
    scope: Scope | None,
    role: RequestRole,
    client: Client | None,
) -> dict[str, Any]:
    """Plan a past request as it would be planned now, and explain that."""
    services = gateway.services
    if gateway.health.stale():
        await gateway.health.refresh()
    scope = scope or Scope("request", "")
    state = await gateway.sessions.load(scope)
    context = RoutingContext(
        scope,
        query,
        session=for_subagents(state) if role.name == "subagent" and state.agents is not None else state,
        operator=await gateway.operator.load(),
        role=role,
        client=client,
    )
    plan = services.plan(
        query,
        session=context.session,
        server=context.operator,
        next_turn=services.round_robin.peek,
        client=client,
    )
    return explain(plan, context, now=services.clock())
