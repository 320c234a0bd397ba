"""The admin API, below `/admin`: shows and changes the state of a running server.

| Path                  | GET                                     | POST                                |
|-----------------------|-----------------------------------------|-------------------------------------|
| `/admin/status`       | the server itself                       |                                     |
| `/admin/routing`      | routing state of server and sessions    | changes it, for either              |
| `/admin/health`       | keys in cooldown or with failures       |                                     |
| `/admin/health/reset` |                                         | ends cooldowns                      |
| `/admin/sessions`     | sessions with routing state             |                                     |
| `/admin/requests`     | the latest requests                     |                                     |
| `/admin/clock`        | the clock and the tasks of all sessions |                                     |
| `/admin/clock/cancel` |                                         | removes a task                      |
| `/admin/clients`      | all clients                             | makes one                           |
| `/admin/clients/NAME` | one client                              | changes it                          |
| `/admin/clients/NAME/rotate` |                                  | gives it a new key                  |
| `/admin/clients/NAME/revoke` |                                  | removes it                          |
| `/admin/clients/NAME/reset`  |                                  | sets the windows of its limits to 0 |
| `/admin/teams`        | all teams                               |                                     |
| `/admin/reload`       |                                         | reloads the configuration file      |
| `/admin/explain`      |                                         | the plan of a request, without call |
| `/admin/prices`       | prices in force                         | replaces the user's price file       |
| `/admin/models`       | models with their sizes                 |                                     |
| `/admin/usage`        | requests, tokens and costs              |                                     |

A session is shown by its id; other scopes as `conversation:ID` or `chain:ID`. With several clients a row has
the `client` too. The parameters `session` and `client` select rows of routing, sessions and clock; other
parameters than those of a call are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import asdict

from routecodex import __version__
from routecodex.accounting import price_file, price_report
from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.usage_report import UsageQuestion
from routecodex.canon.errors import BadRequest, ClientError, MethodNotAllowed, NotFound, ProviderNotAvailable
from routecodex.gateway.context.identity import Scope, bounded_id
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.model_descriptions import describe_models
from routecodex.gateway.request import ClientRequest, new_request_id
from routecodex.gateway.state.sessions import SessionPage
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.routing.registry import Selector
from routecodex.routing.state import (
    NOTHING_SET,
    RoutingChange,
    SessionState,
    change_server,
    change_session,
)
from routecodex.server import paths
from routecodex.server.access import AdminAccess
from routecodex.server.admin_clients import client_handlers
from routecodex.server.admin_query import check_names, cursor_of, cursor_text, limit_of, usage_question
from routecodex.server.announce import Announcement
from routecodex.server.http import HttpRequest
from routecodex.server.logs import KINDS, session_name
from routecodex.server.reload import ReloadResult
from routecodex.wire import json

AdminReply = dict[str, Any]
T = TypeVar("T")

_MAX_SESSIONS = 200
_DEFAULT_REQUESTS = 50


class RoutingRequest(RoutingChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the routing state of one session, or of the server."""

    session: str | None = None
    client: str | None = None


class HealthReset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target to reset: a provider, a key, a key for a model; without one, all."""

    target: str | None = None


class ClockCancel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The task to remove, of any session."""

    task_id: str


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The empty body of a call without arguments."""


class Explain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as a client would send it; `body` is the JSON object itself or its text."""

    protocol: Literal["chat", "responses", "messages", "gemini"]
    body: Raw
    headers: dict[str, str] = {}
    path: str = ""
    client: str | None = None


_routing_changes = Decoder(RoutingRequest)
_health_resets = Decoder(HealthReset)
_clock_cancels = Decoder(ClockCancel)
_no_arguments = Decoder(NoArguments)
_explain_requests = Decoder(Explain)
_texts = Decoder(str)


