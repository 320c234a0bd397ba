"""The mock provider and the load generator: compiled when needed, started with a bounded life."""

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
    """The mock's ports, named for how a stream leaves them."""

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
    """What the load generator saw in its measured seconds."""

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
    """A C compiler from the system's packages, where that is possible."""
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
    """What is built from `name`.c, a program unless options say otherwise; built anew for a newer source."""
    source, target = HERE / f"{name}.c", BUILD / name
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        compiler = _install_compiler()
    BUILD.mkdir(exist_ok=True)
    # Built aside and renamed, so that two runs at once never execute half a file.
    aside = BUILD / f"{name}.{os.getpid()}"
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", *options, "-o", aside, source], check=True)
    aside.replace(target)
    return target


@contextmanager
def mock(*, core: int | None = None, events: int = EVENTS) -> Iterator[Mock]:
    """Runs the mock provider and ends it afterwards."""
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
    """Keeps a process on one core; `None` leaves it free."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


class LoadRun:
    """A run of the load generator: `measuring()` returns when the warm-up is over, `result()` at the end.

    It ends after `most` requests, if that is not 0. With `sessions`, each request belongs to a random one.
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
    ) -> None:
        numbers = [str(connections), str(seconds), str(warmup)]
        limits = [str(most), str(sessions)]
        command = [str(compiled("load")), str(port), str(request), *numbers, needle, *limits]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._timeout = seconds + warmup + 30
        self.pid = self._process.pid
        pin(self.pid, core)

    def measuring(self) -> None:
        """Waits for the end of the warm-up."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def result(self) -> Load:
        """Waits for the end and returns what was seen."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._process.communicate(timeout=self._timeout)
        return msgspec.json.decode(line, type=Load)
