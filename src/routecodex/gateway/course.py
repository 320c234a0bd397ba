"""How one request is to be routed."""

from __future__ import annotations

from msgspec import Struct

from routecodex.gateway.scope import Scope
from routecodex.gateway.steering import Spoken
from routecodex.routing.planned import Asked
from routecodex.routing.state import ServerState, SessionState


class Course(Struct, kw_only=True):
    """How one request is to be routed; `spoken` is what it said to the gateway, None when nothing."""

    scope: Scope
    session: SessionState
    server: ServerState
    asked: Asked
    spoken: Spoken | None = None
