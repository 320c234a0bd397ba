"""One turn of the gateway's server tools: its context with the gateway's own state, and its plugin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from routecodex.canon.errors import GatewayError
from routecodex.canon.parts import ToolCall
from routecodex.canon.request import Request
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.providers.upstream import trace_headers
from routecodex.routing.state import StopMessageState
from routecodex.server_tools.framework import ServerToolPlugin, TurnContext
from routecodex.server_tools.round_merger import VisibleRounds
from routecodex.stores.owned_keys import owned_key
from routecodex.telemetry.request_trace import error_type

_KINDS = ("session:", "conversation:", "chain:")
"""Prefixes of scope keys; a session id that begins with one is stored under its full key too."""


class GatewayTurn(TurnContext):
    """One turn with the state that the gateway's own tools need between rounds."""

    def __init__(
        self,
        request: ClientRequest,
        context: RoutingContext,
        *,
        record: RequestRecord,
        captured: Request,
        now: Callable[[], float],
    ) -> None:
        super().__init__(
            id=request.id,
            session=session_name(context.scope),
            captured=captured,
            now=now,
            streaming=request.wire.stream,
            notices=request.notices,
            owner=request.owner,
        )
        self.context = context
        self.record = record
        self.headers = request.headers
        self.role = context.role.name
        self.stop_message = context.session.stop_message
        self.named = context.scope.kind in ("session", "conversation")

    def running(self, call: ToolCall) -> AbstractContextManager[None]:
        trace = self.record.trace
        return super().running(call) if trace is None else trace.tool(call.name, call.id)

    def fail_call(self, cause: str | GatewayError) -> None:
        trace = self.record.trace
        if trace is not None:
            trace.fail_tool(cause if isinstance(cause, str) else error_type(cause))

    def trace_lines(self) -> bytes:
        """Return the trace context of a call that a tool makes, as header lines."""
        trace = self.record.trace
        return trace_headers(self.headers) if trace is None else trace.outer_lines()


class ToolTurn:
    """The server tools of one turn."""

    def __init__(
        self,
        turn: GatewayTurn,
        plugin: ServerToolPlugin,
        *,
        fit: Callable[[TurnContext, Request, PreparedTarget], Request],
        visible: VisibleRounds,
        continues: bool,
    ) -> None:
        self.turn: TurnContext = turn
        self.plugin = plugin
        self.visible = visible
        self.continues = continues
        self._fit = fit

    def fit(self, request: Request, prepared: PreparedTarget) -> Request:
        """Return the request of a round for one target: with the gateway's search if the target has none."""
        return self._fit(self.turn, request, prepared)


def has_stop_message(turn: TurnContext) -> bool:
    return isinstance(turn, GatewayTurn) and has_uses(turn.stop_message)


def has_uses(stop: StopMessageState | None) -> bool:
    """Return whether a message is set and has uses left."""
    return stop is not None and stop.used < stop.max_repeats


def session_name(scope: Scope) -> str | None:
    """Return the name under which tools store state of a session; None if it ends with the request."""
    if not scope.lasts:
        return None
    plain = scope.kind == "session" and not scope.id.startswith(_KINDS)
    return owned_key(scope.owner, scope.id if plain else scope.name)
