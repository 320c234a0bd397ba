"""Servers on this machine: their announcements, their admin API and their processes.

The admin API is called over plain HTTP, without proxies and with a short timeout. Process checks compare
start times, because pids are reused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

TIMEOUT_SECONDS = 5.0
_FORBIDDEN = (401, 403)


def user_dir() -> Path:
    """Return the user dir."""
    return Path(os.environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex").expanduser()


class AnnouncedServer(Struct, frozen=True, kw_only=True):
    """A running server, as it announced itself; without a pid a node that the store names.

    `is_alive`: it may be running, so that it is worth asking. `shows_life`: its row in the store says that it
    runs, whether it can be reached from here or not.
    """

    id: str
    url: str
    pid: int
    token: str
    started_at: float = 0.0
    config: str | None = None
    log: str | None = None
    session_dir: str | None = None
    ledger: str | None = None
    is_alive: bool = True
    shows_life: bool = False

    def __repr__(self) -> str:
        return f"AnnouncedServer({self.id!r}, {self.url!r})"

    @property
    def sessions(self) -> Path:
        """The directory of its state."""
        return Path(self.session_dir) if self.session_dir else user_dir() / "sessions" / self.id


def announcements() -> list[AnnouncedServer]:
    """Return all announced servers, by id; some may be dead."""
    files = sorted((user_dir() / "servers").glob("*.json"))
    found = (_read_announcement(file) for file in files)
    return sorted((one for one in found if one is not None), key=lambda one: one.id)


def announcement_file(server_id: str) -> Path | None:
    """Return the file with a server's announcement."""
    for file in (user_dir() / "servers").glob("*.json"):
        found = _read_announcement(file)
        if found is not None and found.id == server_id:
            return file
    return None


def _read_announcement(file: Path) -> AnnouncedServer | None:
    # The file may be deleted after it was listed, or belong to another program.
    try:
        return msgspec.json.decode(file.read_bytes(), type=AnnouncedServer)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


class Unreachable(Exception):
    """The server does not answer, or another program answers at its address."""


class AdminRefused(Exception):
    """The server rejected the call."""

    def __init__(self, message: str, *, code: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


class AdminClient:
    """The admin API of one server."""

    def __init__(self, server: AnnouncedServer) -> None:
        self.server = server

    def get(self, path: str, **query: str | int | None) -> dict[str, Any]:
        """Return the answer to a GET; parameters that are None are left out."""
        from urllib.parse import urlencode

        parameters = urlencode({name: value for name, value in query.items() if value is not None})
        return self._call("GET", f"{path}?{parameters}" if parameters else path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a POST."""
        return self._call("POST", path, msgspec.json.encode(body or {}))

    def status(self) -> dict[str, Any]:
        """Return the server's status; raise Unreachable if it is dead or another server answers."""
        if not self.server.is_alive:
            raise Unreachable("it shows no sign of life; it obeys when it starts")
        if self.server.pid and not is_running(self.server.pid):
            raise Unreachable(f"process {self.server.pid} has ended")
        try:
            status = self.get("/admin/status")
        except AdminRefused as exc:
            if exc.status in _FORBIDDEN:
                raise
            raise Unreachable(f"{self.server.url} is not a gateway: {exc.message}") from exc
        if status.get("id") != self.server.id:
            raise Unreachable(f"{self.server.url} is now server {status.get('id')!r}")
        return status

    def readiness(self) -> dict[str, Any]:
        """Return whether the server and its store are ready, in its own words."""
        _, answer = self._exchange("GET", "/health/ready", None)
        return _decode_object(answer) or {}

    def is_ready(self) -> bool:
        """Whether the server accepts requests."""
        try:
            self._call("GET", "/health/ready")
        except (Unreachable, AdminRefused):
            return False
        return True

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        status, answer = self._exchange(method, path, body)
        value = _decode_object(answer)
        if status in (200, 201) and value is not None:
            return value
        raise _refusal(status, value)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        address = urlsplit(self.server.url)
        headers = {"authorization": f"Bearer {self.server.token}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        connection = kind(address.hostname or "", address.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as exc:
            raise Unreachable(f"{self.server.url} does not answer: {exc or type(exc).__name__}") from exc
        finally:
            connection.close()


def _decode_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _refusal(status: int, value: dict[str, Any] | None) -> AdminRefused:
    error = (value or {}).get("error")
    fields = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    code = fields.get("code") or (value or {}).get("code") or ""
    message = str(fields.get("message") or f"the server answered HTTP {status}")
    return AdminRefused(message, code=str(code), status=status)


_START_TOLERANCE = 2.0
"""Seconds of error in a start time: /proc/stat has whole seconds, and clocks are adjusted."""


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = _fields(pid)
    return fields is None or fields[0] != "Z"


def is_gateway_since(pid: int, at: float) -> bool:
    """Whether the process is a gateway that was running at that time; False if unknown."""
    fields, booted = _fields(pid), _boot_time()
    if fields is None or booted is None:
        return False
    started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started <= at + _START_TOLERANCE and is_gateway_command(command_line(pid))


def may_be_that_server(server: AnnouncedServer) -> bool:
    """Whether the process of an announcement runs, as far as can be told, and is not another by now."""
    if not is_running(server.pid):
        return False
    return is_gateway_since(server.pid, server.started_at) or not command_line(server.pid)


def is_gateway_command(words: Sequence[str]) -> bool:
    """Whether a command line runs this program: as a script, by `python -m`, or by its own name.

    A path that contains the name, such as that of an interpreter below a checkout, does not make it ours.
    """
    if not words:
        return False
    program = PurePath(words[0]).name
    if not program.startswith("python"):
        return program == "routecodex"
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return PurePath(script).name == "routecodex" or ("-m", "routecodex") in pairwise(words)


def command_line(pid: int) -> list[str]:
    """Return the command line of a process; empty if unknown."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")[:-1]


def working_directory(pid: int) -> str | None:
    """Return the working directory of a process."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def _fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; the name before may contain anything."""
    text = _read(f"/proc/{pid}/stat").decode(errors="replace")
    return text.rpartition(")")[2].split() or None


def _boot_time() -> float | None:
    lines = _read("/proc/stat").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(b"btime ")), None)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
