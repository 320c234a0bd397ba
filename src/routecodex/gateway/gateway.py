"""The object that holds the parts, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping

from msgspec import Raw
from msgspec.structs import replace

from routecodex.canon.errors import ClientGone, GatewayError
from routecodex.config import Config
from routecodex.gateway import build, counting
from routecodex.gateway.ask import Ask, Client, Record
from routecodex.gateway.exchange import Exchange
from routecodex.gateway.history import Entry, History
from routecodex.gateway.ids import fresh_id
from routecodex.gateway.keep_alive import KeepAlives
from routecodex.gateway.lane import Lane, Performer
from routecodex.gateway.memory import Memory
from routecodex.protocols.codec import Outcome, ReplyTo
from routecodex.protocols.messages.clients import ends_with_message_stop, knows_refusal
from routecodex.protocols.responses import history as turns
from routecodex.providers.http import HttpClient
from routecodex.routing.plan import AllHealthy, Asked, Plan, ServerState, SessionState, plan
from routecodex.routing.registry import Target
from routecodex.stores.store import Store
from routecodex.wire import json

_NO_SESSION = SessionState()
_NO_ORDERS = ServerState()
_HEALTHY = AllHealthy()

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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.store = store
        self.memory = Memory()
        self.registry = build.registry(config)
        self.http = HttpClient()
        self.upstreams = build.upstreams(config, self.http, os.environ if environ is None else environ)
        self.performers = build.performers(config)
        self.max_attempts = config.routing_options.max_attempts
        self.keep_alives = KeepAlives(config.server.keepalive_ms / 1000)
        self._lanes: dict[Target, Lane | Performer] = {}
        self.history = History(
            store,
            ttl=config.store.responses_ttl_hours * 3600,
            entries=config.store.responses_max_entries,
            size=config.store.responses_max_mb * 1024 * 1024,
        )
        self._observe = observe
        self._clock = clock
        self._tool_turn_stop = config.protocols.messages.tool_turn_message_stop

    async def close(self) -> None:
        """Ends every connection to a provider."""
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
            await Exchange(self, ask, client, record=record).run(self.plan(ask))
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

    def plan(self, ask: Ask) -> Plan:
        """The targets for this request; a provider that holds its history comes first."""
        tokens = counting.estimate_body(ask.inbound.body)
        made = self.plan_for(Asked(model=ask.inbound.model, estimated_tokens=tokens))
        if ask.holder is None:
            return made
        first = [step for step in made.steps if ask.is_held_by(step.target)]
        others = [step for step in made.steps if not ask.is_held_by(step.target)]
        return replace(made, steps=(*first, *others))

    def plan_for(self, asked: Asked) -> Plan:
        """The targets for what routing sees of a request."""
        return plan(
            asked,
            session=_NO_SESSION,
            server=_NO_ORDERS,
            health=_HEALTHY,
            registry=self.registry,
            now=self._clock(),
            rng=random.random,
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

    def reply_to(self, ask: Ask, target: Target) -> ReplyTo:
        """How this client wants to be answered."""
        reply = self._bare_reply(ask)
        reply.provider = target.provider
        if ask.codec.name == "messages":
            reply.end_tool_turn = ends_with_message_stop(self._tool_turn_stop, ask.headers)
            reply.knows_refusal = knows_refusal(ask.headers)
        return reply

    def _bare_reply(self, ask: Ask) -> ReplyTo:
        inbound = ask.original or ask.inbound
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
        if await self.history.find(previous) is None and self._may_know(ask):
            # Not ours, but every target keeps its own conversations: it may be one of theirs.
            return
        chain = await self.history.chain(previous)
        ask.original = ask.inbound
        last = chain[-1]
        if last.native:
            ask.holder = (last.provider, last.key)
        body = turns.expand(ask.inbound.body, [entry.turn for entry in chain])
        ask.inbound = ask.codec.read(body)

    def _may_know(self, ask: Ask) -> bool:
        steps = self.plan(ask).steps
        return all(self.registry.providers[step.target.provider].protocol == "responses" for step in steps)

    async def remember(self, ask: Ask, target: Target, outcome: Outcome) -> None:
        """Keeps an answer of the Responses API that may be continued."""
        if ask.codec.name != "responses" or outcome.body is None:
            return
        inbound = ask.original or ask.inbound
        if inbound.wire.store is False:
            return
        response_id = _id_of(outcome.body)
        if not response_id:
            return
        entry = Entry(
            request=Raw(inbound.body),
            response=Raw(outcome.body),
            previous=inbound.wire.previous_response_id,
            provider=target.provider,
            key=target.key,
            native=self.registry.providers[target.provider].protocol == "responses",
        )
        await self.history.save(response_id, entry)


def _id_of(body: bytes) -> str:
    value = json.decode(body)
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
