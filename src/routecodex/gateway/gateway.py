"""The object that holds the parts, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from routecodex.canon.errors import ClientDisconnected, GatewayError, Overloaded
from routecodex.canon.request import Request
from routecodex.config import Config
from routecodex.gateway import build, count_tokens
from routecodex.gateway.answer.attempt import Attempt
from routecodex.gateway.answer.failover import Attempts, Failover, Planner
from routecodex.gateway.answer.keep_alive import KeepAlives
from routecodex.gateway.answer.prepared_target import BuiltinProvider, PreparedTarget
from routecodex.gateway.answer.turn import ServerToolTurn
from routecodex.gateway.context import gateway_replies
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContext, RoutingContextBuilder
from routecodex.gateway.explain import explained
from routecodex.gateway.internal.clock_service import ClockService
from routecodex.gateway.internal.internal_calls import ImageDescriber, InternalCalls
from routecodex.gateway.internal.search_backends import ROUTE as SEARCH_ROUTE
from routecodex.gateway.internal.search_backends import search_of
from routecodex.gateway.internal.tool_set import ServerToolSet, session_name
from routecodex.gateway.request import ClientConnection, ClientRequest, RequestRecord, fresh_id
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.reasoning_cache import ReasoningCache
from routecodex.gateway.state.response_history import ResponseChains, ResponseHistory
from routecodex.gateway.state.sessions import Sessions
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.messages.client_quirks import ends_with_message_stop, knows_refusal
from routecodex.providers.http import HttpClient
from routecodex.routing.instructions import ShowHelp, ShowStatus
from routecodex.routing.pools import NextTurn, RoundRobin
from routecodex.routing.registry import Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.router import Router
from routecodex.routing.state import ServerState, SessionState
from routecodex.server_tools.framework import ServerToolPlugin, TurnContext
from routecodex.server_tools.vision import ImageDescriptions
from routecodex.stores.store import Store, StoreError
from routecodex.turns.engine import Engine

Observe = Callable[[RequestRecord], None]

_ALONE: Engine[Any, Any, Any] = Engine(())
"""The engine of a turn that no server tool takes part in."""


class Gateway:
    """Everything one server needs to answer requests; stores, clock and observers are passed in.

    One that comes after another, for a new configuration, goes on with the state and the connections of that.
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
        self.store = store
        self.memory: ReasoningCache = (
            ReasoningCache(SignatureOwners(store)) if after is None else after.memory
        )
        self.http: HttpClient = HttpClient() if after is None else after.http
        self.sessions: Sessions = Sessions(store) if after is None else after.sessions
        self.orders: OperatorState = OperatorState(store) if after is None else after.orders
        self.health: KeyHealth = KeyHealth(store, clock=clock) if after is None else after.health
        self._draws: RoundRobin = RoundRobin() if after is None else after._draws
        self._environ = os.environ if environ is None else environ
        self._user_dir = user_dir or Path("~/.routecodex").expanduser()
        self._observe = observe
        self._clock = clock
        self._ntp_file = ntp_file
        self._retiring: asyncio.Future[None] | None = None
        self._configure(config, after)

    def _configure(self, config: Config, after: Gateway | None) -> None:
        """Everything that follows from the configuration alone."""
        self.config = config
        self.health.options = build.health_options(config)
        self.health.scripted = build.scripted(config)
        self.registry = build.registry(config)
        self.upstreams = build.upstreams(config, self.http, self._environ)
        self.performers = build.builtin_providers(config)
        options = config.routing_options
        self.max_attempts = options.max_attempts
        self._max_wait = options.max_wait_ms / 1000
        self.keep_alives = KeepAlives(config.server.keepalive_ms / 1000)
        self._lanes: dict[Target, PreparedTarget | BuiltinProvider] = {}
        self.history = ResponseHistory(
            self.store,
            ttl=config.store.responses_ttl_hours * 3600,
            entries=config.store.responses_max_entries,
            size=config.store.responses_max_mb * 1024 * 1024,
        )
        self._chains = ResponseChains(self.history, self.registry)
        self._tool_turn_stop = config.protocols.messages.tool_turn_message_stop
        self._router = Router(self.registry)
        self.clockwork: ClockService = self._clock_of(config, after)
        calls = InternalCalls(self)
        self._sights = ImageDescriber(config.server_tools.vision_auto, calls, store=self.store)
        self.asks_again = config.server_tools.empty_reply_continue.enabled
        self._toolbox = ServerToolSet(
            config,
            sessions=self.sessions,
            store=self.store,
            clock=self._clock,
            environ=self._environ,
            clockwork=self.clockwork,
            search=search_of(
                config.server_tools.web_search,
                calls,
                client=self.http,
                environ=self._environ,
                lanes=map(self.lane, self.registry.targets_in(SEARCH_ROUTE)),
            ),
        )
        self._courses = RoutingContextBuilder(
            self._router,
            sessions=self.sessions,
            orders=self.orders,
            options=build.classifier_options(config),
            affinity=options.affinity,
            max_wait=self._max_wait,
            user_dir=self._user_dir,
            clock=self._clock,
            clear_clock=self._clear_clock,
        )

    def _clock_of(self, config: Config, after: Gateway | None) -> ClockService:
        """The clock as configured; the one there is goes on when nothing about it has changed."""
        row = config.server_tools.clock
        if after is not None and after.clockwork.row == row:
            return after.clockwork
        return ClockService(
            row, store=self.store, clock=self._clock, environ=self._environ, ntp_file=self._ntp_file
        )

    async def _clear_clock(self, scope: Scope) -> None:
        """Forgets the clock tasks of a session, at once; nothing to forget where nothing is kept."""
        session = session_name(scope)
        if session is None:
            return
        try:
            await self.clockwork.tool.clear(session, request_id="instruction")
        except StoreError as exc:
            raise Overloaded(
                "the clock tasks could not be cleared, nothing was changed", code="state_not_saved"
            ) from exc

    def reconfigured(self, config: Config) -> Gateway:
        """A gateway for a new configuration that shares state and connections with this one."""
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
        if new.clockwork is not self.clockwork:
            new.clockwork.start()
            # Whatever is under way on the old one is written before it rests.
            self._retiring = asyncio.ensure_future(self.clockwork.stop())
        return new

    async def open(self) -> None:
        """Reads what earlier runs and other processes have left."""
        await self.health.load()
        await self.memory.makers.load()
        await self.orders.load()
        self.clockwork.start()

    async def close(self) -> None:
        """Ends every connection to a provider."""
        await self.clockwork.stop()
        await self.health.flush()
        await self.memory.makers.flush()
        await self.http.close()
        await self.store.close()

    async def answer(self, ask: ClientRequest, client: ClientConnection) -> None:
        """Answers one request; what goes wrong before the answer has begun is raised."""
        record = RequestRecord(
            id=ask.id,
            protocol=ask.codec.name,
            model=ask.inbound.model,
            stream=ask.inbound.stream,
            client_name=ask.client_name,
            arrived=ask.arrived,
        )
        try:
            failed = await self._answered(ask, client, record)
            if failed is not None:
                await client.end(ask.codec.relay(self._bare_reply(ask)).fail(failed))
        finally:
            record.session = ask.session
            record.finished = time.monotonic()
            self._observe(record)

    async def _answered(
        self, ask: ClientRequest, client: ClientConnection, record: RequestRecord
    ) -> GatewayError | None:
        """Answers; what went wrong with an answer that had begun, and has not ended yet."""
        try:
            if ask.codec.name == "responses":
                await self._chains.expand(ask, functools.partial(self._may_be_kept_there, ask))
            course = await self._courses.set(ask)
            exchange = Attempt(self, ask, client, record=record, course=course)
            if course.answers_itself:
                await self._answer_itself(exchange, ask, course)
            else:
                await self._answer_from_provider(exchange, ask, course)
        except GatewayError as error:
            record.error, record.status = error, error.status
            record.route = record.route or gateway_replies.GATEWAY_ROUTE
            record.notices = error.notices = (*ask.notices, *error.notices)
            if not client.started:
                raise
            return error.detached()
        except (ClientDisconnected, asyncio.CancelledError):
            record.gone = True
            raise
        except Exception:
            record.status = 500
            raise
        return None

    async def _answer_from_provider(
        self, exchange: Attempt, ask: ClientRequest, course: RoutingContext
    ) -> None:
        if self.health.stale():
            await self.health.refresh()
        plan = self._planned(ask, course)
        if self._toolbox.may_want(course.session, ask):
            steps = (*plan.steps, *(row.step for row in plan.cooling))
            lanes = [self.lane(step.target) for step in steps]
            situation, tools = self._toolbox.situation(ask, course, lanes=lanes)
            if tools:
                plugin = self._toolbox.plugin(tools, situation)
                await self._answer_in_rounds(exchange, ask, course, situation=situation, plugin=plugin)
                return
        await _ALONE.single(self._tries(exchange, ask, course).run(plan))

    def _tries(self, attempts: Attempts, ask: ClientRequest, course: RoutingContext) -> Failover:
        async def let_go() -> None:
            await self._clear_sticky(ask, course)

        return self.tries_of(
            attempts, lambda tried, must: self._planned(ask, course, tried, must), let_go=let_go
        )

    def tries_of(
        self, attempts: Attempts, planner: Planner, *, let_go: Callable[[], Awaitable[None]] | None = None
    ) -> Failover:
        """The attempts at a request or at a call of our own."""
        return Failover(
            attempts,
            planner,
            let_go=let_go,
            health=self.health,
            clock=self._clock,
            max_attempts=self.max_attempts,
            max_wait=self._max_wait,
        )

    async def _answer_in_rounds(
        self,
        exchange: Attempt,
        ask: ClientRequest,
        course: RoutingContext,
        *,
        situation: TurnContext,
        plugin: ServerToolPlugin,
    ) -> None:
        """Answers with server tools: in as many rounds as they ask for."""

        async def reach(rounds: ServerToolTurn) -> None:
            # The pools were drawn from when the request came: its rounds are one turn of theirs.
            plan = self._planned(ask, course, next_turn=self._draws.peek)
            last = rounds.record.target
            if last is not None:
                steps = sorted(plan.steps, key=lambda step: step.target != last)
                plan = plan.in_order(steps)
            await self._tries(rounds, ask, course).run(plan)

        async def fit(request: Request, lane: PreparedTarget) -> Request:
            request = self._toolbox.fitted(situation, request, lane)
            sight = None if lane.aim.vision else exchange.sight()
            return request if sight is None else await sight.replace_images(request, target=str(lane.target))

        rounds = ServerToolTurn(
            self,
            ask,
            exchange.client,
            record=exchange.record,
            situation=situation,
            tools=plugin,
            visible=self._toolbox.visible,
            reach=reach,
            broke=self.health.failed,
            fit=fit,
            continues=self._toolbox.continues,
        )
        await rounds.run()

    async def _clear_sticky(self, ask: ClientRequest, course: RoutingContext) -> None:
        """Lets go of the sticky target of the session, which is of no use any more."""
        gone = course.session.sticky
        if gone is None:
            return
        ask.notices.append(f"sticky {gone} cleared: no key of it can be used")
        course.session = replace(course.session, sticky=None)
        if course.scope.lasts:
            await self.sessions.change(
                course.scope, lambda state: replace(state, sticky=None) if state.sticky == gone else state
            )

    async def _answer_itself(self, exchange: Attempt, ask: ClientRequest, course: RoutingContext) -> None:
        """Answers a message that is for the gateway and not for a model."""
        assert course.spoken is not None
        said = {type(instruction) for instruction in course.spoken.instructions}
        if ShowHelp in said:
            text = gateway_replies.help_reply()
        elif ShowStatus in said:
            rows = self.health.report(self._clock())
            clock = await self.clockwork.state_of(session_name(course.scope))
            shown = await self.sessions.look(course.scope) if course.scope.lasts else course.session
            text = gateway_replies.status(shown, course.server, rows, session=course.scope.key, clock=clock)
        else:
            text = gateway_replies.confirmation(course.session, course.spoken.malformed, ask.notices)
        exchange.record.route, exchange.record.reason = (
            gateway_replies.GATEWAY_ROUTE,
            gateway_replies.GATEWAY_REASON,
        )
        await exchange.perform(gateway_replies.reply_events(text))

    @contextlib.contextmanager
    def noted(self, record: RequestRecord) -> Iterator[None]:
        """Logs and counts a call that is answered whole, by other means than an exchange."""
        try:
            yield
            record.status = 200
        except GatewayError as error:
            record.error, record.status = error, error.status
            raise
        except (ClientDisconnected, asyncio.CancelledError):
            record.gone = True
            raise
        finally:
            record.finished = time.monotonic()
            self._observe(record)

    async def plan(self, ask: ClientRequest) -> RoutePlan:
        """The targets for a request that changes no state; what only cools down comes last."""
        made = self._planned(ask, await self._courses.set(ask, save=False), next_turn=self._draws.peek)
        return made if made.steps else made.in_order(row.step for row in made.cooling)

    async def explain(self, ask: ClientRequest) -> dict[str, Any]:
        """The plan of a request with every reason; nothing is sent and nothing is changed."""
        course = await self._courses.set(ask, save=False)
        plan = None if course.answers_itself else self._planned(ask, course, next_turn=self._draws.peek)
        return explained(plan, course, now=self._clock())

    def plan_for(self, asked: RouteQuery, session: SessionState) -> RoutePlan:
        """The targets for what routing sees of a request that is no part of a conversation."""
        server = self.orders.peek() or ServerState()
        made = self._route(asked, session, server, next_turn=self._draws)
        return made if made.steps else made.in_order(row.step for row in made.cooling)

    def plan_route(
        self, route: str, course: RoutingContext, tried: frozenset[Target] = frozenset()
    ) -> RoutePlan:
        """The targets for a call of our own; what this session may not use is not among them."""
        asked = RouteQuery(model="", only_route=route, ignore_sticky=True, tried=tried)
        session = replace(course.session, force=None)
        return self._route(asked, session, course.server, next_turn=self._draws)

    def sight(self, ask: ClientRequest, course: RoutingContext) -> ImageDescriptions | None:
        """Words for the images of a request, for targets that do not see; None when it holds none."""
        return self._sights.of(ask, course)

    def _planned(
        self,
        ask: ClientRequest,
        course: RoutingContext,
        tried: frozenset[Target] = frozenset(),
        must: str | None = None,
        *,
        next_turn: NextTurn | None = None,
    ) -> RoutePlan:
        """The targets for this request; a provider that holds its history comes first."""
        asked = course.asked
        if tried or must is not None:
            asked = asked.retry(tried=tried, only_route=must)
        made = self._route(asked, course.session, course.server, next_turn=next_turn or self._draws)
        if ask.holder is None:
            return made
        first = [step for step in made.steps if ask.is_held_by(step.target)]
        others = [step for step in made.steps if not ask.is_held_by(step.target)]
        return made.in_order((*first, *others))

    def _route(
        self, asked: RouteQuery, session: SessionState, server: ServerState, *, next_turn: NextTurn
    ) -> RoutePlan:
        return self._router.plan(
            asked, session=session, server=server, health=self.health, now=self._clock(), next_turn=next_turn
        )

    def lane(self, target: Target) -> PreparedTarget | BuiltinProvider:
        """The target, ready to send to."""
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = self._make_lane(target)
        return lane

    def _make_lane(self, target: Target) -> PreparedTarget | BuiltinProvider:
        performer = self.performers.get(target.provider)
        if performer is not None:
            named = self.registry.model(target).id
            return lambda request: performer(replace(request, model=named))
        upstream = self.upstreams[target.provider]
        return PreparedTarget(target, upstream, self.registry.model(target), self.memory)

    def reply_to(self, ask: ClientRequest, target: Target | None) -> ReplyContext:
        """How this client wants to be answered; without a target the gateway speaks for itself."""
        reply = self._bare_reply(ask)
        if target is not None:
            reply.provider = target.provider
        if ask.codec.name == "messages":
            reply.end_tool_turn = ends_with_message_stop(self._tool_turn_stop, ask.headers)
            reply.knows_refusal = knows_refusal(ask.headers)
        return reply

    def _bare_reply(self, ask: ClientRequest) -> ReplyContext:
        inbound = ask.received or ask.original or ask.inbound
        return ReplyContext(
            id=fresh_id(),
            created=ask.created,
            model=inbound.model,
            wire=inbound.wire,
            include_usage=inbound.include_usage,
            input_tokens=count_tokens.estimate_body(ask.inbound.body),
        )

    async def _may_be_kept_there(self, ask: ClientRequest) -> bool:
        """Whether every target keeps conversations of its own: an unknown one may be one of theirs."""
        steps = (await self.plan(ask)).steps
        return all(self._chains.keeps_its_own(step.target) for step in steps)

    async def remember(self, ask: ClientRequest, target: Target | None, outcome: AnswerOutcome) -> None:
        """Keeps an answer of the Responses API that may be continued."""
        if ask.codec.name == "responses":
            await self._chains.remember(ask, target, outcome)
