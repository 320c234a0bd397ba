"""Running systems: started on their core, ended by process id."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.accounting import family
from bench.native import pin
from bench.peers import Unavailable
from bench.systems import Beside, Launch, Place, System, environment

READY_SECONDS = 90.0
POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Running:
    """A started system: port, processes, time until it was ready."""

    system: System
    place: Place
    port: int
    pids: tuple[int, ...]
    startup_seconds: float

    def with_helpers(self, core: int | None) -> Running:
        """Return the same with the processes that it has started since; they run on a core of their own.

        The gateway starts one that writes its usage ledger when requests come in floods.
        """
        if not self.pids:
            return self
        pids = tuple(family(self.pids[0]))
        for pid in pids:
            if pid not in self.pids:
                with suppress(ProcessLookupError):
                    pin(pid, core)
        return replace(self, pids=pids)


def _answers(port: int, path: str | None) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.connect()
        if path is None:
            return True
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _announced(log: Path) -> int | None:
    match = re.search(r"^port=(\d+)$", log.read_text(errors="replace"), re.MULTILINE)
    return int(match[1]) if match else None


def _wait_ready(process: subprocess.Popen[bytes], launch: Launch, log: Path) -> int:
    """Return the port once the system answers."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"it ended with {process.returncode} at start: {_last_lines(log)}")
        port = launch.port or _announced(log)
        if port is not None and _answers(port, launch.ready):
            return port
        time.sleep(POLL_SECONDS)
    raise Unavailable(f"it was not ready after {READY_SECONDS:.0f} s: {_last_lines(log)}")


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])


def _end(process: subprocess.Popen[bytes]) -> None:
    pids = family(process.pid) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout=10)
    for pid in pids[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def started(beside: Beside | None) -> Iterator[int]:
    """Start a server that a system needs; return its process id, 0 for none."""
    if beside is None:
        yield 0
        return
    process = subprocess.Popen(beside.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(beside.port, None):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"{beside.command[0]} does not accept connections")
            time.sleep(POLL_SECONDS)
        yield process.pid
    finally:
        _end(process)


@contextmanager
def running(system: System, place: Place, *, core: int | None) -> Iterator[Running]:
    """Start a system on its core, wait until it is ready, stop it afterwards."""
    launch = system.launch(place)
    if launch is None:
        yield Running(system, place, place.mock_port, (), 0.0)
        return
    with started(launch.beside), _running(system, place, launch, core) as gateway:
        yield gateway


@contextmanager
def _running(system: System, place: Place, launch: Launch, core: int | None) -> Iterator[Running]:
    log = place.folder / "output.log"

    def on_its_core() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=place.folder,
            env=environment(launch.env),
            preexec_fn=on_its_core,
        )
    try:
        port = _wait_ready(process, launch, log)
        startup = time.monotonic() - started
        yield Running(system, place, port, tuple(family(process.pid)), startup)
    finally:
        _end(process)
