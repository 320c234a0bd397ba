"""Selects the servers of a command, calls them and turns their replies into an exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import click
import msgspec
from msgspec import Struct

from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcements,
    is_running,
)
from routecodex.cli.tables import print_problem

FAILED = 1
NO_SERVER = 3
_UNREACHABLE = "unreachable"
EXIT_CODES = """\b
Exit codes:
  0  done
  1  a server rejected the call, or something failed; other servers are not affected
  2  wrong arguments or configuration
  3  no server is running
"""
NO_SERVER_TEXT = "no server is running; `routecodex start` starts one"


def complete_id(_context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
    """Complete server ids in a shell."""
    return [one.id for one in announcements() if one.id.startswith(prefix)]


def not_empty(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Reject an empty name, which must not select everything by mistake of a script."""
    if value is not None and not value.strip("! \t"):
        raise click.BadParameter("the name is empty")
    return value


server_option = click.option(
    "--server",
    "server_id",
    metavar="ID",
    shell_complete=complete_id,
    help="Only this server; default: all running servers.",
)
server_argument = click.argument("server_id", metavar="[ID]", required=False, shell_complete=complete_id)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class ServerReply(Struct, frozen=True, kw_only=True):
    """The reply of one server: dead, refused, or answered."""

    server: AnnouncedServer
    alive: bool = True
    answer: dict[str, Any] = {}
    refused: AdminRefused | None = None

    @property
    def about(self) -> dict[str, Any]:
        """The fields of the server that come first in every JSON output."""
        fields: dict[str, Any] = {"id": self.server.id, "url": self.server.url, "alive": self.alive}
        if self.refused is not None:
            fields["error"] = {"message": self.refused.message, "code": self.refused.code}
        return fields


def call_server(server: AnnouncedServer, call: Callable[[AdminClient], dict[str, Any]]) -> ServerReply:
    """Call one server after checking its identity; print on stderr why it does not answer."""
    admin = AdminClient(server)
    try:
        admin.status()
        return ServerReply(server=server, answer=call(admin))
    except Unreachable as exc:
        if server.shows_life:
            text = f"is alive, but cannot be reached at {server.url}; see server.advertise_url ({exc})"
            print_problem(f"{server.id} {text}")
            return ServerReply(server=server, refused=AdminRefused(text, code=_UNREACHABLE))
        print_problem(f"{server.id} is dead, skipped: {exc}", severity="warning")
        return ServerReply(server=server, alive=False)
    except AdminRefused as exc:
        print_problem(f"{server.id}: {exc.message}")
        return ServerReply(server=server, refused=exc)


def call_servers(server_id: str | None, call: Callable[[AdminClient], dict[str, Any]]) -> list[ServerReply]:
    """Call the server with that id, or all servers."""
    return [call_server(server, call) for server in select_servers(server_id)]


def select_servers(server_id: str | None) -> list[AnnouncedServer]:
    """Return the server with that id, or all; an unknown id is a usage error."""
    return choose_server(announcements(), server_id)


def choose_server(every: list[AnnouncedServer], server_id: str | None) -> list[AnnouncedServer]:
    """Return the one of these servers with that id, or all; an unknown id is a usage error."""
    if server_id is None or not every:
        return every
    chosen = [server for server in every if server.id == server_id]
    if not chosen:
        raise unknown_server(server_id, [server.id for server in every])
    return chosen


def unknown_server(server_id: str, known: Iterable[str]) -> click.UsageError:
    """Return the usage error for an unknown server id."""
    from routecodex.config.problems import choices, nearest

    names = list(known)
    close = nearest(server_id, names)
    listed = f"known: {choices(names)}" if names else "no server is known on this machine"
    hint = f"did you mean {close!r}?" if close else listed
    return click.UsageError(f"no server is called {server_id!r}; {hint}")


def select_one(server_id: str | None) -> AnnouncedServer | None:
    """Return the only server, or the one with that id; None without any; several are a usage error."""
    found = select_servers(server_id)
    if len(found) > 1:
        # Killed servers leave their announcements behind.
        found = [server for server in found if is_running(server.pid)] or found
    if len(found) > 1:
        names = ", ".join(server.id for server in found)
        raise click.UsageError(f"several servers are running; give the id of one: {names}")
    return found[0] if found else None


def exit_by_replies(replies: Iterable[ServerReply]) -> None:
    """Exit with an error code if no server replied or one rejected the call."""
    every = list(replies)
    if not any(one.alive for one in every):
        exit_without_server()
    if any(one.refused for one in every):
        raise SystemExit(FAILED)


def exit_without_server() -> NoReturn:
    """Print that no server is running, and exit."""
    click.echo(NO_SERVER_TEXT, err=True)
    raise SystemExit(NO_SERVER)


def print_json(value: object) -> None:
    """Print the value on stdout as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
