"""Announces a running server by a file in the user dir; stores its admin token.

`<user dir>/servers/<server id>.json` exists from the moment the server is ready until it has ended. A server
that was killed leaves its file behind; `alive` checks the pid.
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

from routecodex import __version__
from routecodex.config import Config

log = logging.getLogger("routecodex.server")


class Announcement(Struct, frozen=True, kw_only=True):
    """A running server: its address, its process, the token of its admin API.

    `started_at` is in seconds since the epoch; `config` and `log` are files, if any; `session_dir` holds the
    server's state, `ledger` is the file of its usage.
    """

    id: str
    url: str
    pid: int
    token: str
    started_at: float
    config: str | None = None
    log: str | None = None
    session_dir: str | None = None
    ledger: str | None = None
    version: str = ""

    def __repr__(self) -> str:
        return f"Announcement({self.id!r}, {self.url!r})"


_decoder = msgspec.json.Decoder(Announcement)


def url_of(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens on `host`."""
    name = host
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            name = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def describe(
    config: Config,
    *,
    token: str,
    port: int,
    file: Path | None,
    session_dir: Path,
    ledger: Path | None = None,
) -> Announcement:
    """Describe the server of this process."""
    config = structs.replace(config, server=structs.replace(config.server, port=port))
    return Announcement(
        id=config.identity,
        url=url_of(config.server.host, port),
        pid=os.getpid(),
        token=token,
        started_at=round(time.time(), 3),
        config=str(file.absolute()) if file is not None else None,
        log=_stderr_file(),
        session_dir=str(session_dir.absolute()),
        ledger=str(ledger.absolute()) if ledger is not None else None,
        version=__version__,
    )


def _stderr_file() -> str | None:
    """Return the file behind stderr, if it is a file and the system knows its name."""
    try:
        return os.readlink("/proc/self/fd/2") if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:
        return None


def write(home: Path, row: Announcement) -> None:
    """Announce a server, in place of an earlier one with its id; a failure is only logged."""
    path = _path(home, row.id)
    before = _row(path)
    if before is not None and before.pid != row.pid and alive(before):
        log.warning("server id %r is also used by %s; set server.id of one of them", row.id, before.url)
    try:
        _replace(path, msgspec.json.format(msgspec.json.encode(row), indent=2) + b"\n")
    except OSError as exc:
        log.warning("daemon commands cannot find this server, its file cannot be written: %s", exc)


def remove(home: Path, row: Announcement) -> None:
    """Remove the announcement, unless another process has replaced it since."""
    path = _path(home, row.id)
    existing = _row(path)
    if existing is not None and existing.pid == row.pid:
        with contextlib.suppress(OSError):
            path.unlink()


def read(home: Path) -> list[Announcement]:
    """Read all announced servers, dead ones too, by id; unreadable files are skipped."""
    existing = map(_row, sorted((home / "servers").glob("*.json")))
    return sorted((row for row in existing if row is not None), key=lambda row: row.id)


def alive(row: Announcement) -> bool:
    """Whether the announced process still runs; its pid may have been reused since."""
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
    """Return the admin token: as configured, else from the user dir, where it is created if missing."""
    if config.server.admin_token is not None:
        return config.server.admin_token.reveal()
    generated = secrets.token_hex(32)
    try:
        return _stored_token(home / "admin-token", generated)
    except OSError as exc:
        log.warning("the admin API cannot be used, its token cannot be stored: %s", exc)
        return generated


def _stored_token(path: Path, generated: str) -> str:
    existing = _token(path)
    if existing:
        return existing
    content = f"{generated}\n".encode()
    with _temporary_file(path, content) as temporary, contextlib.suppress(FileExistsError):
        # A link is atomic: of two servers that start at once, one creates the token.
        os.link(temporary, path)
    existing = _token(path)
    if not existing:
        _replace(path, content)
    return existing or generated


def _token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                log.warning("%s was readable by other users; changed to owner only", path)
                os.fchmod(file.fileno(), 0o600)
            return file.read().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def _path(home: Path, server_id: str) -> Path:
    return home / "servers" / f"{server_id}.json"


def _row(path: Path) -> Announcement | None:
    try:
        return _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _replace(path: Path, content: bytes) -> None:
    with _temporary_file(path, content) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary_file(path: Path, content: bytes) -> Iterator[str]:
    """Write a file with mode 0600 in the same directory; deleted at the end unless renamed."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield temporary
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
