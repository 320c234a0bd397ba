"""Calls of the gateway's own: it asks a model by itself, over the path that clients' requests take.

The targets of one route are planned, tried and judged like any others; what the session or the operator has
ruled out is not asked. The answer is heard whole and shown to nobody; the log has a line of it.

vision_auto in this gateway: who describes images, and for which requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from msgspec import Struct

from routecodex.canon.errors import BadRequest, NotFound, UpstreamError, UpstreamTimeout
from routecodex.canon.parts import Media, Text
from routecodex.canon.request import ProtocolName, Request
from routecodex.canon.response import Response, fold
from routecodex.config.server_tools import VisionAutoConfig
from routecodex.gateway.answer.event_stream import response_batches
from routecodex.gateway.answer.failover import Attempts, Failover, Planner
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.answer.prepared_target import BuiltinProvider, PreparedTarget
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.routing.instructions import strip
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan
from routecodex.server_tools.vision import (
    DescriptionCache,
    ImageDescriptions,
    description_request,
    may_hold_images,
)
from routecodex.stores.store import Store

AnyTarget = PreparedTarget | BuiltinProvider


class InternalCall(Struct, frozen=True, kw_only=True):
    """What is asked: over which route, of which of its targets, in which words, for how long.

    `whole` begins the notice of what must not get lost when the request is written for a target.
    """

    id: str
    route: str
    wording: Callable[[AnyTarget], Request]
    able: Callable[[AnyTarget], bool]
    seconds: float
    whole: str = ""


class InternalServices(Protocol):
    """What a call of our own needs of the gateway."""

    @property
    def memory(self) -> ReasoningCache: ...
    def lane(self, target: Target) -> AnyTarget: ...
    def noted(self, record: RequestRecord) -> AbstractContextManager[None]: ...
    def plan_route(self, route: str, course: RoutingContext, tried: frozenset[Target]) -> RoutePlan: ...
    def tries_of(self, attempts: Attempts, planner: Planner) -> Failover: ...


class InternalCalls:
    """Asks models on the gateway's own behalf."""

    def __init__(self, parts: InternalServices) -> None:
        self._parts = parts

    async def ask(self, errand: InternalCall, course: RoutingContext) -> Response:
        """The whole answer; GatewayError when no target of the route gives one in time."""
        planner = self._planner(errand, course)
        plan = planner(frozenset(), None)
        if not plan.steps and not plan.cooling:
            raise NotFound(f"no target of the route {errand.route!r} can do it", code="no_targets")
        record = RequestRecord(
            id=errand.id,
            protocol="",
            model="",
            stream=False,
            client_name="gateway",
            arrived=time.monotonic(),
        )
        record.session = course.scope.key if course.scope.lasts else ""
        call = InternalAttempt(self._parts, errand, record=record)
        with self._parts.noted(record):
            try:
                async with asyncio.timeout(errand.seconds):
                    await self._parts.tries_of(call, planner).run(plan)
            except TimeoutError as exc:
                raise UpstreamTimeout(f"no answer after {errand.seconds:g} seconds") from exc
        assert call.response is not None
        return call.response

    def _planner(self, errand: InternalCall, course: RoutingContext) -> Planner:
        def planned(tried: frozenset[Target], must: str | None) -> RoutePlan:
            made = self._parts.plan_route(errand.route, course, tried)
            return replace(
                made,
                steps=tuple(step for step in made.steps if self._may(step, errand)),
                cooling=tuple(row for row in made.cooling if self._may(row.step, errand)),
                reason=f"the gateway asks route {errand.route} for itself",
            )

        return planned

    def _may(self, step: PlanStep, errand: InternalCall) -> bool:
        return step.route == errand.route and errand.able(self._parts.lane(step.target))


class InternalAttempt:
    """The attempts at one call of our own."""

    def __init__(self, parts: InternalServices, errand: InternalCall, *, record: RequestRecord) -> None:
        self._parts = parts
        self._errand = errand
        self.record = record
        self.response: Response | None = None

    async def attempt(self, step: PlanStep, _keep_alive: KeepAlive | None) -> None:
        """Hears this target's answer; raises UpstreamError while another one may be tried."""
        record = self.record
        record.target, record.route = step.target, step.route
        record.attempts += 1
        try:
            self.response = await self._heard(step.target)
        except UpstreamError as error:
            error.provider = error.provider or step.target.provider
            raise
        record.usage, record.finish = self.response.usage, self.response.finish.reason

    async def _heard(self, target: Target) -> Response:
        lane = self._parts.lane(target)
        request = self._errand.wording(lane)
        if not isinstance(lane, PreparedTarget):
            return fold([event async for event in lane(request)])
        self.record.protocol = lane.codec.name
        encoded = lane.codec.encode_request(request, lane.aim)
        lost = [
            line for line in encoded.notices if self._errand.whole and line.startswith(self._errand.whole)
        ]
        if lost:
            raise BadRequest(f"{target}: {lost[0]}")
        response = await lane.send(encoded.body, stream=False, headers=None)
        return fold([event async for batch in response_batches(response, lane) for event in batch])

    def note(self, plan: RoutePlan) -> None:
        """Notes the plan that the next attempts follow."""
        self.record.route, self.record.reason = plan.route, plan.reason

    def keep_alive(self) -> KeepAlive | None:
        """Nobody listens."""
        return None


ROUTE = "vision"
_DROPPED = "dropped image"


class ImageDescriber:
    """Makes the Sight of each request that may need one."""

    def __init__(self, options: VisionAutoConfig, calls: InternalCalls, *, store: Store) -> None:
        self._options = options
        self._calls = calls
        self._album = DescriptionCache(store, ttl=options.cache_hours * 3600.0)

    def of(self, ask: ClientRequest, course: RoutingContext) -> ImageDescriptions | None:
        """Words for the images of this request; None when it holds none."""
        if not self._options.enabled or not may_hold_images(ask.codec.name, ask.inbound.body):
            return None

        async def describe(image: Media) -> str:
            return await self._described(image, ask, course)

        def note(line: str) -> None:
            if line not in ask.notices:
                ask.notices.append(line)

        return ImageDescriptions(self._album, describe, note=note, max_images=self._options.max_images)

    async def _described(self, image: Media, ask: ClientRequest, course: RoutingContext) -> str:
        source = ask.codec.name

        def wording(_lane: AnyTarget) -> Request:
            return description_request(image, source, max_tokens=self._options.max_tokens)

        errand = InternalCall(
            id=f"{ask.id}:vision",
            route=ROUTE,
            wording=wording,
            able=lambda lane: _sees(lane, image, source),
            seconds=self._options.timeout_ms / 1000,
            whole=_DROPPED,
        )
        response = await self._calls.ask(errand, course)
        # What looks like an instruction to the gateway is shown to no provider, in an image neither.
        return strip("".join(part.text for part in response.parts if isinstance(part, Text)))


def _sees(lane: AnyTarget, image: Media, source: ProtocolName) -> bool:
    """Whether this target can be shown the image: it sees, and takes it in the form the client sent."""
    if not isinstance(lane, PreparedTarget):
        return True
    if not lane.aim.vision:
        return False
    if image.data is not None:
        return True
    return lane.aim.dialect.image_urls if image.url is not None else lane.codec.name == source
