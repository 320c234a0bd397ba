"""Input and output of the router."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from routecodex.routing.registry import PlanStep, Selector, Target
from routecodex.routing.target_filter import CoolingTarget, RemovedTarget

DEFAULT: Final = "default"
_NONE: Final[frozenset[Target]] = frozenset()


class RouteQuery:
    """The facts of a request that routing needs.

    `route` is the class of the request, `why` its reason, `hint` the route of `metadata.routeHint`.
    `affinity` identifies the conversation, if known. `turn` identifies the newest user message. Targets in
    `tried` have failed for this request; `only_route` is the only route left for it.
    """

    __slots__ = (
        "affinity",
        "hint",
        "ignore_sticky",
        "max_wait",
        "model",
        "only_route",
        "route",
        "tokens",
        "tried",
        "turn",
        "why",
    )

    def __init__(
        self,
        *,
        model: str,
        tokens: int = 0,
        route: str = DEFAULT,
        why: str = "no rule names another route",
        hint: str | None = None,
        only_route: str | None = None,
        ignore_sticky: bool = False,
        affinity: str | None = None,
        turn: str | None = None,
        tried: frozenset[Target] = _NONE,
        max_wait: float = 0.0,
    ) -> None:
        self.model: Final = model
        self.tokens: Final = tokens
        self.route: Final = route
        self.why: Final = why
        self.hint: Final = hint
        self.only_route: Final = only_route
        self.ignore_sticky: Final = ignore_sticky
        self.affinity: Final = affinity
        self.turn: Final = turn
        self.tried: Final = tried
        self.max_wait: Final = max_wait

    def retry(self, *, tried: frozenset[Target], only_route: str | None) -> RouteQuery:
        """Return the query for the same request after failed attempts."""
        return self._with(turn=self.turn, tried=tried, only_route=only_route)

    def at_turn(self, turn: str | None) -> RouteQuery:
        """Return the query for the same request with this turn."""
        return self._with(turn=turn, tried=self.tried, only_route=self.only_route)

    def _with(self, *, turn: str | None, tried: frozenset[Target], only_route: str | None) -> RouteQuery:
        return RouteQuery(
            model=self.model,
            tokens=self.tokens,
            route=self.route,
            why=self.why,
            hint=self.hint,
            only_route=only_route,
            ignore_sticky=self.ignore_sticky,
            affinity=self.affinity,
            turn=turn,
            tried=tried,
            max_wait=self.max_wait,
        )


class NotPermitted(Exception):
    """A client may use none of the targets of its request; `subject` names them."""

    def __init__(self, subject: str) -> None:
        super().__init__(subject)
        self.subject = subject


def failed_provider(tried: frozenset[Target], *, attempts_left: int, max_attempts: int) -> str | None:
    """Return the provider to leave for the last third of the attempts: that of all attempts so far.

    A provider with many keys could otherwise take all attempts of a request while it is down.
    """
    if attempts_left > max_attempts // 3:
        return None
    providers = {target.provider for target in tried}
    return providers.pop() if len(providers) == 1 else None


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """The targets of one request in order, with every reason.

    The gateway may wait for `cooling` if `steps` is empty. `only_provider` is that of a forced target.
    `clears_sticky`: the sticky target of the session cannot be used any more.
    """

    route: str
    steps: tuple[PlanStep, ...]
    reason: str
    notices: tuple[str, ...] = ()
    removed: tuple[RemovedTarget, ...] = ()
    cooling: tuple[CoolingTarget, ...] = ()
    only_provider: str | None = None
    clears_sticky: bool = False

    def with_provider_last(self, provider: str) -> RoutePlan:
        """Return the same plan with the targets of a provider last."""
        return self.in_order(sorted(self.steps, key=lambda step: step.target.provider == provider))

    def in_order(self, steps: Iterable[PlanStep]) -> RoutePlan:
        """Return the same plan with its steps in another order."""
        return replace(self, steps=tuple(steps))


@dataclass(frozen=True)
class Destination:
    """The targets that the model in the body names, or a route.

    A `name` without targets is a model that its provider does not have.
    """

    route: str
    why: str
    targets: tuple[Target, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class RefusedDestination(Destination):
    """Targets or a route that the model in the body names, and that the client may not use."""

    model: str = ""


@dataclass(frozen=True)
class RoutingRules:
    """The rules in force for one request."""

    force: str | None
    sticky: str | None
    sticky_from_session: bool
    allow: tuple[str, ...]
    allow_from_session: bool
    disabled: tuple[Selector, ...]
