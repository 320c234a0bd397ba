"""Builds the context in which a request is routed: its session and state, its instructions, its query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from routecodex.accounting.clients import Client
from routecodex.canon.errors import AccessDenied, ProviderNotAvailable
from routecodex.canon.notices import Notices
from routecodex.canon.request import COMPACTION_TRIGGER, TextStart
from routecodex.gateway.context.chat_instructions import ChatInstructions, TextRules, Where
from routecodex.gateway.context.gateway_replies import REPLY_PREFIX
from routecodex.gateway.context.identity import FORCED_TARGET, ID_HEADERS, Scope, identify
from routecodex.gateway.context.instruction_applier import InstructionApplier, changes_state
from routecodex.gateway.context.instructions import (
    drop_gateway_replies,
    extract_instructions,
    has_user_message,
    permitted,
)
from routecodex.gateway.context.message_marks import is_among
from routecodex.gateway.request import ClientRequest
from routecodex.gateway.state.operator_state import OperatorState
from routecodex.gateway.state.sessions import Sessions, StateNotSaved
from routecodex.protocols import large_body
from routecodex.protocols.codec import OpeningHeads
from routecodex.protocols.control_fields import (
    NO_CONTROL_FIELDS,
    ControlFields,
    has_control_fields,
    read_control_fields,
    strip_control_fields,
)
from routecodex.protocols.message_features import decoded_start, strip_client_header
from routecodex.routing import tokens
from routecodex.routing.classify import ClassifierOptions, RouteClass, classify
from routecodex.routing.request_role import MAIN, RequestRole
from routecodex.routing.roles import (
    QUOTA_CHECK,
    ROLE_HEADERS,
    RoleOpening,
    RoleTable,
    role_by_headers,
    role_tool,
)
from routecodex.routing.route_plan import RouteQuery
from routecodex.routing.router import RestrictedRouter, Router
from routecodex.routing.state import (
    NO_SERVER_STATE,
    NOTHING_SET,
    ForcedTarget,
    ServerState,
    SessionState,
    for_subagents,
)
from routecodex.wire import scan


class RoutingContext:
    """Session, role, state and query of one request; `instructions` is None without any.

    `session` is the state in force: for a sub-agent, that which the session set for its sub-agents. `client`
    is who sent the request, None on a gateway without clients.
    """

    __slots__ = ("client", "instructions", "operator", "query", "role", "scope", "session")

    def __init__(
        self,
        scope: Scope,
        query: RouteQuery,
        *,
        session: SessionState,
        operator: ServerState,
        instructions: ChatInstructions | None = None,
        role: RequestRole = MAIN,
        client: Client | None = None,
    ) -> None:
        self.client = client
        self.scope = scope
        self.role = role
        self.session = session
        self.operator = operator
        self.query = query
        self.instructions = instructions

    @property
    def for_gateway(self) -> bool:
        """Whether the gateway answers the request itself, without a target."""
        return self.instructions is not None and self.instructions.for_gateway


_CLIENT_HEADERS: Final = ID_HEADERS | ROLE_HEADERS | {FORCED_TARGET}
"""Headers that name a session or a target, or show a role: most requests of SDKs have none of them."""
_NO_RULES: Final = (NOTHING_SET, NO_SERVER_STATE)
_SEARCHED_BODY: Final = 32_768
"""Bytes up to which every body is searched for replies of the gateway; larger ones by their session."""
_REPLY_MARK: Final = REPLY_PREFIX.encode()
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
        roles: RoleTable,
        where: Where,
        router_for: Callable[[Client], Router] | None = None,
    ) -> None:
        self._router = router
        self._router_for = router_for
        self._sessions = sessions
        self._operator = operator
        self._options = options
        self._affinity = affinity
        self._max_wait = max_wait
        self._threshold = min(options.longcontext_tokens, router.registry.smallest_context)
        self._applier = InstructionApplier(sessions, user_dir=user_dir, clock=clock, clear_clock=clear_clock)
        self._roles = roles
        self._heads = OpeningHeads(roles.beginnings, exact=(QUOTA_CHECK.text,))
        self._rules = TextRules(where, lambda text: roles.by_user(text) is not None)

    async def build(self, request: ClientRequest, *, save: bool = True) -> RoutingContext:
        """Build the context of a request; without `save` no state changes."""
        if request.received is not None and request.original is None:
            # An earlier call without `save` stripped the request: start again from the received one.
            request.wire = request.received
        controls = read_control_fields(request.wire)
        is_plain = controls is NO_CONTROL_FIELDS and _CLIENT_HEADERS.isdisjoint(request.headers)
        scope = self._scope(request, controls, is_plain=is_plain)
        request.session = scope.name if scope.lasts else ""
        role = self._role(request, controls, is_plain=is_plain)
        request.role = role
        router = self._router
        client = request.client
        if client is not None and client.rules is not None and self._router_for is not None:
            router = self._router_for(client)
        instructions = self._extract_instructions(request, role)
        if controls is not NO_CONTROL_FIELDS:
            self._strip_controls(request)
        operator = self._operator.peek() or await self._operator.load()
        if instructions is not None and client is not None and client.kinds is not None:
            instructions = permitted(instructions, client.kinds)
        known = self._sessions.peek(scope)
        if known is None and not (save and self._applies_unread(instructions, scope)):
            known = await self._load_session(request, scope)
        session = known or NOTHING_SET
        turn: str | None = None
        if instructions is not None:
            notices = request.notices if save else Notices()
            try:
                session, turn = await self._applier.apply(
                    instructions, scope, known=known, registry=router.registry, notices=notices, save=save
                )
            except ProviderNotAvailable as error:
                raise _as_not_allowed(error, client, router) from None
            if save and role.name == "main":
                session = await self._end_force(instructions, scope, session)
        else:
            body = request.wire.body
            if session.marks or len(body) < _SEARCHED_BODY:
                self._drop_replies(request)
            if session.force is not None:
                turn = self._continued_turn(request, role, session.force)
        if role is not MAIN and role.name == "subagent" and session.agents is not None:
            session = for_subagents(session)
        if not is_plain and FORCED_TARGET in request.headers:
            turn = turn or request.id
            session = replace(session, force=ForcedTarget(request.headers[FORCED_TARGET], turn))
        no_rules = (session, operator) == _NO_RULES
        query = self._query(request, controls, scope, router=router, no_rules=no_rules)
        if turn is not None:
            query = query.at_turn(turn)
        return RoutingContext(
            scope,
            query,
            session=session,
            operator=operator,
            instructions=instructions,
            role=role,
            client=client,
        )

    def _role(self, request: ClientRequest, controls: ControlFields, *, is_plain: bool) -> RequestRole:
        """Return the role of a request: that of its headers, else that of its openings."""
        role = MAIN
        if not is_plain:
            role = role_by_headers(request.headers, named=controls.role, metadata=controls.codex_turn)
            if role.signal:
                return role
        system, user = request.codec.openings(request.wire, self._heads)
        if system or user:
            row = _find_opening(self._roles, system, user)
            if row is not None and _fits(row, request):
                return _role_of(row, role)
        return role if request.codec.name != "gemini" else _role_by_tool(request, role)

    def _drop_replies(self, request: ClientRequest) -> None:
        """Drop replies of the gateway whose questions the client has dropped, as in a compaction."""
        if not scan.contains(request.wire.body, _REPLY_MARK):
            return
        request.received = request.received or request.original or request.wire
        request.wire = drop_gateway_replies(request.codec, request.wire)

    def _continued_turn(self, request: ClientRequest, role: RequestRole, force: ForcedTarget) -> str | None:
        """Return the forced turn if it goes on: the client has replaced all messages of the user."""
        return None if has_user_message(request.wire, role=role, rules=self._rules) else force.turn

    def _applies_unread(self, instructions: ChatInstructions | None, scope: Scope) -> bool:
        """Return whether the instructions are applied without reading the state first."""
        return (
            instructions is not None
            and changes_state(instructions)
            and self._sessions.may_change_unread(scope)
        )

    async def _load_session(self, request: ClientRequest, scope: Scope) -> SessionState:
        if scope.kind == "chain" and request.chain is None:
            # The chain begins with this request: it has no state that could be unknown.
            return NOTHING_SET
        return await self._sessions.load(scope, request.notices)

    def _scope(self, request: ClientRequest, controls: ControlFields, *, is_plain: bool) -> Scope:
        protocol = request.wire.protocol
        if is_plain and protocol != "responses":
            return Scope("request", request.id)
        scope = identify(
            protocol,
            request.headers,
            controls,
            chain=request.chain,
            request_id=request.id,
            owner=request.owner,
        )
        if scope.kind == "chain" and request.chain is None and request.wire.view.store is False:
            return Scope("request", scope.id)
        return scope

    def _extract_instructions(self, request: ClientRequest, role: RequestRole) -> ChatInstructions | None:
        """Strip the instructions from the request and return them; None without any."""
        if request.wire.lacks_tags or not large_body.may_hold_tags(request.wire.body):
            return None
        request.received = request.original or request.wire
        instructions = extract_instructions(request.codec, request.wire, role=role, rules=self._rules)
        request.wire = instructions.stripped
        if request.original is not None:
            request.original = extract_instructions(request.codec, request.original, role=role).stripped
        return instructions

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
        """End the forced target of an earlier message: the user has written a newer one.

        If that cannot be saved, the next request ends it.
        """
        force = session.force
        if force is None or not is_among(force.turn, instructions.earlier):
            return session
        try:
            return await self._sessions.change(
                scope, lambda state: replace(state, force=None) if state.force == force else state
            )
        except StateNotSaved:
            return replace(session, force=None)

    def _query(
        self, request: ClientRequest, controls: ControlFields, scope: Scope, *, router: Router, no_rules: bool
    ) -> RouteQuery:
        """Build the input of the router; features are read only if a rule uses them."""
        wire = request.wire
        size = tokens.estimate(wire.body, threshold=self._threshold)
        has_choice = self._affinity and router.has_choice
        role = request.role
        affinity = scope.key if has_choice and scope.lasts else None
        if affinity is not None and role is not MAIN and role.agent:
            affinity = f"{affinity}/{role.agent}"
        class_counts = router.routes_differ and not (no_rules and router.names_target(wire.model))
        if not class_counts and (affinity is not None or not has_choice):
            if controls is NO_CONTROL_FIELDS:
                return RouteQuery(model=wire.model, tokens=size, affinity=affinity, max_wait=self._max_wait)
            route_class = _NO_CLASS
        else:
            features = request.codec.features(wire)
            route_class = classify(
                features, role=role.name, model=wire.model, tokens=size, options=self._options
            )
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


def _as_not_allowed(
    error: ProviderNotAvailable, client: Client | None, router: Router
) -> ProviderNotAvailable | AccessDenied:
    """Return the error of an instruction that names an unknown target: it may be that of other clients."""
    name = (error.details or {}).get("provider")
    if client is None or not isinstance(router, RestrictedRouter) or not isinstance(name, str):
        return error
    return client.not_allowed(name) if router.knows(name) else error


def _find_opening(
    roles: RoleTable, system: Sequence[TextStart], user: Sequence[TextStart]
) -> RoleOpening | None:
    """Return the first opening that shows a role."""
    for start in system:
        row = roles.by_system(strip_client_header(decoded_start(start)))
        if row is not None:
            return row
    for start in user:
        text = decoded_start(start)
        row = roles.by_user(text)
        if row is not None:
            return row
        if text.strip() == QUOTA_CHECK.text:
            return QUOTA_CHECK
    return None


def _role_by_tool(request: ClientRequest, role: RequestRole) -> RequestRole:
    """Return the role that a declared tool shows; the tools are read only if the body holds its name."""
    row = role_tool(request.headers)
    if row is None or row.tool.encode() not in request.wire.body:
        return role
    declared = (tool.name for tool in request.codec.decode_request(request.wire).tools)
    return role.shown_by(f"tool {row.tool}", row.role) if row.tool in declared else role


def _fits(row: RoleOpening, request: ClientRequest) -> bool:
    """Return whether the request has the shape that goes with the opening."""
    if row is QUOTA_CHECK:
        return request.codec.decode_request(request.wire).max_tokens == 1
    return not row.lean or not request.codec.features(request.wire).has_tools


def _role_of(row: RoleOpening, role: RequestRole) -> RequestRole:
    signal = "an item compaction_trigger" if row.text == COMPACTION_TRIGGER else f"opening {row.text!r}"
    return role.shown_by(signal, row.role)
