"""Builds the context in which a request is routed: its session and state, its instructions, its query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from routecodex.canon.notices import Notices
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
    """Session, state and query of one request; `instructions` is None without any."""

    __slots__ = ("instructions", "operator", "query", "scope", "session")

    def __init__(
        self,
        scope: Scope,
        query: RouteQuery,
        *,
        session: SessionState,
        operator: ServerState,
        instructions: ChatInstructions | None = None,
    ) -> None:
        self.scope = scope
        self.session = session
        self.operator = operator
        self.query = query
        self.instructions = instructions

    @property
    def for_gateway(self) -> bool:
        """Whether the gateway answers the request itself, without a target."""
        return self.instructions is not None and self.instructions.for_gateway


_NO_RULES: Final = (NOTHING_SET, NO_SERVER_STATE)
_NO_CLASS: Final = RouteClass("default", "no rule names another route")


class RoutingContextBuilder:
    """Builds the context of each request, and saves the state that instructions change."""

    def __init__(
        self,
        router: Router,
        *,
        sessions: Sessions,
        operator: OperatorState,
        options: ClassifierOptions,
        affinity: bool,
        max_wait: float,
        user_dir: Path,
        clock: Callable[[], float],
        clear_clock: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._router = router
        self._sessions = sessions
        self._operator = operator
        self._options = options
        self._affinity = affinity
        self._max_wait = max_wait
        self._threshold = min(options.longcontext_tokens, router.registry.smallest_context)
        self._applier = InstructionApplier(sessions, user_dir=user_dir, clock=clock, clear_clock=clear_clock)

    async def build(self, request: ClientRequest, *, save: bool = True) -> RoutingContext:
        """Build the context of a request; without `save` no state changes."""
        if request.received is not None and request.original is None:
            # An earlier call without `save` stripped the request: start again from the received one.
            request.wire = request.received
        controls = read_control_fields(request.wire)
        scope = self._scope(request, controls)
        request.session = scope.name if scope.lasts else ""
        instructions = self._extract_instructions(request)
        if controls is not NO_CONTROL_FIELDS:
            self._strip_controls(request)
        operator = self._operator.peek() or await self._operator.load()
        session = self._sessions.peek(scope) or await self._load_session(request, scope)
        if instructions is not None and instructions.turn is not None:
            notices = request.notices if save else Notices()
            session = await self._applier.apply(
                instructions, scope, registry=self._router.registry, notices=notices, save=save
            )
        if instructions is not None and save:
            session = await self._end_force(instructions, scope, session)
        query = self._query(request, controls, scope, no_rules=(session, operator) == _NO_RULES)
        if instructions is not None:
            query = query.at_turn(instructions.turn)
        return RoutingContext(scope, query, session=session, operator=operator, instructions=instructions)

    async def _load_session(self, request: ClientRequest, scope: Scope) -> SessionState:
        # A chain that begins with this request has no state that could be unknown.
        begins = scope.kind == "chain" and request.chain is None
        return await self._sessions.load(scope, None if begins else request.notices)

    def _scope(self, request: ClientRequest, controls: ControlFields) -> Scope:
        scope = identify(
            request.codec.name,
            request.headers,
            controls,
            chain=request.chain,
            request_id=request.id,
            owner=request.owner,
        )
        if scope.kind == "chain" and request.chain is None and request.wire.view.store is False:
            return Scope("request", scope.id)
        return scope

    def _extract_instructions(self, request: ClientRequest) -> ChatInstructions | None:
        """Strip the instructions from the request and return them; None without any."""
        if request.wire.lacks_tags or not large_body.may_hold_tags(request.wire.body):
            return None
        request.received = request.original or request.wire
        is_title = is_title_request(request.codec.features(request.wire))
        instructions = extract_instructions(request.codec, request.wire)
        request.wire = instructions.stripped
        if request.original is not None:
            request.original = extract_instructions(request.codec, request.original).stripped
        # A request for a title quotes an earlier message: its tags were applied there.
        return ChatInstructions(instructions.stripped, alone=instructions.alone) if is_title else instructions

    def _strip_controls(self, request: ClientRequest) -> None:
        """Strip the control fields from the request: they are for the gateway only."""
        wire = request.wire
        if not has_control_fields(wire):
            return
        body = strip_control_fields(wire.body, wire.protocol)
        if body is wire.body:
            return
        request.received = request.received or request.original or wire
        request.wire = wire.with_body(body)
        if request.original is not None:
            request.original = request.original.with_body(
                strip_control_fields(request.original.body, wire.protocol)
            )

    async def _end_force(
        self, instructions: ChatInstructions, scope: Scope, session: SessionState
    ) -> SessionState:
        """End the forced target of an earlier message: the user has written a newer one."""
        force = session.force
        if force is None or force.turn not in instructions.earlier:
            return session
        return await self._sessions.change(
            scope, lambda state: replace(state, force=None) if state.force == force else state
        )

    def _query(
        self, request: ClientRequest, controls: ControlFields, scope: Scope, *, no_rules: bool
    ) -> RouteQuery:
        """Build the input of the router; features are read only if a rule uses them."""
        wire, router = request.wire, self._router
        size = tokens.estimate(wire.body, threshold=self._threshold)
        has_choice = self._affinity and router.has_choice
        affinity = scope.key if has_choice and scope.lasts else None
        class_counts = router.routes_differ and not (no_rules and router.names_target(wire.model))
        if not class_counts and (affinity is not None or not has_choice):
            if controls is NO_CONTROL_FIELDS:
                return RouteQuery(model=wire.model, tokens=size, affinity=affinity, max_wait=self._max_wait)
            route_class = _NO_CLASS
        else:
            features = request.codec.features(wire)
            route_class = classify(features, model=wire.model, tokens=size, options=self._options)
            if affinity is None and has_choice and (features.has_answer or features.has_tools):
                affinity = blake2b(request.codec.fingerprint(wire), digest_size=12).hexdigest()
        return RouteQuery(
            model=wire.model,
            tokens=size,
            route=route_class.route,
            why=route_class.reason,
            hint=controls.route_hint,
            ignore_sticky=controls.disable_sticky,
            affinity=affinity,
            max_wait=self._max_wait,
        )
