"""`routecodex daemon …`: see and change what running servers do, at once and without a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click

from routecodex.cli import views
from routecodex.cli.admin_client import AdminClient, AdminRefused, Unreachable
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    ServerReply,
    ask_each,
    finish,
    json_option,
    not_empty,
    print_json,
    server_option,
)
from routecodex.cli.tables import complain, heading, plain

Command = Callable[..., None]

session_option = click.option(
    "--session",
    metavar="ID",
    callback=not_empty,
    help="This session alone; those of other kinds are `conversation:ID` and `chain:ID`.",
)
_ROUTING: dict[str, Any] = {"sticky": None, "allow": [], "disable": []}
_NO_TASK = "unknown_task"
_SESSION = ("id", "force", "sticky", "allow", "disable", "stop_message")


@click.group()
def daemon() -> None:
    """See and change what running servers do; without --server, all of them."""


@daemon.group()
def status() -> None:
    """Show what servers have set, or what they see."""


@status.command("routing", epilog=EXIT_CODES)
@server_option
@session_option
@json_option
def status_routing(server_id: str | None, session: str | None, as_json: bool) -> None:
    """Show sticky target, allow list and disable list of each server and of its sessions.

    \b
    Examples:
      routecodex daemon status routing
      routecodex daemon status routing --server 127.0.0.1-5520 --json
      routecodex daemon status routing --session 7f0c1a
    """
    asked = ask_each(server_id, lambda admin: admin.get("/admin/routing", session=session))
    if as_json:
        print_json({"servers": [_routing_row(one) for one in asked]})
    else:
        for one in _answered(asked):
            views.show_routing(one.answer, sessions=True)
    finish(asked)


def _routing_row(one: ServerReply) -> dict[str, Any]:
    """A server in exactly the shape that is promised to scripts, whatever else it told."""
    routing = one.answer.get("routing", {})
    sessions = one.answer.get("sessions", [])
    return {
        **one.about,
        "routing": {name: routing.get(name, empty) for name, empty in _ROUTING.items()},
        "sessions": [{name: row.get(name) for name in _SESSION} for row in sessions],
    }


def _answered(asked: Iterable[ServerReply]) -> Iterable[ServerReply]:
    """Those that answered, each below its name."""
    for number, one in enumerate(one for one in asked if one.alive and one.refused is None):
        if number:
            click.echo()
        heading(one.server.id, one.server.url)
        yield one


@status.command("health", epilog=EXIT_CODES)
@server_option
@json_option
def status_health(server_id: str | None, as_json: bool) -> None:
    """Show which keys and models fail or cool down, and until when.

    \b
    Example:
      routecodex daemon status health --json
    """
    _list(server_id, "health", as_json=as_json)


@status.command("sessions", epilog=EXIT_CODES)
@server_option
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Most sessions.")
@json_option
def status_sessions(server_id: str | None, limit: int, as_json: bool) -> None:
    """Show the sessions that have something set, newest first.

    \b
    Example:
      routecodex daemon status sessions --limit 10
    """
    _list(server_id, "sessions", as_json=as_json, limit=limit)


@status.command("requests", epilog=EXIT_CODES)
@server_option
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most requests.")
@json_option
def status_requests(server_id: str | None, limit: int, as_json: bool) -> None:
    """Show the requests answered last, newest last; `routecodex logs -f` follows them.

    \b
    Example:
      routecodex daemon status requests --limit 20
    """
    _list(server_id, "requests", as_json=as_json, limit=limit)


@status.command("clock", epilog=EXIT_CODES)
@server_option
@json_option
def status_clock(server_id: str | None, as_json: bool) -> None:
    """Show the clock tasks of each session, when they are due, and what is known of network time.

    \b
    Examples:
      routecodex daemon status clock
      routecodex daemon status clock --server 127.0.0.1-5520 --json
    """
    asked = ask_each(server_id, lambda admin: admin.get("/admin/clock"))
    if as_json:
        print_json({"servers": [_clock_row(one) for one in asked]})
    else:
        for one in _answered(asked):
            views.show_clock(one.answer)
    finish(asked)


def _clock_row(one: ServerReply) -> dict[str, Any]:
    return {**one.about, "clock": one.answer.get("clock"), "sessions": one.answer.get("sessions", [])}


def _list(server_id: str | None, what: str, *, as_json: bool, limit: int | None = None) -> None:
    asked = ask_each(server_id, lambda admin: admin.get(f"/admin/{what}", limit=limit))
    if as_json:
        print_json({"servers": [{**one.about, what: _rows(one, what, limit)} for one in asked]})
    else:
        for one in _answered(asked):
            views.show_rows(what, _rows(one, what, limit))
    finish(asked)


def _rows(one: ServerReply, what: str, limit: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = one.answer.get(what, [])
    if limit is None:
        return rows
    return rows[-limit:] if what == "requests" else rows[:limit]


@daemon.group("set")
def set_() -> None:
    """Change what servers have set."""


def _names(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[str]:
    """The names in lists that are parted by commas, each once."""
    names = [name.strip() for text in given for name in text.split(",")]
    if "" in names:
        raise click.BadParameter("an empty name")
    return list(dict.fromkeys(names))


def _names_option(flag: str, what: str) -> Callable[[Command], Command]:
    return click.option(flag, multiple=True, callback=_names, metavar="NAME[,…]", help=f"{what}; may repeat.")


@set_.command("routing", epilog=EXIT_CODES)
@click.option(
    "--sticky", metavar="TARGET", callback=not_empty, help="Send everything there; a leading `!` is fine."
)
@_names_option("--disable", "Use these providers, keys or models no more")
@_names_option("--enable", "Lift what was disabled")
@_names_option("--allow", "Use only these providers, in place of an earlier list")
@click.option("--clear", is_flag=True, help="Empty all of it first.")
@server_option
@session_option
@json_option
def set_routing(
    *,
    sticky: str | None,
    disable: list[str],
    enable: list[str],
    allow: list[str],
    clear: bool,
    server_id: str | None,
    session: str | None,
    as_json: bool,
) -> None:
    """Set a sticky target, allow list or disables for whole servers or for one session.

    Takes effect at once and survives a restart. A server that does not know a name changes nothing.

    \b
    Examples:
      routecodex daemon set routing --sticky '!glm.glm-4.7'
      routecodex daemon set routing --disable openai.1,anthropic.primary --server 127.0.0.1-5520
      routecodex daemon set routing --enable glm
      routecodex daemon set routing --allow glm,openai --session 7f0c1a
      routecodex daemon set routing --clear
    """
    lists = {"allow": allow, "disable": disable, "enable": enable}
    change: dict[str, Any] = {name: names for name, names in lists.items() if names}
    if sticky is not None:
        change["sticky"] = sticky
    if clear:
        change["clear"] = True
    if not change:
        raise click.UsageError("say what to set: --sticky, --disable, --enable, --allow or --clear")
    if session is not None:
        change["session"] = session
    asked = ask_each(server_id, lambda admin: admin.post("/admin/routing", change))
    if as_json:
        print_json({"servers": [_routing_row(_unchanged(one, session)) for one in asked]})
    else:
        for one in _answered(asked):
            views.show_routing(one.answer, sessions=session is not None)
    finish(asked)


def _unchanged(one: ServerReply, session: str | None) -> ServerReply:
    """A server that refused, with the state it stays in."""
    if one.refused is None:
        return one
    try:
        answer = AdminClient(one.server).get("/admin/routing", session=session)
    except (AdminRefused, Unreachable):
        return one
    return ServerReply(server=one.server, refused=one.refused, answer=answer)


@set_.command("clock", epilog=EXIT_CODES)
@click.option("--cancel", "task_id", required=True, metavar="ID", help="Remove this task, whosever it is.")
@server_option
@json_option
def set_clock(task_id: str, server_id: str | None, as_json: bool) -> None:
    """Cancel a clock task; an answer that is held for it ends at once.

    \b
    Example:
      routecodex daemon set clock --cancel 6f1d2c3e-0b7a-4c55-9f0e-2f7f0d3b8a11
    """
    asked = ask_each(server_id, lambda admin: _cancelled(admin, task_id))
    if as_json:
        print_json({"servers": [{**one.about, "removed": one.answer.get("removed")} for one in asked]})
    else:
        for one in asked:
            if one.answer.get("removed"):
                click.echo(f"{one.server.id}: removed {plain(task_id)}")
    if any(one.alive for one in asked) and not any(one.answer.get("removed") for one in asked):
        if not any(one.refused for one in asked):
            complain(f"no session has a task {task_id[:80]!r}; `routecodex daemon status clock` names them")
        raise SystemExit(FAILED)
    finish(asked)


def _cancelled(admin: AdminClient, task_id: str) -> dict[str, Any]:
    """What became of it; of several servers only one can have the task, so the others do not refuse."""
    try:
        return admin.post("/admin/clock/cancel", {"taskId": task_id})
    except AdminRefused as exc:
        if exc.code != _NO_TASK:
            raise
        return {"removed": None}


@daemon.group()
def reset() -> None:
    """Forget what servers have learned."""


@reset.command("health", epilog=EXIT_CODES)
@click.argument("target", required=False)
@server_option
@json_option
def reset_health(target: str | None, server_id: str | None, as_json: bool) -> None:
    """Let keys be tried again that cool down or were refused; all of them, or those of TARGET.

    \b
    Examples:
      routecodex daemon reset health
      routecodex daemon reset health glm.primary
    """
    body = {"target": target} if target else {}
    asked = ask_each(server_id, lambda admin: admin.post("/admin/health/reset", body))
    if as_json:
        print_json({"servers": [{**one.about, "reset": one.answer.get("reset", 0)} for one in asked]})
    else:
        for one in asked:
            if one.answer:
                click.echo(f"{one.server.id}: {one.answer['reset'] or 'nothing to'} reset")
    finish(asked)


@daemon.command(epilog=EXIT_CODES)
@server_option
@json_option
def reload(server_id: str | None, as_json: bool) -> None:
    """Read the configuration again; one that is wrong changes nothing, and the old one goes on.

    \b
    Example:
      routecodex daemon reload --server 127.0.0.1-5520
    """
    asked = ask_each(server_id, lambda admin: admin.post("/admin/reload"))
    if as_json:
        print_json({"servers": [{**one.about, **_reloaded(one)} for one in asked]})
    else:
        for one in asked:
            if one.answer:
                _tell_reload(one)
    finish(asked)
    if not all(_reloaded(one)["reloaded"] for one in asked if one.alive):
        raise SystemExit(FAILED)


def _reloaded(one: ServerReply) -> dict[str, Any]:
    return {"reloaded": one.answer.get("reloaded", False), "problems": one.answer.get("problems", [])}


def _tell_reload(one: ServerReply) -> None:
    told = _reloaded(one)
    for problem in told["problems"]:
        line = f":{problem['line']}" if problem.get("line") else ""
        where = ": ".join(filter(None, (f"{one.server.config or ''}{line}", problem.get("path"))))
        fix = f"\n    fix: {problem['fix']}" if problem.get("fix") else ""
        complain(f"{one.server.id}: {where}: {problem['message']}{fix}", severity=problem["severity"])
    click.echo(f"{one.server.id}: {'reloaded' if told['reloaded'] else 'not reloaded, the old one goes on'}")
