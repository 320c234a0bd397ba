"""`routecodex daemon …`: shows and changes the state of running servers and nodes, without a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from routecodex.cli import views
from routecodex.cli.admin_client import AdminClient, AdminRefused, Unreachable
from routecodex.cli.nodes import call_nodes, node_option, status_nodes
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    ServerReply,
    exit_by_replies,
    json_option,
    not_empty,
    print_json,
)
from routecodex.cli.tables import heading, plain, print_problem

Command = Callable[..., None]

session_option = click.option(
    "--session",
    metavar="ID",
    callback=not_empty,
    help="Only this session; others are named `conversation:ID` and `chain:ID`.",
)
client_option = click.option(
    "--client",
    metavar="NAME",
    callback=not_empty,
    help="The client of the session, if several clients use the same id.",
)
_ROUTING_DEFAULTS: dict[str, Any] = {"sticky": None, "allow": [], "disable": []}
_UNKNOWN_TASK = "unknown_task"
_PAGE = 1000
"""Sessions to ask a server for at once."""
_SESSION_FIELDS = ("id", "force", "sticky", "allow", "disable", "stop_message")


@click.group()
def daemon() -> None:
    """Show and change the state of running servers; all of them, or one with --server."""


@daemon.group()
def status() -> None:
    """Show routing, health, sessions, requests, clock tasks or nodes."""


status.add_command(status_nodes)


@status.command("routing", epilog=EXIT_CODES)
@node_option
@session_option
@client_option
@json_option
def status_routing(server_id: str | None, session: str | None, client: str | None, as_json: bool) -> None:
    """Show sticky target, allow list and disable list of each server and its sessions.

    \b
    Examples:
      routecodex daemon status routing
      routecodex daemon status routing --server 127.0.0.1-5520 --json
      routecodex daemon status routing --session 7f0c1a
    """
    replies = call_nodes(server_id, lambda admin: admin.get("/admin/routing", session=session, client=client))
    if as_json:
        print_json({"servers": [_routing_row(reply) for reply in replies]})
    else:
        for reply in _with_headings(replies):
            views.show_routing(reply.answer, sessions=True)
    exit_by_replies(replies)


def _routing_row(reply: ServerReply) -> dict[str, Any]:
    """Return a server with exactly the documented fields, whatever else it sent."""
    routing = reply.answer.get("routing", {})
    sessions = reply.answer.get("sessions", [])
    return {
        **reply.about,
        "routing": {name: routing.get(name, empty) for name, empty in _ROUTING_DEFAULTS.items()},
        "sessions": [_documented(row) for row in sessions],
    }


def _documented(row: dict[str, Any]) -> dict[str, Any]:
    """Return the documented fields of a session; one of several clients has its `client` too."""
    client = {"client": row["client"]} if row.get("client") else {}
    return {"id": row.get("id"), **client, **{name: row.get(name) for name in _SESSION_FIELDS}}


def _with_headings(replies: Iterable[ServerReply]) -> Iterable[ServerReply]:
    """Yield the servers that answered, after printing a heading for each."""
    for number, reply in enumerate(reply for reply in replies if reply.alive and reply.refused is None):
        if number:
            click.echo()
        heading(reply.server.id, reply.server.url)
        yield reply


@status.command("health", epilog=EXIT_CODES)
@node_option
@json_option
def status_health(server_id: str | None, as_json: bool) -> None:
    """Show keys and models that fail or are in cooldown, and for how long.

    \b
    Example:
      routecodex daemon status health --json
    """
    _list(server_id, "health", as_json=as_json)


@status.command("sessions", epilog=EXIT_CODES)
@node_option
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Number of sessions."
)
@session_option
@client_option
@json_option
def status_sessions(
    *, server_id: str | None, limit: int, session: str | None, client: str | None, as_json: bool
) -> None:
    """Show the sessions with routing settings, newest first.

    \b
    Example:
      routecodex daemon status sessions --limit 10
    """

    def rows(admin: AdminClient) -> dict[str, Any]:
        return _all_pages(admin, limit, session=session, client=client)

    _show_list(call_nodes(server_id, rows), "sessions", as_json=as_json, limit=limit)


@status.command("requests", epilog=EXIT_CODES)
@node_option
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Number of requests."
)
@json_option
def status_requests(server_id: str | None, limit: int, as_json: bool) -> None:
    """Show the latest requests, newest last; `routecodex logs -f` follows them.

    \b
    Example:
      routecodex daemon status requests --limit 20
    """
    _list(server_id, "requests", as_json=as_json, limit=limit)


@status.command("clock", epilog=EXIT_CODES)
@node_option
@session_option
@client_option
@json_option
def status_clock(server_id: str | None, session: str | None, client: str | None, as_json: bool) -> None:
    """Show the clock tasks of each session, when they are due, and the state of network time.

    \b
    Examples:
      routecodex daemon status clock
      routecodex daemon status clock --server 127.0.0.1-5520 --json
    """
    replies = call_nodes(server_id, lambda admin: admin.get("/admin/clock", session=session, client=client))
    if as_json:
        print_json({"servers": [_clock_row(reply) for reply in replies]})
    else:
        for reply in _with_headings(replies):
            views.show_clock(reply.answer)
    exit_by_replies(replies)


def _clock_row(reply: ServerReply) -> dict[str, Any]:
    return {**reply.about, "clock": reply.answer.get("clock"), "sessions": reply.answer.get("sessions", [])}


def _all_pages(admin: AdminClient, limit: int, **selection: str | None) -> dict[str, Any]:
    """Return up to `limit` sessions with settings, page by page; those without come after them."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        left = limit - len(rows)
        answer = admin.get("/admin/sessions", limit=min(left, _PAGE), cursor=cursor, **selection)
        found = [row for row in answer["sessions"] if selection.get("session") or _has_settings(row)]
        rows += found
        before, cursor = cursor, answer.get("next")
        is_last = cursor in (None, before) or len(found) < len(answer["sessions"])
        if is_last or len(rows) >= limit:
            return {"sessions": rows}


