"""Servers on this machine: how they announce themselves, and how one speaks to them.

Announcement    what a running server has written down about itself
Admin           its admin API: plain HTTP, no proxies, short patience
Unreachable     nobody answers there, or somebody else
Refused         it answered no; says why

Whether a process runs, and whether it is the one that was meant: pids are used again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

_TOLERANCE = 2.0
"""The kernel tells the time of boot in whole seconds, and clocks are set."""


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended but was not collected yet does not run."""
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
    """Whether the process is a gateway that ran at that moment already; False when it cannot be told."""
    fields, booted = _fields(pid), _booted()
    if fields is None or booted is None:
        return False
    started = booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started <= at + _TOLERANCE and any("routecodex" in word for word in arguments_of(pid))


def arguments_of(pid: int) -> list[str]:
    """The words a process was started with; none when the system does not tell."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")[:-1]


def directory_of(pid: int) -> str | None:
    """The directory a process works in."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def _fields(pid: int) -> list[str] | None:
    """What the kernel tells of a process from its state on; the name before may hold anything."""
    text = _read(f"/proc/{pid}/stat").decode(errors="replace")
    return text.rpartition(")")[2].split() or None


def _booted() -> float | None:
    lines = _read("/proc/stat").splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(b"btime ")), None)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


PATIENCE = 5.0
_FORBIDDEN = (401, 403)


def user_dir() -> Path:
    """Where everything of this user lives."""
    return Path(os.environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex").expanduser()


class AnnouncedServer(Struct, frozen=True, kw_only=True):
    """A server as it announced itself."""

    id: str
    url: str
    pid: int
    token: str
    started_at: float = 0.0
    config: str | None = None
    log: str | None = None
    session_dir: str | None = None

    def __repr__(self) -> str:
        return f"Announcement({self.id!r}, {self.url!r})"

    @property
    def sessions(self) -> Path:
        """Where its state lives."""
        return Path(self.session_dir) if self.session_dir else user_dir() / "sessions" / self.id


def announcements() -> list[AnnouncedServer]:
    """Every server that has announced itself, by id; some may be dead."""
    files = sorted((user_dir() / "servers").glob("*.json"))
    found = (_announced(file) for file in files)
    return sorted((one for one in found if one is not None), key=lambda one: one.id)


def announcement_file(server_id: str) -> Path | None:
    """The file a server has announced itself in."""
    for file in (user_dir() / "servers").glob("*.json"):
        found = _announced(file)
        if found is not None and found.id == server_id:
            return file
    return None


def _announced(file: Path) -> AnnouncedServer | None:
    # It may go away, or be another program's, between the listing and the reading.
    try:
        return msgspec.json.decode(file.read_bytes(), type=AnnouncedServer)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


class Unreachable(Exception):
    """The server does not answer, or whoever answers there is not it."""


class AdminRefused(Exception):
    """The server says no."""

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
        """The answer to a question; empty values are left out of it."""
        from urllib.parse import urlencode

        given = urlencode({name: value for name, value in query.items() if value is not None})
        return self._call("GET", f"{path}?{given}" if given else path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to an order."""
        return self._call("POST", path, msgspec.json.encode(body or {}))

    def status(self) -> dict[str, Any]:
        """What the server says of itself; Unreachable when it is dead or another one."""
        if not is_running(self.server.pid):
            raise Unreachable(f"process {self.server.pid} is gone")
        try:
            told = self.get("/admin/status")
        except AdminRefused as exc:
            if exc.status in _FORBIDDEN:
                raise
            raise Unreachable(f"{self.server.url} is something else: {exc.message}") from exc
        if told.get("id") != self.server.id:
            raise Unreachable(f"{self.server.url} is the server {told.get('id')!r}")
        return told

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            self._call("GET", "/health/ready")
        except (Unreachable, AdminRefused):
            return False
        return True

    def _call(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        status, answer = self._exchange(method, path, body)
        value = _object(answer)
        if status == 200 and value is not None:
            return value
        raise _refusal(status, value)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        from http.client import HTTPConnection, HTTPException

        address = urlsplit(self.server.url)
        headers = {"authorization": f"Bearer {self.server.token}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        connection = HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as exc:
            raise Unreachable(f"{self.server.url} does not answer: {exc or type(exc).__name__}") from exc
        finally:
            connection.close()


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None


def _refusal(status: int, value: dict[str, Any] | None) -> AdminRefused:
    error = (value or {}).get("error")
    told = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else {}
    code = told.get("code") or (value or {}).get("code") or ""
    return AdminRefused(str(told.get("message") or f"it answered {status}"), code=str(code), status=status)
