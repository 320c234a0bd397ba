"""Which of the running servers a command means, and what became of asking them."""

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
from routecodex.cli.tables import complain

FAILED = 1
NONE_RUNS = 3
EXIT_CODES = """\b
Exit codes:
  0  done
  1  a server refused, or something failed; the others were still done
  2  wrong arguments or configuration
  3  no server is running
"""
NOBODY = "no server is running; `routecodex start` starts one"


def complete_id(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For shells: the ids that begin so."""
    return [one.id for one in announcements() if one.id.startswith(begun)]


def not_empty(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    """A name as it was given; one that a script left empty by mistake must not mean everything."""
    if given is not None and not given.strip("! \t"):
        raise click.BadParameter("an empty name")
    return given


server_option = click.option(
    "--server",
    "server_id",
    metavar="ID",
    shell_complete=complete_id,
    help="Only this server; default: all that run.",
)
server_argument = click.argument("server_id", metavar="[ID]", required=False, shell_complete=complete_id)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class ServerReply(Struct, frozen=True, kw_only=True):
    """What became of asking one server: dead, refused, or answered."""

    server: AnnouncedServer
    alive: bool = True
    answer: dict[str, Any] = {}
    refused: AdminRefused | None = None

    @property
    def about(self) -> dict[str, Any]:
        """How the server begins in every JSON output."""
        begun: dict[str, Any] = {"id": self.server.id, "url": self.server.url, "alive": self.alive}
        if self.refused is not None:
            begun["error"] = {"message": self.refused.message, "code": self.refused.code}
        return begun


def ask(server: AnnouncedServer, question: Callable[[AdminClient], dict[str, Any]]) -> ServerReply:
    """Asks one server, after making sure that it is the one; tells on stderr when it cannot answer."""
    admin = AdminClient(server)
    try:
        admin.status()
        return ServerReply(server=server, answer=question(admin))
    except Unreachable as exc:
        complain(f"{server.id} is dead, skipped: {exc}", severity="warning")
        return ServerReply(server=server, alive=False)
    except AdminRefused as exc:
        complain(f"{server.id}: {exc.message}")
        return ServerReply(server=server, refused=exc)


def ask_each(server_id: str | None, question: Callable[[AdminClient], dict[str, Any]]) -> list[ServerReply]:
    """Asks the server of that name, or all."""
    return [ask(server, question) for server in meant(server_id)]


def meant(server_id: str | None) -> list[AnnouncedServer]:
    """The servers of that name, all without one; a name that nobody has is wrong usage."""
    every = announcements()
    if server_id is None or not every:
        return every
    chosen = [server for server in every if server.id == server_id]
    if not chosen:
        raise unknown(server_id, [server.id for server in every])
    return chosen


def unknown(server_id: str, known: Iterable[str]) -> click.UsageError:
    """The error for a name that nobody has."""
    from routecodex.config.problems import choices, nearest

    names = list(known)
    close = nearest(server_id, names)
    there = f"there are {choices(names)}" if names else "none is known here"
    hint = f"did you mean {close!r}?" if close else there
    return click.UsageError(f"no server is called {server_id!r}; {hint}")


def only(server_id: str | None) -> AnnouncedServer | None:
    """The one server a command is about, None when none is announced; several without a name: wrong usage."""
    found = meant(server_id)
    if len(found) > 1:
        # Those that were killed have left their announcements behind.
        found = [server for server in found if is_running(server.pid)] or found
    if len(found) > 1:
        names = ", ".join(server.id for server in found)
        raise click.UsageError(f"several servers are there; name one of {names}")
    return found[0] if found else None


def finish(asked: Iterable[ServerReply]) -> None:
    """Ends the command with the code that tells what became of it."""
    every = list(asked)
    if not any(one.alive for one in every):
        nobody()
    if any(one.refused for one in every):
        raise SystemExit(FAILED)


def nobody() -> NoReturn:
    """Says that no server runs, and ends the command."""
    click.echo(NOBODY, err=True)
    raise SystemExit(NONE_RUNS)


def print_json(value: object) -> None:
    """The value on stdout, for scripts and for people who look at what scripts get."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
