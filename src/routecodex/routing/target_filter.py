"""Admits targets to a plan by rules, context size, earlier attempts and health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from routecodex.canon.errors import ProviderNotAvailable
from routecodex.routing.pools import NextTurn
from routecodex.routing.registry import PlanStep, Registry, Selector, Target

if TYPE_CHECKING:
    from routecodex.routing.route_plan import RouteQuery, RoutingRules

RemovalCause = Literal["disabled", "not allowed", "too small", "tried", "no price"]


class RemovedTarget(Struct, frozen=True):
    """A target that is not tried, and the rule that removed it."""

    step: PlanStep
    cause: RemovalCause
    reason: str


class CoolingTarget(Struct, frozen=True):
    """A target in cooldown, and the time it can be used again."""

    step: PlanStep
    until: float
    reason: str
    is_limit: bool = False
    """The cause is a limit of the provider, not a failure."""


class TargetHealth(Protocol):
    """Health of all targets, as far as plans depend on it."""

    @property
    def quiet(self) -> bool:
        """Whether all targets can be used."""
        ...

    def until(self, target: Target, now: float) -> float:
        """Return the time from which the target can be used; 0 for now."""
        ...

    def why(self, target: Target, now: float) -> str: ...
    def is_limit(self, target: Target, now: float) -> bool: ...


class TargetFilter:
    """Admits targets to one plan, by the rules in force for its query, and records why others stay out."""

    __slots__ = ("_health", "_registry", "cooling", "next_turn", "now", "query", "removed", "rules")

    def __init__(
        self,
        registry: Registry,
        query: RouteQuery,
        rules: RoutingRules,
        *,
        health: TargetHealth,
        now: float,
        next_turn: NextTurn,
    ) -> None:
        self.query = query
        self.rules = rules
        self.now = now
        self.next_turn = next_turn
        self.removed: list[RemovedTarget] = []
        self.cooling: list[CoolingTarget] = []
        self._registry = registry
        self._health = health

    def admit(
        self, steps: tuple[PlanStep, ...], *, allow: tuple[str, ...] = (), tokens: int = 0
    ) -> tuple[PlanStep, ...]:
        """Return the steps that can be tried now, in their order."""
        sized = tokens > self._registry.smallest_context
        if not (allow or sized or self.rules.disabled or self.query.tried) and self._health.quiet:
            return steps
        return tuple(step for step in steps if self._admits(step, allow, tokens if sized else 0))

    def disables(self, target: Target) -> bool:
        """Return whether a disable rule covers the target."""
        return any(selector.covers(target) for selector in self.rules.disabled)

    def _admits(self, step: PlanStep, allow: tuple[str, ...], tokens: int) -> bool:
        target = step.target
        if self.disables(target):
            return self._remove(step, "disabled", "disabled")
        if allow and target.provider not in allow:
            return self._remove(step, "not allowed", f"not in the allow list {', '.join(allow)}")
        context = self._registry.model(target).context_tokens if tokens else None
        if context is not None and context < tokens:
            return self._remove(step, "too small", f"holds {context} tokens, the request has about {tokens}")
        until = self._health.until(target, self.now)
        if until > self.now:
            health, now = self._health, self.now
            self.cooling.append(
                CoolingTarget(step, until, health.why(target, now), health.is_limit(target, now))
            )
            return False
        if target in self.query.tried:
            return self._remove(step, "tried", "failed this request already")
        return True

    def _remove(self, step: PlanStep, cause: RemovalCause, reason: str) -> Literal[False]:
        self.removed.append(RemovedTarget(step, cause, reason))
        return False

    def again(self) -> TargetFilter:
        """Return an empty filter with the same rules."""
        return TargetFilter(
            self._registry,
            self.query,
            self.rules,
            health=self._health,
            now=self.now,
            next_turn=self.next_turn,
        )

    def too_small(self) -> tuple[PlanStep, ...]:
        """Return the targets removed for their size, largest first: an estimate does not justify an error."""
        rows = [
            row
            for row in self.removed
            if row.cause == "too small" and row.step.target not in self.query.tried
        ]
        self.removed = [row for row in self.removed if row not in rows]
        return tuple(sorted((row.step for row in rows), key=self._context_tokens, reverse=True))

    def _context_tokens(self, step: PlanStep) -> int:
        return self._registry.model(step.target).context_tokens or 0

    def refusal(self) -> ProviderNotAvailable:
        """Return the error for a plan whose targets are all disabled."""
        targets = [row.step.target for row in self.removed if row.cause == "disabled"]
        providers = dict.fromkeys(target.provider for target in targets)
        whole = [name for name in providers if Selector(name) in self.rules.disabled]
        names = whole or [str(target) for target in targets]
        return ProviderNotAvailable.disabled(names[0])