class AdminApi:
    """The admin API of one process.

    `gateway` and `active_requests` are called each time, because a reload replaces the gateway.
    """

    def __init__(
        self,
        about: Announcement,
        *,
        access: AdminAccess,
        workers: int,
        gateway: Callable[[], Gateway],
        active_requests: Callable[[], int],
        reload: Callable[[], Awaitable[ReloadResult]] | None,
        recent_requests: Callable[[int], Awaitable[list[dict[str, Any]]]] | None,
        usage: Callable[[UsageQuestion], Awaitable[AdminReply]],
    ) -> None:
        self._access = access
        self._about = about
        self._workers = workers
        self._gateway = gateway
        self._active_requests = active_requests
        self._reload_config = reload
        self._recent_requests = recent_requests
        self._read_usage = usage
        self._handlers: dict[str, dict[str, Callable[[HttpRequest], Awaitable[AdminReply]]]] = {
            "status": {"GET": self._status},
            "routing": {"GET": self._routing, "POST": self._set_routing},
            "health": {"GET": self._health},
            "health/reset": {"POST": self._reset_health},
            "sessions": {"GET": self._sessions},
            "requests": {"GET": self._requests},
            "clock": {"GET": self._clock},
            "clock/cancel": {"POST": self._cancel_task},
            "reload": {"POST": self._reload},
            "explain": {"POST": self._explain},
            "prices": {"GET": self._prices, "POST": self._set_prices},
            "models": {"GET": self._models},
            "usage": {"GET": self._usage},
        }

    async def answer(self, name: str, request: HttpRequest) -> tuple[int, AdminReply]:
        """Answer a call of `/admin/<name>` with a status; access is checked before anything else."""
        self.check_access(request)
        handlers = self._handlers.get(name) or client_handlers(name, self._clients)
        if handlers is None:
            known = ", ".join((*self._handlers, "clients", "teams"))
            raise NotFound(f"{request.path[:200]} does not exist; below /admin: {known}")
        handler = handlers.get(request.method)
        if handler is None:
            raise MethodNotAllowed(f"{request.path} accepts {', '.join(handlers)}, not {request.method}")
        check_names(name, request)
        reply = await handler(request)
        made = (name, request.method) == ("clients", "POST")
        return (201 if made else 200), reply

    def _clients(self) -> ClientDirectory:
        return self._gateway().clients

    def check_access(self, request: HttpRequest) -> None:
        """Reject a caller without the token, or on another machine."""
        self._access.check(request)

    async def _status(self, _request: HttpRequest) -> AdminReply:
        about = self._about
        return {
            "id": about.id,
            "url": about.url,
            "pid": about.pid,
            "version": __version__,
            "started_at": about.started_at,
            "workers": self._workers,
            "config": about.config,
            # Without this call itself.
            "active": max(0, self._active_requests() - 1),
            "server_tools": self._gateway().installed_tools,
        }

    async def _models(self, request: HttpRequest) -> AdminReply:
        return describe_models(self._gateway().registry, request.query_param("model"))

    async def _usage(self, request: HttpRequest) -> AdminReply:
        return await self._read_usage(usage_question(request, now=time.time()))

    async def _routing(self, request: HttpRequest) -> AdminReply:
        return await self._routing_of(self._selected(request))

    async def _routing_of(self, scopes: Sequence[Scope] | None) -> AdminReply:
        gateway, about = self._gateway(), self._about
        operator = await gateway.operator.load()
        return {
            "id": about.id,
            "url": about.url,
            "alive": True,
            "routing": {"sticky": operator.sticky, "allow": operator.allow, "disable": operator.disable},
            "sessions": [_session_row(scope, state) for scope, state in await self._session_states(scopes)],
        }

    async def _session_states(self, scopes: Sequence[Scope] | None) -> list[tuple[Scope, SessionState]]:
        sessions = self._gateway().sessions
        if scopes is None:
            return (await sessions.page(_MAX_SESSIONS)).rows
        if len(scopes) == 1:
            return [(scopes[0], await sessions.load_shown(scopes[0]))]
        found = await sessions.list_set(scopes)
        return found or [(Scope(scopes[0].kind, scopes[0].id), NOTHING_SET)]

    def _selected(self, request: HttpRequest) -> list[Scope] | None:
        """Return the scopes that the parameters of a call select; None for all."""
        session, client = request.query_param("session"), request.query_param("client")
        if _checked_session(session, client) is None:
            return None
        return self._scopes(session or "", client)

    def _scopes(self, session: str, client: str | None) -> list[Scope]:
        """Return the sessions of this id: that of the client, or without one those of all clients."""
        return [_scope(session, owner) for owner in self._owners(client)]

    def _owners(self, client: str | None) -> tuple[str, ...]:
        """Return the owner of a client's state; without a client all owners."""
        clients = self._gateway().clients
        if client is None:
            return clients.table.owners or ("",)
        return (clients.client(client).owner,)

    async def _set_routing(self, request: HttpRequest) -> AdminReply:
        change = _body(request, _routing_changes)
        if change == RoutingRequest(session=change.session, client=change.client):
            raise BadRequest("no change was sent; set sticky, allow, disable, enable or clear")
        gateway = self._gateway()
        registry = gateway.registry
        if _checked_session(change.session, change.client) is None:
            await gateway.operator.change(lambda state: change_server(state, change, registry=registry))
            return await self._routing_of(None)
        scope = await self._one_scope(change.session or "", change.client)
        await gateway.sessions.change(
            scope, lambda state: change_session(state, change, registry=registry, now=time.time())
        )
        return await self._routing_of([scope])

    async def _one_scope(self, session: str, client: str | None) -> Scope:
        """Return the session to change; with several of this id, the only one that has something set."""
        scopes = self._scopes(session, client)
        if len(scopes) > 1:
            scopes = [scope for scope, _ in await self._gateway().sessions.list_set(scopes)]
        if len(scopes) == 1:
            return scopes[0]
        names = ", ".join(self._gateway().clients.table.owners)
        raise BadRequest(
            f"client: session {session[:80]!r} may be that of several clients; name one of {names}",
            param="client",
            code="client_required",
        )

    async def _health(self, _request: HttpRequest) -> AdminReply:
        health = self._gateway().health
        # Another worker may have learned of it: this one may not have had a request since.
        await health.read_latest()
        return {"health": health.report(time.time())}

    async def _reset_health(self, request: HttpRequest) -> AdminReply:
        target = _body(request, _health_resets).target
        gateway = self._gateway()
        selector: Selector | None = None
        if target is not None:
            selector = gateway.registry.resolve(target, prefer="key")
            if selector is None:
                raise ProviderNotAvailable.unknown(target)
        return {"reset": await gateway.health.reset(selector)}

    async def _sessions(self, request: HttpRequest) -> AdminReply:
        scopes = self._selected(request)
        limit = limit_of(request, default=_MAX_SESSIONS)
        if scopes is None:
            page = await self._gateway().sessions.page(limit, cursor_of(request))
        else:
            page = SessionPage(await self._session_states(scopes), None)
        rows = [_session_row(scope, state) | {"updated_at": state.updated_at} for scope, state in page.rows]
        return {"sessions": rows, "next": cursor_text(page.cursor)}

    async def _requests(self, request: HttpRequest) -> AdminReply:
        limit = limit_of(request, default=_DEFAULT_REQUESTS)
        if self._recent_requests is None:
            raise ClientError(
                "there is no request log; set logging.requests", status=409, code="no_request_log"
            )
        return {"requests": await self._recent_requests(limit)}

    async def _clock(self, request: HttpRequest) -> AdminReply:
        clock = self._gateway().clock_service
        sessions = await clock.sessions(_MAX_SESSIONS, self._selected(request))
        return {"clock": clock.report(), "sessions": sessions}

    async def _cancel_task(self, request: HttpRequest) -> AdminReply:
        task_id = _body(request, _clock_cancels).task_id
        if not await self._gateway().clock_service.cancel(task_id):
            raise NotFound(f"no session has a task {task_id[:80]!r}", code="unknown_task")
        return {"removed": task_id}

    async def _reload(self, request: HttpRequest) -> AdminReply:
        _body(request, _no_arguments)
        if self._reload_config is None:
            raise ClientError("this server has no configuration file", status=409, code="no_config_file")
        result = await self._reload_config()
        problems = [
            {
                "severity": problem.severity,
                "path": problem.path,
                "line": problem.line,
                "message": problem.message,
                "fix": problem.fix,
            }
            for problem in result.problems
        ]
        return {"reloaded": result.reloaded, "problems": problems}

    async def _explain(self, request: HttpRequest) -> AdminReply:
        explain = _body(request, _explain_requests)
        client = None if explain.client is None else self._gateway().clients.client(explain.client)
        explained = ClientRequest(
            id=new_request_id(),
            codec=CODECS[explain.protocol],
            wire=_wire_request(explain),
            headers={name.lower(): value for name, value in explain.headers.items()},
            arrived=time.monotonic(),
            created=int(time.time()),
            query=explain.path.partition("?")[2],
            client=client,
            owner="" if client is None else client.owner,
        )
        return await self._gateway().explain(explained)

    async def _prices(self, request: HttpRequest) -> AdminReply:
        table = self._gateway().prices
        # Prices imported a moment ago are shown, whichever worker answers.
        await asyncio.to_thread(table.keep_current)
        return price_report.show_prices(table, request.query_param("pattern") or "*")

    async def _set_prices(self, request: HttpRequest) -> AdminReply:
        table = self._gateway().prices
        file = price_file.parse(request.body, source="the request body", today=price_file.day_of(time.time()))
        try:
            saved = await asyncio.to_thread(price_report.save_prices, file, table.file)
        except OSError as exc:
            raise ClientError(
                f"{table.file} cannot be written: {exc.strerror}", status=409, code="prices_not_saved"
            ) from exc
        await asyncio.to_thread(table.keep_current)
        return saved


