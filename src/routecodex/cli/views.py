"""What servers tell, as people see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from routecodex.cli.tables import (
    Column,
    TableCell,
    TableRow,
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

NOTHING = "-"


def show_routing(answer: AdminAnswer, *, sessions: bool) -> None:
    """What is set for a server, and for its sessions."""
    routing = answer.get("routing", {})
    facts({name: _joined(routing.get(name)) or NOTHING for name in ("sticky", "allow", "disable")})
    if sessions and answer.get("sessions"):
        echo()
        # The shape promised to scripts does not say when: there is nothing to show in the last column.
        show(_SESSION[:-1], [_session_row(row)[:-1] for row in answer["sessions"]])


def facts(named: Mapping[str, str]) -> None:
    """Prints names and values below each other."""
    room = max(map(len, named))
    for name, value in named.items():
        echo(f"{pad(name, room)}  {plain(value)}")


def show_rows(what: str, rows: ViewRows) -> None:
    """The rows of one list a server keeps, as its own table."""
    if not rows:
        echo(_NONE[what])
        return
    columns, row_of = _VIEWS[what]
    show(columns, [row_of(row) for row in rows])


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
    set_ = row.get("stop_message")
    return f"{set_.get('used', 0)}/{set_.get('max_repeats', '')} “{set_.get('text', '')}”" if set_ else ""


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


REQUEST = (
    Column("time", least=8, keep=True),
    Column("status", keep=True),
    Column("protocol", least=9),
    Column("session", least=10),
    Column("model → target", least=36),
    Column("route", least=10),
    Column("reason", least=20),
    Column("first", right=True, least=5, keep=True),
    Column("total", right=True, least=5, keep=True),
    Column("in", right=True, least=4, keep=True),
    Column("out", right=True, least=4, keep=True),
    Column("end", least=10),
)


def request_row(row: AdminAnswer) -> TableRow:
    """One request: what it was, where it went and why, how long it took and how it ended."""
    status = row.get("status", 0)
    return [
        _hour(row.get("time")),
        TableCell(str(status), _status_colour(status)),
        str(row.get("protocol", "")),
        str(row.get("session") or ""),
        f"{row.get('model', '')} → {_answerer(row)}",
        str(row.get("route") or ""),
        str(row.get("reason") or ""),
        seconds(row.get("first_byte")),
        seconds(row.get("seconds")),
        _count(row.get("input_tokens")),
        _count(row.get("output_tokens")),
        TableCell(_ending(row), "red") if row.get("error") else _ending(row),
    ]


def _ending(row: AdminAnswer) -> str:
    """How it ended, and what failed before another target was tried."""
    end = str(row.get("error") or row.get("finish") or "")
    earlier = "; ".join(map(str, row.get("failures") or ())) if row.get("attempts", 0) > 1 else ""
    return f"{end} (after {earlier})" if earlier else end


def _answerer(row: AdminAnswer) -> str:
    """Who answered, as the header `x-routecodex-target` has it."""
    return str(row.get("target") or ("gateway" if row.get("route") == "gateway" else NOTHING))


def _hour(value: float | str | None) -> str:
    return moment(value)[-8:]


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _status_colour(status: int) -> str:
    return "green" if status < 400 else "yellow" if status < 500 else "red"


_TASK = (*map(Column, ("session", "due", "state", "repeat", "task")), Column("id", keep=True))


def show_clock(answer: AdminAnswer) -> None:
    """Whether there is a clock, what it knows of the time, and the tasks of all sessions."""
    clock = answer.get("clock") or {}
    ntp = clock.get("ntp") or {}
    told = f"{ntp.get('status', NOTHING)}, offset {ntp.get('offsetMs', 0)} ms"
    error = f": {ntp['lastError']}" if ntp.get("lastError") else ""
    facts({"clock": "on" if clock.get("enabled") else "off", "network time": told + error})
    rows = [
        _task_row(session, task)
        for session in answer.get("sessions", ())
        for task in session.get("tasks", ())
    ]
    echo()
    if rows:
        show(_TASK, rows)
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


_VIEWS: dict[str, tuple[Sequence[Column], Callable[[AdminAnswer], TableRow]]] = {
    "sessions": (_SESSION, _session_row),
    "health": (_HEALTH, _health_row),
    "requests": (REQUEST, request_row),
}

_NONE = {
    "sessions": "no session has anything set",
    "health": "every key is healthy",
    "requests": "no requests yet",
}


def show_explained(told: AdminAnswer) -> None:
    """The plan of a request: its route and why, the targets in order, and what is not among them."""
    kind = told.get("class") or ""
    named = kind if isinstance(kind, str) else f"{kind.get('route', '')} ({kind.get('reason', '')})"
    facts({"route": str(told["route"]), "class": named or NOTHING, **_facts_of(told)})
    steps = [
        [str(number), row["target"], row.get("route") or told["route"], row["reason"]]
        for number, row in enumerate(told["steps"], 1)
    ]
    _part("", (Column("#", right=True), Column("target"), Column("route"), Column("why")), steps)
    removed = [[row["target"], row["reason"]] for row in told.get("removed", ())]
    _part("removed", (Column("target"), Column("why")), removed)
    cooling = [[row["target"], _left(row["until"]), row["reason"]] for row in told.get("cooling", ())]
    _part("cooling", (Column("target"), Column("for", right=True), Column("why")), cooling)
    cleared = ["sticky would be cleared: none of its keys can be used"] if told.get("clears_sticky") else []
    _part("notices", (Column("notice"),), [[notice] for notice in (*told.get("notices", ()), *cleared)])


def _facts_of(told: AdminAnswer) -> dict[str, str]:
    return {
        # A session is named as in every other table; those of other kinds keep their prefix.
        name: NOTHING if told.get(name) is None else str(told[name]).removeprefix("session:")
        for name in ("reason", "model", "tokens", "session")
        if name in told
    }


def _left(until: float | None) -> str:
    return seconds(max(0.0, until - time.time())) if until else ""


def _part(title: str, columns: Sequence[Column], rows: Sequence[TableRow]) -> None:
    if rows:
        echo()
        if title:
            heading(title)
        show(columns, rows)
