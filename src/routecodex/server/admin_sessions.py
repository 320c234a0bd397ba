"""The calls of the admin API on sessions.

| Path                           | GET                                        | POST                     |
|--------------------------------|--------------------------------------------|--------------------------|
| `/admin/sessions`              | those with settings, then all with requests |                         |
| `/admin/sessions?id=ID`        | one session with its turns                 |                          |
| `/admin/sessions/stop_message` |                                            | sets or clears the text  |
| `/admin/clock/add`             |                                            | adds a task to a session |
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from routecodex.accounting import ledger_requests
from routecodex.accounting.ledger_filter import RequestFilter
from routecodex.accounting.timestamps import iso_millis
from routecodex.canon.errors import BadRequest, ClientError, NotFound, Overloaded
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.internal.tool_turn import session_name as task_session
from routecodex.gateway.state.sessions import SessionPage
from routecodex.routing.state import NOTHING_SET, SessionState, StopMessageState
from routecodex.server.admin_query import cursor_of, cursor_text, limit_of
from routecodex.server.http import HttpRequest
from routecodex.server.logs import session_name
from routecodex.server.request_rows import Row, ended_row
from routecodex.server.request_source import RequestSource
from routecodex.server.session_scopes import checked_session, one_scope, scope_of, scopes_of, session_row
from routecodex.wire import json

_MAX_SESSIONS = 200
_MOST_GROUPS = 200
_MOST_TURNS = 200
_MAX_REPEATS = 2**63 - 1
_MAX_TEXT = 100_000
_ACTIVE = "active."
"""Prefix of the cursor in the part of the list that comes from the ledger; the id of a request follows."""
_NO_FIGURES = {"requests": None, "cost": None, "last_at": None, "cache_hit_rate": None}


class StopMessageChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stop message of a session: a text, or `clear`."""

    session: str
    client: str | None = None
    text: str = ""
    max_repeats: int = 10
    clear: bool = False