def _body(request: HttpRequest, decoder: Decoder[T]) -> T:
    return json.read(request.body or b"{}", decoder)


def _wire_request(explain: Explain) -> WireRequest:
    body = bytes(explain.body)
    if body.startswith(b'"'):
        body = json.read(body, _texts, at="body").encode()
    codec = CODECS[explain.protocol]
    if explain.protocol != "gemini":
        return codec.validate(body)
    endpoint = paths.find(explain.path.partition("?")[0])
    if endpoint is None or endpoint.protocol != "gemini" or not endpoint.argument:
        raise BadRequest(
            "path: must name the Gemini model, as in /v1beta/models/NAME:generateContent", param="path"
        )
    return codec.validate(body, model=endpoint.argument, stream=endpoint.verb == "streamGenerateContent")


def _checked_session(session: str | None, client: str | None) -> str | None:
    """Reject an empty session id, or a client alone: neither must stand for the whole server by mistake."""
    if session is not None and not session.strip():
        raise BadRequest("session: is empty; leave it out for the whole server", param="session")
    if session is None and client is not None:
        raise BadRequest("client: needs a session beside it", param="client")
    return session


def _scope(name: str, owner: str) -> Scope:
    """Return the scope of an id as `session_name` shows it."""
    kind, colon, rest = name.partition(":")
    if colon and kind in KINDS:
        return Scope(KINDS[kind], bounded_id(rest), owner)
    return Scope("session", bounded_id(name), owner)


def _session_row(scope: Scope, state: SessionState) -> AdminReply:
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
