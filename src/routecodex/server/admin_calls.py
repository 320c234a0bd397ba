"""The table of all calls of the admin API: the least role of each, its parameters and its answer.

Every call has a row here: roles are checked by it, unknown query parameters are refused by it, its writes are
logged by it, and `/admin/openapi.json` is made from it (openapi.py). A call without a row is refused to
everyone but the admin, and fails a test.

A role may do what those before it may: `viewer` reads, `operator` steers routing, health, sessions and the
clock, `admin` (the admin token, or a one-time code) does everything.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from routecodex.accounting.ledger_query import FILTERS

AdminRole = Literal["viewer", "operator", "admin"]

RANKS: Final[dict[str, int]] = {"viewer": 1, "operator": 2, "admin": 3}
"""Order of the roles; a client without a role has none of them."""

ROW_FILTERS: Final = (
    *("q", "client", "team", "session", "agent", "provider"),
    *("model", "target", "route", "protocol", "status"),
)
"""Filters of rows and series."""


class AdminEndpoint(Struct, frozen=True, kw_only=True):
    """One call of the admin API.

    `path` is what stands behind `/admin/`, with `{name}` for one step of it. `query` names its parameters,
    `body` the fields of its JSON body, `answer` those of its answer. `logged` are the fields of the body that
    the log may show. `is_open`: it needs no login; `bearer_only`: a cookie does not open it; `streams`: the
    answer is a stream.
    """

    method: str
    path: str
    role: AdminRole
    summary: str
    query: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    is_open: bool = False
    bearer_only: bool = False
    streams: bool = False

    @property
    def is_write(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET"

    def fits(self, steps: list[str]) -> bool:
        """Return whether the steps of a path are those of this call."""
        own = self.path.split("/")
        return len(own) == len(steps) and all(
            (step != "" if mine.startswith("{") else mine == step)
            for mine, step in zip(own, steps, strict=True)
        )


Names = tuple[str, ...]


def _get(
    path: str, summary: str, *, role: AdminRole = "viewer", query: Names = (), answer: Names = ()
) -> AdminEndpoint:
    return AdminEndpoint(method="GET", path=path, role=role, summary=summary, query=query, answer=answer)


def _post(
    path: str, role: AdminRole, summary: str, *, body: Names = (), answer: Names = (), logged: Names = ()
) -> AdminEndpoint:
    return AdminEndpoint(
        method="POST", path=path, role=role, summary=summary, body=body, answer=answer, logged=logged
    )


_SELECTION = ("session", "client")
_ROUTING = ("sticky", "allow", "disable", "enable", "clear")
_CLIENT = (
    *("team", "limits", "rpm", "tpm", "concurrent", "allow"),
    *("instructions", "role", "mcp", "expires"),
)
_CONFIG = ("path", "text", "effective", "problems", "changed", "changes")

_LOGIN_CALLS = (
    AdminEndpoint(
        method="POST",
        path="login",
        role="viewer",
        summary="Log in with the admin token, a client key that has a role, or a one-time code: one of the "
        "fields. The answer sets the cookie.",
        body=("token", "key", "code"),
        is_open=True,
    ),
    AdminEndpoint(
        method="POST",
        path="login/code",
        role="admin",
        summary="Make a one-time code; Bearer only.",
        answer=("code", "url", "expires_at"),
        bearer_only=True,
    ),
    AdminEndpoint(
        method="POST", path="logout", role="viewer", summary="End the login of the cookie.", is_open=True
    ),
    _get("me", "Who is logged in.", answer=("name", "role", "csrf", "server", "capture")),
    _get("servers", "The servers of this machine, and the nodes that share the store.", answer=("servers",)),
    _get(
        "batch",
        "Several reads at once: each `get` is one, as in `series?by=model`. `answers` has them in order, "
        "each with `status` and `body`.",
        query=("get",),
        answer=("answers",),
    ),
    _get("openapi.json", "This description.", answer=("openapi", "info", "paths", "components")),
)

_STATE_CALLS = (
    _get(
        "status",
        "The server itself.",
        answer=("id", "url", "pid", "version", "started_at", "workers", "config", "active", "server_tools"),
    ),
    _get(
        "routing",
        "Routing state of the server and of sessions.",
        query=_SELECTION,
        answer=("id", "url", "alive", "routing", "sessions"),
    ),
    _post(
        "routing",
        "operator",
        "Change the routing state of the server, or of a session.",
        body=(*_SELECTION, *_ROUTING),
        answer=("id", "url", "alive", "routing", "sessions"),
        logged=(*_SELECTION, *_ROUTING),
    ),
    _get("health", "Keys in cooldown or with failures.", answer=("health",)),
    _post(
        "health/reset", "operator", "End cooldowns.", body=("target",), answer=("reset",), logged=("target",)
    ),
    _get(
        "sessions",
        "Sessions with something set or active; with `id` one of them.",
        query=(*_SELECTION, "limit", "cursor", "q", "before", "id"),
        answer=("sessions", "next", "session"),
    ),
    _post(
        "sessions/stop_message",
        "operator",
        "Set or clear the stopMessage of a session.",
        body=("session", "client", "text", "max_repeats", "clear"),
        answer=("session",),
        logged=("session", "client", "max_repeats", "clear"),
    ),
    _get("clock", "The clock and the tasks of all sessions.", query=_SELECTION, answer=("clock", "sessions")),
    _post(
        "clock/add",
        "operator",
        "Add a task to a session.",
        body=("session", "client", "task", "dueAt"),
        answer=("taskId",),
        logged=("session", "client", "dueAt"),
    ),
    _post(
        "clock/cancel",
        "operator",
        "Remove a task.",
        body=("taskId",),
        answer=("removed",),
        logged=("taskId",),
    ),
)

_REQUEST_CALLS = (
    _get(
        "requests",
        "Requests, newest last.",
        query=("limit", "before", "since", "until", "group", *ROW_FILTERS),
        answer=("requests", "groups", "next", "total"),
    ),
    _get("requests/{id}", "One request with its plan, calls, usage and notices.", answer=("request",)),
    _get(
        "requests/{id}/capture",
        "The captured bodies of a request.",
        role="admin",
        answer=("client", "upstream"),
    ),
    AdminEndpoint(
        method="POST",
        path="requests/{id}/replay",
        role="admin",
        summary="Send a captured request again, to another target or model.",
        body=("target", "model"),
        logged=("target", "model"),
        streams=True,
    ),
    _get(
        "series",
        "Figures over time.",
        query=("since", "until", "step", "by", *ROW_FILTERS),
        answer=("since", "until", "step", "series"),
    ),
    AdminEndpoint(
        method="GET",
        path="events",
        role="viewer",
        summary="What happens, as it happens: a stream of server-sent events.",
        query=("topics", "last_event_id"),
        streams=True,
    ),
    AdminEndpoint(
        method="POST",
        path="playground",
        role="operator",
        summary="Send a request as the client `console`; the answer is the client's, byte for byte.",
        body=("protocol", "path", "body", "session"),
        logged=("protocol", "path", "session"),
        streams=True,
    ),
)

_PROVIDER_CALLS = (
    _get("providers", "Providers with their keys, in the last hour.", answer=("providers",)),
    _post(
        "providers/test",
        "operator",
        "Send one small request to a target.",
        body=("target",),
        answer=("ok", "status", "first_byte_ms", "total_ms", "error"),
        logged=("target",),
    ),
    _get("routes", "Routes, classifier rules and aliases.", answer=("routes", "classifier", "models")),
    _post(
        "explain",
        "viewer",
        "The plan of a request, without a call.",
        body=("protocol", "body", "headers", "path", "client", "request", "config"),
        logged=("protocol", "client", "request"),
    ),
    _get("models", "Models with their sizes.", query=("model",), answer=("models",)),
    _get("mcp", "MCP servers.", answer=("mcp",)),
)

_ACCOUNT_CALLS = (
    _get("clients", "All clients.", answer=("clients",)),
    _post(
        "clients",
        "admin",
        "Make a client; the answer has its key, this once.",
        body=("name", *_CLIENT, "key_sha256", "dry_run"),
        answer=("client", "key"),
        logged=("name", *_CLIENT),
    ),
    _get("clients/{name}", "One client.", answer=("client",)),
    _post(
        "clients/{name}",
        "admin",
        "Change the settings of a client.",
        body=(*_CLIENT, "blocked"),
        answer=("client",),
        logged=(*_CLIENT, "blocked"),
    ),
    _post(
        "clients/{name}/rotate",
        "admin",
        "Give a client a new key.",
        body=("overlap",),
        answer=("client", "key"),
        logged=("overlap",),
    ),
    _post("clients/{name}/revoke", "admin", "Remove a client.", answer=("revoked",)),
    _post("clients/{name}/reset", "admin", "Set the windows of its limits to 0.", answer=("client",)),
    _get("teams", "All teams.", answer=("teams",)),
    _get(
        "usage",
        "Requests, tokens and costs.",
        query=("by", "since", "until", *FILTERS),
        answer=("rows", "total"),
    ),
    _get("prices", "Prices in force.", query=("pattern",), answer=("prices",)),
    _post("prices", "admin", "Replace the user's price file.", body=("models",)),
    _get("config", "The configuration file, and where each value comes from.", answer=_CONFIG),
    _post(
        "config/check", "viewer", "Check the text of a configuration.", body=("text",), answer=("problems",)
    ),
    _post("reload", "admin", "Reload the configuration file.", answer=("reloaded", "problems")),
)

ADMIN_CALLS: Final[tuple[AdminEndpoint, ...]] = (
    *_LOGIN_CALLS,
    *_STATE_CALLS,
    *_REQUEST_CALLS,
    *_PROVIDER_CALLS,
    *_ACCOUNT_CALLS,
)
"""All calls, those of parts that a server may lack among them."""

OWN_CALLS: Final = frozenset(("login", "login/code", "logout", "me", "servers", "batch", "openapi.json"))
"""Calls that the server that is asked answers itself, whichever it is told; parts of a batch are sent on."""

_UNLISTED = "A call without a row."


def find_call(method: str, name: str) -> AdminEndpoint:
    """Return the row of `<method> /admin/<name>`; one for the admin alone if there is none."""
    steps = name.split("/")
    for row in ADMIN_CALLS:
        if row.method == method and row.fits(steps):
            return row
    return AdminEndpoint(method=method, path=name, role="admin", summary=_UNLISTED)


def is_listed(method: str, name: str) -> bool:
    """Return whether the call has a row."""
    return find_call(method, name).summary != _UNLISTED
