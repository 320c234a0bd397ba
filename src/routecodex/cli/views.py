"""Answers of the admin API as tables for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from routecodex.cli.tables import (
    Column,
    TableCell,
    TableRow,
    dollars,
    echo,
    heading,
    moment,
    pad,
    plain,
    seconds,
    show,
)

ViewRows = Sequence[Mapping[str, Any]]
AdminAnswer = Mapping[str, Any]

EMPTY = "-"


def show_routing(answer: AdminAnswer, *, sessions: bool) -> None:
    """Print the routing settings of a server and its sessions."""
    routing = answer.get("routing", {})
    facts({name: _joined(routing.get(name)) or EMPTY for name in ("sticky", "allow", "disable")})
    if sessions and answer.get("sessions"):
        echo()
        rows = answer["sessions"]
        # These rows have no updated_at for the last column.
        show(*_with_clients(_SESSION[:-1], [_session_row(row)[:-1] for row in rows], rows))


def facts(values: Mapping[str, str]) -> None:
    """Print names and values, one pair per line."""
    width = max(map(len, values))
    for name, value in values.items():
        echo(f"{pad(name, width)}  {plain(value)}")


def show_rows(name: str, rows: ViewRows) -> None:
    """Print the rows of one list of the admin API as a table."""
    if not rows:
        echo(_EMPTY_TEXTS[name])
        return
    if name == "requests":
        fields = request_fields(rows)
        show([field.column for field in fields], [request_row(row, fields) for row in rows])
        return
    columns, row_of = _TABLES[name]
    table = [row_of(row) for row in rows]
    show(*(_with_clients(columns, table, rows) if name == "sessions" else (columns, table)))


def _with_clients(
    columns: Sequence[Column], table: Sequence[TableRow], rows: ViewRows
) -> tuple[Sequence[Column], Sequence[TableRow]]:
    """Add the client of each row as the first column if there are several clients."""
    if not any(row.get("client") for row in rows):
        return columns, table
    named = [[str(row.get("client") or EMPTY), *cells] for row, cells in zip(rows, table, strict=True)]
    return (Column("client"), *columns), named


def _joined(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else ", ".join(map(str, _each(value)))


def _each(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else (value,)


_SESSION = tuple(map(Column, ("session", "force", "sticky", "allow", "disable", "stop message", "changed")))


def _session_row(row: AdminAnswer) -> TableRow:
    names = ("id", "force", "sticky", "allow", "disable")
    return [*(_joined(row.get(name)) for name in names), _stop_message(row), moment(row.get("updated_at"))]


def _stop_message(row: AdminAnswer) -> str:
    state = row.get("stop_message")
    return f"{state.get('used', 0)}/{state.get('max_repeats', '')} “{state.get('text', '')}”" if state else ""


_HEALTH = (
    Column("key"),
    Column("state"),
    Column("for", right=True),
    Column("strikes", right=True),
    Column("reason"),
)
_STATE_COLOURS = {"half-open": "yellow", "cooling": "yellow", "open": "red", "refused": "red"}


def _health_row(row: AdminAnswer) -> TableRow:
    state = str(row.get("state", ""))
    return [
        str(row.get("name", "")),
        TableCell(state, _STATE_COLOURS.get(state, "")),
        seconds(row.get("seconds") or None),
        str(row.get("strikes") or ""),
        ": ".join(str(row[name]) for name in ("reason", "error") if row.get(name)),
    ]


class RequestField(Struct, frozen=True):
    """A column of the requests; one with an `optional` field is shown if a request has that field."""

    column: Column
    cell: Callable[[AdminAnswer], str | TableCell]
    optional: str = ""


_REQUEST = (
    RequestField(Column("time", min_width=8, fixed=True, drop=9), lambda row: _time_of_day(row.get("time"))),
    RequestField(Column("status", fixed=True), lambda row: _status(row.get("status", 0))),
    RequestField(Column("protocol", min_width=9, drop=3), lambda row: str(row.get("protocol", ""))),
    RequestField(Column("client", min_width=8), lambda row: str(row.get("client") or EMPTY), "client"),
    RequestField(Column("session", min_width=10, drop=2), lambda row: str(row.get("session") or "")),
    RequestField(
        Column("model → target", min_width=34, keep_end=True),
        lambda row: str(row.get("call") or f"{row.get('model', '')} → {_target(row)}"),
    ),
    RequestField(Column("route", min_width=10, drop=4), lambda row: str(row.get("route") or "")),
    RequestField(Column("reason", min_width=20, drop=1), lambda row: str(row.get("reason") or "")),
    RequestField(
        Column("first", right=True, min_width=5, fixed=True), lambda row: seconds(row.get("first_byte"))
    ),
    RequestField(
        Column("total", right=True, min_width=5, fixed=True, drop=8), lambda row: seconds(row.get("seconds"))
    ),
    RequestField(
        Column("in", right=True, min_width=6, fixed=True, drop=5), lambda row: _count(row.get("input_tokens"))
    ),
    RequestField(
        Column("out", right=True, min_width=6, fixed=True, drop=6),
        lambda row: _count(row.get("output_tokens")),
    ),
    RequestField(
        Column("cost", right=True, min_width=9, fixed=True), lambda row: dollars(row.get("cost")), "cost"
    ),
    RequestField(
        Column("end", min_width=10, drop=7),
        lambda row: TableCell(_ending(row), "red") if row.get("error") else _ending(row),
    ),
)


def request_fields(rows: ViewRows) -> tuple[RequestField, ...]:
    """Return the columns for these requests."""
    return tuple(
        field for field in _REQUEST if not field.optional or any(field.optional in row for row in rows)
    )


def request_row(row: AdminAnswer, fields: Sequence[RequestField]) -> TableRow:
    """Return the table row of one request."""
    return [field.cell(row) for field in fields]


def _status(status: int) -> TableCell:
    return TableCell(str(status), "green" if status < 400 else "yellow" if status < 500 else "red")


def _ending(row: AdminAnswer) -> str:
    """Return the finish or error, and the failures before it."""
    end = str(row.get("error") or row.get("finish") or "")
    earlier = "; ".join(map(str, row.get("failures") or ())) if row.get("attempts", 0) > 1 else ""
    return f"{end} (after {earlier})" if earlier else end


def _target(row: AdminAnswer) -> str:
    """Return the target as in the header `x-routecodex-target`."""
    return str(row.get("target") or ("gateway" if row.get("route") == "gateway" else EMPTY))


def _time_of_day(value: float | str | None) -> str:
    return moment(value)[-8:]


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


_TASK = (*map(Column, ("session", "due", "state", "repeat", "task")), Column("id", fixed=True))


def show_clock(answer: AdminAnswer) -> None:
    """Print whether the clock is on, the state of network time, and the tasks of all sessions."""
    clock = answer.get("clock") or {}
    ntp = clock.get("ntp") or {}
    state = f"{ntp.get('status', EMPTY)}, offset {ntp.get('offsetMs', 0)} ms"
    error = f": {ntp['lastError']}" if ntp.get("lastError") else ""
    facts({"clock": "on" if clock.get("enabled") else "off", "network time": state + error})
    tasks = [(session, task) for session in answer.get("sessions", ()) for task in session.get("tasks", ())]
    echo()
    if tasks:
        rows = [_task_row(session, task) for session, task in tasks]
        show(*_with_clients(_TASK, rows, [session for session, _ in tasks]))
    else:
        echo("no session has clock tasks")


def _task_row(session: AdminAnswer, task: AdminAnswer) -> TableRow:
    delivered = task.get("deliveredAt")
    return [
        str(session.get("id", "")),
        moment(task.get("dueAt")),
        f"delivered {moment(delivered)}" if delivered else TableCell("waiting", "yellow"),
        str(task.get("repeat") or ""),
        str(task.get("task", "")),
        str(task.get("taskId", "")),
    ]


_NODE = tuple(
    map(Column, ("node", "url", "state", "version", "started", "workers", "store", "configuration"))
)


def _node_row(row: AdminAnswer) -> TableRow:
    state = "draining" if row.get("draining") else "alive" if row.get("alive") else "dead"
    colours = {"draining": "yellow", "dead": "red"}
    return [
        str(row.get("id", "")),
        str(row.get("url", "")),
        TableCell(state, colours.get(state, "")),
        str(row.get("version") or EMPTY),
        moment(row.get("started_at")),
        str(row.get("workers") or EMPTY),
        str(row.get("store") or EMPTY),
        str(row.get("config") or EMPTY),
    ]


_TABLES: dict[str, tuple[Sequence[Column], Callable[[AdminAnswer], TableRow]]] = {
    "sessions": (_SESSION, _session_row),
    "health": (_HEALTH, _health_row),
    "nodes": (_NODE, _node_row),
}

_EMPTY_TEXTS = {
    "sessions": "no session has routing settings",
    "health": "every key is healthy",
    "requests": "no requests yet",
    "nodes": "no node is known",
}


def show_explained(plan: AdminAnswer) -> None:
    """Print the plan of a request: its route and reason, the targets in order, and those left out."""
    kind = plan.get("class") or ""
    kind_text = kind if isinstance(kind, str) else f"{kind.get('route', '')} ({kind.get('reason', '')})"
    facts({"route": str(plan["route"]), "class": kind_text or EMPTY, **_plan_facts(plan)})
    steps = [
        [str(number), row["target"], row.get("route") or plan["route"], row["reason"]]
        for number, row in enumerate(plan["steps"], 1)
    ]
    _section("", (Column("#", right=True), Column("target"), Column("route"), Column("why")), steps)
    removed = [[row["target"], row["reason"]] for row in plan.get("removed", ())]
    _section("removed", (Column("target"), Column("why")), removed)
    cooling = [[row["target"], _remaining(row["until"]), row["reason"]] for row in plan.get("cooling", ())]
    _section("cooling", (Column("target"), Column("for", right=True), Column("why")), cooling)
    cleared = ["sticky would be cleared: none of its keys can be used"] if plan.get("clears_sticky") else []
    _section("notices", (Column("notice"),), [[notice] for notice in (*plan.get("notices", ()), *cleared)])


def _plan_facts(plan: AdminAnswer) -> dict[str, str]:
    return {
        # A session is shown by its id as in every other table; other scopes keep their prefix.
        name: EMPTY if plan.get(name) is None else str(plan[name]).removeprefix("session:")
        for name in ("reason", "role", "role_signal", "model", "tokens", "session")
        if name in plan
    }


def _remaining(until: float | None) -> str:
    return seconds(max(0.0, until - time.time())) if until else ""


def _section(title: str, columns: Sequence[Column], rows: Sequence[TableRow]) -> None:
    if rows:
        echo()
        if title:
            heading(title)
        show(columns, rows)
