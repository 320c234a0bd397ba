"""The admin API, below `/admin`: shows and changes the state of a running server.

| Path                  | GET                                     | POST                                |
|-----------------------|-----------------------------------------|-------------------------------------|
| `/admin/status`       | the server itself                       |                                     |
| `/admin/routing`      | routing state of server and sessions    | changes it, for either              |
| `/admin/health`       | keys in cooldown or with failures       |                                     |
| `/admin/health/reset` |                                         | ends cooldowns                      |
| `/admin/requests/ID/capture` | a captured request               |                                     |
| `/admin/requests/ID/replay`  |                                  | sends it again, elsewhere           |
| `/admin/playground`   |                                         | sends a request as a client         |
| `/admin/sessions`     | sessions with settings or requests      |                                     |
| `/admin/sessions/stop_message` |                                | sets or clears the stop message     |
| `/admin/requests`     | requests, by page                       |                                     |
| `/admin/requests/ID`  | one request in detail                   |                                     |
| `/admin/clock`        | the clock and the tasks of all sessions |                                     |
| `/admin/clock/add`    |                                         | adds a task to a session            |
| `/admin/clock/cancel` |                                         | removes a task                      |
| `/admin/clients`      | all clients                             | makes one                           |
| `/admin/clients/NAME` | one client                              | changes it                          |
| `/admin/clients/NAME/rotate` |                                  | gives it a new key                  |
| `/admin/clients/NAME/revoke` |                                  | removes it                          |
| `/admin/clients/NAME/reset`  |                                  | sets the windows of its limits to 0 |
| `/admin/teams`        | all teams                               |                                     |
| `/admin/reload`       |                                         | reloads the configuration file      |
| `/admin/config`       | the file, redacted, and what is in force |                                    |
| `/admin/config/check` |                                         | the problems of a text              |
| `/admin/explain`      |                                         | the plan of a request, without call |
| `/admin/routes`       | routes, pools, targets; classifier, aliases |                                 |
| `/admin/prices`       | prices in force                         | replaces the user's price file       |
| `/admin/models`       | models with their sizes                 |                                     |
| `/admin/usage`        | requests, tokens and costs              |                                     |
| `/admin/providers`    | keys: state, last hour, quota           |                                     |
| `/admin/providers/test` |                                       | sends one request to a target       |
| `/admin/series`       | the same over time, in points           |                                     |

A session is shown by its id; other scopes as `conversation:ID` or `chain:ID`. With several clients a row has
the `client` too. The parameters `session` and `client` select rows of routing, sessions and clock; other
parameters than those of a call are refused.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.json import Decoder

from routecodex import __version__
from routecodex.accounting import price_file, price_report
from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.usage_report import UsageQuestion
from routecodex.canon.errors import BadRequest, ClientError, MethodNotAllowed, NotFound, ProviderNotAvailable
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.model_descriptions import describe_models
from routecodex.routing.registry import Selector
from routecodex.routing.state import (
    RoutingChange,
    change_server,
    change_session,
)
from routecodex.server.admin_clients import CLIENT_PATHS, client_handlers
from routecodex.server.admin_config import ConfigCalls, problem_row
from routecodex.server.admin_explain import explain_request
from routecodex.server.admin_providers import run_test, show_providers
from routecodex.server.admin_query import check_names, usage_question
from routecodex.server.admin_requests import REQUEST_PATHS, request_handlers
from routecodex.server.admin_routes import show_routes
from routecodex.server.admin_series import show_series
from routecodex.server.admin_sessions import SessionCalls
from routecodex.server.announce import Announcement
from routecodex.server.http import HttpRequest
from routecodex.server.reload import ReloadResult
from routecodex.server.request_source import RequestSource
from routecodex.server.session_scopes import checked_session, scopes_of, session_row
from routecodex.wire import json

AdminReply = dict[str, Any]
T = TypeVar("T")

_MAX_SESSIONS = 200


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


_routing_changes = Decoder(RoutingRequest)
_health_resets = Decoder(HealthReset)
_clock_cancels = Decoder(ClockCancel)
_no_arguments = Decoder(NoArguments)


class AdminApi:
    """The admin API of one process.

    `gateway` and `active_requests` are called each time, because a reload replaces the gateway.
    """

    def __init__(
        self,
        about: Announcement,
        *,
        workers: int,
        gateway: Callable[[], Gateway],
        active_requests: Callable[[], int],
        reload: Callable[[], Awaitable[ReloadResult]] | None,
        requests: RequestSource,
        usage: Callable[[UsageQuestion], Awaitable[AdminReply]],
        config: ConfigCalls,
    ) -> None:
        self._about = about
        self._workers = workers
        self._gateway = gateway
        self._active_requests = active_requests
        self._reload_config = reload
        self._requests = requests
        self._sessions = SessionCalls(gateway, requests)
        self._read_usage = usage
        self._handlers: dict[str, dict[str, Callable[[HttpRequest], Awaitable[AdminReply]]]] = {
            "status": {"GET": self._status},
            "routing": {"GET": self._routing, "POST": self._set_routing},
            "health": {"GET": self._health},
            "health/reset": {"POST": self._reset_health},
            "sessions": {"GET": self._sessions.show},
            "sessions/stop_message": {"POST": self._sessions.set_stop_message},
            "clock/add": {"POST": self._sessions.add_task},
            "clock": {"GET": self._clock},
            "clock/cancel": {"POST": self._cancel_task},
            "reload": {"POST": self._reload},
            "config": {"GET": config.show},
            "config/check": {"POST": config.check},
            "explain": {"POST": functools.partial(explain_request, gateway, requests)},
            "routes": {"GET": functools.partial(show_routes, gateway, requests)},
            "prices": {"GET": self._prices, "POST": self._set_prices},
            "models": {"GET": self._models},
            "usage": {"GET": self._usage},
            "providers": {"GET": functools.partial(show_providers, gateway, requests)},
            "providers/test": {"POST": functools.partial(run_test, gateway)},
            "series": {"GET": functools.partial(show_series, requests)},
        }

    async def answer(self, name: str, request: HttpRequest) -> tuple[int, AdminReply]:
        """Answer a call of `/admin/<name>` with a status; the caller is admitted already (AdminService)."""
        handlers = self._handlers.get(name) or request_handlers(name, self._requests)
        handlers = handlers or client_handlers(name, self._clients)
        if handlers is None:
            known = ", ".join((*self._handlers, "requests", "clients", "teams"))
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

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Method and path of all calls, as the table of calls writes them."""
        own = [(method, name) for name, handlers in self._handlers.items() for method in handlers]
        others = {**REQUEST_PATHS, **CLIENT_PATHS}
        return own + [(method, name) for name, methods in others.items() for method in methods]

    async def _status(self, _request: HttpRequest) -> AdminReply:
        return self.about()

    def about(self) -> AdminReply:
        """Return the server itself, as `/admin/status` shows it."""
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
            "sessions": [session_row(scope, state) for scope, state in await self._sessions.states(scopes)],
        }

    def _selected(self, request: HttpRequest) -> list[Scope] | None:
        """Return the scopes that the parameters of a call select; None for all."""
        session, client = request.query_param("session"), request.query_param("client")
        if checked_session(session, client) is None:
            return None
        return scopes_of(self._gateway(), session or "", client)

    async def _set_routing(self, request: HttpRequest) -> AdminReply:
        change = _body(request, _routing_changes)
        if change == RoutingRequest(session=change.session, client=change.client):
            raise BadRequest("no change was sent; set sticky, allow, disable, enable or clear")
        gateway = self._gateway()
        registry = gateway.registry
        if checked_session(change.session, change.client) is None:
            await gateway.operator.change(lambda state: change_server(state, change, registry=registry))
            return await self._routing_of(None)
        scope = await self._sessions.scope_to_change(change.session or "", change.client)
        await gateway.sessions.change(
            scope, lambda state: change_session(state, change, registry=registry, now=time.time())
        )
        return await self._routing_of([scope])

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
        return reload_reply(await self._reload_config())

    async def read(self, name: str) -> AdminReply:
        """Return the answer to `GET /admin/<name>`, for the server itself."""
        request = HttpRequest("GET", f"/admin/{name}".encode(), headers={})
        return (await self.answer(name, request))[1]

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


def reload_reply(result: ReloadResult) -> AdminReply:
    """Return the result of a reload as JSON shows it."""
    return {"reloaded": result.reloaded, "problems": [*map(problem_row, result.problems)]}


def _body(request: HttpRequest, decoder: Decoder[T]) -> T:
    return json.read(request.body or b"{}", decoder)
