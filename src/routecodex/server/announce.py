"""How a running server is found: a file in the user dir, and the token its operator shows.

`<user dir>/servers/<server id>.json` stands there from the moment the server is ready until it has ended.
A server that was killed leaves its file behind: `alive` tells by its pid.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from routecodex.config import Config

log = logging.getLogger("routecodex.server")


class Announcement(Struct, frozen=True, kw_only=True):
    """A running server: where it is, which process to signal, the token of its admin API.

    `started_at` is seconds since the epoch; `config` and `log` are files, when it has them; `session_dir` is
    where its state lives.
    """

    id: str
    url: str
    pid: int
    token: str
    started_at: float
    config: str | None = None
    log: str | None = None
    session_dir: str | None = None

    def __repr__(self) -> str:
        return f"Announcement({self.id!r}, {self.url!r})"


_rows = msgspec.json.Decoder(Announcement)


def url_of(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    name = host
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            name = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def describe(config: Config, *, token: str, port: int, file: Path | None, session_dir: Path) -> Announcement:
    """The server that this process is, listening on that port with the configuration of that file."""
    server = structs.replace(config.server, port=port)
    return Announcement(
        id=server.identity,
        url=url_of(server.host, port),
        pid=os.getpid(),
        token=token,
        started_at=round(time.time(), 3),
        config=str(file.absolute()) if file is not None else None,
        log=_file_of_stderr(),
        session_dir=str(session_dir.absolute()),
    )


def _file_of_stderr() -> str | None:
    """The file that what we say goes to, where it is one and the system tells its name."""
    try:
        return os.readlink("/proc/self/fd/2") if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:
        return None


def write(home: Path, row: Announcement) -> None:
    """Announces a server, in place of whatever its id announced before; one that cannot runs all the same."""
    path = _path(home, row.id)
    before = _row(path)
    if before is not None and before.pid != row.pid and alive(before):
        log.warning("another server is called %r as well, at %s; give one of them an id", row.id, before.url)
    try:
        _replace(path, msgspec.json.format(msgspec.json.encode(row), indent=2) + b"\n")
    except OSError as exc:
        log.warning("this server cannot be found by daemon commands: %s", exc)


def remove(home: Path, row: Announcement) -> None:
    """Takes an announcement back, unless another process has announced itself there since."""
    path = _path(home, row.id)
    found = _row(path)
    if found is not None and found.pid == row.pid:
        with contextlib.suppress(OSError):
            path.unlink()


def read(home: Path) -> list[Announcement]:
    """Every server announced, dead ones too, by id; a file that holds none is passed over."""
    found = map(_row, sorted((home / "servers").glob("*.json")))
    return sorted((row for row in found if row is not None), key=lambda row: row.id)


def alive(row: Announcement) -> bool:
    """Whether the process that was announced still runs; its number may have gone to another since."""
    if row.pid <= 0:
        return False
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def admin_token(config: Config, home: Path) -> str:
    """The token of the admin API: as configured, else the one of the user dir, made when it is missing."""
    if config.server.admin_token is not None:
        return config.server.admin_token.reveal()
    made = secrets.token_hex(32)
    try:
        return _settled_token(home / "admin-token", made)
    except OSError as exc:
        log.warning("the admin API cannot be used, its token cannot be kept: %s", exc)
        return made


def _settled_token(path: Path, made: str) -> str:
    found = _token(path)
    if found:
        return found
    content = f"{made}\n".encode()
    with _beside(path, content) as temporary, contextlib.suppress(FileExistsError):
        # A link comes to be whole or not at all: of two servers that start at once, one makes the token.
        os.link(temporary, path)
    found = _token(path)
    if not found:
        _replace(path, content)
    return found or made


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                log.warning("%s could be read by others; it is now the owner's alone", path)
                os.fchmod(file.fileno(), 0o600)
            return file.read().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def _path(home: Path, server_id: str) -> Path:
    return home / "servers" / f"{server_id}.json"


def _row(path: Path) -> Announcement | None:
    try:
        return _rows.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _replace(path: Path, content: bytes) -> None:
    with _beside(path, content) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def _beside(path: Path, content: bytes) -> Iterator[str]:
    """A file of this content, the owner's alone, in the same directory; gone at the end unless renamed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
