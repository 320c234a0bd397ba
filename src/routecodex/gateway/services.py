"""Shared parts of one gateway that every answer needs: state, targets, options, and the record of a call."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from routecodex.accounting.clients import AllowRules, Client
from routecodex.accounting.cost import CostKind, TargetPrice
from routecodex.accounting.prices import PriceTable
from routecodex.canon.errors import ClientDisconnected, GatewayError
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish, encode
from routecodex.gateway.answer.keep_alive import KeepAlives
from routecodex.gateway.answer.prepared_target import AnyTarget, BuiltinProvider, PreparedTarget
from routecodex.gateway.answer.recorded_events import recorded_builtin
from routecodex.gateway.answer.recorded_target import RecordedTarget
from routecodex.gateway.call_record import CallKind, CallRecord
from routecodex.gateway.capture import noting
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import (
    ClientConnection,
    ClientRequest,
    RequestRecord,
    fresh_id,
    interruption,
)
from routecodex.gateway.request_limits import CallLimits
from routecodex.gateway.state.key_allowances import KeyAllowances
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.limiter import Limiter
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.gateway.state.response_history import ResponseChains
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.messages.client_quirks import knows_refusal, message_stop_rule
from routecodex.protocols.requested_output import requested_choices, requested_mode, requested_output
from routecodex.protocols.responses.schema import finish_reason
from routecodex.providers.upstream import Upstream
from routecodex.routing import tokens
from routecodex.routing.pools import NextTurn, RoundRobin
from routecodex.routing.registry import Registry, Target
from routecodex.routing.route_plan import NotPermitted, RoutePlan, RouteQuery
from routecodex.routing.router import RestrictedRouter, Router
from routecodex.routing.state import ServerState, SessionState
from routecodex.server_tools.vision import ImageDescriptions
from routecodex.wire import json

Observe: TypeAlias = Callable[[RequestRecord], None]
_MOST_RESTRICTED = 256
DescribeImages: TypeAlias = Callable[[ClientRequest, RoutingContext, RequestRecord], ImageDescriptions | None]

_MAX_PREPARED: Final = 4096


class GatewayServices:
    """Shared parts an answer needs."""

    def __init__(
        self,
        registry: Registry,
        *,
        upstreams: dict[str, Upstream],
        builtin_providers: dict[str, BuiltinProvider],
        key_sources: Mapping[tuple[str, str], str],
        health: KeyHealth,
        sessions: Sessions,
        operator: OperatorState,
        reasoning: ReasoningCache,
        responses: ResponseChains,
        keep_alives: KeepAlives,
        round_robin: RoundRobin,
        clock: Callable[[], float],
        observe: Observe,
        max_attempts: int,
        max_wait: float,
        retries_empty: bool,
        tool_turn_stop: str,
        prices: PriceTable,
        counts_calls: bool,
        limiter: Limiter,
        allowances: KeyAllowances,
        captures: bool = False,
    ) -> None:
        self.registry = registry
        self.router = Router(registry)
        self.upstreams = upstreams
        self.key_sources = key_sources
        self.health = health
        self.sessions = sessions
        self.operator = operator
        self.reasoning = reasoning
        self.responses = responses
        self.keep_alives = keep_alives
        self.round_robin = round_robin
        self.clock = clock
        self.max_attempts = max_attempts
        self.max_wait = max_wait
        self.retries_empty = retries_empty
        """Whether an empty answer is retried once at the same target."""
        self.describe_images: DescribeImages = _no_descriptions
        self._builtin_providers = builtin_providers
        self._observe = noting(observe) if captures else observe
        self._captures = captures
        self._tool_turn_stop = tool_turn_stop
        self._prepared: dict[Target, AnyTarget] = {}
        self._restricted: dict[AllowRules, RestrictedRouter] = {}
        self.limiter = limiter
        self.allowances = allowances
        self.counts_calls = counts_calls
        """Whether the calls of all requests are listed, with their costs."""
        self._price_table = prices
        self._prices: dict[Target, TargetPrice] = {}

    def plan(
        self,
        query: RouteQuery,
        *,
        session: SessionState,
        server: ServerState,
        next_turn: NextTurn | None = None,
        client: Client | None = None,
    ) -> RoutePlan:
        """Plan a query of a client now; `next_turn` replaces the gateway's round robin."""
        router = self.router if client is None else self.router_for(client)
        try:
            return router.plan(
                query,
                session=session,
                server=server,
                health=self.health,
                now=self.clock(),
                next_turn=next_turn or self.round_robin,
            )
        except NotPermitted as refused:
            if client is None:
                raise
            raise client.not_allowed(refused.subject) from None

    def router_for(self, client: Client | None) -> Router:
        """Return the router over the targets that a client may use; without a client over all."""
        if client is None or client.rules is None:
            return self.router
        rules = client.rules
        router = self._restricted.get(rules)
        if router is None:
            if len(self._restricted) >= _MOST_RESTRICTED:
                # Rules change at run time; those of the past are not kept for ever.
                self._restricted.clear()
            part = self.registry.restricted(rules)
            router = self._restricted[rules] = RestrictedRouter(part, self.registry)
        return router

    def prepare(self, target: Target) -> AnyTarget:
        """Return the target with the request parts that are constant for it."""
        prepared = self._prepared.get(target)
        if prepared is None:
            if len(self._prepared) >= _MAX_PREPARED:
                # Clients choose the models of a provider that names them itself.
                self._prepared.clear()
            prepared = self._prepared[target] = self._make_prepared(target)
        return prepared

    def _make_prepared(self, target: Target) -> AnyTarget:
        builtin = self._builtin_providers.get(target.provider)
        model = self.registry.model(target)
        if builtin is not None:
            provider = recorded_builtin(target, builtin) if self._captures else builtin
            return lambda request: provider(replace(request, model=model.id))
        make = RecordedTarget if self._captures else PreparedTarget
        return make(target, self.upstreams[target.provider], model, self.reasoning.owners)

    def reply_context(self, request: ClientRequest, target: Target | None) -> ReplyContext:
        """Return the facts an encoder needs of the client; without a target the gateway answers itself."""
        reply = self.error_context(request)
        if target is not None:
            reply.provider = target.provider
        if request.codec.name == "messages":
            reply.message_stop_after_calls = message_stop_rule(self._tool_turn_stop, request.headers)[0]
            reply.knows_refusal = knows_refusal(request.headers)
        return reply

    def sent_finish(self, request: ClientRequest, outcome: AnswerOutcome, finish: Finish) -> str:
        """Return the finish reason in a converted answer, for the trace."""
        name = request.codec.name
        if name == "responses" and outcome.body is not None:
            # A refusal is complete or not, depending on its text.
            return finish_reason(json.decode(outcome.body))
        return encode(name, finish, knows_refusal=name != "messages" or knows_refusal(request.headers))

    def stream_end(self, request: ClientRequest, finish: Finish) -> str:
        """Describe the end of a messages stream for the trace: whether `message_stop` was sent, and why."""
        if request.codec.name != "messages" or not request.wire.stream:
            return ""
        if finish.reason != "tool_calls":
            return "message_stop=sent rule=no tool turn"
        sends, rule = message_stop_rule(self._tool_turn_stop, request.headers)
        return f"message_stop={'sent' if sends else 'withheld'} rule={rule}"

    def error_context(self, request: ClientRequest) -> ReplyContext:
        """Return the part of the reply context that an error needs."""
        wire = request.received or request.original or request.wire
        return ReplyContext(
            id=fresh_id(),
            created=request.created,
            model=wire.model,
            view=wire.view,
            include_usage=wire.include_usage,
            input_tokens=tokens.estimate_by_size(request.wire.body),
            clock=self.clock,
        )

    def limit(
        self, record: RequestRecord, client: Client | None, request: ClientRequest | None = None
    ) -> None:
        """Count a request against the limits of its client; one for embeddings has no `request`."""
        limits = self.limiter.set_of(client)
        if limits is None:
            return
        record.is_priced = True
        record.limits = CallLimits(
            self.limiter,
            limits,
            calls=record.calls,
            notices=None if request is None else request.notices,
            max_wait=self.max_wait,
            requested=0 if request is None else requested_output(request.wire),
            choices=1 if request is None else requested_choices(request.wire),
            mode="" if request is None else requested_mode(request.wire),
        )

    def limit_lines(self, client: Client | None, protocol: str) -> bytes:
        """Return the header lines of a client's limits, for a response that nothing is counted for."""
        limits = None if client is None else self.limiter.set_of(client)
        if limits is None:
            return b""
        return CallLimits(self.limiter, limits, calls=(), notices=None, max_wait=0.0).header_lines(protocol)

    def settle_limits(self, record: RequestRecord) -> None:
        """Settle a request that has ended; one that no limit admitted is not counted."""
        limits = record.limits
        if limits is not None:
            limits.close()
            record.counted = record.counted and limits.is_admitted

    def limit_call(self, cause: RequestRecord, made: list[CallRecord]) -> CallLimits | None:
        """Return the limits of a call that the gateway makes for a request; `made` lists what it produced."""
        if cause.limits is None:
            return None
        return cause.limits.for_internal_call(made)

    def begin_counting(self, record: RequestRecord) -> None:
        """Count a request from here on: it was admitted, and is about to be sent to a provider."""
        record.counted = self.counts_calls

    def count_call(
        self,
        record: RequestRecord,
        target: Target,
        usage: Usage,
        *,
        kind: CallKind = "round",
        certainty: CostKind = "reported",
        status: int = 200,
        began: float = 0.0,
    ) -> None:
        """Add one call to the record of the request that caused it, with its usage and cost.

        Every call that produced tokens comes through here, once, when it has ended; `began` is the time at
        which it was made, by default that of the last attempt.
        """
        record.usage = usage if record.usage is None else record.usage + usage
        if record.trace is not None and record.trace.attempt is not None and kind != "internal":
            record.trace.attempt.usage = usage
        if not record.is_priced:
            return
        ended, price = time.monotonic(), self.price_of(target)
        record.calls.append(
            CallRecord(
                kind,
                target,
                usage,
                price=price,
                cost=price.cost(usage, certainty),
                status=status,
                ms=(ended - (began or record.began)) * 1000.0,
                ended=ended,
            )
        )

    def price_of(self, target: Target) -> TargetPrice:
        """Return the price of a target's model."""
        price = self._prices.get(target)
        if price is None:
            price = self._price_table.price_for(target.provider, target.model)
            self._prices[target] = price
        return price

    def note_rate_limits(self, target: Target, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Learn from the rate-limit headers of a provider's answer."""
        empty = self.allowances.note(target, headers, self.clock())
        if empty is not None:
            self.health.rest(target, empty.resets_in, f"the provider says that no {empty.kind} are left")

    @contextlib.contextmanager
    def recorded(self, record: RequestRecord, client: ClientConnection | None = None) -> Iterator[None]:
        """Log and count a call whose answer is not written to a client connection."""
        try:
            yield
            record.status = 200
        except GatewayError as error:
            record.error, record.status = error, CODECS[record.protocol].encode_error(error)[0]
            raise
        except (ClientDisconnected, asyncio.CancelledError):
            stopped = interruption(client) if client is not None else None
            if stopped is None:
                record.gone = True
                raise
            record.error, record.status = stopped, stopped.status
            raise stopped from None
        except Exception:
            record.status = 500
            raise
        finally:
            self.finish(record)

    def finish(self, record: RequestRecord) -> None:
        """Hand the finished record to log and metrics."""
        record.finished = time.monotonic()
        self._observe(record)


def _no_descriptions(
    _request: ClientRequest, _context: RoutingContext, _record: RequestRecord
) -> ImageDescriptions | None:
    return None
