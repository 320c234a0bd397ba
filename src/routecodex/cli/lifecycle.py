"""`routecodex stop`, `restart` and `status`: servers in the background."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click

from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcement_file,
)
from routecodex.cli.launch import Launch, LaunchFailed, launch, remembered
from routecodex.cli.processes import is_gateway_since, is_running
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    NONE_RUNS,
    ServerReply,
    ask_each,
    finish,
    json_option,
    meant,
    nobody,
    only,
    print_json,
    server_argument,
    server_option,
)
from routecodex.cli.tables import Column, complain, moment, show
from routecodex.cli.views import facts

_PAUSE = 0.05
_STOP_SECONDS = 40.0
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=_STOP_SECONDS,
    show_default=True,
    help="Seconds to wait for its end; requests in flight may go on for `server.drain_seconds`.",
)


def begin(wanted: Launch, *, as_json: bool) -> None:
    """Starts a server and tells where it is; or why it is not, and ends the command."""
    running = _running(wanted.id)
    if running is not None:
        complain(f"{running.id} runs already, at {running.url} (pid {running.pid}); `routecodex restart` it")
        raise SystemExit(FAILED)
    try:
        server = launch(wanted)
    except LaunchFailed as exc:
        complain(str(exc))
        for line in exc.log:
            click.echo(f"    {line}", err=True)
        raise SystemExit(FAILED) from exc
    told = {"id": server.id, "url": server.url, "pid": server.pid, "log": str(wanted.log)}
    if as_json:
        print_json(told)
    else:
        facts({name: str(value) for name, value in told.items()})


def _running(server_id: str) -> AnnouncedServer | None:
    """The server of that name, if it runs."""
    for server in meant(None):
        if server.id != server_id:
            continue
        try:
            AdminClient(server).status()
        except Unreachable:
            return server if is_gateway_since(server.pid, server.started_at) else None
        except AdminRefused:
            return server
        return server
    return None


@click.command(epilog=EXIT_CODES)
@server_argument
@timeout_option
@json_option
def stop(server_id: str | None, timeout: float, as_json: bool) -> None:
    """Let a server finish what is in flight, and end it; without an ID, the only one there is.

    Telling it a second time cuts off what is still in flight.

    \b
    Examples:
      routecodex stop
      routecodex stop 127.0.0.1-5520 --timeout 5
    """
    server = only(server_id)
    if server is None:
        nobody()
    _stop(server, timeout)
    if as_json:
        print_json({"id": server.id, "pid": server.pid, "stopped": True})
    else:
        click.echo(f"{server.id} has ended")


def _stop(server: AnnouncedServer, timeout: float) -> None:
    if not _is_ours(server):
        _forget_dead(server)
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while is_running(server.pid):
        if time.monotonic() >= deadline:
            complain(
                f"{server.id} (pid {server.pid}) still runs after {timeout:g} s; stop it again to cut it off"
            )
            raise SystemExit(FAILED)
        time.sleep(_PAUSE)


def _is_ours(server: AnnouncedServer) -> bool:
    """Whether the announced process is that server for sure: a number may have gone to a stranger since."""
    if not is_running(server.pid):
        return False
    if is_gateway_since(server.pid, server.started_at):
        return True
    try:
        return int(AdminClient(server).status().get("pid") or 0) == server.pid
    except (Unreachable, AdminRefused):
        return False


def _forget_dead(server: AnnouncedServer) -> None:
    """Says that it does not run; removes what it left behind if its process is gone."""
    if is_running(server.pid):
        complain(f"pid {server.pid} is not {server.id} any more, or cannot be told from another: left alone")
        raise SystemExit(FAILED)
    file = announcement_file(server.id)
    if file is not None:
        file.unlink(missing_ok=True)
    click.echo(f"{server.id} was not running any more; its announcement is removed", err=True)
    raise SystemExit(NONE_RUNS)


@click.command(epilog=EXIT_CODES)
@server_argument
@timeout_option
@json_option
def restart(server_id: str | None, timeout: float, as_json: bool) -> None:
    """Stop a server and start it again with the arguments it was started with.

    Requests in flight finish first. One that has ended is started again when its ID is given.

    \b
    Examples:
      routecodex restart
      routecodex restart 127.0.0.1-5520
    """
    server = _announced(server_id)
    wanted = remembered(server_id or (server.id if server else ""), server)
    if wanted is None:
        nobody()
    if server is not None and _is_ours(server):
        _stop(server, timeout)
    begin(wanted, as_json=as_json)


def _announced(server_id: str | None) -> AnnouncedServer | None:
    if server_id is None:
        return only(None)
    return next((server for server in meant(None) if server.id == server_id), None)


_COLUMNS = (
    Column("id"),
    Column("url"),
    Column("pid", right=True),
    Column("up since"),
    Column("in flight", right=True),
    Column("workers", right=True),
    Column("version"),
    Column("config"),
)


@click.command(epilog=EXIT_CODES)
@server_option
@json_option
def status(server_id: str | None, as_json: bool) -> None:
    """Show the servers that run: address, process, since when, requests in flight.

    \b
    Example:
      routecodex status --json
    """
    asked = ask_each(server_id, AdminClient.status)
    if as_json:
        print_json({"servers": [{**one.answer, **one.about} for one in asked]})
    else:
        rows = [_row(one) for one in asked if one.answer]
        if rows:
            show(_COLUMNS, rows)
    finish(asked)


def _row(one: ServerReply) -> list[str]:
    told: dict[str, Any] = one.answer
    return [
        one.server.id,
        one.server.url,
        str(one.server.pid),
        moment(told.get("started_at") or one.server.started_at),
        str(told.get("active", "")),
        str(told.get("workers", "")),
        str(told.get("version", "")),
        str(told.get("config") or ""),
    ]
