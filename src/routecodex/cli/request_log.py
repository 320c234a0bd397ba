"""`routecodex logs`: the requests of a server, as they pass."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from routecodex.cli.admin_client import AnnouncedServer, announcements, user_dir
from routecodex.cli.launch import noted
from routecodex.cli.servers import EXIT_CODES, NONE_RUNS, json_option, only, server_argument, unknown
from routecodex.cli.tables import echo, layout, plain
from routecodex.cli.tail import Tail
from routecodex.cli.views import REQUEST, request_row


@click.command(epilog=EXIT_CODES)
@server_argument
@click.option("--follow", "-f", is_flag=True, help="Go on as new ones come, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(0), default=20, show_default=True, help="How many of the past."
)
@json_option
@click.option("--server-log", is_flag=True, help="The plain log of a server that was started by `start`.")
def logs(server_id: str | None, *, follow: bool, lines: int, as_json: bool, server_log: bool) -> None:
    """Show the requests of a server: where each went and why, how long it took, how it ended.

    Works for a server that has ended, too, when its ID is given.

    \b
    Examples:
      routecodex logs -f
      routecodex logs 127.0.0.1-5520 -n 100 --json
      routecodex logs --server-log
    """
    file = _server_log(server_id) if server_log else _requests(server_id)
    printed = _print_lines if as_json or server_log else _table()
    with Tail(file) as tail, contextlib.suppress(KeyboardInterrupt):
        past = tail.last(lines)
        if not past and not follow and lines:
            click.echo(f"nothing is logged in {file}", err=True)
            return
        if past or follow:
            printed(past)
        for new in tail.follow() if follow else ():
            printed(new)


def _requests(server_id: str | None) -> Path:
    server = _announced(server_id)
    if server is not None:
        return server.sessions / "requests.jsonl"
    sessions = user_dir() / "sessions"
    left = {path.name: path for path in sessions.glob("*")}
    # One that ended before its first request has left a note of its start alone.
    left |= {name: Path(note.session_dir or sessions / name) for name, note in noted().items()}
    return _ended(server_id, left) / "requests.jsonl"


def _server_log(server_id: str | None) -> Path:
    server = _announced(server_id)
    if server is None:
        return _ended(server_id, {path.stem: path for path in (user_dir() / "logs").glob("*.log")})
    return Path(server.log) if server.log else user_dir() / "logs" / f"{server.id}.log"


def _announced(server_id: str | None) -> AnnouncedServer | None:
    if server_id is None:
        return only(None)
    return next((server for server in announcements() if server.id == server_id), None)


def _ended(server_id: str | None, left: Mapping[str, Path]) -> Path:
    """What a server has left behind that is not announced any more."""
    if server_id is None:
        click.echo("no server is running; name one that has ended to see its log", err=True)
        raise SystemExit(NONE_RUNS)
    # The name is looked up, not joined to a path.
    if server_id not in left:
        raise unknown(server_id, {*left, *(server.id for server in announcements())})
    return left[server_id]


def _print_lines(lines: Iterable[bytes]) -> None:
    for line in lines:
        click.echo(line.decode(errors="replace"))


def _table() -> Callable[[list[bytes]], None]:
    """Prints rows below a head; the widths are those of the first rows."""
    made: list[Any] = []

    def printed(lines: list[bytes]) -> None:
        rows = [_row(line) for line in lines]
        known = [request_row(row) for row in rows if row is not None]
        if not made:
            made.append(layout(REQUEST, known))
            echo(made[0].head())
        for line, row in zip(lines, rows, strict=True):
            echo(plain(line.decode(errors="replace")) if row is None else made[0].line(request_row(row)))

    return printed


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None
