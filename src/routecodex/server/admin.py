"""The admin API, below `/admin`: what an operator sees of a running server, and what they may change.

| Path                | GET                          | POST                                           |
|---------------------|------------------------------|------------------------------------------------|
| `/admin/status`     | the server itself            |                                                |
| `/admin/routing`    | what operators and sessions have set | sets it, for the server or one session |
| `/admin/health`     | keys that are not well       |                                                |
| `/admin/health/reset` |                            | lets keys be used again                        |
| `/admin/sessions`   | sessions that have something set |                                            |
| `/admin/requests`   | the latest requests          |                                                |
| `/admin/clock`      | the clock and the tasks of all sessions |                                     |
| `/admin/clock/cancel` |                            | removes a task                                 |
| `/admin/reload`     |                              | takes up the configuration file                |
| `/admin/explain`    |                              | the plan of a request, sent nowhere            |

A session's id is shown as it is; one of another kind as `conversation:ID` or `chain:ID`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex import __version__
from routecodex.canon.errors import BadRequest, ClientError, MethodNotAllowed, NotFound, ProviderNotAvailable
from routecodex.gateway.context.identity import Scope, kept
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, fresh_id
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.routing.registry import Registry, Selector
from routecodex.routing.state import ServerState, SessionState, change_server, change_session
from routecodex.server import paths
from routecodex.server.access import AdminAccess
from routecodex.server.announce import Announcement
from routecodex.server.http import HttpRequest
from routecodex.server.logs import KINDS, session_name
from routecodex.server.reload import ReloadResult
from routecodex.wire import json

AdminReply = dict[str, Any]
T = TypeVar("T")

_MOST_SESSIONS = 200
_MOST_REQUESTS = 1000
_REQUESTS = 50


class RoutingChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to set; what is left out stays, but for `clear`, which comes first and empties everything."""

    sticky: str | None = None
    allow: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    clear: bool = False
    session: str | None = None


class HealthReset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to reset: a provider, a key, a key for a model; everything without one."""

    target: str | None = None


class ClockCancel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which task to remove, whosever it is."""

    task_id: str


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """An order that needs no details."""


