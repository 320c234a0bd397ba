"""Profile of our gateway by stage and as flame graphs: `python -m bench.profile`.

The gateway always runs from its sources: the sampler sees interpreted frames only.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import flame, native, page, peers, requests, stacks
from bench.cells import CELLS, Cell
from bench.measure import Sample, Settings, cores, meet_sessions, sample
from bench.native import LoadRun, Mock, pin
from bench.peers import Unavailable
from bench.ports import free_port
from bench.processes import Running, running
from bench.report import RESULTS, this_machine
from bench.run import FULL_WARMUP
from bench.setups import SETUPS
from bench.stacks import Stacks
from bench.systems import Ours, Place

DEFAULT_CELLS = ("n16", "s16", "A16")
DEFAULT_SECONDS = 10.0
RATE = 500
# The sampler reads the symbols of the program before its first sample.
SAMPLER_STARTS_SECONDS = 4.0
SAMPLER_ENDS_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Profile:
    """One cell: cost of a request without the sampler, and the sampled stacks."""

    cell: Cell
    plain: tuple[Sample, ...]
    seen: Stacks

    @property
    def cpu_us(self) -> float:
        """CPU time of a request."""
        return statistics.mean(taken.cpu_us for taken in self.plain)

    @property
    def stages_us(self) -> dict[str, float]:
        """CPU time of a request, by stage."""
        return {name: share * self.cpu_us for name, share in stacks.shares(self.seen).items()}


def _loaded(gateway: Running, cell: Cell, *, settings: Settings, spare: float) -> LoadRun:
    """Run the load of the cell, longer than the sampler."""
    file = gateway.place.folder / f"{cell.name}.http"
    return LoadRun(
        gateway.port,
        requests.write(file, gateway.system.request(cell, gateway.place)),
        connections=cell.connections,
        seconds=settings.seconds + spare,
        warmup=settings.warmup,
        needle=cell.needle,
        core=settings.load_core,
        sessions=SETUPS[cell.setup].numbers,
    )


def _record(sampler: Sequence[str], pid: int, *, seconds: int, into: Path, core: int | None) -> None:
    """Sample a process for this many seconds."""
    how = ["record", "--format", "raw", "--rate", str(RATE), "--nolineno", "--duration", str(seconds)]
    command = [*sampler, *how, "--output", str(into), "--pid", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        pin(process.pid, core)
        try:
            said, _ = process.communicate(timeout=seconds + SAMPLER_ENDS_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise Unavailable(f"the sampler did not end: {error}") from error
    if process.returncode:
        last = " | ".join(said.strip().splitlines()[-3:])
        raise Unavailable(f"the sampler ended with {process.returncode}: {last}")


def _sampled(
    gateway: Running, cell: Cell, *, settings: Settings, sampler: Sequence[str], spare: float
) -> Stacks:
    """Return the stacks of the gateway under the load of the cell."""
    folded = gateway.place.folder / f"{cell.name}.folded"
    load = _loaded(gateway, cell, settings=settings, spare=spare)
    load.measuring()
    try:
        seconds = math.ceil(settings.seconds)
        _record(sampler, gateway.pids[0], seconds=seconds, into=folded, core=settings.load_core)
    finally:
        seen = load.result()
    if seen.errors:
        raise Unavailable(f"{seen.errors} answers in {cell.name} were wrong: {seen.first_error}")
    return stacks.read(folded.read_text())


def profile(
    cell: Cell,
    *,
    settings: Settings,
    mock: Mock,
    folder: Path,
    sampler: Sequence[str],
    spare: float = SAMPLER_STARTS_SECONDS,
) -> Profile:
    """Measure a cell, sample it, measure it again: the sampler slows down the gateway."""
    own = folder / cell.name
    own.mkdir()
    place = Place(own, free_port(), cell.variant, getattr(mock.ports, cell.port))
    with running(Ours(pure=True), place, core=settings.gateway_core) as gateway:
        meet_sessions(gateway, cell, settings.load_core)
        before = sample(gateway, cell, number=0, settings=settings, mock_pid=mock.pid)
        seen = _sampled(gateway, cell, settings=settings, sampler=sampler, spare=spare)
        after = sample(gateway, cell, number=1, settings=settings, mock_pid=mock.pid)
    return Profile(cell, (before, after), seen)


def rows(profiles: Sequence[Profile]) -> list[list[str]]:
    """Return the cost of every stage in µs per request, a column per cell, the sum last."""
    costs = [profile.stages_us for profile in profiles]
    lines = [[name, *(f"{cost[name]:.1f}" for cost in costs)] for name in stacks.SHOWN]
    return [*lines, ["all", *(f"{profile.cpu_us:.1f}" for profile in profiles)]]


def heads(profiles: Sequence[Profile]) -> list[str]:
    """Return the head of that table."""
    return ["", *(profile.cell.name for profile in profiles)]


def picture(cell: Cell) -> str:
    """Return the file name of a flame graph."""
    return f"flame-{cell.name}.svg"


def draw(profiles: Sequence[Profile], folder: Path, *, prefix: str = "") -> list[Path]:
    """Write the flame graph of each cell."""
    paths = [folder / f"{prefix}{picture(profile.cell)}" for profile in profiles]
    for one, path in zip(profiles, paths, strict=True):
        flame.draw(one.seen, path, title=f"{one.cell.name}: {one.cell.title}, {one.cpu_us:.0f} µs a request")
    return paths


def markdown(profiles: Sequence[Profile], *, seconds: float) -> str:
    """Return the section of the page: machine and date, costs by stage, flame graphs."""
    how = f"from the sources, sampled {RATE} times a second for {seconds:g} s"
    parts = [page.taken(this_machine(), how), "", "Cost per stage, in µs of CPU time per request:", ""]
    parts += page.table(heads(profiles), rows(profiles))
    for one in profiles:
        parts += ["", f"![{one.cell.name}: {one.cell.title}]({picture(one.cell)})"]
    noisy = [one.cell.name for one in profiles if all(taken.noisy for taken in one.plain)]
    if noisy:
        parts += ["", f"Other processes disturbed the measurement of: {', '.join(noisy)}."]
    return "\n".join(parts)


def _cells(given: str) -> list[str]:
    unknown = [name for name in given.split(",") if name not in CELLS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown cell {unknown[0]!r}: choose from {', '.join(CELLS)}")
    return given.split(",")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.profile", description="Say where the gateway's time goes.")
    parser.add_argument(
        "--cells",
        type=_cells,
        default=list(DEFAULT_CELLS),
        help=f"comma list of {', '.join(CELLS)}; default {','.join(DEFAULT_CELLS)}",
    )
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="per cell, default %(default)g"
    )
    parser.add_argument("--write-docs", action="store_true", help="put the outcome into docs/performance.md")
    return parser


def _profiles(names: Sequence[str], *, seconds: float) -> list[Profile]:
    load_core, gateway_core = cores()
    settings = Settings(
        rounds=1,
        seconds=seconds,
        warmup=FULL_WARMUP,
        repeats=0,
        load_core=load_core,
        gateway_core=gateway_core,
    )
    sampler = [peers.py_spy()]
    found: list[Profile] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, native.mock(core=load_core) as mock:
        for name in names:
            one = profile(CELLS[name], settings=settings, mock=mock, folder=Path(folder), sampler=sampler)
            samples = sum(one.seen.values())
            print(f"  {name:<8} {one.cpu_us:>7.0f} µs {samples:>7} samples", file=sys.stderr)
            found.append(one)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the selected cells; return 2 if the gateway or the sampler could not run."""
    options = _parser().parse_args(arguments)
    # Also stop the started processes when a supervisor stops the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        profiles = _profiles(options.cells, seconds=options.seconds)
    except Unavailable as error:
        print(f"bench.profile: {error}", file=sys.stderr)
        return 2
    print(page.aligned(["µs per request", *heads(profiles)[1:]], rows(profiles)))
    if options.write_docs:
        paths = draw(profiles, page.DOCS)
        page.put("profile", markdown(profiles, seconds=options.seconds))
    else:
        RESULTS.mkdir(exist_ok=True)
        paths = draw(profiles, RESULTS, prefix=datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ-"))
    print(f"\nwritten: {', '.join(path.name for path in paths)} in {paths[0].parent.name}/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
