"""The attempts at one request: the plan's targets in order, a bounded wait when all of them cool down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from routecodex.canon.errors import (
    GatewayError,
    Overloaded,
    ProviderNotAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
)
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.request import RequestRecord
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.protocols.upstream_errors import is_context_overflow
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan
from routecodex.routing.target_filter import CoolingTarget

LONG_CONTEXT = "longcontext"

_SOON = 0.05
"""The shortest wait: a probe that another request has taken is looked at again after it."""
_BRIEF = 200
_TOLD = 3


class Planner(Protocol):
    """Plans this request again, in the light of what has failed it; `must` is where it must go now."""

    def __call__(self, tried: frozenset[Target], must: str | None) -> RoutePlan: ...


class Attempts(Protocol):
    """What tries a target: an exchange, or one round of several."""

    record: RequestRecord

    async def attempt(self, step: PlanStep, keep_alive: KeepAlive | None) -> None: ...
    def note(self, plan: RoutePlan) -> None: ...
    def keep_alive(self) -> KeepAlive | None: ...


class Failover:
    """Tries targets until one answers; what fails is told to health."""

    def __init__(
        self,
        exchange: Attempts,
        planner: Planner,
        *,
        health: KeyHealth,
        clock: Callable[[], float],
        max_attempts: int,
        max_wait: float,
        let_go: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._exchange = exchange
        self._planner = planner
        self._health = health
        self._clock = clock
        self._left = max_attempts
        self._let_go = let_go
        self._patience = max_wait
        self._tried: frozenset[Target] = frozenset()
        self._failures: list[UpstreamError] = []
        self._must: str | None = None

    async def run(self, plan: RoutePlan) -> None:
        """Answers the request, or raises what a client must be told; the error knows where it was tried."""
        keep_alive = self._exchange.keep_alive()
        try:
            while not await self._answered(plan, keep_alive):
                plan = await self._next()
        except GatewayError as error:
            record = self._exchange.record
            error.routed = (record.route, str(record.target or ""), record.reason)
            raise
        finally:
            # One of them may be raised, and then refers back to this object.
            self._failures.clear()
            if keep_alive is not None:
                keep_alive.stop()

    async def _answered(self, plan: RoutePlan, keep_alive: KeepAlive | None) -> bool:
        if plan.clears_sticky and self._let_go is not None:
            await self._let_go()
        self._exchange.note(plan)
        must = self._must
        for step in plan.steps:
            if not self._left:
                raise self._given_up(self._planned(), self._clock())
            if not self._health.claim(step.target, self._clock()) and not await self._is_probe(step.target):
                continue
            self._left -= 1
            if await self._try(step, plan, keep_alive):
                return True
            if must != self._must:
                break
        return False

    async def _is_probe(self, target: Target) -> bool:
        return await self._health.probe(target, self._clock(), by=self)

    async def _try(self, step: PlanStep, plan: RoutePlan, keep_alive: KeepAlive | None) -> bool:
        target = step.target
        began = self._clock()
        try:
            await self._exchange.attempt(step, keep_alive)
        except UpstreamError as error:
            self._note_failure(target, error)
            if isinstance(error, UpstreamRejected):
                self._after_rejection(error, plan)
            return False
        except BaseException:
            self._health.release(target, by=self)
            raise
        self._settle(target, began)
        return True

    def _note_failure(self, target: Target, error: UpstreamError) -> None:
        self._health.failed(target, error, by=self)
        self._failures.append(error.detached())
        self._tried |= {target}
        self._exchange.record.failures.append(_brief(target, error))

    def _settle(self, target: Target, began: float) -> None:
        broken = self._exchange.record.error
        if isinstance(broken, UpstreamRejected) or (
            broken is not None and not isinstance(broken, UpstreamError)
        ):
            self._health.release(target, by=self)
        elif broken is not None:
            self._health.failed(target, broken, by=self)
        else:
            self._health.succeeded(target, began=began, by=self)

    def _after_rejection(self, error: UpstreamRejected, plan: RoutePlan) -> None:
        """A request too long for the model goes to `longcontext` once; any other rejection is final."""
        chosen = plan.only_provider is not None or plan.route == "direct"
        if chosen or self._must is not None or plan.route == LONG_CONTEXT or not is_context_overflow(error):
            raise error
        self._must = LONG_CONTEXT
        planned = self._planned()
        if not planned.steps and not planned.cooling:
            raise error

    async def _next(self) -> RoutePlan:
        """What to try now that nothing has answered; waits for it if it must."""
        made = self._planned()
        while not made.steps:
            await self._wait(made)
            made = self._planned()
        return made

    def _planned(self) -> RoutePlan:
        made = self._planner(self._tried, self._must)
        if self._must is None:
            return made
        # The targets of any other route are too small: that is why this one was chosen.
        return replace(
            made,
            steps=tuple(step for step in made.steps if step.route == self._must),
            removed=tuple(row for row in made.removed if row.step.route == self._must),
            cooling=tuple(row for row in made.cooling if row.step.route == self._must),
        )

    async def _wait(self, plan: RoutePlan) -> None:
        now = self._clock()
        soonest = min((row.until for row in plan.cooling), default=math.inf)
        seconds = max(soonest - now, _SOON)
        if seconds > self._patience or not self._left:
            raise self._given_up(plan, now)
        self._patience -= seconds
        await asyncio.sleep(seconds)
        self._tried -= {row.step.target for row in plan.cooling if row.until <= self._clock()}

    def _given_up(self, plan: RoutePlan, now: float) -> GatewayError:
        wait = min((row.until for row in plan.cooling), default=now) - now
        if self._failures:
            could_answer = plan.steps or any(row.cause == "tried" for row in plan.removed)
            all_rest = plan.cooling and not could_answer
            return cooling_error(self._failures, wait=wait) if all_rest else worst_failure(self._failures)
        if plan.only_provider is not None:
            unhealthy = ProviderNotAvailable.unhealthy(plan.only_provider, retry_after=wait)
            unhealthy.notices = tuple(row.reason for row in plan.cooling[:_TOLD])
            return unhealthy
        return all_cooling_error(plan.cooling, wait=wait)


def _brief(target: Target, error: UpstreamError) -> str:
    """One failed attempt in a line of the log."""
    status = f"HTTP {error.upstream_status}: " if error.upstream_status else ""
    return f"{target}: {status}{error.message[:_BRIEF]}"


def cooling_error(failures: Sequence[UpstreamError], *, wait: float) -> GatewayError:
    """What to tell a client whose request met these failures, now that every target rests because of them.

    It is told to come back later, but for what waiting does not help: a request that is wrong, keys that were
    all refused. An overload keeps its own status, which some protocols have a word for.
    """
    error = worst_failure(failures)
    refused = all(isinstance(one, UpstreamRefusedKey) for one in _met(failures))
    if isinstance(error, UpstreamRejected) or refused:
        return error
    if not isinstance(error, UpstreamLimited | UpstreamOverloaded):
        told = f"every target is cooling down: {error.message}"
        return Overloaded(told, retry_after=wait, code="all_targets_cooling")
    error.retry_after = wait
    return error


def all_cooling_error(cooling: Sequence[CoolingTarget], *, wait: float) -> GatewayError:
    """Nothing can be used for a while: a limit only if all are limited; the earlier errors are told."""
    if not cooling:
        return UpstreamFailed("no target was tried", code="no_targets")
    told = f"every target is cooling down: {'; '.join(row.reason for row in cooling[:_TOLD])}"
    if all(row.is_limit for row in cooling):
        return UpstreamLimited(told, retry_after=wait, provider=cooling[0].step.target.provider)
    return Overloaded(told, retry_after=wait, code="all_targets_cooling")


def worst_failure(failures: Sequence[UpstreamError]) -> GatewayError:
    """What to tell a client when every target failed: a limit only if all were limited.

    That one target was too small is of interest only where no larger one was tried.
    """
    if not failures:
        return UpstreamFailed("no target was tried", code="no_targets")
    met = _met(failures)
    limited = [error for error in met if isinstance(error, UpstreamLimited)]
    if len(limited) == len(met):
        return min(limited, key=lambda error: error.retry_after or 60.0)
    return next(error for error in reversed(met) if not isinstance(error, UpstreamLimited))


def _met(failures: Sequence[UpstreamError]) -> Sequence[UpstreamError]:
    return [error for error in failures if not isinstance(error, UpstreamRejected)] or failures
