"""Requests that the gateway makes itself: to describe an image, to search the web.

The targets of one route are planned, tried and judged like those of any request, within the rules of the
session and the operator. The client does not see the answer; the log has a line for the call.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import Struct, field
from msgspec.structs import replace as replace_state

from routecodex.accounting.cost import CostKind
from routecodex.canon.errors import BadRequest, NotFound, UpstreamTimeout
from routecodex.canon.events import Event, Usage
from routecodex.canon.parts import Media, Text
from routecodex.canon.request import ProtocolName, Request
from routecodex.canon.response import Response, fold
from routecodex.config.server_tools import VisionAutoConfig
from routecodex.gateway.answer.event_stream import collect_events, observed_in, response_batches
from routecodex.gateway.answer.failover import Failover
from routecodex.gateway.answer.prepared_target import AnyTarget, PreparedTarget
from routecodex.gateway.call_record import CallRecord
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.services import GatewayServices
from routecodex.protocols.translation import estimated_usage
from routecodex.providers.upstream import trace_headers
from routecodex.routing.instructions import strip
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.tokens import estimate_by_size
from routecodex.server_tools.vision import (
    DescriptionCache,
    ImageDescriptions,
    description_request,
    may_hold_images,
)
from routecodex.stores.store import Store
from routecodex.telemetry.request_trace import RequestTrace

_GONE = 499


class InternalCall(Struct, frozen=True, kw_only=True):
    """One request of the gateway: its route, its text for each target, and its time limit.

    `able` admits targets. A notice that begins with `required` means that a target cannot take the request.
    """

    id: str
    route: str
    request_for: Callable[[AnyTarget], Request]
    able: Callable[[AnyTarget], bool]
    seconds: float
    required: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of the client's request, whose trace context is passed on."""


class InternalCalls:
    """Makes requests of the gateway itself."""

    def __init__(self, services: GatewayServices) -> None:
        self._services = services

    async def send(self, call: InternalCall, context: RoutingContext, cause: RequestRecord) -> Response:
        """Return the whole answer; GatewayError if no target of the route gives one in time.

        `cause` is the record of the request that needs it, and that its tokens count for.
        """
        services, planner = self._services, _RoutePlanner(self._services, call, context)
        if services.health.stale():
            await services.health.refresh()
        plan = planner.plan(frozenset(), None)
        if not plan.steps and not plan.cooling:
            raise NotFound(f"no target of the route {call.route!r} can do it", code="no_targets")
        record = RequestRecord(
            id=call.id,
            protocol="",
            model="",
            stream=False,
            client_name="gateway",
            arrived=time.monotonic(),
        )
        record.session = context.scope.name if context.scope.lasts else ""
        record.trace = None if cause.trace is None else cause.trace.internal()
        made: list[CallRecord] = []
        limits = services.limit_call(cause, made)
        failover = Failover(services, planner, record=record, limits=limits)
        with services.recorded(record):
            try:
                async with asyncio.timeout(call.seconds):
                    response = await failover.open(
                        plan, lambda step: self._attempt(call, step, record, cause, made=made)
                    )
            except TimeoutError as exc:
                raise UpstreamTimeout(f"no answer after {call.seconds:g} seconds") from exc
            finally:
                if limits is not None:
                    limits.close()
            failover.settle(None)
            record.usage, record.finish = response.usage, response.finish.reason
            if record.trace is not None:
                _note_answer(record.trace, response)
        return response

    async def _attempt(
        self,
        call: InternalCall,
        step: PlanStep,
        record: RequestRecord,
        cause: RequestRecord,
        *,
        made: list[CallRecord],
    ) -> Response:
        """Read one target's answer; UpstreamError: the next target may be tried."""
        prepared = self._services.prepare(step.target)
        request = call.request_for(prepared)
        content = None if record.trace is None else record.trace.capture(request, 0)
        count = functools.partial(self._count, cause, step.target, made=made, began=time.monotonic())
        if not isinstance(prepared, PreparedTarget):
            response = fold(await collect_events(prepared(request)))
            count(response.usage or estimated_usage(0, response.written))
            return response
        record.protocol = prepared.codec.name
        encoded = prepared.codec.encode_request(request, prepared.options)
        if call.required:
            for line in encoded.notices:
                if line.startswith(call.required):
                    raise BadRequest(f"{step.target}: {line}")
        size, events = estimate_by_size(encoded.body), list[Event]()
        try:
            trace = trace_headers(call.headers) if record.trace is None else record.trace.lines()
            sent = await prepared.send(encoded.body, stream=False, headers=None, trace=trace)
            async for batch in response_batches(sent, prepared):
                events.extend(batch)
        except asyncio.CancelledError:
            count(observed_in(events, None, input_tokens=size), certainty="observed", status=_GONE)
            raise
        if content is not None:
            content.add_events(events)
        response = fold(events)
        count(response.usage or estimated_usage(size, response.written))
        return response

    def _count(
        self,
        cause: RequestRecord,
        target: Target,
        usage: Usage,
        *,
        made: list[CallRecord],
        began: float,
        certainty: CostKind = "reported",
        status: int = 200,
    ) -> None:
        """Count a call for the request that caused it; without prices only its own log line has it."""
        if cause.is_priced:
            self._services.count_call(
                cause, target, usage, kind="internal", certainty=certainty, status=status, began=began
            )
            made.append(cause.calls[-1])