class TaskAddition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A clock task for a session."""

    session: str
    task: str
    due_at: str
    client: str | None = None


_stop_messages = Decoder(StopMessageChange)
_additions = Decoder(TaskAddition)


class SessionCalls:
    """Answers the calls on sessions; a reload may replace the gateway."""

    def __init__(self, gateway: Callable[[], Gateway], source: RequestSource) -> None:
        self._gateway = gateway
        self._source = source

    async def show(self, request: HttpRequest) -> Row:
        """Return sessions with settings, then those that only have requests; or one with its turns."""
        id, client = request.query_param("id"), request.query_param("client")
        if id:
            return {"session": await self._show(id, client or None)}
        session = request.query_param("session")
        limit = limit_of(request, default=_MAX_SESSIONS)
        if checked_session(session, client) is not None:
            found = await self.states(scopes_of(self._gateway(), session or "", client))
            return {"sessions": await self._set_rows(found), "next": None}
        text = (request.query_param("q") or "").lower()
        before = request.query_param("before") or request.query_param("cursor") or ""
        if before.startswith(_ACTIVE):
            return await self._active_page(text, limit, before.removeprefix(_ACTIVE))
        return await self._set_page(request, text, limit)

    async def states(self, scopes: Sequence[Scope] | None) -> list[tuple[Scope, SessionState]]:
        """Return the settings of these sessions, or of those that were changed last."""
        sessions = self._gateway().sessions
        if scopes is None:
            return (await sessions.page(_MAX_SESSIONS)).rows
        if len(scopes) == 1:
            return [(scopes[0], await sessions.load_shown(scopes[0]))]
        found = await sessions.list_set(scopes)
        return found or [(Scope(scopes[0].kind, scopes[0].id), NOTHING_SET)]

    async def _set_page(self, request: HttpRequest, text: str, limit: int) -> Row:
        page: SessionPage = await self._gateway().sessions.page(limit, cursor_of(request))
        chosen = [pair for pair in page.rows if _contains(pair[0], text)]
        rows = await self._set_rows(chosen)
        if page.cursor is not None:
            return {"sessions": rows, "next": cursor_text(page.cursor)}
        if not self._source.has_ledger or len(rows) >= limit:
            return {"sessions": rows, "next": _ACTIVE if self._source.has_ledger else None}
        rest = await self._active_page(text, limit - len(rows), "")
        return {"sessions": [*rows, *rest["sessions"]], "next": rest["next"]}

    async def _active_page(self, text: str, limit: int, before: str) -> Row:
        """Return sessions that have requests and no settings, the one with the latest request first."""
        wanted = RequestFilter(session_text=text)
        read = partial(_groups, wanted=wanted, limit=min(limit, _MOST_GROUPS), before=before)
        found = await self._source.read(read)
        rows = []
        for group in reversed(found.groups):
            scope = self._scope_of(group)
            state = await self._gateway().sessions.load_shown(scope)
            if not _is_listed_before(state):
                rows.append(await self._row(scope, state, group))
        return {"sessions": rows, "next": None if found.next is None else _ACTIVE + found.next}

    def _scope_of(self, group: Row) -> Scope:
        client = self._gateway().clients.table.clients.get(group["client"])
        return scope_of(group["session"], "" if client is None else client.owner)

    async def _set_rows(self, found: Sequence[tuple[Scope, SessionState]]) -> list[Row]:
        scopes = [scope for scope, _ in found]
        groups: Sequence[Row | None] = [None] * len(found)
        if self._source.has_ledger:
            groups = await self._source.read(partial(_all_figures, scopes=scopes))
        return [
            await self._row(scope, state, group) for (scope, state), group in zip(found, groups, strict=True)
        ]

    async def _row(self, scope: Scope, state: SessionState, group: Row | None) -> Row:
        client = scope.owner or (group or {}).get("client")
        return {
            **session_row(scope, state),
            **({"client": client} if client else {}),
            "updated_at": state.updated_at,
            **(_NO_FIGURES if group is None else _shown_figures(group)),
            "tasks": await self._tasks(scope),
        }

    async def _tasks(self, scope: Scope) -> Sequence[Row]:
        return await self._gateway().clock_service.tasks(scope)

    async def _show(self, id: str, client: str | None) -> Row:
        scope, state, group = await self._find(id, client)
        row = await self._row(scope, state, group)
        turns: list[Row] = []
        if self._source.has_ledger:
            name = session_name(scope.name)
            turns = await self._source.read(partial(_turns, name=name, client=client))
        return {**row, "turns": [*turns, *await self._active_turns(row["id"], client)]}

    async def _find(self, id: str, client: str | None) -> tuple[Scope, SessionState, Row | None]:
        """Return the session of an id: that of the client, or the one that has settings, or requests."""
        gateway = self._gateway()
        group = None
        if self._source.has_ledger:
            group = await self._source.read(partial(_figures, name=id, owner=client or ""))
        has_requests = group is not None and group["requests"] > 0
        scopes = scopes_of(gateway, id, client)
        if len(scopes) > 1 and group is not None and has_requests:
            scopes.sort(key=lambda scope: scope != self._scope_of(group))
        found = await gateway.sessions.list_set(scopes)
        if found:
            return (*found[0], group)
        is_active = has_requests or bool(await self._tasks(scopes[0]))
        if not is_active and not await self._active_turns(id, client):
            raise NotFound(f"no session {id[:80]!r} is known", code="unknown_session")
        return scopes[0], await gateway.sessions.load_shown(scopes[0]), group

    async def _active_turns(self, name: str, client: str | None) -> list[Row]:
        rows = await self._source.active_rows()
        mine = [row for _, row in rows if row.get("session") == name and client in (None, row.get("client"))]
        return [_turn(row, start=row["time"], end=None) for row in mine]

    async def scope_to_change(self, session: str, client: str | None) -> Scope:
        """Return the session that a write names; reject an id that several clients use."""

        async def used() -> set[Scope]:
            groups: list[Row] = []
            if self._source.has_ledger:
                wanted = RequestFilter(names={"session": session})
                groups += (
                    await self._source.read(partial(_groups, wanted=wanted, limit=2, before=""))
                ).groups
            active = [row for _, row in await self._source.active_rows() if row.get("session") == session]
            return {
                self._scope_of({"session": session, "client": row.get("client")})
                for row in (*groups, *active)
            }

        return await one_scope(self._gateway(), session, client, used=used)

    async def set_stop_message(self, request: HttpRequest) -> Row:
        """Set or clear the text that is sent to a model that stops."""
        change = json.read(request.body or b"{}", _stop_messages)
        checked_session(change.session, change.client)
        message = None if change.clear else _stop_message(change)
        scope = await self.scope_to_change(change.session, change.client)
        state = await self._gateway().sessions.change(
            scope, lambda state: replace(state, stop_message=message)
        )
        (row,) = await self._set_rows([(scope, state)])
        return {"session": row}

    async def add_task(self, request: HttpRequest) -> Row:
        """Add a task to the clock of a session."""
        addition = json.read(request.body or b"{}", _additions)
        checked_session(addition.session, addition.client)
        clock = self._gateway().clock_service
        if not clock.config.enabled:
            raise ClientError(
                "the clock is off; set server_tools.clock.enabled", status=409, code="clock_disabled"
            )
        scope = await self.scope_to_change(addition.session, addition.client)
        items = [{"dueAt": addition.due_at, "task": addition.task}]
        arguments = json.encode({"action": "schedule", "items": items}).decode()
        answer = await clock.actions.call(arguments, session=task_session(scope), request_id="operator")
        result = json.decode(answer)
        if not result["ok"]:
            raise _refusal(result["error"])
        return {"taskId": result["scheduled"][0]["taskId"]}


def _stop_message(change: StopMessageChange) -> StopMessageState:
    if not change.text.strip():
        raise BadRequest("text: is empty; send clear to remove the stop message", param="text")
    if len(change.text) > _MAX_TEXT:
        raise BadRequest(f"text: is longer than {_MAX_TEXT} characters", param="text")
    if not 1 <= change.max_repeats <= _MAX_REPEATS:
        raise BadRequest(
            f"max_repeats: must be a whole number of at least 1, not {change.max_repeats}",
            param="max_repeats",
        )
    return StopMessageState(text=change.text, max_repeats=change.max_repeats, updated_at=time.time())


def _refusal(error: Row) -> Exception:
    if error["code"] == "store_unavailable":
        return Overloaded(error["message"], code="state_not_saved")
    message = error["message"].replace("items[0].", "")
    return BadRequest(message, code=error["code"], param=message.partition(":")[0])


def _contains(scope: Scope, text: str) -> bool:
    return text in session_name(scope.name).lower() or text in scope.owner.lower()


def _is_listed_before(state: SessionState) -> bool:
    """Return whether a session has settings, so that the first part of the list has it."""
    return replace(state, marks=(), updated_at=0.0) != NOTHING_SET


def _groups(
    connection: sqlite3.Connection, *, wanted: RequestFilter, limit: int, before: str
) -> ledger_requests.SessionGroups:
    place = ledger_requests.END
    if before:
        found = ledger_requests.place_of(connection, before)
        if found is None:
            raise BadRequest(f"before: {before[:50]!r} is not the `next` of an earlier page", param="before")
        place = found
    return ledger_requests.groups_of(connection, wanted, limit=limit, before=place, counted=False)


def _all_figures(connection: sqlite3.Connection, *, scopes: Sequence[Scope]) -> list[Row]:
    return [_figures(connection, name=session_name(scope.name), owner=scope.owner) for scope in scopes]


def _figures(connection: sqlite3.Connection, *, name: str, owner: str) -> Row:
    """Return the figures of a session; its owner is a client, or a team whose clients share it."""
    client = owner if owner and ":" not in owner else None
    return ledger_requests.group_of(connection, RequestFilter(), name, client)


def _shown_figures(group: Row) -> Row:
    tokens = group["input_tokens"]
    return {
        "requests": group["requests"],
        "cost": group["cost"] if group["requests"] else 0.0,
        "last_at": group["last"],
        "cache_hit_rate": group["cache_read_tokens"] / tokens if tokens else None,
    }


def _turns(connection: sqlite3.Connection, *, name: str, client: str | None) -> list[Row]:
    names = {"session": name, **({"client": client} if client else {})}
    page = ledger_requests.page_of(connection, RequestFilter(names=names), limit=_MOST_TURNS)
    return [
        _turn(
            ended_row(row),
            start=iso_millis(row["time"] - int(row["total_ms"] or 0)),
            end=iso_millis(row["time"]),
        )
        for row in page.rows
    ]


def _turn(row: Row, *, start: str, end: str | None) -> Row:
    # A follow-up is called after the request and the tool that made it.
    tools = [str(one["request"]).partition(":")[2] for one in row.get("followups", ())]
    return {
        "request": row["request"],
        "agent": row.get("agent", ""),
        "role": row.get("role", ""),
        "start": start,
        "end": end,
        "rounds": row.get("rounds", 0),
        "tools": [tool for tool in tools if tool],
        "status": row["status"],
    }
