"""`routecodex logs`: the requests of a server, or its plain log, as they are written."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import click
import msgspec

from routecodex.cli.admin_client import AnnouncedServer, announcements, user_dir
from routecodex.cli.lifecycle import started_servers
from routecodex.cli.servers import (
    EXIT_CODES,
    NO_SERVER,
    json_option,
    select_one,
    server_argument,
    unknown_server,
)
from routecodex.cli.tables import Layout, available_width, echo, layout, plain
from routecodex.cli.views import RequestField, request_fields, request_row

_BLOCK = 64 * 1024
_POLL_SECONDS = 0.2
_MAX_ROTATED = 9


@click.command(epilog=EXIT_CODES)
@server_argument
@click.option("--follow", "-f", is_flag=True, help="Show new requests as they finish, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(0), default=20, show_default=True, help="Number of past requests."
)
@json_option
@click.option("--server-log", is_flag=True, help="Show the plain log of a server started by `start`.")
def logs(server_id: str | None, *, follow: bool, lines: int, as_json: bool, server_log: bool) -> None:
    """Show the requests of a server: target, reason, duration, result.

    Also works for a stopped server if its ID is given.

    \b
    Examples:
      routecodex logs -f
      routecodex logs 127.0.0.1-5520 -n 100 --json
      routecodex logs --server-log
    """
    file = _server_log(server_id) if server_log else _requests(server_id)
    print_lines = _print_lines if as_json or server_log else RequestTable().print_lines
    with Tail(file) as tail, contextlib.suppress(KeyboardInterrupt):
        past = tail.last(lines)
        if not past and not follow and lines:
            click.echo(f"the log is empty: {file}", err=True)
            return
        if past or follow:
            print_lines(past)
        for new in tail.follow() if follow else ():
            print_lines(new)


def _requests(server_id: str | None) -> Path:
    server = _announced(server_id)
    if server is not None:
        return server.sessions / "requests.jsonl"
    sessions = user_dir() / "sessions"
    ended = {path.name: path for path in sessions.glob("*")}
    # A server that ended before its first request left only the record of its start.
    ended |= {name: Path(launch.session_dir or sessions / name) for name, launch in started_servers().items()}
    return _ended(server_id, ended) / "requests.jsonl"


def _server_log(server_id: str | None) -> Path:
    server = _announced(server_id)
    if server is None:
        return _ended(server_id, {path.stem: path for path in (user_dir() / "logs").glob("*.log")})
    return Path(server.log) if server.log else user_dir() / "logs" / f"{server.id}.log"


def _announced(server_id: str | None) -> AnnouncedServer | None:
    if server_id is None:
        return select_one(None)
    return next((server for server in announcements() if server.id == server_id), None)


def _ended(server_id: str | None, ended: Mapping[str, Path]) -> Path:
    """Return the file or directory of a server that is no longer announced."""
    if server_id is None:
        click.echo("no server is running; give the ID of a stopped one to see its log", err=True)
        raise SystemExit(NO_SERVER)
    # The id is looked up, not joined to a path.
    if server_id not in ended:
        raise unknown_server(server_id, {*ended, *(server.id for server in announcements())})
    return ended[server_id]


def _print_lines(lines: Iterable[bytes]) -> None:
    for line in lines:
        click.echo(line.decode(errors="replace"))


class RequestTable:
    """Prints requests below a line of titles.

    The first requests set the widths. The titles are printed again with new widths if the terminal was
    resized, or a request has a field for which there is no column yet. A column that is shown stays.
    """

    def __init__(self) -> None:
        self._fields: tuple[RequestField, ...] = ()
        self._layout: Layout | None = None
        self._available: int | None = None

    def print_lines(self, lines: list[bytes]) -> None:
        """Print the requests; a line that is not a request is printed as it is."""
        requests = [_request(line) for line in lines]
        self._fit([request for request in requests if request is not None])
        assert self._layout is not None
        for line, request in zip(lines, requests, strict=True):
            if request is None:
                echo(plain(line.decode(errors="replace")))
            else:
                echo(self._layout.line(request_row(request, self._fields)))

    def _fit(self, requests: list[dict[str, Any]]) -> None:
        """Lay the table out if its columns or the width of the terminal changed."""
        shown = {field.optional: None for field in self._fields if field.optional}
        fields, available = request_fields([*requests, shown]), available_width(sys.stdout)
        if self._layout is not None and (fields, available) == (self._fields, self._available):
            return
        self._fields, self._available = fields, available
        rows = [request_row(request, fields) for request in requests]
        self._layout = layout([field.column for field in fields], rows)
        echo(self._layout.head())


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


class Tail:
    """Reads lines from the end of a file, which is rotated to `name.1.jsonl`, that to `name.2.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._partial = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def last(self, count: int) -> list[bytes]:
        """Return the last lines; `follow` continues after them."""
        self._open()
        if self._file is None:
            return self._older(count)
        size = self._file.seek(0, os.SEEK_END)
        lines, self._partial = _last_lines(self._file, size, count)
        self._file.seek(size)
        return [*self._older(count - len(lines)), *lines]

    def _older(self, count: int) -> list[bytes]:
        """Return the last lines of the rotated files."""
        lines: list[bytes] = []
        for number in range(1, _MAX_ROTATED):
            rotated = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
            if len(lines) >= count or not rotated.exists():
                break
            with rotated.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                lines = [*_last_lines(file, size, count - len(lines))[0], *lines]
        return lines

    def follow(self) -> Iterator[list[bytes]]:
        """Yield new lines as they are written, forever."""
        while True:
            lines = self.new_lines()
            if lines:
                yield lines
            else:
                time.sleep(_POLL_SECONDS)

    def new_lines(self) -> list[bytes]:
        """Return the lines written since the last call."""
        if self._file is None:
            self._open()
            return self._read()
        replaced = self._is_replaced()
        # Read after the check: lines written before the rotation are in the old file.
        lines = self._read()
        if replaced:
            self._close()
            self._open()
            lines += self._read()
        return lines

    def _open(self) -> None:
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            self._file = None

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._partial = None, b""

    def _is_replaced(self) -> bool:
        assert self._file is not None
        try:
            current = self._path.stat()
        except FileNotFoundError:
            return False
        opened = os.fstat(self._file.fileno())
        return (current.st_dev, current.st_ino) != (
            opened.st_dev,
            opened.st_ino,
        ) or current.st_size < self._file.tell()

    def _read(self) -> list[bytes]:
        if self._file is None:
            return []
        *lines, self._partial = (self._partial + self._file.read()).split(b"\n")
        return list(filter(None, lines))


def _last_lines(file: BinaryIO, size: int, count: int) -> tuple[list[bytes], bytes]:
    """Return the last whole lines before `size`, and the start of a line that is being written."""
    text, at = b"", size
    while at > 0 and text.count(b"\n") <= count:
        step = min(_BLOCK, at)
        at -= step
        file.seek(at)
        text = file.read(step) + text
    *lines, partial = text.split(b"\n")
    lines = list(filter(None, lines))
    return (lines[-count:] if count > 0 else []), partial
