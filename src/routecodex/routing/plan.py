"""The plan of one request: which targets to try, in which order, and why.

No IO, no clock and no randomness of its own: everything it depends on is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from routecodex.canon.errors import NotFound
from routecodex.routing.registry import Registry, Step, Target


class Plan(Struct, frozen=True):
    """The targets of one request in the order to try them; `route` is the name a client is told."""

    route: str
    steps: tuple[Step, ...]
    reason: str
    notices: tuple[str, ...] = ()


class Asked(Struct, frozen=True, kw_only=True):
    """What routing looks at in a request."""

    model: str
    estimated_tokens: int = 0


class SessionState(Struct, frozen=True):
    """What instructions have set for one conversation."""


class ServerState(Struct, frozen=True):
    """What an operator has set for all conversations of one server."""


class Health(Protocol):
    """Which targets can be used now."""

    def available(self, target: Target, now: float) -> bool: ...


class AllHealthy:
    """Health of a server that has seen no failure."""

    def available(self, target: Target, now: float) -> bool:
        return True


def plan(
    asked: Asked,
    *,
    session: SessionState,
    server: ServerState,
    health: Health,
    registry: Registry,
    now: float,
    rng: Callable[[], float],
) -> Plan:
    """The targets to try: a model named outright goes there; any other name is left to the routes."""
    named = registry.alias_of(asked.model)
    if named is not None and named.startswith("route:"):
        return _by_route(registry, named[6:], f"alias {asked.model} names route {named[6:]}")
    targets = registry.targets_of(named or asked.model)
    if targets:
        why = f"alias {asked.model} names {named}" if named else f"model {asked.model} names the target"
        usable = [target for target in targets if health.available(target, now)] or list(targets)
        return Plan("direct", tuple(Step(target, "direct") for target in usable), why)
    return _by_route(registry, "default", "no rule names another route")


def _by_route(registry: Registry, route: str, why: str) -> Plan:
    taken = route if registry.routes.get(route) else "default"
    steps = registry.steps_of(taken)
    if not steps:
        raise NotFound(f"route {taken!r} has no targets; add some under [routing]", code="no_targets")
    return Plan(taken, steps, why)
