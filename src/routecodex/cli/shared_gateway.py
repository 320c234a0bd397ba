"""The gateway of `routecodex run`: the one that is running, else one that lives as long as a run uses it.

A gateway that was started for runs has a lock file in `<user dir>/run`. Every run holds a shared lock on
it, and the gateway waits for an exclusive one: the kernel grants it when the last run has ended, however it
ended, and the gateway stops. `start.lock` in the same folder lets one run at a time look for a gateway or
start one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import msgspec
from msgspec import Struct

from routecodex.cli.admin_client import (
    AdminClient,
    AdminRefused,
    AnnouncedServer,
    Unreachable,
    announcements,
    is_running,
    user_dir,
)
from routecodex.cli.lifecycle import Launch, LaunchFailed, spawn_server
from routecodex.cli.servers import unknown_server

_END_SECONDS = 40.0
_POLL_SECONDS = 0.02
_DEMO_PREFIX = "demo-"


class SharedGateway(Struct, frozen=True, kw_only=True):
    """The content of a lock file: the process of the gateway that runs share, and whether it is the demo."""

    pid: int
    demo: bool = False


class GatewayStart(Struct, frozen=True, kw_only=True):
    """A gateway to start: its configuration as a file or as text, or the demo; the directory of its state."""

    session_dir: str
    file: Path | None = None
    text: str | None = None

    @property
    def is_demo(self) -> bool:
        """Whether it serves the demo provider."""
        return self.file is None and self.text is None


class NoGateway(Exception):
    """No gateway could be reached or started; `log` holds the last lines of one that failed."""

    def __init__(self, message: str, log: list[str] | None = None) -> None:
        super().__init__(message)
        self.log = log or []


class GatewayUse(Struct, frozen=True, kw_only=True):
    """A gateway while a run uses it; `started` by this run."""

    server: AnnouncedServer
    started: bool = False
    share: Share | None = None

    def end(self) -> None:
        """Give up the share; wait for the end of a gateway that nobody else uses."""
        if self.share is not None:
            self.share.release(self.server.pid)


class Share:
    """A shared lock on the lock file of a gateway."""

    def __init__(self, file: Path, handle: IO[bytes]) -> None:
        self._file = file
        self._handle = handle

    def release(self, pid: int) -> None:
        """Release the lock; if this was the last share, wait until the gateway has stopped."""
        self._handle.close()
        deadline = time.monotonic() + _END_SECONDS
        while _is_alive(pid) and time.monotonic() < deadline:
            if _is_shared(self._file):
                return
            time.sleep(_POLL_SECONDS)
        if not _is_alive(pid):
            _remove(self._file)


def stop_when_unused(lock: Path) -> None:
    """Stop this process, a gateway, as soon as nobody holds a share of the lock file."""
    handle = lock.open("rb")

    def wait() -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="runs", daemon=True).start()


def find_gateway(server_id: str | None, *, demo: bool = False) -> AnnouncedServer | None:
    """Return the running gateway to use: that with the id, else the only one; several are a usage error.

    Without an id, a gateway that was started for runs gives way to one that a person started, and a demo that
    was started for runs is used by runs of the demo alone; these use no other gateway.
    """
    known = announcements()
    if server_id is not None and known:
        chosen = [server for server in known if server.id == server_id]
        if not chosen:
            raise unknown_server(server_id, [server.id for server in known])
        return next((server for server in chosen if _answers(server)), None)
    shared = {record.pid: record for _, record in _records()}
    fitting = [server for server in known if _fits(server, shared.get(server.pid), demo=demo)]
    alive = [server for server in fitting if _answers(server)]
    started_by_people = [server for server in alive if server.pid not in shared]
    found = started_by_people or alive[:1]
    if len(found) > 1:
        names = ", ".join(server.id for server in found)
        raise click.UsageError(f"several servers are running; choose one with --server: {names}")
    return found[0] if found else None


def _fits(server: AnnouncedServer, record: SharedGateway | None, *, demo: bool) -> bool:
    if demo:
        return server.id.startswith(_DEMO_PREFIX)
    return record is None or not record.demo


def _answers(server: AnnouncedServer) -> bool:
    try:
        AdminClient(server).status()
    except Unreachable:
        return False
    except AdminRefused as exc:
        raise NoGateway(f"{server.id} at {server.url} rejected the call: {exc.message}") from exc
    return True


@contextlib.contextmanager
def use_gateway(server_id: str | None, *, demo: bool, start: GatewayStart | None) -> Iterator[GatewayUse]:
    """Use the running gateway, or start one; the last run that uses a started one waits for its end."""
    use = _open(server_id, demo=demo, start=start)
    try:
        yield use
    finally:
        use.end()


def _open(server_id: str | None, *, demo: bool, start: GatewayStart | None) -> GatewayUse:
    try:
        with _start_lock():
            _remove_leftovers()
            return _joined(server_id, demo=demo) or _started(start)
    except OSError as exc:
        fix = "set ROUTECODEX_USER_DIR to a writable directory"
        raise NoGateway(f"cannot use {_folder()}: {exc.strerror}; {fix}") from exc


def _joined(server_id: str | None, *, demo: bool) -> GatewayUse | None:
    """Return a use of the running gateway; one that is about to stop is waited for, and not used."""
    while (server := find_gateway(server_id, demo=demo)) is not None:
        file = next((file for file, record in _records() if record.pid == server.pid), None)
        if file is None:
            return GatewayUse(server=server)
        share = _take_share(file)
        if share is not None:
            return GatewayUse(server=server, share=share)
        _wait_for_end(server)
    return None


def _wait_for_end(server: AnnouncedServer) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while _is_alive(server.pid):
        if time.monotonic() >= deadline:
            raise NoGateway(f"{server.id} (pid {server.pid}) is stopping and does not end; try again later")
        time.sleep(_POLL_SECONDS)


def _started(start: GatewayStart | None) -> GatewayUse:
    if start is None:
        raise NoGateway("no server is running; `routecodex start` starts one")
    file = _folder() / f"{secrets.token_hex(4)}.lock"
    _write_private(file, b"")
    share = _take_share(file)
    assert share is not None
    try:
        server = spawn_server(_launch(start, file))
    except LaunchFailed as exc:
        raise NoGateway(f"no gateway could be started: {exc}", exc.log) from exc
    _write_private(file, msgspec.json.encode(SharedGateway(pid=server.pid, demo=start.is_demo)))
    return GatewayUse(server=server, started=True, share=share)


def _launch(start: GatewayStart, lock: Path) -> Launch:
    config = start.file
    if start.text is not None:
        config = lock.with_suffix(".toml")
        _write_private(config, start.text.encode())
    address = ("--port", "0", "--until-unused", str(lock))
    arguments = (
        ("demo", *address)
        if config is None
        else ("serve", "--config", str(config.absolute()), "--host", "127.0.0.1", *address)
    )
    return Launch(id="run", arguments=arguments, directory=str(Path.cwd()), session_dir=start.session_dir)


def _folder() -> Path:
    return user_dir() / "run"


@contextlib.contextmanager
def _start_lock() -> Iterator[None]:
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(folder / "start.lock", os.O_CREAT | os.O_RDWR, 0o600), "rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _take_share(file: Path) -> Share | None:
    """Return a share; None if the gateway has taken the lock, because it stops."""
    handle = file.open("rb")
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return Share(file, handle)


def _is_shared(file: Path) -> bool:
    """Whether another run holds a share, as opposed to nobody or the gateway itself."""
    try:
        with file.open("rb") as handle:
            return not _locks(handle, fcntl.LOCK_EX) and _locks(handle, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _locks(handle: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(handle, fcntl.LOCK_UN)
    return True


def _records() -> list[tuple[Path, SharedGateway]]:
    records = []
    for file in sorted(_folder().glob("*.lock")):
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            records.append((file, msgspec.json.decode(file.read_bytes(), type=SharedGateway)))
    return records


def _remove_leftovers() -> None:
    """Remove the files of gateways that have ended; a gateway that was killed leaves them behind."""
    for file in _folder().glob("*.lock"):
        if file.name != "start.lock" and not _is_in_use(file):
            _remove(file)


def _remove(lock: Path) -> None:
    with contextlib.suppress(OSError):
        lock.with_suffix(".toml").unlink(missing_ok=True)
        lock.unlink(missing_ok=True)


def _is_in_use(file: Path) -> bool:
    with file.open("rb") as handle:
        return not _locks(handle, fcntl.LOCK_EX)


def _write_private(file: Path, content: bytes) -> None:
    with open(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as handle:
        handle.write(content)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        # The gateway is a child of the run that started it: collected, else it would stay as a zombie.
        os.waitpid(pid, os.WNOHANG)
    return is_running(pid)
