"""The memory of our own gateway: over many requests, and with many streams open."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from bench import requests
from bench.accounting import open_files, rss_mb
from bench.cells import CELLS, Cell
from bench.measure import Settings
from bench.native import Load, LoadRun, Mock
from bench.ports import free_port
from bench.processes import Running, running
from bench.systems import Place, System

SOAK_REQUESTS = 100_000
SOAK_WARM_REQUESTS = 10_000
SOAK_SECONDS = 55.0
STREAMS = 1_000
STREAM_SECONDS = 15.0
STREAM_CELL = Cell("open", "1 000 streams held open", STREAMS, stream=True, port="slow")


class Memory(msgspec.Struct, frozen=True):
    """Results; `requests` and `streams` open at once are counted, not taken from the plan."""

    idle_mb: float
    requests: int
    growth_mb: float
    streams: int
    stream_kb: float
    errors: int


def _load(gateway: Running, cell: Cell, *, settings: Settings, seconds: float, most: int = 0) -> LoadRun:
    file = requests.write(
        gateway.place.folder / f"{cell.name}.http", gateway.system.request(cell, gateway.place)
    )
    return LoadRun(
        gateway.port,
        file,
        connections=cell.connections,
        seconds=seconds,
        warmup=1.0,
        needle=cell.needle,
        core=settings.load_core,
        most=most,
    )


def _finished(run: LoadRun) -> Load:
    run.measuring()
    return run.result()


def _soak(gateway: Running, settings: Settings) -> tuple[int, float, int]:
    """Return the number of requests, the growth in MB after the first tenth, and errors."""
    cell = CELLS["n16"]
    first = _finished(_load(gateway, cell, settings=settings, seconds=SOAK_SECONDS, most=SOAK_WARM_REQUESTS))
    before = rss_mb(gateway.pids)
    rest = _finished(_load(gateway, cell, settings=settings, seconds=SOAK_SECONDS, most=SOAK_REQUESTS))
    return rest.requests, rss_mb(gateway.pids) - before, first.errors + rest.errors


def _open_streams(gateway: Running, settings: Settings, *, mock_pid: int) -> tuple[int, float, int]:
    """Return the most streams open at once at the mock, the most memory of each in KB, and errors."""
    before = most = rss_mb(gateway.pids)
    idle = open_files(mock_pid)
    streams = 0
    run = _load(gateway, STREAM_CELL, settings=settings, seconds=STREAM_SECONDS)
    run.measuring()
    until = time.monotonic() + STREAM_SECONDS - 1
    while time.monotonic() < until:
        most = max(most, rss_mb(gateway.pids))
        streams = max(streams, open_files(mock_pid) - idle)
        time.sleep(0.1)
    return streams, (most - before) * 1000 / max(1, streams), run.result().errors


def examine(system: System, *, settings: Settings, mock: Mock, folder: Path) -> Memory:
    """Start the gateway for each of both runs and read its memory."""
    print("  memory: a soak, then many open streams", file=sys.stderr)
    core = settings.gateway_core
    soak, held = folder / "memory-soak", folder / "memory-streams"
    soak.mkdir()
    held.mkdir()
    place = Place(soak, free_port(), CELLS["n16"].variant, mock.ports.whole)
    with running(system, place, core=core) as gateway:
        idle = rss_mb(gateway.pids)
        carried, growth, soak_errors = _soak(gateway, settings)
    place = Place(held, free_port(), STREAM_CELL.variant, mock.ports.slow)
    with running(system, place, core=core) as gateway:
        streams, kilobytes, stream_errors = _open_streams(gateway, settings, mock_pid=mock.pid)
    return Memory(idle, carried, growth, streams, kilobytes, soak_errors + stream_errors)
