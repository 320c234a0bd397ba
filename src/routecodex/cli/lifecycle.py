"""`routecodex stop`, `restart` and `status`: servers in the background.

A server started in the background: its process, its log, and the arguments it was given.

`routecodex start`: a server in the background.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcement_file,
    announcements,
    arguments_of,
    directory_of,
    is_gateway_since,
    is_running,
    user_dir,
)
from routecodex.cli.serve import serve
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

_READY_SECONDS = 30.0
_PAUSE = 0.05
_TAIL_LINES = 20
_LOG_BYTES = 10 * 1024 * 1024
_NOTE = ".start.json"


class Launch(Struct, frozen=True, kw_only=True):
    """How a server is started; `pid` is the process it became, `session_dir` where its state is."""

    id: str
    arguments: tuple[str, ...]
    directory: str
    pid: int = 0
    session_dir: str | None = None

    @property
    def log(self) -> Path:
        """Where what it says goes."""
        return user_dir() / "logs" / f"{self.id}.log"


class LaunchFailed(Exception):
    """The server did not become ready; `log` is what it said last."""

    def __init__(self, message: str, log: list[str]) -> None:
        super().__init__(message)
        self.log = log


def launched(path: Path | None, *, host: str | None, port: int | None, workers: int) -> Launch:
    """How to start a server with these arguments; a configuration that cannot be used ends the command."""
    from routecodex.cli.config import config_path, load_or_exit

    file = config_path(path).absolute()
    server = load_or_exit(file).server
    if host is not None:
        server = replace(server, host=host)
    if port is not None:
        server = replace(server, port=port)
    given = {"--config": str(file), "--host": host, "--port": port, "--workers": workers}
    return Launch(id=server.identity, arguments=("serve", *_words(given)), directory=str(Path.cwd()))


def _words(given: dict[str, str | int | None]) -> tuple[str, ...]:
    return tuple(word for name, value in given.items() if value is not None for word in (name, str(value)))


def noted() -> dict[str, Launch]:
    """The servers that `start` has started here, ended ones too, by id."""
    notes = (_read(file) for file in sorted((user_dir() / "logs").glob(f"*{_NOTE}")))
    return {note.id: note for note in notes if note is not None}


def _read(note: Path) -> Launch | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Launch)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def remembered(server_id: str, server: AnnouncedServer | None) -> Launch | None:
    """How a server was started, be it in the background or not; None when nothing is known of it."""
    found = _read(_note(server_id))
    if server is None or (found is not None and found.pid == server.pid):
        return found
    words, directory = arguments_of(server.pid), directory_of(server.pid)
    start = next((at for at, word in enumerate(words) if word in ("serve", "demo")), None)
    arguments = ("serve", *_words({"--config": server.config})) if start is None else tuple(words[start:])
    return _kept(Launch(id="", arguments=arguments, directory=directory or str(Path.cwd())), server)


def _kept(wanted: Launch, server: AnnouncedServer) -> Launch:
    """What has to be remembered of a server to start the same again."""
    kept = replace(wanted, id=server.id, pid=server.pid)
    if server.id == wanted.id and "ROUTECODEX_SESSION_DIR" not in os.environ:
        return kept
    # A port that was any free one is in its name and address: it keeps them, and with them its state.
    port = ("--port", str(urlsplit(server.url).port))
    return replace(kept, arguments=(*wanted.arguments, *port), session_dir=server.session_dir)


def _note(server_id: str) -> Path:
    return user_dir() / "logs" / f"{server_id}{_NOTE}"


def launch(wanted: Launch) -> AnnouncedServer:
    """Starts a server that outlives us and waits until it takes requests; raises Failed."""
    with _opened(wanted.log) as log:
        begun = log.seek(0, os.SEEK_END)
        process = _spawn(wanted, log)
    try:
        server = _ready(wanted, process)
    except LaunchFailed as exc:
        exc.log = _tail(wanted.log, begun)
        raise
    _note(server.id).write_bytes(msgspec.json.encode(_kept(wanted, server)))
    return server


def _opened(log: Path) -> IO[bytes]:
    """The log, to be appended to; a large one is set aside before."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            os.replace(log, log.with_name(f"{log.name}.1"))
        return open(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab")
    except OSError as exc:
        way_out = "set ROUTECODEX_USER_DIR to a directory that you can write"
        raise LaunchFailed(f"cannot write {log}: {exc.strerror}; {way_out}", []) from exc


def _spawn(wanted: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own interpreter, arguments that were parsed
        [sys.executable, "-m", "routecodex", *wanted.arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=wanted.directory if Path(wanted.directory).is_dir() else None,
        start_new_session=True,
        env={**os.environ, **({"ROUTECODEX_SESSION_DIR": wanted.session_dir} if wanted.session_dir else {})},
    )


def _ready(wanted: Launch, process: subprocess.Popen[bytes]) -> AnnouncedServer:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            raise LaunchFailed(f"{wanted.id} ended with {code} before it was ready; see {wanted.log}", [])
        server = next((one for one in announcements() if _is_of(one, process.pid)), None)
        if server is not None and AdminClient(server).is_ready():
            # It is meant to outlive us: nobody waits for it, and that is no mistake.
            process.returncode = 0
            return server
        time.sleep(_PAUSE)
    process.terminate()
    process.wait()
    raise LaunchFailed(
        f"{wanted.id} was not ready within {_READY_SECONDS:g} s and was ended; see {wanted.log}", []
    )


def _is_of(server: AnnouncedServer, pid: int) -> bool:
    """Whether the announced process is the one we started, or one of its workers."""
    try:
        return server.pid == pid or os.getsid(server.pid) == pid
    except (ProcessLookupError, PermissionError):
        return False


def _tail(log: Path, begun: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(begun)
        return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]


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


@click.command(params=list(serve.params), epilog=EXIT_CODES)
@json_option
def start(*, path: Path | None, host: str | None, port: int | None, workers: int, as_json: bool) -> None:
    """Run the gateway in the background: like `serve`, but the command ends once it is ready.

    What it says goes to `logs/<server id>.log` in the user dir.

    \b
    Examples:
      routecodex start
      routecodex start --config gateway.toml --port 8080 --workers 2
    """
    begin(launched(path, host=host, port=port, workers=workers), as_json=as_json)
