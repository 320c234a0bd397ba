"""A server started in the background: its process, its log, and the arguments it was given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.cli.admin_client import AdminClient, AnnouncedServer, announcements, user_dir
from routecodex.cli.processes import arguments_of, directory_of

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
    from routecodex.cli.loading import config_path, load_or_exit

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
