"""The calls of the admin API on requests.

| Path                 | GET                                                                       |
|----------------------|---------------------------------------------------------------------------|
| `/admin/requests`    | a page of requests, newest last; `group=session`: sessions with figures    |
| `/admin/requests/ID` | one request: its plan, its calls, its usage by part, its notices           |
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from routecodex.accounting import ledger_requests
from routecodex.accounting.ledger_filter import NAMES, RequestFilter
from routecodex.accounting.usage_report import InvalidUsageQuery, past_moment
from routecodex.canon.errors import BadRequest, ClientError, NotFound
from routecodex.server.admin_query import limit_of
from routecodex.server.http import HttpRequest
from routecodex.server.request_details import CallDetail
from routecodex.server.request_rows import Row, ended_row, read_detail, target_name
from routecodex.server.request_source import RequestSource

Handler = Callable[[HttpRequest], Awaitable[dict[str, Any]]]

REQUEST_PATHS = {"requests": ("GET",), "requests/{id}": ("GET",)}
"""Paths of the calls on requests, with their methods."""

DEFAULT_ROWS = 50
_MOST_GROUPS = 200
_STATUSES = ("ok", "error", "active")
_MOST_LOGGED = 10_000
_LONGEST_ID = 128
_ID = re.compile(r"req_([0-9a-f]{8})[0-9a-f]{16}\Z")
_RECENT_SECONDS = 3600
_LATE_TRIES, _LATE_SECONDS = 15, 0.1


def request_handlers(path: str, source: RequestSource) -> dict[str, Handler] | None:
    """Return the handlers of `/admin/<path>` by method; None if it is not a call on requests."""
    steps = path.split("/")
    if steps == ["requests"]:
        return {"GET": lambda request: _list(source, request)}
    if len(steps) == 2 and steps[0] == "requests" and steps[1]:
        return {"GET": lambda _request: _show(source, unquote(steps[1]))}
    return None


def filter_of(request: HttpRequest, *, now: float) -> RequestFilter:
    """Return the filter that the parameters of a call describe; an empty parameter selects nothing."""
    names = {name: value for name in NAMES if (value := request.query_param(name))}
    status = names.get("status", "ok")
    if status not in _STATUSES and not (status.isascii() and status.isdigit() and len(status) == 3):
        raise BadRequest(
            f"status: {status[:50]!r} is not one of {', '.join(_STATUSES)}, or a code such as 429",
            param="status",
        )
    since, until = (_moment(request, name, now) for name in ("since", "until"))
    if since is not None and until is not None and until < since:
        raise BadRequest("until: is before since", param="until")
    return RequestFilter(q=request.query_param("q") or "", names=names, since=since, until=until)


def _moment(request: HttpRequest, name: str, now: float) -> float | None:
    text = request.query_param(name)
    if not text:
        return None
    try:
        return past_moment(name, text, zone=UTC, now=now)
    except InvalidUsageQuery as exc:
        raise BadRequest(f"{exc.parameter}: {exc.message}", param=exc.parameter) from exc


async def _list(source: RequestSource, request: HttpRequest) -> dict[str, Any]:
    wanted = filter_of(request, now=time.time())
    limit = limit_of(request, default=DEFAULT_ROWS)
    group, before = request.query_param("group") or "", request.query_param("before") or ""
    if group not in ("", "session"):
        raise BadRequest(f"group: {group[:50]!r} is not 'session'", param="group")
    if not source.has_ledger:
        return await _logged(source, wanted, limit, before, group)
    if group:
        return await source.read(lambda connection: _groups(connection, wanted, limit, before))
    active = [(at, row) for at, row in await source.active_rows() if wanted.matches(row, at=at)]
    return await source.read(lambda connection: _page(connection, wanted, limit, before, active))


def _page(
    connection: sqlite3.Connection,
    wanted: RequestFilter,
    limit: int,
    before: str,
    active: list[tuple[float, Row]],
) -> dict[str, Any]:
    total = ledger_requests.count(connection, wanted) + len(active)
    place = _place(connection, before, [row for _, row in active])
    shown = [row for _, row in active]
    if before:
        ids = [row["request"] for row in shown]
        shown = shown[: ids.index(before)] if before in ids else []
    rest = limit - len(shown)
    page = ledger_requests.page_of(connection, wanted, limit=max(0, rest), before=place)
    # Requests that ended after the active ones were listed are in the ledger by now.
    ended = [ended_row(row) for row in page.rows]
    known = {row["request"] for row in ended}
    rows = [*ended, *(row for row in shown if row["request"] not in known)][-limit:] if limit else []
    has_more = page.has_more or rest < 0
    return {"requests": rows, "next": rows[0]["request"] if rows and has_more else None, "total": total}


def _place(connection: sqlite3.Connection, id: str, active: list[Row]) -> ledger_requests.Place:
    if not id:
        return ledger_requests.END
    found = ledger_requests.place_of(connection, id) if len(id) <= _LONGEST_ID else None
    if found is not None:
        return found
    if any(row["request"] == id for row in active):
        return ledger_requests.END
    raise BadRequest(f"before: {id[:80]!r} is not a request of this server", param="before")


def _groups(connection: sqlite3.Connection, wanted: RequestFilter, limit: int, before: str) -> dict[str, Any]:
    place = _place(connection, before, [])
    found = ledger_requests.groups_of(connection, wanted, limit=min(limit, _MOST_GROUPS), before=place)
    return {"groups": found.groups, "next": found.next, "total": found.total}


async def _logged(
    source: RequestSource, wanted: RequestFilter, limit: int, before: str, group: str
) -> dict[str, Any]:
    """Answer from the request log, on a server without a ledger."""
    if source.log_tail is None:
        raise ClientError("there is no request log; set logging.requests", status=409, code="no_request_log")
    if group:
        raise ClientError("there is no usage ledger; set usage.enabled", status=409, code="no_ledger")
    logged = await source.log_tail(_MOST_LOGGED)
    active = await source.active_rows()
    rows = [row for row in logged if wanted.matches(row, at=_seconds(row))]
    rows += [row for at, row in active if wanted.matches(row, at=at)]
    total = len(rows)
    if before:
        ids = [row.get("request") for row in rows]
        if before not in ids:
            raise BadRequest(f"before: {before[:80]!r} is not a request of this server", param="before")
        rows = rows[: ids.index(before)]
    page = rows[-limit:] if limit else []
    return {
        "requests": page,
        "next": page[0]["request"] if page and len(rows) > limit else None,
        "total": total,
    }


def _seconds(row: Row) -> float:
    try:
        return datetime.fromisoformat(str(row.get("time"))).timestamp()
    except ValueError:
        return 0.0


async def _show(source: RequestSource, id: str) -> dict[str, Any]:
    found = None
    if len(id) <= _LONGEST_ID:
        active = await source.active_detail(id)
        if active is not None:
            return {"request": active}
        found = await _find(source, id)
    if found is None:
        raise NotFound(f"no request {id[:80]!r} is known", code="unknown_request")
    captured = await asyncio.to_thread(source.is_captured, id)
    return {"request": {**_ended_detail(found), "captured": captured}}


async def _find(source: RequestSource, id: str) -> Row | None:
    """Return a request of the ledger; one that just ended in another worker may be about to be written."""
    tries = _LATE_TRIES if _is_recent(id) else 1
    for attempt in range(tries):
        if attempt:
            await asyncio.sleep(_LATE_SECONDS)
        found = await source.read(lambda connection: ledger_requests.find(connection, id))
        if found is not None:
            return found
    return None


def _is_recent(id: str) -> bool:
    """Return whether a request began within the last hour, by the time in its id."""
    found = _ID.match(id)
    return found is not None and time.time() - int(found[1], 16) < _RECENT_SECONDS


def _ended_detail(found: Row) -> Row:
    detail = read_detail(found["detail"])
    calls = detail.calls or [_call(call) for call in found["calls"]]
    return {
        **ended_row(found),
        "plan": detail.plan,
        "calls": msgspec.to_builtins(calls),
        "usage": msgspec.to_builtins(detail.usage),
        "notices": list(detail.notices),
    }


def _call(found: Row) -> CallDetail:
    """Return a call as the ledger has it: without its times."""
    return CallDetail(
        n=found["n"],
        kind=found["kind"],
        target=target_name(found["provider"], found["key"], found["model"]),
        status=found["status"],
        input_tokens=found["input_tokens"],
        output_tokens=found["output_tokens"],
        cost=found["cost"],
    )