def _note_answer(trace: RequestTrace, response: Response) -> None:
    """Keep what the answer says of itself, for its trace."""
    if trace.attempt is not None:
        trace.attempt.note(model=response.model, id=response.id, finish=response.finish.reason)
        trace.attempt.usage = response.usage


class _RoutePlanner:
    """Plans a call over one route, within the rules of the session that it is made for."""

    def __init__(self, services: GatewayServices, call: InternalCall, context: RoutingContext) -> None:
        self._services = services
        self._call = call
        self._context = context

    def plan(self, tried: frozenset[Target], must: str | None) -> RoutePlan:
        call, context = self._call, self._context
        query = RouteQuery(model="", only_route=call.route, ignore_sticky=True, tried=tried)
        session = replace_state(context.session, force=None)
        plan = self._services.plan(query, session=session, server=context.operator, client=context.client)
        return replace(
            plan,
            steps=tuple(step for step in plan.steps if self._admits(step)),
            cooling=tuple(row for row in plan.cooling if self._admits(row.step)),
            reason=f"the gateway asks route {call.route} for itself",
        )

    async def clear_sticky(self) -> None:
        """Leave the session alone: the call ignores its sticky target."""

    def use_route(self, route: str) -> None:
        """Keep the route of the call: no other one can do it."""

    def _admits(self, step: PlanStep) -> bool:
        return step.route == self._call.route and self._call.able(self._services.prepare(step.target))


ROUTE = "vision"
_DROPPED = "dropped image"


class ImageDescriber:
    """Has images described for models without vision."""

    def __init__(self, options: VisionAutoConfig, calls: InternalCalls, *, store: Store) -> None:
        self._options = options
        self._calls = calls
        self._cache = DescriptionCache(store, ttl=options.cache_hours * 3600.0)

    def descriptions(
        self, request: ClientRequest, context: RoutingContext, record: RequestRecord
    ) -> ImageDescriptions | None:
        """Return the descriptions of a request's images; None if it holds none."""
        if not self._options.enabled or not may_hold_images(request.codec.name, request.wire.body):
            return None

        async def describe(image: Media) -> str:
            return await self._describe(image, request, context, record)

        return ImageDescriptions(
            self._cache,
            describe,
            note=request.notices.add,
            max_images=self._options.max_images,
            owner=request.owner,
        )

    async def _describe(
        self, image: Media, request: ClientRequest, context: RoutingContext, record: RequestRecord
    ) -> str:
        source = request.codec.name
        call = InternalCall(
            id=f"{request.id}:vision",
            route=ROUTE,
            request_for=lambda _target: description_request(
                image, source, max_tokens=self._options.max_tokens
            ),
            able=lambda target: _sees(target, image, source),
            seconds=self._options.timeout_ms / 1000,
            required=_DROPPED,
            headers=request.headers,
        )
        response = await self._calls.send(call, context, record)
        # Providers must not see instruction tags, not even those in an image.
        return strip("".join(part.text for part in response.parts if isinstance(part, Text)))


def _sees(target: AnyTarget, image: Media, source: ProtocolName) -> bool:
    """Return whether a target takes the image: it has vision, and accepts the form the client sent."""
    if not isinstance(target, PreparedTarget):
        return True
    options = target.options
    if not options.vision:
        return False
    if image.data is not None:
        return True
    return options.dialect.image_urls if image.url is not None else target.codec.name == source
