"""Plans a request: targets in order, with reasons.

Disable rules remove targets before everything else. Then force > sticky > allow list > the model named in
the body > the routing table. Health comes last: targets in cooldown are not tried, but may be waited for.

No IO, no clock and no randomness: all inputs are arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from routecodex.canon.errors import NotFound, ProviderNotAvailable
from routecodex.routing.pools import NextTurn, PoolSelector, group_selector, pool_selectors
from routecodex.routing.registry import PlanStep, Registry, Selector, Target
from routecodex.routing.route_plan import (
    DEFAULT,
    Destination,
    NotPermitted,
    RefusedDestination,
    RoutePlan,
    RouteQuery,
    RoutingRules,
)
from routecodex.routing.state import NO_SERVER_STATE, NOTHING_SET, ServerState, SessionState
from routecodex.routing.target_filter import CoolingTarget, RemovedTarget, TargetFilter, TargetHealth

__all__ = [
    "CoolingTarget",
    "RemovedTarget",
    "RestrictedRouter",
    "RoutePlan",
    "RouteQuery",
    "Router",
    "TargetHealth",
]

_MAX_CACHED_PLANS: Final = 1024
_LONGEST_NAME: Final = 200

SPECIAL: Final = frozenset({"vision", "web_search", "longcontext"})
"""Routes that win over a sticky target."""


class Router:
    """Plans requests over the pools of a registry."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._pools = functools.lru_cache(maxsize=256)(self._usable_pools)
        # A selector caches orders, so it is built once and not for every request.
        self._group = functools.lru_cache(maxsize=1024)(self._build_group)
        self._nothing_set = NOTHING_SET, NO_SERVER_STATE
        self._plan_cache: dict[tuple[str, str, str, str | None], RoutePlan] = {}
        routed = [len(list(self._steps_of(route))) for route in registry.routes]
        self.has_choice = max(routed, default=0) > 1 or any(
            len(provider.keys) > 1 for provider in registry.providers.values()
        )
        """Whether any request has more than one target."""
        self.routes_differ = any(self._pools(route) for route in registry.routes if route != DEFAULT)
        """Whether the class of a request can change its route."""
        self._restricted = False

    def plan(
        self,
        query: RouteQuery,
        *,
        session: SessionState,
        server: ServerState,
        health: TargetHealth,
        now: float,
        next_turn: NextTurn,
    ) -> RoutePlan:
        """Return the targets to try; raise ProviderNotAvailable if a rule leaves none."""
        rules = self._rules_in_force(query, session, server)
        if rules is _NO_RULES and health.quiet and self._is_cacheable(query):
            return self._cached_plan(query, health=health, now=now, next_turn=next_turn)
        target_filter = TargetFilter(self.registry, query, rules, health=health, now=now, next_turn=next_turn)
        if rules.force is not None:
            return self._plan_forced(target_filter, rules.force)
        destination = self._destination(query)
        if rules.sticky is not None:
            return self._plan_sticky(target_filter, rules.sticky, destination)
        return self._plan_unpinned(target_filter, destination)

    def _is_cacheable(self, query: RouteQuery) -> bool:
        """Return whether only the names in the request decide its plan."""
        return (
            not self.has_choice
            and not query.tried
            and query.only_route is None
            and query.tokens <= self.registry.smallest_context
        )

    def _cached_plan(
        self, query: RouteQuery, *, health: TargetHealth, now: float, next_turn: NextTurn
    ) -> RoutePlan:
        """Return the plan shared by all requests with the same names."""
        key = (query.model, query.route, query.why, query.hint)
        plan = self._plan_cache.get(key)
        if plan is None:
            target_filter = TargetFilter(
                self.registry, query, _NO_RULES, health=health, now=now, next_turn=next_turn
            )
            plan = self._plan_unpinned(target_filter, self._destination(query))
            # Clients choose the names: the cache is bounded.
            if (
                len(self._plan_cache) < _MAX_CACHED_PLANS
                and len(query.model) + len(query.hint or "") <= _LONGEST_NAME
            ):
                self._plan_cache[key] = plan
        return plan

    def names_target(self, model: str) -> bool:
        """Return whether the model of a body names a target, so that the class does not matter."""
        named = self.registry.alias_of(model)
        if named is not None and named.startswith("route:"):
            return False
        return bool(self.registry.targets_of(named or model))

    def has_route(self, name: str) -> bool:
        """Return whether the route has targets."""
        return name in self.registry.routes and bool(self._pools(name))

    def _usable_pools(self, route: str) -> tuple[PoolSelector, ...]:
        return tuple(pool for pool in pool_selectors(self.registry, route) if pool.groups)

    def _rules_in_force(self, query: RouteQuery, session: SessionState, server: ServerState) -> RoutingRules:
        if (session, server) == self._nothing_set:
            return _NO_RULES
        force = session.force
        sticky = session.sticky or _server_sticky(session, server)
        disabled = [
            selector
            for name in (*server.disable, *session.disable)
            if (selector := self.registry.resolve(name, prefer="key")) is not None
        ]
        return RoutingRules(
            force=force.target if force is not None and force.turn == query.turn else None,
            sticky=None if query.ignore_sticky else sticky,
            sticky_from_session=session.sticky is not None,
            allow=session.allow or server.allow,
            allow_from_session=bool(session.allow),
            disabled=tuple(disabled),
        )

    def _steps_of(self, route: str) -> Iterator[PlanStep]:
        return (step for pool in self._pools(route) for group in pool.groups for step in group.steps)

    def _build_group(self, name: str, targets: tuple[Target, ...], reason: str, route: str) -> PoolSelector:
        if not self.registry.is_listed(targets[0]):
            # Clients choose such names: a turn counter for each would grow without bound.
            name = f"{reason}/{targets[0].provider}"
        return group_selector(name, (PlanStep(target, reason, route) for target in targets))

    def _destination(self, query: RouteQuery) -> Destination:
        if query.only_route is not None:
            return Destination(query.only_route, f"only route {query.only_route} can hold the request")
        named = self.registry.alias_of(query.model)
        if named is not None and named.startswith("route:"):
            return Destination(named[6:], f"alias {_shorten(query.model)} names route {named[6:]}")
        targets = self.registry.targets_of(named or query.model)
        if targets:
            model = _shorten(query.model)
            why = f"alias {model} names {named}" if named else f"model {model} names the target"
            return Destination("direct", why, targets, named or query.model)
        destination = self._classified(query)
        asked = named or query.model
        if "." in asked and asked.partition(".")[0] in self.registry.providers:
            return replace(destination, name=asked)
        return destination

    def _classified(self, query: RouteQuery) -> Destination:
        """Return the route of a request whose model names no target: its hint, else its class."""
        if query.hint is not None and self.has_route(query.hint):
            return Destination(query.hint, f"metadata.routeHint names route {query.hint}")
        return Destination(query.route, query.why)

    def _plan_forced(self, target_filter: TargetFilter, name: str) -> RoutePlan:
        targets = self._named_targets(target_filter, name)
        if not targets:
            raise ProviderNotAvailable.unknown(name, self.registry.near(name))
        steps = self._admit_named(target_filter, name, targets, "force")
        why = f"this message asks for {name}"
        return _build_plan(target_filter, "force", steps, why, only_provider=targets[0].provider)

    def _admit_named(
        self, target_filter: TargetFilter, name: str, targets: tuple[Target, ...], reason: str
    ) -> tuple[PlanStep, ...]:
        """Return the usable steps of targets requested by name; raise the refusal if all are disabled."""
        pool = self._group(name, targets, reason, reason)
        query = target_filter.query
        steps = target_filter.admit(pool.order(affinity=query.affinity, next_turn=target_filter.next_turn))
        if not steps and not target_filter.cooling and not query.tried:
            raise target_filter.refusal()
        return steps

    def _named_targets(self, target_filter: TargetFilter, name: str) -> tuple[Target, ...]:
        """Return the targets of a forced or sticky name; a key alone gets the model routing would choose."""
        registry = self.registry
        selector = registry.resolve(name)
        if selector is None:
            return ()
        if selector.model is not None:
            return tuple(registry.covered(selector))
        first: tuple[Target, ...] = ()
        for model in dict.fromkeys(self._models_of(selector.provider, target_filter.query)):
            targets = tuple(registry.covered(Selector(selector.provider, selector.key, model)))
            # Routing does not choose a disabled model; if all are disabled, the error names the first.
            if not all(map(target_filter.disables, targets)):
                return targets
            first = first or targets
        return first

    def _models_of(self, provider: str, query: RouteQuery) -> Iterator[str]:
        """Yield the models of a provider in the order of preference of routing."""
        models = self.registry.providers[provider].models
        destination = self._destination(query)
        routes = (destination.route, DEFAULT, *self.registry.routes)
        routed = (step.target for route in routes for step in self._steps_of(route))
        targets = (target for target in (*destination.targets, *routed) if target.provider == provider)
        asked = (query.model,) if query.model in models else ()
        return chain(asked, (target.model for target in targets), models)

    def _plan_sticky(self, target_filter: TargetFilter, name: str, destination: Destination) -> RoutePlan:
        """Plan a special route first, then the sticky keys; use the table if no sticky key can be used."""
        special: tuple[PlanStep, ...] = ()
        if destination.route in SPECIAL and self.has_route(destination.route):
            special = self._admit_route(target_filter, destination.route)
        sticky = self._sticky_steps(target_filter, name)
        if sticky or self._is_back_soon(target_filter):
            route = special[0].route if special else next((step.route for step in sticky), "sticky")
            why = f"{destination.why}; then sticky {name}" if special else f"sticky {name}"
            return _build_plan(target_filter, route, _distinct_steps((special, sticky)), why)
        removed = target_filter.removed
        plan = self._plan_unpinned(target_filter.again(), destination)
        failed_once = any(row.cause == "tried" and row.step.reason == "sticky" for row in removed)
        clears_sticky = target_filter.rules.sticky_from_session and not failed_once
        outcome = "cleared" if clears_sticky else "skipped"
        return replace(
            plan,
            reason=f"sticky {name} {outcome}, none of its keys can be used; {plan.reason}",
            removed=(*removed, *plan.removed),
            clears_sticky=clears_sticky,
        )

    def _sticky_steps(self, target_filter: TargetFilter, name: str) -> tuple[PlanStep, ...]:
        targets = self._named_targets(target_filter, name)
        if not targets:
            return ()
        pool = self._group(f"sticky/{name}", targets, "sticky", self._route_containing(targets))
        return target_filter.admit(pool.order(affinity=None, next_turn=target_filter.next_turn))

    def _route_containing(self, targets: Sequence[Target]) -> str:
        for route in self.registry.routes:
            if any(step.target in targets for step in self._steps_of(route)):
                return route
        return "sticky"

    def _is_back_soon(self, target_filter: TargetFilter) -> bool:
        latest = target_filter.now + target_filter.query.max_wait
        return any(row.until <= latest for row in target_filter.cooling if row.step.reason == "sticky")

    def _plan_unpinned(self, target_filter: TargetFilter, destination: Destination) -> RoutePlan:
        """Plan without force and sticky: the named model, else the table, both within the allow list."""
        notices: tuple[str, ...] = ()
        allow = target_filter.rules.allow
        if destination.targets:
            if not allow or destination.targets[0].provider in allow:
                steps = self._admit_named(
                    target_filter, f"direct/{destination.name}", destination.targets, "direct"
                )
                return _build_plan(target_filter, "direct", steps, destination.why)
            notices = (f"{destination.name} is not in the allow list {', '.join(allow)}",)
            destination = self._classified(target_filter.query)
        elif destination.name:
            raise ProviderNotAvailable.unknown(
                _shorten(destination.name), self.registry.near(destination.name)
            )
        steps = self._routed_steps(target_filter, destination.route)
        route = steps[0].route if steps else destination.route
        why = destination.why
        if route != destination.route:
            why = f"{why}; route {destination.route} has no usable target"
        return _build_plan(target_filter, route, steps, why, notices=notices)

    def _routed_steps(self, target_filter: TargetFilter, route: str) -> tuple[PlanStep, ...]:
        """Return the targets of the route, then of `default`; with an allow list, else of any route."""
        cooling = target_filter.cooling
        routes = [route, *([DEFAULT] if route != DEFAULT else [])]
        steps = self._admit_routes(target_filter, routes)
        if not steps and not cooling and (target_filter.rules.allow or self._restricted):
            others = [other for other in self.registry.routes if other not in routes]
            steps = self._admit_routes(target_filter, others)
        if not steps and not cooling:
            steps = target_filter.too_small()
        if not steps and not cooling and not target_filter.query.tried:
            raise self._no_target_error(target_filter)
        return steps

    def _admit_routes(self, target_filter: TargetFilter, routes: Iterable[str]) -> tuple[PlanStep, ...]:
        admitted = [self._admit_route(target_filter, route) for route in routes if self._pools(route)]
        return admitted[0] if len(admitted) == 1 else _distinct_steps(admitted)

    def _admit_route(self, target_filter: TargetFilter, route: str) -> tuple[PlanStep, ...]:
        query = target_filter.query
        pools = self._pools(route)
        steps = pools[0].order(affinity=query.affinity, next_turn=target_filter.next_turn)
        for pool in pools[1:]:
            steps += pool.order(affinity=query.affinity, next_turn=target_filter.next_turn)
        return target_filter.admit(steps, allow=target_filter.rules.allow, tokens=query.tokens)

    def _no_target_error(self, target_filter: TargetFilter) -> Exception:
        rules = target_filter.rules
        if any(removed.cause == "disabled" for removed in target_filter.removed):
            return target_filter.refusal()
        if rules.allow:
            return ProviderNotAvailable.not_allowed(*rules.allow, by_operator=not rules.allow_from_session)
        return NotFound("route 'default' has no targets; add some under [routing]", code="no_targets")


