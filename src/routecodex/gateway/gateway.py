"""The object that holds the parts, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from routecodex.canon.errors import ClientGone, GatewayError
from routecodex.config import Config
from routecodex.gateway import build, counting, own_words
from routecodex.gateway.ask import Ask, Client, Record
from routecodex.gateway.course import Course, Courses
from routecodex.gateway.draws import Draws
from routecodex.gateway.exchange import Exchange
from routecodex.gateway.explain import explained
from routecodex.gateway.health import Health
from routecodex.gateway.history import Entry, History
from routecodex.gateway.ids import fresh_id
from routecodex.gateway.keep_alive import KeepAlives
from routecodex.gateway.lane import Lane, Performer
from routecodex.gateway.memory import Memory
from routecodex.gateway.orders import Orders
from routecodex.gateway.sessions import Sessions
from routecodex.gateway.tries import Tries
from routecodex.protocols.codec import Outcome, ReplyTo
from routecodex.protocols.messages.clients import ends_with_message_stop, knows_refusal
from routecodex.protocols.responses import history as turns
from routecodex.providers.http import HttpClient
from routecodex.routing.instructions import ShowHelp, ShowStatus
from routecodex.routing.plan import Asked, Plan, Router
from routecodex.routing.registry import Target
from routecodex.routing.state import ServerState, SessionState
from routecodex.stores.store import Store
from routecodex.wire import json

Observe = Callable[[Record], None]


class Gateway:
    """Everything one server needs to answer requests; stores, clock and observers are passed in."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        observe: Observe = lambda record: None,
        environ: Mapping[str, str] | None = None,
        user_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.memory = Memory()
        self.http = HttpClient()
        self.sessions = Sessions(store)
        self.orders = Orders(store)
        self.health = Health(store, clock=clock)
        self._environ = os.environ if environ is None else environ
        self._user_dir = user_dir or Path("~/.routecodex").expanduser()
        self._observe = observe
        self._clock = clock
        self._draws = Draws()
        self._configure(config)

    def _configure(self, config: Config) -> None:
        """Everything that follows from the configuration alone."""
        self.config = config
        self.health.options = build.health_options(config)
        self.registry = build.registry(config)
        self.upstreams = build.upstreams(config, self.http, self._environ)
        self.performers = build.performers(config)
        options = config.routing_options
        self.max_attempts = options.max_attempts
        self._max_wait = options.max_wait_ms / 1000
        self.keep_alives = KeepAlives(config.server.keepalive_ms / 1000)
        self._lanes: dict[Target, Lane | Performer] = {}
        self.history = History(
            self.store,
            ttl=config.store.responses_ttl_hours * 3600,
            entries=config.store.responses_max_entries,
            size=config.store.responses_max_mb * 1024 * 1024,
        )
        self._tool_turn_stop = config.protocols.messages.tool_turn_message_stop
        self._router = Router(self.registry)
        self._courses = Courses(
            self._router,
            sessions=self.sessions,
            orders=self.orders,
            options=build.classifier_options(config),
            affinity=options.affinity,
            max_wait=self._max_wait,
            user_dir=self._user_dir,
            clock=self._clock,
        )

    def reconfigured(self, config: Config) -> Gateway:
        """A gateway for a new configuration that shares state and connections with this one."""
        new = copy.copy(self)
        new._configure(config)
        return new

    async def open(self) -> None:
        """Reads what earlier runs and other processes have left."""
        await self.health.load()
        await self.orders.load()

    async def close(self) -> None:
        """Ends every connection to a provider."""
        await self.health.flush()
        await self.http.close()
        await self.store.close()

    async def answer(self, ask: Ask, client: Client) -> None:
        """Answers one request; what goes wrong before the answer has begun is raised."""
        record = Record(
            id=ask.id,
            protocol=ask.codec.name,
            model=ask.inbound.model,
            stream=ask.inbound.stream,
            client_name=ask.client_name,
            arrived=ask.arrived,
        )
        try:
            if ask.codec.name == "responses":
                await self._expand(ask)
            course = await self._courses.set(ask)
            record.session = course.scope.key if course.scope.lasts else ""
            exchange = Exchange(self, ask, client, record=record)
            if course.spoken is not None and course.spoken.wants_own_answer:
                await self._answer_itself(exchange, ask, course)
            else:
                await self._answer_from_provider(exchange, ask, course)
        except GatewayError as error:
            record.error, record.status = error, error.status
            if not client.started:
                raise
            await client.end(ask.codec.relay(self._bare_reply(ask)).fail(error))
        except (ClientGone, asyncio.CancelledError):
            record.gone = True
            raise
        except Exception:
            record.status = 500
            raise
        finally:
            record.finished = time.monotonic()
            self._observe(record)

    async def _answer_from_provider(self, exchange: Exchange, ask: Ask, course: Course) -> None:
        if self.health.stale():
            await self.health.refresh()
        plan = self._planned(ask, course)
        if plan.clears_sticky:
            course.session = await self._sticky_cleared(course)
            ask.notices.append(f"sticky {course.session.sticky or ''} cleared".replace("  ", " "))
        tries = Tries(
            exchange,
            lambda tried, must: self._planned(ask, course, tried, must),
            health=self.health,
            clock=self._clock,
            max_attempts=self.max_attempts,
            max_wait=self._max_wait,
        )
        await tries.run(plan)

    async def _sticky_cleared(self, course: Course) -> SessionState:
        """The session without the sticky target that is of no use any more."""
        gone = course.session.sticky
        return await self.sessions.change(
            course.scope, lambda state: replace(state, sticky=None) if state.sticky == gone else state
        )

    async def _answer_itself(self, exchange: Exchange, ask: Ask, course: Course) -> None:
        """Answers a message that is for the gateway and not for a model."""
        assert course.spoken is not None
        said = {type(instruction) for instruction in course.spoken.instructions}
        if ShowHelp in said:
            text = own_words.help_answer()
        elif ShowStatus in said:
            rows = self.health.report(self._clock())
            text = own_words.status(course.session, course.server, rows, session=course.scope.key)
        else:
            text = own_words.confirmation(course.session, course.spoken.malformed, ask.notices)
        exchange.record.route, exchange.record.reason = "gateway", "the message is for the gateway itself"
        await exchange.perform(own_words.spoken(text))

    @contextlib.contextmanager
    def noted(self, record: Record) -> Iterator[None]:
        """Logs and counts a call that is answered whole, by other means than an exchange."""
        try:
            yield
            record.status = 200
        except GatewayError as error:
            record.error, record.status = error, error.status
            raise
        except (ClientGone, asyncio.CancelledError):
            record.gone = True
            raise
        finally:
            record.finished = time.monotonic()
            self._observe(record)

    async def plan(self, ask: Ask) -> Plan:
        """The targets for a request that changes no state; what only cools down comes last."""
        made = self._planned(ask, await self._courses.set(ask, save=False))
        return made if made.steps else replace(made, steps=tuple(row.step for row in made.cooling))

    async def explain(self, ask: Ask) -> dict[str, Any]:
        """The plan of a request with every reason; nothing is sent and nothing is changed."""
        course = await self._courses.set(ask, save=False)
        return explained(self._planned(ask, course), course, now=self._clock())

    def plan_for(self, asked: Asked) -> Plan:
        """The targets for what routing sees of a request that belongs to no conversation."""
        server = self.orders.peek() or ServerState()
        made = self._route(asked, SessionState(), server)
        return made if made.steps else replace(made, steps=tuple(row.step for row in made.cooling))

    def _planned(
        self, ask: Ask, course: Course, tried: frozenset[Target] = frozenset(), must: str | None = None
    ) -> Plan:
        """The targets for this request; a provider that holds its history comes first."""
        asked = course.asked
        if tried or must is not None:
            asked = replace(asked, tried=tried, must=must)
        made = self._route(asked, course.session, course.server)
        if ask.holder is None:
            return made
        first = [step for step in made.steps if ask.is_held_by(step.target)]
        others = [step for step in made.steps if not ask.is_held_by(step.target)]
        return replace(made, steps=(*first, *others))

    def _route(self, asked: Asked, session: SessionState, server: ServerState) -> Plan:
        return self._router.plan(
            asked, session=session, server=server, health=self.health, now=self._clock(), draw=self._draws
        )

    def lane(self, target: Target) -> Lane | Performer:
        """The target, ready to send to."""
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = self._make_lane(target)
        return lane

    def _make_lane(self, target: Target) -> Lane | Performer:
        performer = self.performers.get(target.provider)
        if performer is not None:
            return performer
        upstream = self.upstreams[target.provider]
        return Lane(target, upstream, self.registry.model(target), self.memory)

    def reply_to(self, ask: Ask, target: Target | None) -> ReplyTo:
        """How this client wants to be answered; without a target the gateway speaks for itself."""
        reply = self._bare_reply(ask)
        if target is not None:
            reply.provider = target.provider
        if ask.codec.name == "messages":
            reply.end_tool_turn = ends_with_message_stop(self._tool_turn_stop, ask.headers)
            reply.knows_refusal = knows_refusal(ask.headers)
        return reply

    def _bare_reply(self, ask: Ask) -> ReplyTo:
        inbound = ask.received or ask.original or ask.inbound
        return ReplyTo(
            id=fresh_id(),
            created=ask.created,
            model=inbound.model,
            wire=inbound.wire,
            include_usage=inbound.include_usage,
            input_tokens=counting.estimate_body(ask.inbound.body),
        )

    async def _expand(self, ask: Ask) -> None:
        """Puts the stored conversation in front of a request that continues one."""
        previous = ask.inbound.wire.previous_response_id
        if not previous:
            return
        if await self.history.find(previous) is None and await self._may_know(ask):
            # Not ours, but every target keeps its own conversations: it may be one of theirs.
            return
        chain = await self.history.chain(previous)
        ask.original = ask.inbound
        last = chain[-1]
        ask.chain = last.chain or None
        if last.native:
            ask.holder = (last.provider, last.key)
        body = turns.expand(ask.inbound.body, [entry.turn for entry in chain])
        ask.inbound = ask.codec.read(body)

    async def _may_know(self, ask: Ask) -> bool:
        steps = (await self.plan(ask)).steps
        return all(self.registry.providers[step.target.provider].protocol == "responses" for step in steps)

    async def remember(self, ask: Ask, target: Target | None, outcome: Outcome) -> None:
        """Keeps an answer of the Responses API that may be continued."""
        if ask.codec.name != "responses" or outcome.body is None:
            return
        inbound = ask.received or ask.original or ask.inbound
        if inbound.wire.store is False:
            return
        response_id = _id_of(outcome.body)
        if not response_id:
            return
        entry = Entry(
            request=Raw(inbound.body),
            response=Raw(outcome.body),
            previous=inbound.wire.previous_response_id,
            provider=target.provider if target is not None else "",
            key=target.key if target is not None else "",
            native=target is not None and self.registry.providers[target.provider].protocol == "responses",
            chain=ask.chain or ask.id,
        )
        await self.history.save(response_id, entry)


def _id_of(body: bytes) -> str:
    value = json.decode(body)
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
