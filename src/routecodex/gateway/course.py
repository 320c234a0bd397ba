"""How one request is to be routed."""

from __future__ import annotations

from routecodex.gateway.scope import Scope
from routecodex.gateway.steering import ChatInstructions
from routecodex.routing.planned import RouteQuery
from routecodex.routing.state import ServerState, SessionState


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
