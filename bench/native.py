"""The mock provider and the load generator: compiled when needed, started with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
BUILD = HERE / "build"
EVENTS = 50
LIFETIME_SECONDS = 3600


class Ports(msgspec.Struct, frozen=True):
    """Ports of the mock, by the way they send a stream."""

    whole: int
    each: int
    paced: int
    slow: int


class Percentiles(msgspec.Struct, frozen=True):
    """Microseconds."""

    p50: float
    p99: float
    p90: float = 0.0


class Load(msgspec.Struct, frozen=True):
    """Result of the load generator for its measured seconds."""

    requests: int
    errors: int
    stalled: int
    seconds: float
    rps: float
    latency_us: Percentiles
    ttfb_us: Percentiles
    body_bytes: float
    first_error: str


@dataclass(frozen=True, slots=True)
class Mock:
    """A running mock provider."""

    ports: Ports
    pid: int


def _install_compiler() -> str:
    """Install a C compiler from the system's packages, if possible."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "gcc", "libc6-dev"], check=False, capture_output=True
        )
    found = shutil.which("gcc")
    if found is None:
        raise FileNotFoundError("a C compiler is needed (cc, gcc or clang): install one and run again")
    return found


def compiled(name: str, *options: str) -> Path:
    """Return the program or library of `name`.c; build it if its source is newer."""
    source, target = HERE / f"{name}.c", BUILD / name
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        compiler = _install_compiler()
    BUILD.mkdir(exist_ok=True)
    # Built under another name and renamed, so that concurrent runs never execute a partial file.
    aside = BUILD / f"{name}.{os.getpid()}"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", *options, "-o", aside, source], check=True)
    aside.replace(target)
    return target


@contextmanager
def mock(*, core: int | None = None, events: int = EVENTS) -> Iterator[Mock]:
    """Run the mock provider and stop it afterwards."""
    command = [str(compiled("mock")), str(events), str(LIFETIME_SECONDS)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        pin(process.pid, core)
        assert process.stdout is not None
        yield Mock(msgspec.json.decode(process.stdout.readline(), type=Ports), process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=10)


def pin(pid: int, core: int | None) -> None:
    """Pin a process to one core; `None` does not pin it."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


class LoadRun:
    """A run of the load generator: `measuring()` returns when the warm-up is over, `result()` at the end.

    It ends after `most` requests unless that is 0. With `sessions`, each request belongs to a random one.
    With `rate`, so many a second are sent; else each connection sends the next when its answer has ended.
    """

    def __init__(
        self,
        port: int,
        request: Path,
        *,
        connections: int,
        seconds: float,
        warmup: float,
        needle: str,
        core: int | None = None,
        most: int = 0,
        sessions: int = 0,
        rate: float = 0,
    ) -> None:
        numbers = [str(connections), str(seconds), str(warmup)]
        limits = [str(most), str(sessions), str(rate)]
        command = [str(compiled("load")), str(port), str(request), *numbers, needle, *limits]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._timeout = seconds + warmup + 30
        self.pid = self._process.pid
        pin(self.pid, core)

    def measuring(self) -> None:
        """Wait for the end of the warm-up."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def result(self) -> Load:
        """Wait for the end and return the result."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.communicate(timeout=self._timeout)
        return msgspec.json.decode(line, type=Load)
