"""`routecodex stop`, `restart` and `status`, and how servers are started in the background.

`routecodex start` is in `serve`, because it shares its options. `logs/<server id>.start.json` in the user dir
records how a server was started, for `restart`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
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
    command_line,
    is_gateway_since,
    is_running,
    user_dir,
    working_directory,
)
from routecodex.cli.servers import (
    EXIT_CODES,
    FAILED,
    NO_SERVER,
    ServerReply,
    call_servers,
    exit_by_replies,
    exit_without_server,
    json_option,
    print_json,
    select_one,
    select_servers,
    server_argument,
    server_option,
)
from routecodex.cli.tables import Column, moment, print_problem, show
from routecodex.cli.views import facts

if TYPE_CHECKING:
    from routecodex.config import Config

_READY_SECONDS = 30.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 20
_LOG_BYTES = 10 * 1024 * 1024
_RECORD_SUFFIX = ".start.json"


_STOP_SECONDS = 40.0
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=_STOP_SECONDS,
    show_default=True,
    help="Seconds to wait; requests in flight may take up to `server.drain_seconds`.",
)


def start_and_report(launch: Launch, *, as_json: bool) -> None:
    """Start a server and print its address; on failure print the reason and exit."""
    running = _running(launch.id)
    if running is not None:
        print_problem(
            f"{running.id} is already running at {running.url} (pid {running.pid}); use `routecodex restart`"
        )
        raise SystemExit(FAILED)
    try:
        server = start_server(launch)
    except LaunchFailed as exc:
        print_problem(str(exc))
        for line in exc.log:
            click.echo(f"    {line}", err=True)
        raise SystemExit(FAILED) from exc
    fields = {"id": server.id, "url": server.url, "pid": server.pid, "log": str(launch.log)}
    if as_json:
        print_json(fields)
    else:
        facts({name: str(value) for name, value in fields.items()})


def _running(server_id: str) -> AnnouncedServer | None:
    """Return the server with that id, if it runs."""
    for server in select_servers(None):
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
    """Stop a server after its requests in flight; without an ID, the only running one.

    A second `stop` aborts the requests in flight.

    \b
    Examples:
      routecodex stop
      routecodex stop 127.0.0.1-5520 --timeout 5
    """
    server = select_one(server_id)
    if server is None:
        exit_without_server()
    _stop(server, timeout)
    if as_json:
        print_json({"id": server.id, "pid": server.pid, "stopped": True})
    else:
        click.echo(f"{server.id} has stopped")


def _stop(server: AnnouncedServer, timeout: float) -> None:
    if not _is_that_server(server):
        _remove_dead(server)
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while is_running(server.pid):
        if time.monotonic() >= deadline:
            print_problem(
                f"{server.id} (pid {server.pid}) is still running after {timeout:g} s; "
                "run `routecodex stop` again to abort its requests"
            )
            raise SystemExit(FAILED)
        time.sleep(_POLL_SECONDS)


def _is_that_server(server: AnnouncedServer) -> bool:
    """Whether the announced process is certainly that server, because its pid may have been reused."""
    if not is_running(server.pid):
        return False
    if is_gateway_since(server.pid, server.started_at):
        return True
    try:
        return int(AdminClient(server).status().get("pid") or 0) == server.pid
    except (Unreachable, AdminRefused):
        return False


def _remove_dead(server: AnnouncedServer) -> None:
    """Report that the server does not run, and remove its announcement if its process has ended."""
    if is_running(server.pid):
        print_problem(f"cannot verify that pid {server.pid} is still {server.id}; it was not stopped")
        raise SystemExit(FAILED)
    file = announcement_file(server.id)
    if file is not None:
        file.unlink(missing_ok=True)
    click.echo(f"{server.id} is no longer running; its announcement was removed", err=True)
    raise SystemExit(NO_SERVER)


@click.command(epilog=EXIT_CODES)
@server_argument
@timeout_option
@json_option
def restart(server_id: str | None, timeout: float, as_json: bool) -> None:
    """Stop a server and start it again with the same arguments.

    Requests in flight finish first. A stopped server is started again if its ID is given.

    \b
    Examples:
      routecodex restart
      routecodex restart 127.0.0.1-5520
    """
    server = _announced(server_id)
    launch = find_launch(server_id or (server.id if server else ""), server)
    if launch is None:
        exit_without_server()
    if server is not None and _is_that_server(server):
        _stop(server, timeout)
    start_and_report(launch, as_json=as_json)


def _announced(server_id: str | None) -> AnnouncedServer | None:
    if server_id is None:
        return select_one(None)
    return next((server for server in select_servers(None) if server.id == server_id), None)


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
    """Show running servers: address, process, start time, requests in flight.

    \b
    Example:
      routecodex status --json
    """
    replies = call_servers(server_id, AdminClient.status)
    if as_json:
        print_json({"servers": [{**reply.answer, **reply.about} for reply in replies]})
    else:
        rows = [_row(reply) for reply in replies if reply.answer]
        if rows:
            show(_COLUMNS, rows)
        for reply in replies:
            _show_failed_tools(reply)
    exit_by_replies(replies)


def _show_failed_tools(reply: ServerReply) -> None:
    for tool in reply.answer.get("server_tools", ()):
        if tool["status"] == "failed":
            error = f"server tool {tool['name']!r} ({tool['entry_point']}) cannot be loaded: {tool['error']}"
            click.echo(f"warning: {reply.server.id}: {error}", err=True)


def _row(reply: ServerReply) -> list[str]:
    fields: dict[str, Any] = reply.answer
    return [
        reply.server.id,
        reply.server.url,
        str(reply.server.pid),
        moment(fields.get("started_at") or reply.server.started_at),
        str(fields.get("active", "")),
        str(fields.get("workers", "")),
        str(fields.get("version", "")),
        str(fields.get("config") or ""),
    ]


class Launch(Struct, frozen=True, kw_only=True):
    """Arguments of a server in the background; `pid` is its process, `session_dir` holds its state."""

    id: str
    arguments: tuple[str, ...]
    directory: str
    pid: int = 0
    session_dir: str | None = None

    @property
    def log(self) -> Path:
        """The file of its output."""
        return user_dir() / "logs" / f"{self.id}.log"


class LaunchFailed(Exception):
    """The server did not become ready; `log` holds its last lines."""

    def __init__(self, message: str, log: list[str]) -> None:
        super().__init__(message)
        self.log = log


def new_launch(path: Path | None, *, host: str | None, port: int | None, workers: int) -> Launch:
    """Return the launch of a server with these options; exit if the configuration is invalid."""
    from routecodex.cli.config import config_path, load_or_exit, with_address

    file = config_path(path).absolute()
    config = load_or_exit(file, with_mode=True, host=host, port=port, is_guarded=_may_be_guarded)
    server_id = with_address(config, host, port).identity
    options = {"--config": str(file), "--host": host, "--port": port, "--workers": workers}
    return Launch(id=server_id, arguments=("serve", *_option_arguments(options)), directory=str(Path.cwd()))


def _may_be_guarded(config: Config) -> bool:
    """Return whether the store may have clients; of one in Redis the server finds out itself, once."""
    from routecodex.canon.store_url import is_redis_url
    from routecodex.cli.stored_clients import has_stored_clients

    return is_redis_url(config.store.url) or has_stored_clients(config)


def _option_arguments(options: dict[str, str | int | None]) -> tuple[str, ...]:
    return tuple(
        argument for name, value in options.items() if value is not None for argument in (name, str(value))
    )


def started_servers() -> dict[str, Launch]:
    """Return the servers that `start` has started, ended ones too, by id."""
    records = (_read_record(file) for file in sorted((user_dir() / "logs").glob(f"*{_RECORD_SUFFIX}")))
    return {record.id: record for record in records if record is not None}


def _read_record(record: Path) -> Launch | None:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Launch)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def find_launch(server_id: str, server: AnnouncedServer | None) -> Launch | None:
    """Return how a server was started, in the background or not; None if unknown."""
    found = _read_record(_record_file(server_id))
    if server is None or (found is not None and found.pid == server.pid):
        return found
    line = command_line(server.pid)
    start = next((at for at, argument in enumerate(line) if argument in ("serve", "demo")), None)
    config = ("serve", *_option_arguments({"--config": server.config}))
    arguments = config if start is None else tuple(line[start:])
    directory = working_directory(server.pid) or str(Path.cwd())
    return _launch_record(Launch(id="", arguments=arguments, directory=directory), server)


def _launch_record(launch: Launch, server: AnnouncedServer) -> Launch:
    """Return the launch that starts the same server again."""
    record = replace(launch, id=server.id, pid=server.pid)
    if server.id == launch.id and "ROUTECODEX_SESSION_DIR" not in os.environ:
        return record
    # A free port is part of the server's id and address: it keeps the port, and with it the state.
    port = ("--port", str(urlsplit(server.url).port))
    return replace(record, arguments=(*launch.arguments, *port), session_dir=server.session_dir)


def _record_file(server_id: str) -> Path:
    return user_dir() / "logs" / f"{server_id}{_RECORD_SUFFIX}"


def start_server(launch: Launch) -> AnnouncedServer:
    """Start a server in the background, and record how; raises LaunchFailed."""
    server = spawn_server(launch)
    _record_file(server.id).write_bytes(msgspec.json.encode(_launch_record(launch, server)))
    return server


def spawn_server(launch: Launch) -> AnnouncedServer:
    """Start a server in the background and wait until it accepts requests; raises LaunchFailed."""
    with _open_log(launch.log) as log:
        start = log.seek(0, os.SEEK_END)
        process = _spawn(launch, log)
    try:
        return _wait_until_ready(launch, process)
    except LaunchFailed as exc:
        exc.log = _tail(launch.log, start)
        raise


def _open_log(log: Path) -> IO[bytes]:
    """Open the log for appending; a large one is renamed first."""
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            os.replace(log, log.with_name(f"{log.name}.1"))
        return open(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab")
    except OSError as exc:
        fix = "set ROUTECODEX_USER_DIR to a writable directory"
        raise LaunchFailed(f"cannot write {log}: {exc.strerror}; {fix}", []) from exc


def _spawn(launch: Launch, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # our own interpreter, arguments that were parsed
        [sys.executable, "-m", "routecodex", *launch.arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=launch.directory if Path(launch.directory).is_dir() else None,
        start_new_session=True,
        env={**os.environ, **({"ROUTECODEX_SESSION_DIR": launch.session_dir} if launch.session_dir else {})},
    )


def _wait_until_ready(launch: Launch, process: subprocess.Popen[bytes]) -> AnnouncedServer:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        code = process.poll()
        if code is not None:
            raise LaunchFailed(
                f"{launch.id} exited with code {code} before it was ready; see {launch.log}", []
            )
        found = (server for server in announcements() if _is_process(server, process.pid))
        server = next(found, None)
        if server is not None and AdminClient(server).is_ready():
            # The server outlives this command: without a return code Popen would warn.
            process.returncode = 0
            return server
        time.sleep(_POLL_SECONDS)
    process.terminate()
    process.wait()
    raise LaunchFailed(
        f"{launch.id} was not ready within {_READY_SECONDS:g} s and was stopped; see {launch.log}", []
    )


def _is_process(server: AnnouncedServer, pid: int) -> bool:
    """Whether the announced process is this one, or one of its workers."""
    try:
        return server.pid == pid or os.getsid(server.pid) == pid
    except (ProcessLookupError, PermissionError):
        return False


def _tail(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
