"""What keeps a target out of a plan: a rule, its size, what this request has met already, or its health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from routecodex.canon.errors import ProviderNotAvailable
from routecodex.routing.registry import PlanStep, Registry, Selector, Target

RemovalCause = Literal["disabled", "not allowed", "too small", "tried"]


class RemovedTarget(Struct, frozen=True):
    """A target that is not tried, and the rule that took it out."""

    step: PlanStep
    cause: RemovalCause
    reason: str


class CoolingTarget(Struct, frozen=True):
    """A target that is not tried now, and when it can be."""

    step: PlanStep
    until: float
    reason: str
    is_limit: bool = False
    """It cools because a limit was met, and not because it failed."""


class TargetHealth(Protocol):
    """Which targets can be used, and from when on."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is wrong with any target."""
        ...

    def until(self, target: Target, now: float) -> float:
        """When it can be used; 0 for now."""
        ...

    def why(self, target: Target, now: float) -> str: ...
    def is_limit(self, target: Target, now: float) -> bool: ...


class TargetFilter:
    """Lets targets into one plan, and remembers why the others stayed out."""

    __slots__ = ("_disabled", "_health", "_registry", "_tried", "cooling", "now", "removed")

    def __init__(
        self,
        registry: Registry,
        disabled: Sequence[Selector],
        *,
        health: TargetHealth,
        now: float,
        tried: frozenset[Target],
    ) -> None:
        self._registry = registry
        self._disabled = disabled
        self._health = health
        self._tried = tried
        self.now = now
        self.removed: list[RemovedTarget] = []
        self.cooling: list[CoolingTarget] = []

    def admit(
        self, steps: tuple[PlanStep, ...], *, allow: tuple[str, ...] = (), tokens: int = 0
    ) -> tuple[PlanStep, ...]:
        """The steps that can be tried now, in their order."""
        sized = tokens > self._registry.smallest_context
        if not (allow or sized or self._disabled or self._tried) and self._health.quiet:
            return steps
        return tuple(step for step in steps if self._admits(step, allow, tokens if sized else 0))

    def disables(self, target: Target) -> bool:
        """Whether a rule takes the target out before everything else."""
        return any(selector.covers(target) for selector in self._disabled)

    def _admits(self, step: PlanStep, allow: tuple[str, ...], tokens: int) -> bool:
        target = step.target
        if self.disables(target):
            return self._remove(step, "disabled", "disabled")
        if allow and target.provider not in allow:
            return self._remove(step, "not allowed", f"not in the allow list {', '.join(allow)}")
        room = self._registry.model(target).context_tokens if tokens else None
        if room is not None and room < tokens:
            return self._remove(step, "too small", f"holds {room} tokens, the request has about {tokens}")
        until = self._health.until(target, self.now)
        if until > self.now:
            health, now = self._health, self.now
            self.cooling.append(
                CoolingTarget(step, until, health.why(target, now), health.is_limit(target, now))
            )
            return False
        if target in self._tried:
            return self._remove(step, "tried", "failed this request already")
        return True

    def _remove(self, step: PlanStep, cause: RemovalCause, reason: str) -> Literal[False]:
        self.removed.append(RemovedTarget(step, cause, reason))
        return False

    def again(self) -> TargetFilter:
        """The same target_filter, nothing remembered."""
        return TargetFilter(
            self._registry, self._disabled, health=self._health, now=self.now, tried=self._tried
        )

    def too_small(self) -> tuple[PlanStep, ...]:
        """Those left out for their size alone, the largest first: an estimate is no reason to refuse."""
        rows = [
            row for row in self.removed if row.cause == "too small" and row.step.target not in self._tried
        ]
        self.removed = [row for row in self.removed if row not in rows]
        return tuple(sorted((row.step for row in rows), key=self._context_tokens, reverse=True))

    def _context_tokens(self, step: PlanStep) -> int:
        return self._registry.model(step.target).context_tokens or 0

    def refusal(self) -> ProviderNotAvailable:
        """Everything that could be used is disabled: the error that says what."""
        targets = [row.step.target for row in self.removed if row.cause == "disabled"]
        providers = dict.fromkeys(target.provider for target in targets)
        whole = [name for name in providers if Selector(name) in self._disabled]
        names = whole or [str(target) for target in targets]
        return ProviderNotAvailable.disabled(names[0])
