"""Samples: one system under one cell's load for some seconds, interleaved with the others, in rounds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import requests
from bench.accounting import cpu_seconds, rss_mb, snapshot
from bench.cells import CELLS, Cell, Variant
from bench.native import Load, LoadRun, Mock
from bench.peers import Unavailable
from bench.ports import free_port
from bench.processes import Running, running
from bench.setups import SETUPS
from bench.store_writes import StoreWrites
from bench.systems import Place, System

MEET_SECONDS = 20.0
SETTLE_SECONDS = 5.0
SETTLE_STEP = 0.05


class Sample(msgspec.Struct, frozen=True):
    """One measurement of one system in one cell."""

    system: str
    cell: str
    round: int
    load: Load
    cpu_us: float
    rss_mb: float
    foreign_share: float

    @property
    def noisy(self) -> bool:
        """Whether other processes used too much of the machine."""
        return self.foreign_share > CELLS[self.cell].others


class Start(msgspec.Struct, frozen=True):
    """Start-up of a system."""

    system: str
    seconds: float
    rss_mb: float


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations and counts of samples; a noisy sample is repeated up to `repeats` times."""

    rounds: int
    seconds: float
    warmup: float
    repeats: int
    load_core: int | None
    gateway_core: int | None
    rate: float = 0
    """Requests a second; 0 for as many as the connections carry."""


class Findings(msgspec.Struct):
    """All samples, the systems that were skipped, and the writes of the stores."""

    samples: list[Sample] = []
    starts: list[Start] = []
    skipped: dict[str, str] = {}
    writes: list[StoreWrites] = []


def cores() -> tuple[int | None, int | None]:
    """Return the core of load and mock and that of the gateway; None with a single core."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


def settle(gateway: Running) -> None:
    """Wait until the gateway has finished the work of the last sample."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before = cpu_seconds(gateway.pids)
    while gateway.pids and time.monotonic() < deadline:
        time.sleep(SETTLE_STEP)
        now = cpu_seconds(gateway.pids)
        if now - before < SETTLE_STEP / 4:
            return
        before = now


def _request(gateway: Running, cell: Cell) -> Path:
    return requests.write(
        gateway.place.folder / f"{cell.name}.http", gateway.system.request(cell, gateway.place)
    )


def meet_sessions(gateway: Running, cell: Cell, core: int | None) -> None:
    """Send a request of each session, so that the first read of their files is not measured."""
    setup = SETUPS[cell.setup]
    known = setup.sessions
    if known and setup.met:
        load = LoadRun(
            gateway.port,
            _request(gateway, cell),
            connections=cell.connections,
            seconds=MEET_SECONDS,
            warmup=0,
            needle=cell.needle,
            core=core,
            most=known,
            sessions=known,
        )
        load.measuring()
        load.result()


def sample(gateway: Running, cell: Cell, *, number: int, settings: Settings, mock_pid: int) -> Sample:
    """Measure one system in one cell."""
    load = LoadRun(
        gateway.port,
        _request(gateway, cell),
        connections=cell.connections,
        seconds=settings.seconds * gateway.system.patience,
        warmup=settings.warmup,
        needle=cell.needle,
        core=settings.load_core,
        sessions=SETUPS[cell.setup].numbers,
        rate=settings.rate,
    )
    others = (mock_pid, load.pid, os.getpid())
    load.measuring()
    gateway = gateway.with_helpers(settings.load_core)
    start = snapshot(time.monotonic(), gateway=gateway.pids, others=others)
    seen = load.result()
    # The load generator is reaped by now: its time is included in that of this process's children.
    end = snapshot(time.monotonic(), gateway=gateway.pids, others=others)
    used = (end.gateway - start.gateway) * 1e6 / max(1, seen.requests)
    memory = rss_mb(gateway.pids)
    settle(gateway)
    share = end.foreign_share_since(start)
    return Sample(gateway.system.name, cell.name, number, seen, used, memory, share)


def _can_carry(gateway: Running, cell: Cell) -> bool:
    return gateway.system.supports(cell) and gateway.place.variant == cell.variant


def _samples(
    gateways: Sequence[Running], cells: Sequence[Cell], *, settings: Settings, mock_pid: int
) -> Iterator[Sample]:
    for number in range(settings.rounds):
        for cell in cells:
            able = [gateway for gateway in gateways if _can_carry(gateway, cell)]
            turn = number % len(able) if able else 0
            for gateway in able[turn:] + able[:turn]:
                if number == 0:
                    meet_sessions(gateway, cell, settings.load_core)
                for _ in range(settings.repeats + 1):
                    taken = sample(gateway, cell, number=number, settings=settings, mock_pid=mock_pid)
                    yield taken
                    if not taken.noisy:
                        break


def _start(
    stack: ExitStack, system: System, *, folder: Path, variant: Variant, mock: Mock, core: int | None
) -> Running:
    own = folder / f"{system.name}-{variant.protocol}-{variant.port}-{variant.setup}"
    own.mkdir()
    place = Place(own, free_port(), variant, getattr(mock.ports, variant.port))
    return stack.enter_context(running(system, place, core=core))


def _systems_to_start(systems: Sequence[System], cells: Sequence[Cell]) -> Iterator[tuple[System, Variant]]:
    """Return the systems to start: each once per upstream and setup."""
    for system in systems:
        for variant in dict.fromkeys(cell.variant for cell in cells if system.supports(cell)):
            yield system, variant


def _progress(taken: Sample) -> None:
    noise = f"  noisy: others took {taken.foreign_share:.0%}" if taken.noisy else ""
    errors = f"  {taken.load.errors} errors: {taken.load.first_error[:160]}" if taken.load.errors else ""
    figures = f"{taken.load.rps:>10.0f} rps {taken.cpu_us:>9.0f} µs"
    print(
        f"  round {taken.round + 1}  {taken.cell:<8} {taken.system:<11}{figures}{noise}{errors}",
        file=sys.stderr,
    )


def measure(
    systems: Sequence[System], cells: Sequence[Cell], *, settings: Settings, mock: Mock, folder: Path
) -> Findings:
    """Run all rounds; a system that is not available is listed in `skipped`."""
    found = Findings()
    for system in systems:
        try:
            system.install()
        except Unavailable as error:
            found.skipped[system.name] = str(error)
    # Each upstream needs its own configuration: the systems run side by side for one upstream at a time.
    for upstream in dict.fromkeys(cell.variant.upstream for cell in cells):
        group = [cell for cell in cells if cell.variant.upstream == upstream]
        with ExitStack() as stack:
            gateways: list[Running] = []
            for system, variant in _systems_to_start(systems, group):
                if system.name in found.skipped:
                    continue
                try:
                    core = settings.gateway_core
                    gateway = _start(stack, system, folder=folder, variant=variant, mock=mock, core=core)
                except Unavailable as error:
                    found.skipped[system.name] = str(error)
                    continue
                gateways.append(gateway)
                found.starts.append(Start(system.name, gateway.startup_seconds, rss_mb(gateway.pids)))
            for taken in _samples(gateways, group, settings=settings, mock_pid=mock.pid):
                _progress(taken)
                found.samples.append(taken)
    return found
