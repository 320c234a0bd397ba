"""Sessions as the admin API names and shows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec.structs import asdict

from routecodex.canon.errors import BadRequest
from routecodex.gateway.context.identity import Scope, bounded_id
from routecodex.gateway.gateway import Gateway
from routecodex.routing.state import SessionState
from routecodex.server.logs import KINDS, session_name


def checked_session(session: str | None, client: str | None) -> str | None:
    """Reject an empty session id, or a client alone: neither must stand for the whole server by mistake."""
    if session is not None and not session.strip():
        raise BadRequest("session: is empty; leave it out for the whole server", param="session")
    if session is None and client is not None:
        raise BadRequest("client: needs a session beside it", param="client")
    return session


def scopes_of(gateway: Gateway, session: str, client: str | None) -> list[Scope]:
    """Return the sessions of this id: that of the client, or without one those of all clients."""
    clients = gateway.clients
    if client is None:
        return [scope_of(session, owner) for owner in clients.table.owners or ("",)]
    return [scope_of(session, clients.client(client).owner)]


async def one_scope(
    gateway: Gateway,
    session: str,
    client: str | None,
    *,
    used: Callable[[], Awaitable[Collection[Scope]]],
) -> Scope:
    """Return the session to change; with several of this id, the only one that has something set.

    If none has, it is the only one with requests; `used` returns those.
    """
    scopes = scopes_of(gateway, session, client)
    if len(scopes) > 1:
        found = [scope for scope, _ in await gateway.sessions.list_set(scopes)]
        scopes = found or [*await used()]
    if len(scopes) == 1:
        return scopes[0]
    names = ", ".join(gateway.clients.table.owners)
    raise BadRequest(
        f"client: session {session[:80]!r} may be that of several clients; name one of {names}",
        param="client",
        code="client_required",
    )


def scope_of(name: str, owner: str) -> Scope:
    """Return the scope of an id as `session_name` shows it."""
    kind, colon, rest = name.partition(":")
    if colon and kind in KINDS:
        return Scope(KINDS[kind], bounded_id(rest), owner)
    return Scope("session", bounded_id(name), owner)


def session_row(scope: Scope, state: SessionState) -> dict[str, Any]:
    """Return a session and its settings."""
    stop = state.stop_message
    client = {"client": scope.owner} if scope.owner else {}
    return {
        "id": session_name(scope.name),
        **client,
        "force": state.force.target if state.force is not None else None,
        "sticky": state.sticky,
        "allow": state.allow,
        "disable": state.disable,
        **({} if state.agents is None else {"agents": asdict(state.agents)}),
        "stop_message": None
        if stop is None
        else {
            "text": stop.text,
            "max_repeats": stop.max_repeats,
            "used": stop.used,
            "updated_at": stop.updated_at,
            "last_used_at": stop.last_used_at,
        },
    }