class Explain(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request as a client would send it; `body` is the JSON object itself or its text."""

    protocol: Literal["chat", "responses", "messages", "gemini"]
    body: Raw
    headers: dict[str, str] = {}
    path: str = ""


_changes = Decoder(RoutingChange)
_resets = Decoder(HealthReset)
_cancels = Decoder(ClockCancel)
_nothings = Decoder(NoArguments)
_explains = Decoder(Explain)
_texts = Decoder(str)


class AdminApi:
    """The admin API of one process; what it needs of the server is passed in.

    `gateway` and `active` are asked at every call: the gateway is another one after a reload.
    """

    def __init__(
        self,
        about: Announcement,
        *,
        door: AdminAccess,
        workers: int,
        gateway: Callable[[], Gateway],
        active: Callable[[], int],
        reload: Callable[[], Awaitable[ReloadResult]] | None,
        recent: Callable[[int], Awaitable[list[dict[str, Any]]]] | None,
    ) -> None:
        self._door = door
        self._about = about
        self._workers = workers
        self._gateway = gateway
        self._active = active
        self._do_reload = reload
        self._recent = recent
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
        }

    async def answer(self, name: str, request: HttpRequest) -> AdminReply:
        """The answer to a call of `/admin/<name>`; whoever may not ask learns nothing."""
        self._door.check(request)
        handlers = self._handlers.get(name)
        if handlers is None:
            raise NotFound(f"there is nothing at {request.path[:200]}; known: {', '.join(self._handlers)}")
        handler = handlers.get(request.method)
        if handler is None:
            raise MethodNotAllowed(f"{request.path} takes {', '.join(handlers)}, not {request.method}")
        return await handler(request)

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
            # The call that asks is under way, too, and nobody means it.
            "active": max(0, self._active() - 1),
        }

    async def _routing(self, request: HttpRequest) -> AdminReply:
        return await self._routing_of(_named(request.query_param("session")))

    async def _routing_of(self, session: str | None) -> AdminReply:
        gateway, about = self._gateway(), self._about
        orders = await gateway.orders.load()
        return {
            "id": about.id,
            "url": about.url,
            "alive": True,
            "routing": {"sticky": orders.sticky, "allow": orders.allow, "disable": orders.disable},
            "sessions": [_shown(scope, state) for scope, state in await self._listed(session)],
        }

    async def _listed(self, session: str | None) -> list[tuple[Scope, SessionState]]:
        sessions = self._gateway().sessions
        if session is None:
            return await sessions.list(_MOST_SESSIONS)
        scope = _scope(session)
        return [(scope, await sessions.look(scope))]

    async def _set_routing(self, request: HttpRequest) -> AdminReply:
        wanted = _body(request, _changes)
        if wanted == RoutingChange(session=wanted.session):
            raise BadRequest("nothing to change: give sticky, allow, disable, enable or clear")
        gateway = self._gateway()
        if _named(wanted.session) is not None:
            scope = _scope(wanted.session or "")
            await gateway.sessions.change(scope, partial(_session_changed, wanted, gateway.registry))
        else:
            await gateway.orders.change(partial(_server_changed, wanted, gateway.registry))
        return await self._routing_of(wanted.session)

    async def _health(self, _request: HttpRequest) -> AdminReply:
        return {"health": self._gateway().health.report(time.time())}

    async def _reset_health(self, request: HttpRequest) -> AdminReply:
        wanted = _body(request, _resets)
        gateway = self._gateway()
        selector: Selector | None = None
        if wanted.target is not None:
            selector = gateway.registry.resolve(wanted.target, prefer="key")
            if selector is None:
                raise ProviderNotAvailable.unknown(wanted.target)
        return {"reset": await gateway.health.reset(selector)}

    async def _sessions(self, _request: HttpRequest) -> AdminReply:
        rows = await self._listed(None)
        return {
            "sessions": [_shown(scope, state) | {"updated_at": state.updated_at} for scope, state in rows]
        }

    async def _requests(self, request: HttpRequest) -> AdminReply:
        limit = _limit(request.query_param("limit"))
        if self._recent is None:
            raise ClientError("no requests are kept; set logging.requests", status=409, code="no_request_log")
        return {"requests": await self._recent(limit)}

    async def _clock(self, _request: HttpRequest) -> AdminReply:
        clockwork = self._gateway().clockwork
        return {"clock": clockwork.report(), "sessions": await clockwork.sessions(_MOST_SESSIONS)}

    async def _cancel_task(self, request: HttpRequest) -> AdminReply:
        wanted = _body(request, _cancels).task_id
        if not await self._gateway().clockwork.cancel(wanted):
            raise NotFound(f"no session has a task {wanted[:80]!r}", code="unknown_task")
        return {"removed": wanted}

    async def _reload(self, request: HttpRequest) -> AdminReply:
        _body(request, _nothings)
        if self._do_reload is None:
            raise ClientError("this server has no configuration file", status=409, code="no_config_file")
        outcome = await self._do_reload()
        problems = [
            {
                "severity": problem.severity,
                "path": problem.path,
                "line": problem.line,
                "message": problem.message,
                "fix": problem.fix,
            }
            for problem in outcome.problems
        ]
        return {"reloaded": outcome.reloaded, "problems": problems}

    async def _explain(self, request: HttpRequest) -> AdminReply:
        told = _body(request, _explains)
        ask = ClientRequest(
            id=f"req_{fresh_id()}",
            codec=CODECS[told.protocol],
            inbound=_inbound(told),
            headers={name.lower(): value for name, value in told.headers.items()},
            arrived=time.monotonic(),
            created=int(time.time()),
            query=told.path.partition("?")[2],
        )
        return await self._gateway().explain(ask)


def _server_changed(wanted: RoutingChange, registry: Registry, state: ServerState) -> ServerState:
    return change_server(
        state,
        registry=registry,
        sticky=wanted.sticky,
        allow=wanted.allow,
        disable=wanted.disable,
        enable=wanted.enable,
        clear=wanted.clear,
    )


def _session_changed(wanted: RoutingChange, registry: Registry, state: SessionState) -> SessionState:
    return change_session(
        state,
        registry=registry,
        now=time.time(),
        sticky=wanted.sticky,
        allow=wanted.allow,
        disable=wanted.disable,
        enable=wanted.enable,
        clear=wanted.clear,
    )


def _body(request: HttpRequest, decoder: Decoder[T]) -> T:
    return json.read(request.body or b"{}", decoder)


def _limit(given: str | None) -> int:
    if given is None:
        return _REQUESTS
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise BadRequest(f"limit: {given[:50]!r} is no number", param="limit")
    return min(int(given), _MOST_REQUESTS)


def _inbound(told: Explain) -> WireRequest:
    body = bytes(told.body)
    if body.startswith(b'"'):
        body = json.read(body, _texts, at="body").encode()
    codec = CODECS[told.protocol]
    if told.protocol != "gemini":
        return codec.validate(body)
    endpoint = paths.find(told.path.partition("?")[0])
    if endpoint is None or endpoint.protocol != "gemini" or not endpoint.argument:
        raise BadRequest(
            "path: Gemini names its model there, as in /v1beta/models/NAME:generateContent", param="path"
        )
    return codec.validate(body, model=endpoint.argument, stream=endpoint.verb == "streamGenerateContent")


def _named(session: str | None) -> str | None:
    """The session that is meant; a name that was left empty by mistake does not mean the whole server."""
    if session is not None and not session.strip():
        raise BadRequest("session: is empty; leave it out to mean the whole server", param="session")
    return session


def _scope(shown: str) -> Scope:
    """The scope an id stands for as it is shown."""
    kind, colon, rest = shown.partition(":")
    return Scope(KINDS[kind], kept(rest)) if colon and kind in KINDS else Scope("session", kept(shown))


def _shown(scope: Scope, state: SessionState) -> AdminReply:
    stop = state.stop_message
    return {
        "id": session_name(scope.key),
        "force": state.force.target if state.force is not None else None,
        "sticky": state.sticky,
        "allow": state.allow,
        "disable": state.disable,
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