_SETTINGS = ("force", "sticky", "allow", "disable", "agents", "stop_message")


def _has_settings(row: dict[str, Any]) -> bool:
    return any(row.get(name) for name in _SETTINGS)


def _list(server_id: str | None, name: str, *, as_json: bool, limit: int | None = None) -> None:
    replies = call_nodes(server_id, lambda admin: admin.get(f"/admin/{name}", limit=limit))
    _show_list(replies, name, as_json=as_json, limit=limit)


def _show_list(replies: Sequence[ServerReply], name: str, *, as_json: bool, limit: int | None) -> None:
    if as_json:
        print_json({"servers": [{**reply.about, name: _rows(reply, name, limit)} for reply in replies]})
    else:
        for reply in _with_headings(replies):
            views.show_rows(name, _rows(reply, name, limit))
    exit_by_replies(replies)


def _rows(reply: ServerReply, name: str, limit: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = reply.answer.get(name, [])
    if limit is None:
        return rows
    return rows[-limit:] if name == "requests" else rows[:limit]


@daemon.group("set")
def set_() -> None:
    """Change routing or clock tasks."""


def _names(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> list[str]:
    """Split comma-separated names; each appears once."""
    names = [name.strip() for text in texts for name in text.split(",")]
    if "" in names:
        raise click.BadParameter("a name is empty")
    return list(dict.fromkeys(names))


def _names_option(flag: str, name: str) -> Callable[[Command], Command]:
    return click.option(flag, multiple=True, callback=_names, metavar="NAME[,…]", help=f"{name}; may repeat.")


@set_.command("routing", epilog=EXIT_CODES)
@click.option(
    "--sticky",
    metavar="TARGET",
    callback=not_empty,
    help="Send all requests there; a leading `!` is allowed.",
)
@_names_option("--disable", "Stop using these providers, keys or models")
@_names_option("--enable", "Use disabled providers, keys or models again")
@_names_option("--allow", "Use only these providers; replaces the previous list")
@click.option("--clear", is_flag=True, help="Remove all these settings first.")
@node_option
@session_option
@client_option
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
    client: str | None,
    as_json: bool,
) -> None:
    """Set sticky target, allow list or disabled names, for whole servers or for one session.

    Takes effect at once and survives a restart. A server that does not know one of the names changes nothing.

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
        raise click.UsageError("set at least one of --sticky, --disable, --enable, --allow and --clear")
    if client is not None and session is None:
        raise click.UsageError("--client needs --session beside it")
    change |= {name: value for name, value in (("session", session), ("client", client)) if value is not None}
    replies = call_nodes(server_id, lambda admin: admin.post("/admin/routing", change))
    if as_json:
        print_json(
            {"servers": [_routing_row(_with_current_state(reply, session, client)) for reply in replies]}
        )
    else:
        for reply in _with_headings(replies):
            views.show_routing(reply.answer, sessions=session is not None)
    exit_by_replies(replies)


def _with_current_state(reply: ServerReply, session: str | None, client: str | None) -> ServerReply:
    """Add the current state to the reply of a server that rejected the change."""
    if reply.refused is None:
        return reply
    try:
        answer = AdminClient(reply.server).get("/admin/routing", session=session, client=client)
    except (AdminRefused, Unreachable):
        return reply
    return ServerReply(server=reply.server, refused=reply.refused, answer=answer)


@set_.command("clock", epilog=EXIT_CODES)
@click.option("--cancel", "task_id", required=True, metavar="ID", help="Remove this task, of any session.")
@node_option
@json_option
def set_clock(task_id: str, server_id: str | None, as_json: bool) -> None:
    """Cancel a clock task; an answer that waits for it ends at once.

    \b
    Example:
      routecodex daemon set clock --cancel 6f1d2c3e-0b7a-4c55-9f0e-2f7f0d3b8a11
    """
    replies = call_nodes(server_id, lambda admin: _cancel_task(admin, task_id))
    if as_json:
        print_json(
            {"servers": [{**reply.about, "removed": reply.answer.get("removed")} for reply in replies]}
        )
    else:
        for reply in replies:
            if reply.answer.get("removed"):
                click.echo(f"{reply.server.id}: removed {plain(task_id)}")
    if any(reply.alive for reply in replies) and not any(reply.answer.get("removed") for reply in replies):
        if not any(reply.refused for reply in replies):
            print_problem(f"no session has a task {task_id[:80]!r}; see `routecodex daemon status clock`")
        raise SystemExit(FAILED)
    exit_by_replies(replies)


def _cancel_task(admin: AdminClient, task_id: str) -> dict[str, Any]:
    """Cancel a task; an unknown one is not an error, because only one of several servers has it."""
    try:
        return admin.post("/admin/clock/cancel", {"taskId": task_id})
    except AdminRefused as exc:
        if exc.code != _UNKNOWN_TASK:
            raise
        return {"removed": None}


@daemon.group()
def reset() -> None:
    """Reset the health of keys."""


@reset.command("health", epilog=EXIT_CODES)
@click.argument("target", required=False)
@node_option
@json_option
def reset_health(target: str | None, server_id: str | None, as_json: bool) -> None:
    """Use keys again that are in cooldown or were rejected; all of them, or those of TARGET.

    \b
    Examples:
      routecodex daemon reset health
      routecodex daemon reset health glm.primary
    """
    body = {"target": target} if target else {}
    replies = call_nodes(server_id, lambda admin: admin.post("/admin/health/reset", body))
    if as_json:
        print_json({"servers": [{**reply.about, "reset": reply.answer.get("reset", 0)} for reply in replies]})
    else:
        for reply in replies:
            if reply.answer:
                click.echo(f"{reply.server.id}: {reply.answer['reset'] or 'nothing to'} reset")
    exit_by_replies(replies)


@daemon.command(epilog=EXIT_CODES)
@node_option
@json_option
def reload(server_id: str | None, as_json: bool) -> None:
    """Reload the configuration file; an invalid one changes nothing.

    \b
    Example:
      routecodex daemon reload --server 127.0.0.1-5520
    """
    replies = call_nodes(server_id, lambda admin: admin.post("/admin/reload"))
    if as_json:
        print_json({"servers": [{**reply.about, **_reloaded(reply)} for reply in replies]})
    else:
        for reply in replies:
            if reply.answer:
                _print_reload(reply)
    exit_by_replies(replies)
    if not all(_reloaded(reply)["reloaded"] for reply in replies if reply.alive):
        raise SystemExit(FAILED)


def _reloaded(reply: ServerReply) -> dict[str, Any]:
    return {"reloaded": reply.answer.get("reloaded", False), "problems": reply.answer.get("problems", [])}


def _print_reload(reply: ServerReply) -> None:
    result = _reloaded(reply)
    for problem in result["problems"]:
        line = f":{problem['line']}" if problem.get("line") else ""
        where = ": ".join(filter(None, (f"{reply.server.config or ''}{line}", problem.get("path"))))
        fix = f"\n    fix: {problem['fix']}" if problem.get("fix") else ""
        print_problem(f"{reply.server.id}: {where}: {problem['message']}{fix}", severity=problem["severity"])
    outcome = "reloaded" if result["reloaded"] else "not reloaded, the previous configuration stays in use"
    click.echo(f"{reply.server.id}: {outcome}")
