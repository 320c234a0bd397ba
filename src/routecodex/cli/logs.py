"""The end of a file that grows, and that is put aside for a new one now and then.

`routecodex logs`: the requests of a server, as they pass.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import click
import msgspec

from routecodex.cli.admin_client import AnnouncedServer, announcements, user_dir
from routecodex.cli.lifecycle import noted
from routecodex.cli.servers import EXIT_CODES, NONE_RUNS, json_option, only, server_argument, unknown
from routecodex.cli.tables import echo, layout, plain
from routecodex.cli.views import REQUEST, request_row

_BLOCK = 64 * 1024
_PAUSE = 0.2
_OLD = 9


class Tail:
    """Lines from the end of a file on; it is put aside as `name.1.jsonl`, that one as `name.2.jsonl`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._begun = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def last(self, count: int) -> list[bytes]:
        """The last lines; following goes on after them."""
        self._open()
        if self._file is None:
            return self._older(count)
        size = self._file.seek(0, os.SEEK_END)
        lines, self._begun = _last_lines(self._file, size, count)
        self._file.seek(size)
        return [*self._older(count - len(lines)), *lines]

    def _older(self, count: int) -> list[bytes]:
        """The last lines of the files that were put aside, newest of them first."""
        lines: list[bytes] = []
        for number in range(1, _OLD):
            aside = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
            if len(lines) >= count or not aside.exists():
                break
            with aside.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                lines = [*_last_lines(file, size, count - len(lines))[0], *lines]
        return lines

    def follow(self) -> Iterator[list[bytes]]:
        """New lines as they come, forever."""
        while True:
            lines = self.news()
            if lines:
                yield lines
            else:
                time.sleep(_PAUSE)

    def news(self) -> list[bytes]:
        """The lines that came since."""
        if self._file is None:
            self._open()
            return self._read()
        replaced = self._is_replaced()
        # What was written before it was put aside is read after that was seen, so that no line is lost.
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
        self._file, self._begun = None, b""

    def _is_replaced(self) -> bool:
        assert self._file is not None
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino) or there.st_size < self._file.tell()

    def _read(self) -> list[bytes]:
        if self._file is None:
            return []
        *lines, self._begun = (self._begun + self._file.read()).split(b"\n")
        return list(filter(None, lines))


def _last_lines(file: BinaryIO, size: int, count: int) -> tuple[list[bytes], bytes]:
    """The last whole lines before `size`, and the beginning of one that is being written."""
    text, at = b"", size
    while at > 0 and text.count(b"\n") <= count:
        step = min(_BLOCK, at)
        at -= step
        file.seek(at)
        text = file.read(step) + text
    *lines, begun = text.split(b"\n")
    lines = list(filter(None, lines))
    return (lines[-count:] if count > 0 else []), begun


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
