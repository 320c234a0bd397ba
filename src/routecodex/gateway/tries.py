"""The attempts at one request: the plan's targets in order, a bounded wait when all of them cool down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from routecodex.canon.errors import (
    GatewayError,
    Overloaded,
    ProviderNotAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamRejected,
)
from routecodex.gateway.exchange import Exchange
from routecodex.gateway.health import Health
from routecodex.gateway.keep_alive import KeepAlive
from routecodex.protocols.failures import overflows
from routecodex.routing.plan import Cooling, Plan
from routecodex.routing.registry import Step, Target

LONG = "longcontext"
_SOON = 0.05
"""The shortest wait: a probe that another request has taken is looked at again after it."""


class Planner(Protocol):
    """Plans this request again, in the light of what has failed it; `must` is where it must go now."""

    def __call__(self, tried: frozenset[Target], must: str | None) -> Plan: ...


class Tries:
    """Tries targets until one answers; what fails is told to health."""

    def __init__(
        self,
        exchange: Exchange,
        planner: Planner,
        *,
        health: Health,
        clock: Callable[[], float],
        max_attempts: int,
        max_wait: float,
    ) -> None:
        self._exchange = exchange
        self._planner = planner
        self._health = health
        self._clock = clock
        self._left = max_attempts
        self._patience = max_wait
        self._tried: frozenset[Target] = frozenset()
        self._failures: list[UpstreamError] = []
        self._must: str | None = None

    async def run(self, plan: Plan) -> None:
        """Answers the request, or raises what a client must be told."""
        keep_alive = self._exchange.keep_alive()
        try:
            while not await self._answered(plan, keep_alive):
                plan = await self._next()
        finally:
            if keep_alive is not None:
                keep_alive.stop()

    async def _answered(self, plan: Plan, keep_alive: KeepAlive | None) -> bool:
        self._exchange.note(plan)
        must = self._must
        for step in plan.steps:
            if not self._left:
                raise worst(self._failures)
            if not self._health.claim(step.target, self._clock()):
                continue
            self._left -= 1
            if await self._try(step, plan, keep_alive):
                return True
            if must != self._must:
                break
        return False

    async def _try(self, step: Step, plan: Plan, keep_alive: KeepAlive | None) -> bool:
        target = step.target
        began = self._clock()
        try:
            await self._exchange.attempt(step, keep_alive)
        except UpstreamRejected as error:
            self._health.release(target)
            self._after_rejection(error, plan)
            return False
        except UpstreamError as error:
            self._health.failed(target, error)
            self._failures.append(error)
            self._tried |= {target}
            return False
        except BaseException:
            self._health.release(target)
            raise
        self._settle(target, began)
        return True

    def _settle(self, target: Target, began: float) -> None:
        broken = self._exchange.record.error
        if isinstance(broken, UpstreamRejected) or (
            broken is not None and not isinstance(broken, UpstreamError)
        ):
            self._health.release(target)
        elif broken is not None:
            self._health.failed(target, broken)
        else:
            self._health.succeeded(target, began=began)

    def _after_rejection(self, error: UpstreamRejected, plan: Plan) -> None:
        """A request too long for the model goes to `longcontext` once; any other rejection is final."""
        chosen = plan.only is not None or plan.route == "direct"
        if chosen or self._must is not None or plan.route == LONG or not overflows(error):
            raise error
        if self._planner(self._tried, LONG).route != LONG:
            raise error
        self._must = LONG
        self._failures.append(error)

    async def _next(self) -> Plan:
        """What to try now that nothing has answered; waits for it if it must."""
        made = self._planner(self._tried, self._must)
        while not made.steps:
            await self._wait(made)
            made = self._planner(self._tried, self._must)
        return made

    async def _wait(self, plan: Plan) -> None:
        now = self._clock()
        soonest = min((row.until for row in plan.cooling), default=math.inf)
        seconds = max(soonest - now, _SOON)
        if seconds > self._patience or not self._left:
            raise self._given_up(plan, now)
        self._patience -= seconds
        await asyncio.sleep(seconds)
        self._tried -= {row.step.target for row in plan.cooling if row.until <= self._clock()}

    def _given_up(self, plan: Plan, now: float) -> GatewayError:
        wait = min((row.until for row in plan.cooling), default=now) - now
        if self._failures:
            error = worst(self._failures)
            if error.retry_after is None and wait > 0:
                error.retry_after = wait
            return error
        if plan.only is not None:
            return ProviderNotAvailable.unhealthy(plan.only, retry_after=wait)
        return all_cooling(plan.cooling, wait=wait)


def all_cooling(cooling: Sequence[Cooling], *, wait: float) -> GatewayError:
    """Nothing can be used for a while: a limit only if all are limited; the earlier errors are told."""
    if not cooling:
        return UpstreamFailed("no target was tried", code="no_targets")
    told = f"every target is cooling down: {'; '.join(row.reason for row in cooling[:3])}"
    if all(row.is_limit for row in cooling):
        return UpstreamLimited(told, retry_after=wait, provider=cooling[0].step.target.provider)
    return Overloaded(told, retry_after=wait, code="all_targets_cooling")


def worst(failures: Sequence[UpstreamError]) -> GatewayError:
    """What to tell a client when every target failed: a limit only if all were limited."""
    if not failures:
        return UpstreamFailed("no target was tried", code="no_targets")
    limited = [error for error in failures if isinstance(error, UpstreamLimited)]
    if len(limited) == len(failures):
        return min(limited, key=lambda error: error.retry_after or 60.0)
    return next(error for error in reversed(failures) if not isinstance(error, UpstreamLimited))
