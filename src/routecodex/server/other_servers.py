"""Answers admin calls that name another server, or all: `?server=ID`, `?server=all`.

A call for one server is sent on to it. A GET for all is made at every server and the answers are merged; a
request is looked up at all of them. A write for all is refused, unless all servers share one store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from routecodex.accounting.timestamps import iso_millis
from routecodex.accounting.usage_report import merge as merge_usage
from routecodex.accounting.usage_report import zone_of
from routecodex.canon.errors import BadRequest, GatewayError, NotFound
from routecodex.server.admin_calls import OWN_CALLS
from routecodex.server.admin_forward import Forwarder, Query, query_of, unreachable
from routecodex.server.admin_merge import (
    MergedCursor,
    Row,
    ServerPart,
    join_session,
    merge_groups,
    merge_providers,
    merge_requests,
    merge_series,
    merge_sessions,
    read_cursor,
)
from routecodex.server.admin_query import limit_of, usage_question
from routecodex.server.admin_requests import DEFAULT_ROWS, filter_of
from routecodex.server.admin_series import COUNTS_HEADER, series_query
from routecodex.server.admin_service import AdminCall
from routecodex.server.http import HttpRequest
from routecodex.server.server_directory import KnownServer, ServerDirectory

ALL: Final = "all"
_SHARED: Final = frozenset(
    (
        *("routing", "health/reset", "sessions/stop_message", "clock/add", "clock/cancel"),
        *("clients", "clients/{name}", "clients/{name}/rotate", "clients/{name}/revoke"),
        "clients/{name}/reset",
    )
)
"""Writes of what nodes of one store have in common."""
_HARMLESS: Final = frozenset(("explain", "config/check", "playground", "providers/test"))
"""Calls with a body that change no setting: for all, this server makes them."""
_NOT_THERE: Final = frozenset(("unknown_request", "unknown_session"))

Here = Callable[[str, HttpRequest], Awaitable[tuple[int, dict[str, Any]]]]
"""Answers a call of the admin API by this server."""
Queries = dict[str, Query]
"""The parameters for each server that is asked, by its id."""


class OtherServers:
    """Calls for other servers than this one."""

    def __init__(self, directory: ServerDirectory, forwarder: Forwarder, *, here: Here) -> None:
        self._directory = directory
        self._forwarder = forwarder
        self._here = here
        self._merges: dict[str, Callable[[AdminCall, list[KnownServer]], Awaitable[Row]]] = {
            "requests": self._requests,
            "series": self._series,
            "providers": self._providers,
            "sessions": self._sessions,
            "usage": self._usage,
        }

    async def show(self, call: AdminCall) -> None:
        """Answer `GET /admin/servers`."""
        await call.send({"servers": [server.fields for server in await self._directory.all()]})

    async def answer(self, call: AdminCall) -> bool:
        """Answer a call for other servers; return False if this server is to answer it."""
        id = call.request.query_param("server") or self._directory.own_id
        if id == self._directory.own_id or call.row.path in OWN_CALLS:
            return False
        if call.caller.via:
            # The sender's list is out of date, or two servers have the same address.
            raise NotFound(
                f"this is server {self._directory.own_id!r}, not {id[:80]!r}", code="unknown_server"
            )
        if id == ALL:
            return await self._answer_for_all(call)
        await self._forwarder.forward(call, await self._directory.find(id))
        return True

    async def _answer_for_all(self, call: AdminCall) -> bool:
        servers = await self._servers()
        if call.row.path.startswith("requests/{id}"):
            return await self._at_owner(call, servers)
        if call.row.is_write:
            _check_write(call, servers)
            return False
        merge = self._merges.get(call.row.path)
        if merge is None:
            return False
        await call.send(await merge(call, servers))
        return True

    async def _servers(self) -> list[KnownServer]:
        """Return the servers that are asked, this one first; of those with one ledger only the first."""
        found = sorted(await self._directory.all(), key=lambda server: (not server.is_self, server.id))
        kept: dict[str, KnownServer] = {}
        for server in found:
            kept.setdefault(f"file {server.ledger}" if server.ledger else f"id {server.id}", server)
        return list(kept.values())

    async def _at_owner(self, call: AdminCall, servers: Sequence[KnownServer]) -> bool:
        """Make a call on one request at the server that has it."""
        name = "/".join(call.name.split("/")[:2])
        found = await self._ask(call, {server.id: [] for server in servers}, servers=servers, name=name)
        owner = next((part.server for part in found.parts), None)
        if owner is None:
            raise NotFound(f"no server knows request {name[9:89]!r}", code="unknown_request")
        if owner.is_self:
            return False
        await self._forwarder.forward(call, owner)
        return True

    async def _requests(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        request = call.request
        cursor = read_cursor(request.query_param("before") or "")
        if request.query_param("group"):
            found = await self._ask(call, _following(call, cursor, servers), servers=servers)
            return found.with_missing(merge_groups(found.parts))
        wanted = filter_of(request, now=time.time())
        queries: Queries = {}
        for server in servers:
            until = wanted.until
            place: Query = []
            if server.id in cursor.before:
                place = [("before", cursor.before[server.id])]
            elif cursor.until_ms is not None:
                until = min(until or cursor.until_ms / 1000, cursor.until_ms / 1000)
            span = {"since": _iso(wanted.since), "until": _iso(until)}
            queries[server.id] = _with(call, {**span, "before": None}) + place
        found = await self._ask(call, queries, servers=servers)
        limit = limit_of(request, default=DEFAULT_ROWS)
        return found.with_missing(merge_requests(found.parts, limit=limit, cursor=cursor, time_of=_millis))

    async def _series(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        query = series_query(call.request, now=time.time())
        since, until = map(iso_millis, query.span)
        # Every server makes the same points.
        parameters = _with(call, {"since": since, "until": until, "step": str(query.step)})
        found = await self._ask(call, {server.id: parameters for server in servers}, servers=servers)
        return found.with_missing(merge_series(found.parts))

    async def _providers(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        found = await self._ask(call, {server.id: query_of(call) for server in servers}, servers=servers)
        return found.with_missing(merge_providers(found.parts))

    async def _usage(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        question = usage_question(call.request, now=time.time())
        found = await self._ask(call, {server.id: query_of(call) for server in servers}, servers=servers)
        answers = [part.answer for part in found.parts]
        return found.with_missing(merge_usage(question, answers, zone_of("UTC")))

    async def _sessions(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        if call.request.query_param("id"):
            return await self._session(call, servers)
        given = call.request.query_param("before") or call.request.query_param("cursor") or ""
        queries = _following(call, read_cursor(given), servers)
        found = await self._ask(call, queries, servers=servers)
        return found.with_missing(merge_sessions(found.parts))

    async def _session(self, call: AdminCall, servers: list[KnownServer]) -> Row:
        """Return a session with the turns that the servers of its store know; another store has another."""
        queries = {server.id: query_of(call) for server in servers}
        found = await self._ask(call, queries, servers=servers)
        first, *others = found.parts
        session = {**first.answer["session"], "server": first.server.id}
        for part in others:
            if part.server.shares_store and first.server.shares_store:
                session = join_session(session, part.answer["session"])
        return found.with_missing({"session": session})

    async def _ask(
        self, call: AdminCall, queries: Queries, *, servers: Sequence[KnownServer], name: str = ""
    ) -> FoundParts:
        """Make a call at several servers at once; raise if no server answers, or if the call is wrong."""
        asked = [server for server in servers if server.id in queries]
        target = name or call.name
        results = await asyncio.gather(
            *(self._part(call, server, queries[server.id], name=target) for server in asked)
        )
        parts = [part for part in results if isinstance(part, ServerPart)]
        errors = [
            (server, error)
            for server, error in zip(asked, results, strict=True)
            if isinstance(error, GatewayError)
        ]
        wrong = next((error for _, error in errors if error.status == 400), None)
        if wrong is not None:
            raise wrong
        if not parts and errors and not name:
            raise errors[0][1]
        return FoundParts(parts, [(server.id, error) for server, error in errors])

    async def _part(
        self, call: AdminCall, server: KnownServer, query: Query, *, name: str
    ) -> ServerPart | GatewayError:
        try:
            if server.is_self:
                return ServerPart(server, (await self._here(name, _own_request(call, name, query)))[1])
            if not server.is_alive:
                return unreachable(server, "it is not running", status=503)
            return ServerPart(server, await self._forwarder.fetch(call, server, query, name=name))
        except GatewayError as error:
            return error.detached()


class FoundParts:
    """The answers of servers to one call, and the errors of those that did not answer it."""

    def __init__(self, parts: list[ServerPart], errors: list[tuple[str, GatewayError]]) -> None:
        self.parts = parts
        self._errors = errors

    def with_missing(self, value: Row) -> Row:
        """Return a merged answer that names the servers in it, and those that are missing with the reason."""
        missing = [
            {"server": id, "code": error.code or error.kind, "message": error.message}
            for id, error in self._errors
            if error.code not in _NOT_THERE
        ]
        return {**value, "servers": [part.server.id for part in self.parts], "missing": missing}


def _check_write(call: AdminCall, servers: Sequence[KnownServer]) -> None:
    """Reject a write that would change one server of several."""
    if call.row.path in _HARMLESS:
        return
    if call.row.path in _SHARED and all(server.shares_store for server in servers):
        return
    raise BadRequest(
        f"{call.row.method} /admin/{call.row.path} changes one server; name it as server=ID, "
        "or choose it in the console",
        code="server_required",
        param="server",
    )


def _own_request(call: AdminCall, name: str, query: Query) -> HttpRequest:
    target = f"/admin/{quote(name, safe='/')}?{urlencode(query)}"
    return HttpRequest("GET", target.encode(), headers={COUNTS_HEADER: "1"}, client=call.request.client)


def _with(call: AdminCall, changed: dict[str, str | None]) -> Query:
    """Return the parameters of a call with some of them replaced; None leaves one out."""
    kept = [(name, value) for name, value in query_of(call) if name not in changed]
    return kept + [(name, value) for name, value in changed.items() if value is not None]


def _following(call: AdminCall, cursor: MergedCursor, servers: Sequence[KnownServer]) -> Queries:
    """Return the parameters of the next page of each server; one whose list has ended is not asked."""
    kept = _with(call, {"before": None, "cursor": None})
    if not cursor.before:
        return {server.id: kept for server in servers}
    return {
        server.id: [*kept, ("before", cursor.before[server.id])]
        for server in servers
        if server.id in cursor.before
    }


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else iso_millis(round(seconds * 1000))


def _millis(row: Row) -> int:
    try:
        return round(datetime.fromisoformat(str(row.get("time"))).timestamp() * 1000)
    except ValueError:
        return 0
