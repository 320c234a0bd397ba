"""Tries targets in plan order until an answer has content; waits briefly when all are cooling down."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Protocol, TypeVar

from msgspec.structs import replace as replace_state

from routecodex.canon.errors import (
    GatewayError,
    Overloaded,
    ProviderNotAvailable,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOutOfCredit,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamUnknownModel,
)
from routecodex.canon.notices import Notices
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.records import FailedAttempt
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.request_limits import NO_PRICE, CallLimits, RouteInstead
from routecodex.gateway.services import GatewayServices
from routecodex.gateway.state.key_health import unusable_key_error
from routecodex.gateway.state.sessions import StateNotSaved
from routecodex.protocols.upstream_errors import is_context_overflow, names_unknown_model
from routecodex.routing.cooldown import outcome_of
from routecodex.routing.pools import NextTurn
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery, failed_provider
from routecodex.routing.state import without_sticky
from routecodex.routing.target_filter import CoolingTarget, RemovedTarget
from routecodex.telemetry.request_trace import CANCELLED, EMPTY, error_type

LONG_CONTEXT = "longcontext"
_SHORTEST_WAIT = 0.05
"""Seconds until a probe that another request holds is checked again."""
_MESSAGE_SHOWN = 200
_REASONS_SHOWN = 3
_UNUSABLE_KEY = (UpstreamRefusedKey, UpstreamOutOfCredit, UpstreamUnknownModel)
"""Errors that only a person can remove; the first kind is shown if there are several."""

AnswerT = TypeVar("AnswerT")


class EmptyAnswer(Exception):
    """An answer ended without content, before any byte was sent to the client."""


class Planner(Protocol):
    """Plans a request, and plans it again after failures."""

    def plan(self, tried: frozenset[Target], must: str | None) -> RoutePlan:
        """Plan without the targets that were tried; `must` is the only route allowed now."""

    async def clear_sticky(self) -> None:
        """Clear the sticky target of the session: no key of it can be used."""

    def use_route(self, route: str) -> None:
        """Plan the targets of one route only from now on: a limit sends the request there."""


class RequestPlanner:
    """Plans one request of a client; a provider that stores its conversation comes first."""

    __slots__ = ("_context", "_only_route", "_request", "_services")

    def __init__(self, services: GatewayServices, request: ClientRequest, context: RoutingContext) -> None:
        self._services = services
        self._request = request
        self._context = context
        self._only_route = ""

    def plan(
        self,
        tried: frozenset[Target] = frozenset(),
        must: str | None = None,
        *,
        next_turn: NextTurn | None = None,
    ) -> RoutePlan:
        request, context = self._request, self._context
        if self._only_route:
            return self._plan_route(tried)
        query = context.query
        if tried or must is not None:
            query = query.retry(tried=tried, only_route=must)
        plan = self._services.plan(
            query,
            session=context.session,
            server=context.operator,
            next_turn=next_turn,
            client=request.client,
        )
        if self._services.allowances.scarce:
            plan = plan.in_order(self._services.allowances.in_order(plan.steps, self._services.clock()))
        if request.holder is None:
            return plan
        return plan.in_order(sorted(plan.steps, key=lambda step: not request.is_held_by(step.target)))

    def _plan_route(self, tried: frozenset[Target]) -> RoutePlan:
        """Plan the route that a limit named, whatever the session has set."""
        request, context, route = self._request, self._context, self._only_route
        query = RouteQuery(
            model="",
            tokens=context.query.tokens,
            only_route=route,
            ignore_sticky=True,
            affinity=context.query.affinity,
            tried=tried,
            max_wait=context.query.max_wait,
        )
        plan = self._services.plan(
            query,
            session=replace_state(context.session, force=None),
            server=context.operator,
            client=request.client,
        )
        return replace(
            plan,
            steps=tuple(step for step in plan.steps if step.route == route),
            cooling=tuple(row for row in plan.cooling if row.step.route == route),
            reason=f"a limit is used and names route {route}",
        )

    def use_route(self, route: str) -> None:
        self._only_route = route

    def plan_round(self, last: Target | None) -> RoutePlan:
        """Plan a round: the target of the last round first, and no further turn of the pools."""
        plan = self.plan(next_turn=self._services.round_robin.peek)
        if last is None:
            return plan
        return plan.in_order(sorted(plan.steps, key=lambda step: step.target != last))

    async def clear_sticky(self) -> None:
        context = self._context
        sticky = context.session.sticky
        if sticky is None:
            return
        self._request.notices.add(f"sticky {sticky} cleared: no key of it can be used")
        context.session = replace_state(context.session, sticky=None)
        if context.scope.lasts:
            # If that cannot be saved, the next request clears it.
            with contextlib.suppress(StateNotSaved):
                await self._services.sessions.change(
                    context.scope,
                    lambda state: without_sticky(state, sticky),
                )


class Failover:
    """Tries targets in plan order until an answer has content.

    Every failure is recorded in the health of its key; `settle` records the outcome of the opened answer.
    `limits` are those of its calls, by default those of the record.
    """

    def __init__(
        self,
        services: GatewayServices,
        planner: Planner,
        *,
        record: RequestRecord,
        notices: Notices | None = None,
        keep_reason: bool = False,
        keep_route: bool = False,
        limits: CallLimits | None = None,
    ) -> None:
        self._planner = planner
        self._record = record
        self._notices = notices
        self._keep_reason = keep_reason
        self._keep_route = keep_route
        self._health = services.health
        self._key_sources = services.key_sources
        self._registry = services.registry
        self._clock = services.clock
        self._attempts_left = self._max_attempts = services.max_attempts
        self._wait_left = services.max_wait
        self._tried: frozenset[Target] = frozenset()
        self._failures: list[UpstreamError] = []
        self._unusable: frozenset[Target] = frozenset()
        self._must: str | None = None
        self._claimed: Target | None = None
        """The target whose claim is neither settled nor released."""
        self._began = 0.0
        self._limits = limits if limits is not None else record.limits
        self._is_rerouted = False

    async def open(self, plan: RoutePlan, attempt: Callable[[PlanStep], Awaitable[AnswerT]]) -> AnswerT:
        """Return the first answer that a target opens, or raise the error for the client.

        The error carries the route and target that were tried last.
        """
        try:
            while (answer := await self._open_any(plan, attempt)) is None:
                plan = await self._next_plan()
            self._record.rounds += 1
            return answer
        except GatewayError as error:
            record = self._record
            error.routed = (record.route, str(record.target or ""), record.reason)
            raise
        finally:
            # One of them may be raised, and its traceback refers to this object: break the cycle.
            self._failures.clear()

    def settle(self, error: GatewayError | None) -> None:
        """Record how the opened answer ended in the health of its key."""
        target, self._claimed = self._claimed, None
        if target is None:
            return
        if self._record.trace is not None:
            self._record.trace.end_attempt("" if error is None else error_type(error))
        if error is None:
            self._health.succeeded(target, began=self._began, by=self)
        elif isinstance(error, UpstreamError) and not isinstance(error, UpstreamRejected):
            self._health.failed(target, error, by=self)
        else:
            self._health.release(target, by=self)

    def close(self) -> None:
        """Release the claim of an answer that was not settled: its client disconnected."""
        if self._claimed is not None:
            self._health.release(self._claimed, by=self)
            self._claimed = None
            if self._record.trace is not None:
                self._record.trace.end_attempt(CANCELLED)

    async def _open_any(
        self, plan: RoutePlan, attempt: Callable[[PlanStep], Awaitable[AnswerT]]
    ) -> AnswerT | None:
        """Try every step of a plan; None if none answers."""
        if plan.clears_sticky:
            await self._planner.clear_sticky()
        self._note_plan(plan)
        must = self._must
        for step in plan.steps:
            if not self._attempts_left:
                raise self._final_error(self._plan(), self._clock())
            if self._limits is not None:
                admitted = self._limits.admit(step.target)
                if not isinstance(admitted, bool):
                    admitted = await self._admits(admitted)
                if self._is_rerouted:
                    self._is_rerouted = False
                    break
                if not admitted:
                    continue
            if not await self._claim(step.target):
                continue
            self._attempts_left -= 1
            answer = await self._try(step, plan, attempt)
            if answer is not None:
                return answer
            if must != self._must or self._leaves_provider():
                break
        return None

    def _leaves_provider(self) -> bool:
        """Return whether the last attempts begin now, and go to another provider."""
        return self._attempts_left == self._max_attempts // 3 and self._failed_provider() is not None

    def _failed_provider(self) -> str | None:
        return failed_provider(
            self._tried, attempts_left=self._attempts_left, max_attempts=self._max_attempts
        )

    async def _admits(self, coming: Awaitable[bool]) -> bool:
        """Wait for a reservation; return False if the target is skipped, or another route is taken."""
        try:
            return await coming
        except RouteInstead as instead:
            self._planner.use_route(instead.route)
            self._is_rerouted = True
            return False

    def _note_plan(self, plan: RoutePlan) -> None:
        record = self._record
        if not self._keep_route:
            record.route = plan.route
        if not self._keep_reason:
            record.reason = plan.reason
        if plan.notices and self._notices is not None:
            self._notices.add(*plan.notices)

    async def _claim(self, target: Target) -> bool:
        now = self._clock()
        return self._health.is_usable(target, now) or await self._health.probe(target, now, by=self)

    async def _try(
        self, step: PlanStep, plan: RoutePlan, attempt: Callable[[PlanStep], Awaitable[AnswerT]]
    ) -> AnswerT | None:
        """Attempt one step; None if another target may be tried. An empty answer is requested again."""
        record = self._record
        trace = record.trace
        self._claimed = record.target = step.target
        self._began = self._clock()
        if not self._keep_route:
            record.route = step.route
        while True:
            record.attempts += 1
            record.began = monotonic()
            if trace is not None:
                trace.begin_attempt(step.target, record.began, record.rounds + 1)
            try:
                answer = await attempt(step)
                if trace is not None:
                    trace.open_attempt()
                return answer
            except EmptyAnswer:
                self._note_empty(step.target)
            except UpstreamError as error:
                failure = self._about_model(step.target, error)
                self._note_failure(step.target, failure)
                if isinstance(failure, UpstreamRejected):
                    self._after_rejection(failure, plan)
                return None
            except BaseException as exc:
                if trace is not None:
                    trace.end_attempt(error_type(exc))
                self.close()
                raise

    def _note_empty(self, target: Target) -> None:
        record = self._record
        record.failures.append(
            FailedAttempt(target, "empty", f"{target}: an empty answer", record.began, monotonic(), 200)
        )
        if record.trace is not None:
            record.trace.end_attempt(EMPTY)
        if self._notices is not None:
            self._notices.add(f"{target} gave an empty answer and was asked again")

    def _about_model(self, target: Target, error: UpstreamError) -> UpstreamError:
        """Return a rejection that names the model as the error of an unknown model; others unchanged."""
        if isinstance(error, UpstreamRejected) and names_unknown_model(
            error, self._registry.model(target).id
        ):
            return UpstreamUnknownModel(
                error.message, provider=error.provider, upstream_status=error.upstream_status
            )
        return error

    def _note_failure(self, target: Target, error: UpstreamError) -> None:
        error.provider = error.provider or target.provider
        error.name_setting(target.provider, target.key)
        self._claimed = None
        self._name_key(target, error)
        self._health.failed(target, error, by=self)
        failure = _as_unusable_key(target, error.detached())
        if isinstance(failure, _UNUSABLE_KEY):
            self._unusable |= {target}
        self._failures.append(failure)
        self._tried |= {target}
        if self._record.trace is not None:
            self._record.trace.end_attempt(error_type(error))
        line = _failure_line(target, error)
        record = self._record
        record.failures.append(
            FailedAttempt(target, outcome_of(error), line, record.began, monotonic(), error.upstream_status)
        )

    def _name_key(self, target: Target, error: UpstreamError) -> None:
        """Replace the message about an unusable key or model by one that names it and the place to check."""
        source = self._key_sources.get((target.provider, target.key), f"providers.{target.provider}.auth")
        text = (error.provider_message or error.message)[:_MESSAGE_SHOWN]
        if isinstance(error, UpstreamRefusedKey):
            text = f": {text}" if error.provider_message else ""
            error.message = (
                f"provider {target.provider!r} rejected key {target.key!r} "
                f"(HTTP {error.upstream_status}{text}); check {source}"
            )
        elif _is_out_of_credit(error):
            error.message = (
                f"provider {target.provider!r} has no credit for key {target.key!r} "
                f"(HTTP {error.upstream_status}: {text}); check the account of {source}"
            )
        elif isinstance(error, UpstreamUnknownModel):
            error.message = (
                f"provider {target.provider!r} does not serve model {self._registry.model(target).id!r} with "
                f"key {target.key!r} (HTTP {error.upstream_status}: {text}); {self._model_advice(target)}"
            )

    def _model_advice(self, target: Target) -> str:
        if self._registry.providers[target.provider].describe is None:
            return f"check providers.{target.provider}.models"
        listed = "lists it" if self._registry.is_listed(target) else "lists the names that it has"
        return f"check the name: GET /v1/models {listed}"

    def _after_rejection(self, error: UpstreamRejected, plan: RoutePlan) -> None:
        """Send a request that is too long for the model to `longcontext` once; other rejections are final."""
        chosen = plan.only_provider is not None or plan.route == "direct"
        if chosen or self._must is not None or plan.route == LONG_CONTEXT or not is_context_overflow(error):
            raise error
        self._must = LONG_CONTEXT
        plan = self._plan()
        if not plan.steps and not plan.cooling:
            raise error

    async def _next_plan(self) -> RoutePlan:
        """Plan again after failures; wait for a cooldown to end if that is soon."""
        if self._health.stale():
            await self._health.refresh()
        plan = self._plan()
        while not plan.steps:
            await self._wait(plan)
            plan = self._plan()
        return plan

    def _plan(self) -> RoutePlan:
        plan = self._planner.plan(self._tried, self._must)
        if (failed := self._failed_provider()) is not None:
            plan = plan.with_provider_last(failed)
        if self._limits is not None and self._limits.skipped:
            plan = _without_skipped(plan, self._limits, self._clock())
        if self._must is None:
            return plan
        # The context of every other route is too small: that is why this one is required.
        return replace(
            plan,
            steps=tuple(step for step in plan.steps if step.route == self._must),
            removed=tuple(row for row in plan.removed if row.step.route == self._must),
            cooling=tuple(row for row in plan.cooling if row.step.route == self._must),
        )

    async def _wait(self, plan: RoutePlan) -> None:
        now = self._clock()
        soonest = min((row.until for row in self._passing(plan, now)), default=math.inf)
        seconds = max(soonest - now, _SHORTEST_WAIT)
        if seconds > self._wait_left or not self._attempts_left:
            raise self._final_error(plan, now)
        self._wait_left -= seconds
        await asyncio.sleep(seconds)
        self._tried -= {row.step.target for row in plan.cooling if row.until <= self._clock()}

    def _passing(self, plan: RoutePlan, now: float) -> tuple[CoolingTarget, ...]:
        """Return the targets whose cooldown ends by itself: waiting helps."""
        return tuple(
            row
            for row in plan.cooling
            if row.step.target not in self._unusable
            and self._health.unusable_key(row.step.target, now) is None
        )

    def _final_error(self, plan: RoutePlan, now: float) -> GatewayError:
        if self._limits is not None and not self._failures and _are_skipped(plan, self._limits):
            refusal = self._limits.final_error()
            if refusal is not None:
                return refusal
        unusable: list[UpstreamError] = [
            error for error in self._failures if isinstance(error, _UNUSABLE_KEY)
        ]
        remembered = (row.step.target for row in plan.cooling if row.step.target not in self._tried)
        unusable += filter(None, (self._health.unusable_key(target, now) for target in remembered))
        failures = [error for error in self._failures if not isinstance(error, _UNUSABLE_KEY)]
        relevant = [error for error in failures if not isinstance(error, UpstreamRejected)]
        cooling = self._passing(plan, now)
        unusable.sort(key=lambda error: _UNUSABLE_KEY.index(type(error)))
        causes = list(dict.fromkeys(error.message for error in unusable))[:_REASONS_SHOWN]
        if unusable and not relevant and not cooling:
            unusable[0].message = "; ".join(causes)
            return unusable[0]
        error = self._passing_error(plan, failures, cooling, now=now)
        if causes and not isinstance(error, ProviderNotAvailable):
            error.message = "; ".join([error.message, *causes])
        return error

    def _passing_error(
        self,
        plan: RoutePlan,
        failures: Sequence[UpstreamError],
        cooling: Sequence[CoolingTarget],
        *,
        now: float,
    ) -> GatewayError:
        """Return the error of failures and cooldowns that end by themselves."""
        wait = min((row.until for row in cooling), default=now) - now
        if failures:
            could_answer = plan.steps or any(row.cause == "tried" for row in plan.removed)
            all_cooling = cooling and not could_answer
            return cooling_error(failures, wait=wait) if all_cooling else worst_failure(failures)
        if plan.only_provider is not None:
            unhealthy = ProviderNotAvailable.unhealthy(plan.only_provider, retry_after=wait)
            unhealthy.notices = tuple(row.reason for row in plan.cooling[:_REASONS_SHOWN])
            return unhealthy
        return all_cooling_error(cooling, wait=wait)


def _without_skipped(plan: RoutePlan, limits: CallLimits, now: float) -> RoutePlan:
    """Return the plan without the targets that a limit keeps out now: they count as cooling down."""
    steps: list[PlanStep] = []
    removed, cooling = list(plan.removed), list(plan.cooling)
    for step in plan.steps:
        skipped = limits.skipped.get(step.target)
        if skipped is None or (skipped.until is not None and skipped.until <= now):
            steps.append(step)
        elif skipped.until is None:
            removed.append(RemovedTarget(step, NO_PRICE, skipped.reason))
        else:
            cooling.append(CoolingTarget(step, skipped.until, skipped.reason, is_limit=True))
    return replace(plan, steps=tuple(steps), removed=tuple(removed), cooling=tuple(cooling))


def _are_skipped(plan: RoutePlan, limits: CallLimits) -> bool:
    """Return whether nothing but limits keeps the targets of a plan out."""
    return not plan.steps and all(row.step.target in limits.skipped for row in plan.cooling)


def _is_out_of_credit(error: UpstreamError) -> bool:
    return isinstance(error, UpstreamLimited) and error.code == "insufficient_quota"


def _as_unusable_key(target: Target, error: UpstreamError) -> UpstreamError:
    """Return the error as the client sees it if it is about an unusable key; any other one unchanged."""
    if isinstance(error, UpstreamRefusedKey | UpstreamUnknownModel):
        return unusable_key_error(type(error), target, error.message, status=error.upstream_status)
    if _is_out_of_credit(error):
        return unusable_key_error(UpstreamOutOfCredit, target, error.message, status=error.upstream_status)
    return error


def _failure_line(target: Target, error: UpstreamError) -> str:
    """Describe one failed attempt in a line of the log."""
    status = f"HTTP {error.upstream_status}: " if error.upstream_status else ""
    return f"{target}: {status}{error.message[:_MESSAGE_SHOWN]}"


def cooling_error(failures: Sequence[UpstreamError], *, wait: float) -> GatewayError:
    """Return the error for a request whose failures put every target into cooldown.

    It has a time to retry, unless waiting does not help because the request is wrong. An overload keeps its
    own status, for which some protocols have an error type.
    """
    error = worst_failure(failures)
    if isinstance(error, UpstreamRejected):
        return error
    if not isinstance(error, UpstreamLimited | UpstreamOverloaded):
        message = f"every target is cooling down: {error.message}"
        return Overloaded(message, retry_after=wait, code="all_targets_cooling")
    error.retry_after = wait
    return error


def all_cooling_error(cooling: Sequence[CoolingTarget], *, wait: float) -> GatewayError:
    """Return the error if no target could be tried; a rate limit if all are limited."""
    if not cooling:
        return UpstreamFailed("no target was tried", code="no_targets")
    message = f"every target is cooling down: {'; '.join(row.reason for row in cooling[:_REASONS_SHOWN])}"
    if all(row.is_limit for row in cooling):
        return UpstreamLimited(message, retry_after=wait, provider=cooling[0].step.target.provider)
    return Overloaded(message, retry_after=wait, code="all_targets_cooling")


def worst_failure(failures: Sequence[UpstreamError]) -> GatewayError:
    """Return the failure to show when every target failed: a rate limit only if all were limited.

    A context that was too small is shown only if no larger one was tried.
    """
    if not failures:
        return UpstreamFailed("no target was tried", code="no_targets")
    relevant = _not_rejected(failures)
    limited = [error for error in relevant if isinstance(error, UpstreamLimited)]
    if len(limited) == len(relevant):
        return min(limited, key=lambda error: error.retry_after or 60.0)
    return next(error for error in reversed(relevant) if not isinstance(error, UpstreamLimited))


def _not_rejected(failures: Sequence[UpstreamError]) -> Sequence[UpstreamError]:
    return [error for error in failures if not isinstance(error, UpstreamRejected)] or failures
