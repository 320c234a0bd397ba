"""Holds the parts of one configuration and answers requests."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.clients import Client
from routecodex.accounting.counters import LimitCounters
from routecodex.accounting.figures import Figures
from routecodex.accounting.limit_table import limits_path
from routecodex.accounting.prices import PriceTable
from routecodex.accounting.running_requests import RunningRequests
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.stored_counters import StoredCounters
from routecodex.canon.errors import ClientDisconnected, GatewayError, Overloaded
from routecodex.config import Config
from routecodex.gateway import build, count_tokens, embeddings, explain
from routecodex.gateway.answer.attempt import Attempt, open_events
from routecodex.gateway.answer.failover import Failover, RequestPlanner
from routecodex.gateway.answer.keep_alive import KeepAlives
from routecodex.gateway.answer.turn import ServerToolTurn
from routecodex.gateway.answer.writer import ClientWriter
from routecodex.gateway.context import gateway_replies
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContext, RoutingContextBuilder
from routecodex.gateway.internal.clock_service import ClockService
from routecodex.gateway.internal.installed_tools import InstalledTool
from routecodex.gateway.internal.internal_calls import ImageDescriber, InternalCalls
from routecodex.gateway.internal.search_backends import ROUTE as SEARCH_ROUTE
from routecodex.gateway.internal.search_backends import search_of
from routecodex.gateway.internal.tool_set import ServerToolSet
from routecodex.gateway.internal.tool_turn import session_name
from routecodex.gateway.request import (
    ClientConnection,
    ClientRequest,
    RequestRecord,
    client_request_id,
    interruption,
)
from routecodex.gateway.request_parameters import parameters_of
from routecodex.gateway.services import GatewayServices, Observe
from routecodex.gateway.state.key_allowances import KeyAllowances
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.limit_webhook import LimitWebhook
from routecodex.gateway.state.limiter import Limiter
from routecodex.gateway.state.model_lists import ModelLists
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.gateway.state.response_history import ResponseChains, ResponseHistory
from routecodex.gateway.state.sessions import Sessions
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.gateway.state.thoughts import ThoughtStore
from routecodex.providers.http import HttpClient
from routecodex.routing.instructions import ShowHelp, ShowStatus
from routecodex.routing.pools import RoundRobin
from routecodex.routing.route_plan import RoutePlan
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import Store, StoreError

SessionUsage: TypeAlias = Callable[[str, str], Awaitable[Figures | None]]
"""Returns the usage of a session, or without one of a client today; None if it is not known."""


async def _unknown_usage(_session: str, _client: str) -> Figures | None:
    return None


class Gateway:
    """Answers requests with the parts of one configuration; store, clock and observer are passed in.

    A gateway for a new configuration takes over the state and the connections of the one before (`after`).
    """

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        observe: Observe = lambda record: None,
        environ: Mapping[str, str] | None = None,
        user_dir: Path | None = None,
        ntp_file: Path | None = None,
        clock: Callable[[], float] = time.time,
        after: Gateway | None = None,
    ) -> None:
        self.store: MonitoredStore = store if isinstance(store, MonitoredStore) else MonitoredStore(store)
        store = self.store
        self.reasoning: ReasoningCache = (
            ReasoningCache(SignatureOwners(store), thoughts=ThoughtStore(store), clock=clock)
            if after is None
            else after.reasoning
        )
        self.http: HttpClient = HttpClient() if after is None else after.http
        self.sessions: Sessions = Sessions(store) if after is None else after.sessions
        self.operator: OperatorState = OperatorState(store) if after is None else after.operator
        self.clients: ClientDirectory = (
            ClientDirectory(store, clock=clock, works=lambda: self.store.works)
            if after is None
            else after.clients
        )
        self.health: KeyHealth = KeyHealth(store, clock=clock) if after is None else after.health
        self.model_lists: ModelLists = ModelLists(store, clock=clock) if after is None else after.model_lists
        if after is None:
            self.store.on_return += [self.health.save_unsaved, self.sessions.save_unsaved]
        self.active: dict[RequestRecord, ClientRequest] = {} if after is None else after.active
        """Requests under way."""
        self.allowances: KeyAllowances = KeyAllowances() if after is None else after.allowances
        self._round_robin: RoundRobin = RoundRobin() if after is None else after._round_robin
        self._environ = os.environ if environ is None else environ
        self._user_dir = user_dir or Path("~/.routecodex").expanduser()
        self._observe = observe
        self.session_usage: SessionUsage = _unknown_usage if after is None else after.session_usage
        self._clock = clock
        self._ntp_file = ntp_file
        self.limiter: Limiter = self._make_limiter(config) if after is None else after.limiter
        self._stopping: asyncio.Future[None] | None = None
        self._configure(config, after)

    def _configure(self, config: Config, after: Gateway | None) -> None:
        """Build the parts that depend on the configuration."""
        self.config = config
        self.health.options = build.health_options(config)
        self.health.scripted = build.scripted(config)
        self.sessions.refuses_unknown = config.store.on_down == "refuse"
        self.registry = build.registry(config, self.model_lists)
        self.prices: PriceTable = (
            after.prices
            if after is not None and after.config is config
            else build.prices(config, self._user_dir)
        )
        self.history = ResponseHistory(
            self.store,
            ttl=config.store.responses_ttl_hours * 3600,
            entries=config.store.responses_max_entries,
            size=config.store.responses_max_mb * 1024 * 1024,
            works=self._store_works,
        )
        self._chains = ResponseChains(self.history, self.registry)
        self.services = self._make_services(config)
        self.limiter.configure(config, price_of=self.services.price_of, model_of=self.registry.model)
        self.clients.limit_use = self.limiter.use
        self.clock_service: ClockService = self._make_clock(config, after)
        calls = InternalCalls(self.services)
        describer = ImageDescriber(config.server_tools.vision_auto, calls, store=self.store)
        self.services.describe_images = describer.descriptions
        self._tool_set = self._make_tool_set(config, calls)
        self._contexts = RoutingContextBuilder(
            self.services.router,
            sessions=self.sessions,
            operator=self.operator,
            options=build.classifier_options(config),
            affinity=config.routing_options.affinity,
            max_wait=self.services.max_wait,
            user_dir=self._user_dir,
            clock=self._clock,
            clear_clock=self._clear_clock,
            roles=build.role_table(config),
            where=config.instructions.where,
            router_for=self.services.router_for,
        )
        self.model_lists.configure(build.model_sources(config, self.http, self._environ))
        # Last: a configuration that cannot be used must not change who may call.
        self.clients.configure(config)

    def _make_limiter(self, config: Config) -> Limiter:
        counters = self._make_counters(config)
        limiter = Limiter(
            counters,
            table=lambda: self.clients.table,
            clock=self._clock,
            webhook=LimitWebhook(self.http, self._environ),
        )
        if isinstance(counters, StoredCounters):
            counters.on_events = limiter.report
        return limiter

    def _make_counters(self, config: Config) -> LimitCounters:
        """Return the counters of limits: in the store if machines share it, else in a file."""
        store = self.store
        if store.groups is None:
            return SharedCounters(limits_path(config, self._user_dir))
        return StoredCounters(
            store, store.groups, node=lambda: self.config.identity, works=lambda: store.works
        )

    def share_running_requests(self) -> None:
        """Count the running requests of clients over all workers: this process is one of several."""
        counters = self.limiter.counters
        if isinstance(counters, SharedCounters):
            self.clients.use.shared = RunningRequests(counters, clock=self._clock)
            self.limiter.on_beat.append(self.clients.use.refresh)

    def _make_services(self, config: Config) -> GatewayServices:
        options = config.routing_options
        return GatewayServices(
            self.registry,
            upstreams=build.upstreams(config, self.http, self._environ),
            builtin_providers=build.builtin_providers(config),
            key_sources=build.key_sources(config),
            health=self.health,
            sessions=self.sessions,
            operator=self.operator,
            reasoning=self.reasoning,
            responses=self._chains,
            keep_alives=KeepAlives(config.server.keepalive_ms / 1000),
            round_robin=self._round_robin,
            clock=self._clock,
            observe=self._observe,
            max_attempts=options.max_attempts,
            max_wait=options.max_wait_ms / 1000,
            retries_empty=config.server_tools.empty_reply_continue.enabled,
            tool_turn_stop=config.protocols.messages.tool_turn_message_stop,
            prices=self.prices,
            counts_calls=config.usage.enabled,
            limiter=self.limiter,
            allowances=self.allowances,
            captures=config.capture.is_on,
        )

    def _make_tool_set(self, config: Config, calls: InternalCalls) -> ServerToolSet:
        search = search_of(
            config.server_tools.web_search,
            calls,
            client=self.http,
            environ=self._environ,
            targets=map(self.services.prepare, self.registry.targets_in(SEARCH_ROUTE)),
        )
        return ServerToolSet(
            config,
            sessions=self.sessions,
            store=self.store,
            clock=self._clock,
            environ=self._environ,
            clock_service=self.clock_service,
            search=search,
        )

    def _make_clock(self, config: Config, after: Gateway | None) -> ClockService:
        """Return the configured clock; a running one continues if its configuration is the same."""
        clock = config.server_tools.clock
        if after is not None and after.clock_service.config == clock:
            return after.clock_service
        service = ClockService(
            clock, store=self.store, clock=self._clock, environ=self._environ, ntp_file=self._ntp_file
        )
        # For good: after a reload requests may go on with this clock.
        self.store.on_return.append(service.save_unsaved)
        return service

    async def _clear_clock(self, scope: Scope) -> None:
        """Delete the clock tasks of a session at once."""
        session = session_name(scope)
        if session is None:
            return
        try:
            await self.clock_service.actions.clear(session, request_id="instruction")
        except StoreError as exc:
            raise Overloaded(
                "the clock tasks could not be cleared, nothing was changed", code="state_not_saved"
            ) from exc

    def _store_works(self) -> bool:
        return self.store.works

    def reconfigured(self, config: Config) -> Gateway:
        """Return a gateway for a new configuration that shares state and connections with this one."""
        new = Gateway(
            config,
            store=self.store,
            observe=self._observe,
            environ=self._environ,
            user_dir=self._user_dir,
            ntp_file=self._ntp_file,
            clock=self._clock,
            after=self,
        )
        if new.clock_service is not self.clock_service:
            new.clock_service.start()
            # The old one finishes its writes before it stops.
            self._stopping = asyncio.ensure_future(self.clock_service.stop())
        return new

    async def open(self) -> None:
        """Load the state of earlier runs and other processes."""
        await self.health.load()
        await self.reasoning.owners.load()
        await self.operator.load()
        await self.model_lists.follow()
        await self.clients.refresh()
        self.clients.start()
        self.limiter.start()
        self.clock_service.start()

    async def close(self) -> None:
        """Save state and close every connection to a provider."""
        await self.model_lists.stop()
        await self.clock_service.stop()
        await self.clients.close()
        await self.limiter.close()
        await self.health.flush()
        await self.reasoning.owners.flush()
        await self.http.close()
        await self.store.close()

    async def answer(self, request: ClientRequest, client: ClientConnection) -> None:
        """Answer one request; a failure before the answer has begun is raised."""
        record = RequestRecord(
            id=request.id,
            protocol=request.codec.name,
            model=request.wire.model,
            stream=request.wire.stream,
            client_name=request.client_name,
            client_request_id=client_request_id(request.headers),
            team="" if request.client is None else request.client.team,
            arrived=request.arrived,
        )
        record.is_priced = self.services.counts_calls
        if request.client is not None or self.limiter.limits_keys:
            self.services.limit(record, request.client, request)
        if request.trace is not None:
            record.trace = request.trace
            record.trace.stream = request.wire.stream
            record.trace.parameters = parameters_of(request.wire)
        self.active[record] = request
        try:
            error = await self._answer(request, client, record)
            if error is not None:
                relay = request.codec.relay(self.services.error_context(request))
                await client.end(relay.fail(error))
        finally:
            del self.active[record]
            record.session = request.session
            record.role = request.role
            if record.limits is not None:
                self.services.settle_limits(record)
            self.services.finish(record)

    async def _answer(
        self, request: ClientRequest, client: ClientConnection, record: RequestRecord
    ) -> GatewayError | None:
        """Answer; return the error of an answer that has begun and was not ended."""
        try:
            if request.codec.name == "responses":
                await self._chains.expand(request, functools.partial(self._may_be_stored_upstream, request))
            context = await self._contexts.build(request)
            if context.for_gateway:
                await self._settle_store()
                await self._answer_itself(request, context, client, record)
            else:
                await self._answer_from_provider(request, context, client, record)
        except GatewayError as error:
            _note_error(record, error, request, client)
            if not client.started:
                raise
            return error.detached()
        except (ClientDisconnected, asyncio.CancelledError):
            stopped = interruption(client)
            if stopped is None:
                record.gone = True
                raise
            _note_error(record, stopped, request, client)
            if not client.started:
                raise stopped from None
            return stopped
        except Exception:
            record.status = 500
            raise
        return None

    async def _answer_from_provider(
        self, request: ClientRequest, context: RoutingContext, client: ClientConnection, record: RequestRecord
    ) -> None:
        services = self.services
        if self.health.stale():
            await self.health.refresh()
        planner = RequestPlanner(services, request, context)
        record.plan = plan = planner.plan()
        record.context = context
        services.begin_counting(record)
        if record.limits is not None:
            record.limits.input_tokens = context.query.tokens
            record.limits.reroutes = True
        if self._tool_set.may_need_tools(context.session, request):
            steps = (*plan.steps, *(row.step for row in plan.cooling))
            tools = self._tool_set.open_turn(
                request, context, [services.prepare(step.target) for step in steps], record=record
            )
            if tools is not None:
                turn = ServerToolTurn(services, request, client, context=context, record=record, tools=tools)
                await turn.run()
                return
        writer = ClientWriter(services, request, client, record)
        failover = Failover(services, planner, record=record, notices=request.notices)
        try:
            answer = await failover.open(
                plan, lambda step: Attempt(services, request, context, step, record=record).open()
            )
            await writer.write(answer)
            failover.settle(record.error)
        finally:
            failover.close()
            writer.close()

    async def _settle_store(self) -> None:
        """Wait until other nodes know what an instruction changed: its answer takes no other time."""
        if self.store.settle_seconds:
            await asyncio.sleep(self.store.settle_seconds)

    async def _answer_itself(
        self, request: ClientRequest, context: RoutingContext, client: ClientConnection, record: RequestRecord
    ) -> None:
        """Answer a message that is for the gateway and not for a model."""
        record.route, record.reason = gateway_replies.GATEWAY_ROUTE, gateway_replies.GATEWAY_REASON
        services = self.services
        writer = ClientWriter(services, request, client, record)
        try:
            events = gateway_replies.reply_events(await self._reply_text(request, context))
            reply = services.reply_context(request, None)
            await writer.write(await open_events(services, request, reply, events))
        finally:
            writer.close()

    async def _reply_text(self, request: ClientRequest, context: RoutingContext) -> str:
        instructions = context.instructions
        assert instructions is not None
        kinds = {type(instruction) for instruction in instructions.instructions}
        if ShowHelp in kinds:
            return gateway_replies.help_reply()
        if ShowStatus not in kinds:
            return gateway_replies.confirmation(
                context.session, instructions.ignored, instructions.malformed, request.notices.lines()
            )
        await self.health.read_latest()
        rows = self.health.report(self._clock())
        if context.client is not None and context.client.rules is not None:
            visible = self.services.router_for(context.client).registry.providers
            rows = [row for row in rows if row.name.partition(".")[0] in visible]
        clock = await self.clock_service.summary(session_name(context.scope))
        session = await self.sessions.load_shown(context.scope) if context.scope.lasts else context.session
        usage = await self.session_usage(request.session, request.client_name)
        return gateway_replies.status(
            session,
            context.operator,
            rows,
            session=context.scope.name,
            clock=clock,
            usage=usage,
            limits=self.limiter.status_lines(context.client),
        )

    async def plan(self, request: ClientRequest) -> RoutePlan:
        """Plan a request without changing state; targets that are cooling down come last."""
        return await self._plan_in(request, await self._contexts.build(request, save=False))

    async def _plan_in(self, request: ClientRequest, context: RoutingContext) -> RoutePlan:
        plan = await self._peek_plan(request, context)
        return plan if plan.steps else plan.in_order(row.step for row in plan.cooling)

    def secrets(self, config: Config) -> frozenset[str]:
        """Return every value of a configuration that must not be written down."""
        return build.secrets(config, self._environ)

    @property
    def installed_tools(self) -> tuple[InstalledTool, ...]:
        """Server tools of other packages, and whether they were loaded."""
        return self._tool_set.installed

    async def explain(self, request: ClientRequest) -> dict[str, Any]:
        """Explain the plan of a request; nothing is sent and no state changes."""
        context = await self._contexts.build(request, save=False)
        plan = None if context.for_gateway else await self._peek_plan(request, context)
        return explain.explain(plan, context, now=self._clock())

    async def _peek_plan(self, request: ClientRequest, context: RoutingContext) -> RoutePlan:
        services = self.services
        if self.health.stale():
            await self.health.refresh()
        return RequestPlanner(services, request, context).plan(next_turn=services.round_robin.peek)

    async def count_tokens(self, request: ClientRequest, record: RequestRecord) -> int:
        """Count the tokens of a request, without generating anything."""
        context = await self._contexts.build(request, save=False)
        plan = await self._plan_in(request, context)
        return await count_tokens.count(
            self.services, request, plan, record=record, estimates=context.for_gateway
        )

    async def embed(
        self,
        body: bytes,
        *,
        headers: Mapping[str, str],
        record: RequestRecord,
        client: Client | None = None,
        owner: str = "",
    ) -> bytes:
        """Return the embeddings of a request, as its provider wrote them."""
        self.services.limit(record, client)
        try:
            return await embeddings.embed(
                self.services, body, headers=headers, record=record, client=client, owner=owner
            )
        except GatewayError as error:
            if record.limits is not None:
                record.limits.close()
                error.header_lines = record.limits.header_lines(record.protocol)
            raise
        finally:
            self.services.settle_limits(record)

    async def _may_be_stored_upstream(self, request: ClientRequest) -> bool:
        """Return whether every target stores its answers: one that is unknown here may be stored there.

        With several clients it may be another client's, so that no provider is asked for it.
        """
        if request.owner:
            return False
        steps = (await self.plan(request)).steps
        return all(self._chains.stores_answers(step.target) for step in steps)


def _note_error(
    record: RequestRecord, error: GatewayError, request: ClientRequest, client: ClientConnection
) -> None:
    record.error = error
    # The status that the client gets: protocols differ, and a stream that has begun has its status.
    record.status = 200 if client.started else request.codec.encode_error(error)[0]
    record.route = record.route or gateway_replies.GATEWAY_ROUTE
    if record.limits is not None:
        record.limits.close()
        error.header_lines = record.limits.header_lines(request.codec.name)
    record.notices = error.notices = (*request.notices.lines(), *error.notices)
    error.role = request.role.name
