"""How one request is to be routed.

From a request to what routing needs of it: whose it is, what was said to the gateway, what it asks for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from routecodex.gateway.context.identity import Scope, identify
from routecodex.gateway.context.instructions import ChatInstructions, InstructionApplier, extract_instructions
from routecodex.gateway.request import ClientRequest
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols import large_body
from routecodex.protocols.control_fields import (
    NO_CONTROL_FIELDS,
    ControlFields,
    has_control_fields,
    read_control_fields,
    strip_control_fields,
)
from routecodex.routing import tokens
from routecodex.routing.classify import ClassifierOptions, RouteClass, classify, is_title_request
from routecodex.routing.route_plan import RouteQuery
from routecodex.routing.router import Router
from routecodex.routing.state import NO_SERVER_STATE, NOTHING_SET, ServerState, SessionState


class RoutingContext:
    """How one request is to be routed; `spoken` is what it said to the gateway, None when nothing."""

    __slots__ = ("asked", "scope", "server", "session", "spoken")

    def __init__(
        self,
        scope: Scope,
        asked: RouteQuery,
        *,
        session: SessionState,
        server: ServerState,
        spoken: ChatInstructions | None = None,
    ) -> None:
        self.scope = scope
        self.session = session
        self.server = server
        self.asked = asked
        self.spoken = spoken

    @property
    def answers_itself(self) -> bool:
        """Whether the gateway answers the request, so that there is no plan."""
        return self.spoken is not None and self.spoken.wants_own_answer


_QUIET: Final = (NOTHING_SET, NO_SERVER_STATE)
_NO_CLASS: Final = RouteClass("default", "no rule names another route")


class RoutingContextBuilder:
    """Sets the course of each request; the session's state is saved before it returns."""

    def __init__(
        self,
        router: Router,
        *,
        sessions: Sessions,
        orders: OperatorState,
        options: ClassifierOptions,
        affinity: bool,
        max_wait: float,
        user_dir: Path,
        clock: Callable[[], float],
        clear_clock: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._router = router
        self._sessions = sessions
        self._orders = orders
        self._options = options
        self._affinity = affinity
        self._max_wait = max_wait
        self._threshold = min(options.longcontext_tokens, router.registry.smallest_context)
        self._steering = InstructionApplier(sessions, user_dir=user_dir, clock=clock, clear_clock=clear_clock)

    async def set(self, ask: ClientRequest, *, save: bool = True) -> RoutingContext:
        """The course of this request; without `save` no state is changed."""
        if ask.received is not None and ask.original is None:
            # A course was set before, to see where it would lead: what it took out counts again.
            ask.inbound = ask.received
        told = read_control_fields(ask.inbound)
        scope = self._scope(ask, told)
        ask.session = scope.key if scope.lasts else ""
        spoken = self._heard(ask)
        if told is not NO_CONTROL_FIELDS:
            self._keep_controls(ask)
        server = self._orders.peek() or await self._orders.load()
        session = self._sessions.peek(scope) or await self._sessions.load(scope)
        if spoken is not None and spoken.turn is not None:
            notices = ask.notices if save else []
            session = await self._steering.apply(
                spoken, scope, registry=self._router.registry, notices=notices, save=save
            )
        if spoken is not None and save:
            session = await self._past_force(spoken, scope, session)
        asked = self._asked(ask, told, scope, quiet=(session, server) == _QUIET)
        if spoken is not None:
            asked = asked.at_turn(spoken.turn)
        return RoutingContext(scope, asked, session=session, server=server, spoken=spoken)

    def _scope(self, ask: ClientRequest, told: ControlFields) -> Scope:
        scope = identify(ask.codec.name, ask.headers, told, chain=ask.chain, request_id=ask.id)
        if scope.kind == "chain" and ask.chain is None and ask.inbound.wire.store is False:
            return Scope("request", scope.id)
        return scope

    def _heard(self, ask: ClientRequest) -> ChatInstructions | None:
        """What was said to the gateway, taken out of the request."""
        if ask.inbound.untagged or not large_body.may_hold_tags(ask.inbound.body):
            return None
        ask.received = ask.original or ask.inbound
        titled = is_title_request(ask.codec.features(ask.inbound))
        spoken = extract_instructions(ask.codec, ask.inbound)
        ask.inbound = spoken.stripped
        if ask.original is not None:
            ask.original = extract_instructions(ask.codec, ask.original).stripped
        # The client asks for a title in its own words, quoting what the person wrote.
        return ChatInstructions(spoken.stripped, alone=spoken.alone) if titled else spoken

    def _keep_controls(self, ask: ClientRequest) -> None:
        """Takes what is meant for the gateway alone out of the request."""
        inbound = ask.inbound
        if not has_control_fields(inbound):
            return
        body = strip_control_fields(inbound.body, inbound.protocol)
        if body is inbound.body:
            return
        ask.received = ask.received or ask.original or inbound
        ask.inbound = inbound.with_body(body)
        if ask.original is not None:
            ask.original = ask.original.with_body(strip_control_fields(ask.original.body, inbound.protocol))

    async def _past_force(
        self, spoken: ChatInstructions, scope: Scope, session: SessionState
    ) -> SessionState:
        """A newer message of the person ends what an earlier one of the same conversation forced."""
        force = session.force
        if force is None or force.turn not in spoken.earlier:
            return session
        return await self._sessions.change(
            scope, lambda state: replace(state, force=None) if state.force == force else state
        )

    def _asked(self, ask: ClientRequest, told: ControlFields, scope: Scope, *, quiet: bool) -> RouteQuery:
        """What routing must know; nothing is looked at on which nothing depends."""
        inbound, router = ask.inbound, self._router
        size = tokens.estimate(inbound.body, threshold=self._threshold)
        choosy = self._affinity and router.has_choice
        affinity = scope.key if choosy and scope.lasts else None
        class_counts = router.routes_differ and not (quiet and router.names_target(inbound.model))
        if not class_counts and (affinity is not None or not choosy):
            if told is NO_CONTROL_FIELDS:
                return RouteQuery(
                    model=inbound.model, tokens=size, affinity=affinity, max_wait=self._max_wait
                )
            found = _NO_CLASS
        else:
            look = ask.codec.features(inbound)
            found = classify(look, model=inbound.model, tokens=size, options=self._options)
            if affinity is None and choosy and (look.has_answer or look.has_tools):
                affinity = blake2b(ask.codec.fingerprint(inbound), digest_size=12).hexdigest()
        return RouteQuery(
            model=inbound.model,
            tokens=size,
            route=found.route,
            why=found.reason,
            hint=told.route_hint,
            ignore_sticky=told.disable_sticky,
            affinity=affinity,
            max_wait=self._max_wait,
        )
