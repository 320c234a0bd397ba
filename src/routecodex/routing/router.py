"""Plans a request: targets in order, with reasons.

The plan of one request: which targets to try, in which order, and why.

Disable rules remove targets before everything else. Then force > sticky > allow list > the model named in
the body > the routing table. Health comes last: what cools down is not tried, but may be waited for.

No IO, no clock and no randomness of its own: everything it depends on is an argument.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from routecodex.canon.errors import NotFound, ProviderNotAvailable
from routecodex.routing.pools import Draw, PoolSelector, one_group, pool_selectors
from routecodex.routing.registry import PlanStep, Registry, Selector, Target
from routecodex.routing.route_plan import DEFAULT, Destination, RoutePlan, RouteQuery, RoutingRules
from routecodex.routing.state import NO_SERVER_STATE, NOTHING_SET, ServerState, SessionState
from routecodex.routing.target_filter import CoolingTarget, RemovedTarget, TargetFilter, TargetHealth

__all__ = ["CoolingTarget", "RemovedTarget", "RoutePlan", "RouteQuery", "Router", "TargetHealth"]

_SETTLED: Final = 1024
_LONGEST_NAME: Final = 200

SPECIAL: Final = frozenset({"vision", "web_search", "longcontext"})
"""Routes that a request takes in spite of a sticky target."""


class Router:
    """The pools of a registry, made ready for planning."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._choices = functools.lru_cache(maxsize=256)(self._ready)
        # Each remembers orders of its own, and refers to itself by that: none is made anew for a request.
        self._group = functools.lru_cache(maxsize=1024)(self._grouped)
        self._quiet = NOTHING_SET, NO_SERVER_STATE
        self._settled: dict[tuple[str, str, str, str | None], RoutePlan] = {}
        routed = [len(list(self._all_steps(route))) for route in registry.routes]
        self.has_choice = max(routed, default=0) > 1 or any(
            len(provider.keys) > 1 for provider in registry.providers.values()
        )
        """Whether there is more than one target for any request."""
        self.routes_differ = any(self._choices(route) for route in registry.routes if route != DEFAULT)
        """Whether it matters what a request is classed as."""

    def plan(
        self,
        asked: RouteQuery,
        *,
        session: SessionState,
        server: ServerState,
        health: TargetHealth,
        now: float,
        draw: Draw,
    ) -> RoutePlan:
        """The targets to try; ProviderNotAvailable when a rule leaves none."""
        orders = self._orders(asked, session, server)
        if orders is _NO_ORDERS and health.quiet and self._is_plain(asked):
            return self._settled_plan(asked, health=health, now=now, draw=draw)
        sieve = TargetFilter(self.registry, orders.disabled, health=health, now=now, tried=asked.tried)
        if orders.force is not None:
            return self._forced(asked, orders.force, sieve, draw)
        bound = self._destination(asked)
        if orders.sticky is not None:
            return self._stuck(asked, orders, bound, sieve=sieve, draw=draw)
        return self._free(asked, orders, bound, sieve=sieve, draw=draw)

    def _is_plain(self, asked: RouteQuery) -> bool:
        """Whether nothing but the names in it decides where a request goes."""
        return (
            not self.has_choice
            and not asked.tried
            and asked.must is None
            and asked.tokens <= self.registry.smallest_context
        )

    def _settled_plan(self, asked: RouteQuery, *, health: TargetHealth, now: float, draw: Draw) -> RoutePlan:
        """The plan of all requests like this one, made once."""
        key = (asked.model, asked.route, asked.why, asked.hint)
        made = self._settled.get(key)
        if made is None:
            sieve = TargetFilter(self.registry, (), health=health, now=now, tried=asked.tried)
            made = self._free(asked, _NO_ORDERS, self._destination(asked), sieve=sieve, draw=draw)
            # Whoever sends ever new names must not fill the memory.
            if len(self._settled) < _SETTLED and len(asked.model) + len(asked.hint or "") <= _LONGEST_NAME:
                self._settled[key] = made
        return made

    def names_target(self, model: str) -> bool:
        """Whether a body's model names a target outright, so that nothing else about the request counts."""
        named = self.registry.alias_of(model)
        if named is not None and named.startswith("route:"):
            return False
        return bool(self.registry.targets_of(named or model))

    def has_route(self, name: str) -> bool:
        """Whether a route of this name has targets."""
        return name in self.registry.routes and bool(self._choices(name))

    def _ready(self, route: str) -> tuple[PoolSelector, ...]:
        return tuple(choice for choice in pool_selectors(self.registry, route) if choice.groups)

    def _orders(self, asked: RouteQuery, session: SessionState, server: ServerState) -> RoutingRules:
        if (session, server) == self._quiet:
            return _NO_ORDERS
        force = session.force
        sticky = session.sticky or _server_sticky(session, server)
        return RoutingRules(
            force=force.target if force is not None and force.turn == asked.turn else None,
            sticky=None if asked.ignore_sticky else sticky,
            sticky_is_ours=session.sticky is not None,
            allow=session.allow or server.allow,
            allow_is_ours=bool(session.allow),
            disabled=tuple(self._selectors((*server.disable, *session.disable))),
        )

    def _selectors(self, names: Iterable[str]) -> Iterator[Selector]:
        found = (self.registry.resolve(name, prefer="key") for name in names)
        return (selector for selector in found if selector is not None)

    def _destination(self, asked: RouteQuery) -> Destination:
        if asked.must is not None:
            return Destination(asked.must, f"too long for another route than {asked.must}")
        named = self.registry.alias_of(asked.model)
        if named is not None and named.startswith("route:"):
            return Destination(named[6:], f"alias {_brief(asked.model)} names route {named[6:]}")
        targets = self.registry.targets_of(named or asked.model)
        if targets:
            model = _brief(asked.model)
            why = f"alias {model} names {named}" if named else f"model {model} names the target"
            return Destination("direct", why, targets, named or asked.model)
        return self._classed(asked)

    def _classed(self, asked: RouteQuery) -> Destination:
        """Where the request goes whose model names nothing: by the host's word, else by its class."""
        if asked.hint is not None and self.has_route(asked.hint):
            return Destination(asked.hint, f"the host asked for route {asked.hint}")
        return Destination(asked.route, asked.why)

    def _forced(self, asked: RouteQuery, name: str, sieve: TargetFilter, draw: Draw) -> RoutePlan:
        targets = self._insisted(name, asked, sieve)
        if not targets:
            raise ProviderNotAvailable.unknown(name)
        steps = sieve.admit(
            self._group(name, targets, "force", "force").order(affinity=asked.affinity, draw=draw)
        )
        if not steps and not sieve.cooling and not asked.tried:
            raise sieve.refusal()
        why = f"this message asks for {name}"
        return _made(sieve, "force", steps, why, only=targets[0].provider)

    def _insisted(self, name: str, asked: RouteQuery, sieve: TargetFilter) -> tuple[Target, ...]:
        """The targets of a name that a person typed; a key alone gets the model routing would choose."""
        selector = self.registry.resolve(name)
        if selector is None:
            return ()
        if selector.model is not None:
            return tuple(self.registry.covered(selector))
        choices = [
            tuple(self.registry.covered(Selector(selector.provider, selector.key, model)))
            for model in dict.fromkeys(self._models_of(selector.provider, asked))
        ]
        # Routing would not choose what is disabled; where all of it is, the refusal names the first.
        usable = (targets for targets in choices if not all(map(sieve.disables, targets)))
        return next(usable, choices[0] if choices else ())

    def _models_of(self, provider: str, asked: RouteQuery) -> Iterator[str]:
        """The models of a provider, the one routing would choose first."""
        models = self.registry.providers[provider].models
        bound = self._destination(asked)
        named = [asked.model, *(target.model for target in bound.targets if target.provider == provider)]
        routes = (bound.route, DEFAULT, *self.registry.routes)
        routed = (
            step.target.model
            for route in routes
            for step in self._all_steps(route)
            if step.target.provider == provider
        )
        return (model for model in (*named, *routed, *models) if model in models)

    def _all_steps(self, route: str) -> Iterator[PlanStep]:
        return (step for choice in self._choices(route) for group in choice.groups for step in group.steps)

    def _stuck(
        self, asked: RouteQuery, orders: RoutingRules, bound: Destination, *, sieve: TargetFilter, draw: Draw
    ) -> RoutePlan:
        """First a route that sticky gives way to, then the sticky keys; the table when they are of no use."""
        assert orders.sticky is not None
        special: tuple[PlanStep, ...] = ()
        if bound.route in SPECIAL and self.has_route(bound.route):
            special = sieve.admit(
                self._of_route(bound.route, asked, draw), allow=orders.allow, tokens=asked.tokens
            )
        kept = self._sticky_steps(orders.sticky, asked, sieve, draw)
        if kept or self._is_back_soon(sieve, asked):
            route = special[0].route if special else next((step.route for step in kept), "sticky")
            why = f"{bound.why}; then sticky {orders.sticky}" if special else f"sticky {orders.sticky}"
            return _made(sieve, route, _once((special, kept)), why)
        plan = self._free(asked, orders, bound, sieve=sieve.again(), draw=draw)
        failed_once = any(row.why == "tried" and row.step.reason == "sticky" for row in sieve.removed)
        gone = orders.sticky_is_ours and not failed_once
        said = "cleared, no key of it can be used" if gone else "passed over, no key of it can be used now"
        return replace(
            plan,
            reason=f"sticky {orders.sticky} {said}; {plan.reason}",
            removed=(*sieve.removed, *plan.removed),
            clears_sticky=gone,
        )

    def _sticky_steps(
        self, name: str, asked: RouteQuery, sieve: TargetFilter, draw: Draw
    ) -> tuple[PlanStep, ...]:
        targets = self._insisted(name, asked, sieve)
        if not targets:
            return ()
        choice = self._group(f"sticky/{name}", targets, "sticky", self._route_with(targets))
        return sieve.admit(choice.order(affinity=None, draw=draw))

    def _route_with(self, targets: Sequence[Target]) -> str:
        """The route that really contains one of the targets."""
        for route in self.registry.routes:
            if any(step.target in targets for step in self._all_steps(route)):
                return route
        return "sticky"

    def _is_back_soon(self, sieve: TargetFilter, asked: RouteQuery) -> bool:
        return any(
            row.until <= sieve.now + asked.max_wait for row in sieve.cooling if row.step.reason == "sticky"
        )

    def _free(
        self, asked: RouteQuery, orders: RoutingRules, bound: Destination, *, sieve: TargetFilter, draw: Draw
    ) -> RoutePlan:
        """Without force and sticky: the named model, else the table, both within the allow list."""
        notices: tuple[str, ...] = ()
        if bound.targets:
            if not orders.allow or bound.targets[0].provider in orders.allow:
                return self._straight(asked, bound, sieve=sieve, draw=draw)
            notices = (f"{bound.name} is not in the allow list {', '.join(orders.allow)}",)
            bound = self._classed(asked)
        steps = self._tabled(asked, orders, bound, sieve=sieve, draw=draw)
        route = steps[0].route if steps else bound.route
        why = bound.why if route == bound.route else f"{bound.why}; route {bound.route} has no target to use"
        return _made(sieve, route, steps, why, notices=notices)

    def _straight(
        self, asked: RouteQuery, bound: Destination, *, sieve: TargetFilter, draw: Draw
    ) -> RoutePlan:
        choice = self._group(f"direct/{bound.name}", bound.targets, "direct", "direct")
        steps = sieve.admit(choice.order(affinity=asked.affinity, draw=draw))
        if not steps and not sieve.cooling and not asked.tried:
            raise sieve.refusal()
        return _made(sieve, "direct", steps, bound.why)

    def _grouped(self, name: str, targets: tuple[Target, ...], reason: str, route: str) -> PoolSelector:
        return one_group(name, (PlanStep(target, reason, route) for target in targets))

    def _tabled(
        self, asked: RouteQuery, orders: RoutingRules, bound: Destination, *, sieve: TargetFilter, draw: Draw
    ) -> tuple[PlanStep, ...]:
        """The targets of the route and then those of `default`; with an allow list, of any route at need."""
        routes = [bound.route, *([DEFAULT] if bound.route != DEFAULT else [])]
        steps = self._admitted(routes, asked, orders, sieve=sieve, draw=draw)
        if not steps and not sieve.cooling and orders.allow:
            others = [route for route in self.registry.routes if route not in routes]
            steps = self._admitted(others, asked, orders, sieve=sieve, draw=draw)
        if not steps and not sieve.cooling:
            steps = sieve.too_small()
        if not steps and not sieve.cooling and not asked.tried:
            raise self._nothing_left(orders, sieve)
        return steps

    def _admitted(
        self,
        routes: Iterable[str],
        asked: RouteQuery,
        orders: RoutingRules,
        *,
        sieve: TargetFilter,
        draw: Draw,
    ) -> tuple[PlanStep, ...]:
        admitted = [
            sieve.admit(self._of_route(route, asked, draw), allow=orders.allow, tokens=asked.tokens)
            for route in routes
            if self._choices(route)
        ]
        return admitted[0] if len(admitted) == 1 else _once(admitted)

    def _of_route(self, route: str, asked: RouteQuery, draw: Draw) -> tuple[PlanStep, ...]:
        choices = self._choices(route)
        if len(choices) == 1:
            return choices[0].order(affinity=asked.affinity, draw=draw)
        return tuple(step for choice in choices for step in choice.order(affinity=asked.affinity, draw=draw))

    def _nothing_left(self, orders: RoutingRules, sieve: TargetFilter) -> Exception:
        if any(removed.why == "disabled" for removed in sieve.removed):
            return sieve.refusal()
        if orders.allow:
            return ProviderNotAvailable.not_allowed(*orders.allow, by_operator=not orders.allow_is_ours)
        return NotFound("route 'default' has no targets; add some under [routing]", code="no_targets")


def _brief(name: str) -> str:
    """A name that a client sent, as a reason tells it: reasons are kept, and go into headers."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def _server_sticky(session: SessionState, server: ServerState) -> str | None:
    """The operator's sticky target, unless the session's own allow list speaks against it."""
    name = server.sticky
    if name is None or (session.allow and name.partition(".")[0] not in session.allow):
        return None
    return name


def _made(
    sieve: TargetFilter,
    route: str,
    steps: tuple[PlanStep, ...],
    why: str,
    *,
    notices: tuple[str, ...] = (),
    only: str | None = None,
) -> RoutePlan:
    return RoutePlan(
        route=route,
        steps=steps,
        reason=why,
        notices=notices,
        removed=tuple(sieve.removed),
        cooling=tuple(sieve.cooling),
        only=only,
    )


def _once(stages: Iterable[Iterable[PlanStep]]) -> tuple[PlanStep, ...]:
    """All steps in order, each target where it comes first."""
    steps: dict[Target, PlanStep] = {}
    for step in (step for stage in stages for step in stage):
        steps.setdefault(step.target, step)
    return tuple(steps.values())


_NO_ORDERS: Final = RoutingRules(None, None, False, (), False, ())