class RestrictedRouter(Router):
    """Plans requests of a client that may use a part of all targets only; `whole` has all of them.

    What is not allowed does not exist for it. Only a request that asks for such a target by name is told so.
    """

    def __init__(self, registry: Registry, whole: Registry) -> None:
        super().__init__(registry)
        self._restricted = True
        self._whole = whole

    def knows(self, name: str) -> bool:
        """Return whether the name exists for other clients."""
        return self._whole.resolve(name) is not None

    def _destination(self, query: RouteQuery) -> Destination:
        destination = super()._destination(query)
        if destination.targets or query.only_route is not None:
            return destination
        named = self._whole.alias_of(query.model)
        if named is not None and named.startswith("route:"):
            usable = self.has_route(named[6:]) or named[6:] not in self._whole.routes
        else:
            usable = not self._whole.targets_of(named or query.model)
        if usable:
            return destination
        return RefusedDestination(destination.route, destination.why, model=query.model)

    def _plan_forced(self, target_filter: TargetFilter, name: str) -> RoutePlan:
        if not self._named_targets(target_filter, name) and self.knows(name):
            raise NotPermitted(_shorten(name))
        return super()._plan_forced(target_filter, name)

    def _plan_sticky(self, target_filter: TargetFilter, name: str, destination: Destination) -> RoutePlan:
        if self._named_targets(target_filter, name):
            return super()._plan_sticky(target_filter, name, destination)
        # Another client of the session may use it: it stays set.
        plan = self._plan_unpinned(target_filter, destination)
        return replace(plan, reason=f"sticky {name} skipped, it is not allowed; {plan.reason}")

    def _plan_unpinned(self, target_filter: TargetFilter, destination: Destination) -> RoutePlan:
        if isinstance(destination, RefusedDestination):
            raise NotPermitted(_shorten(destination.model))
        return super()._plan_unpinned(target_filter, destination)

    def _no_target_error(self, target_filter: TargetFilter) -> Exception:
        if target_filter.rules.allow or target_filter.removed:
            return super()._no_target_error(target_filter)
        return NotPermitted("any target of the routes")


def _shorten(name: str) -> str:
    """Shorten a name from a client: reasons are logged and sent in headers."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _server_sticky(session: SessionState, server: ServerState) -> str | None:
    """Return the operator's sticky target, unless the session's own allow list excludes it."""
    name = server.sticky
    if name is None or (session.allow and name.partition(".")[0] not in session.allow):
        return None
    return name


def _build_plan(
    target_filter: TargetFilter,
    route: str,
    steps: tuple[PlanStep, ...],
    why: str,
    *,
    notices: tuple[str, ...] = (),
    only_provider: str | None = None,
) -> RoutePlan:
    return RoutePlan(
        route=route,
        steps=steps,
        reason=why,
        notices=notices,
        removed=tuple(target_filter.removed),
        cooling=tuple(target_filter.cooling),
        only_provider=only_provider,
    )


def _distinct_steps(stages: Iterable[Iterable[PlanStep]]) -> tuple[PlanStep, ...]:
    """Return all steps in order, each target at its first position."""
    steps: dict[Target, PlanStep] = {}
    for step in (step for stage in stages for step in stage):
        steps.setdefault(step.target, step)
    return tuple(steps.values())


_NO_RULES: Final = RoutingRules(None, None, False, (), False, ())
