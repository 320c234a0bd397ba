"""Several workers on one port: `python -m bench.workers`, our gateway with one process and with more.

No process is pinned: workers, load and mock share all cores. On a small machine the load takes CPU time that
another worker could use, so the figure that counts is the capacity: requests per CPU second of the gateway.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import native, page
from bench.accounting import family
from bench.cells import CELLS, Cell
from bench.measure import Sample, Settings, sample
from bench.native import Mock
from bench.peers import Unavailable
from bench.ports import free_port
from bench.processes import Running, running
from bench.report import this_machine
from bench.run import FULL_WARMUP
from bench.summary import summarise
from bench.systems import Ours, Place

TRAFFIC = ("n64", "s64")
DEFAULT_ROUNDS, DEFAULT_SECONDS = 5, 3.0
# The capacity must not fall with the number of workers; the rest is allowed for noise.
CAPACITY_KEPT = 0.85
MEET_SECONDS = 10.0
COUNTER = re.compile(r'^routecodex_requests_total\{.*worker="(\d+)".*\} (\S+)$', re.MULTILINE)
WORKER = re.compile(r'^routecodex_active_requests\{worker="(\d+)"\}', re.MULTILINE)
HEADS = ["cell", "workers", "rps", "× one", "µs CPU", "requests per CPU s", "× one", "shares of the requests"]


@dataclass(frozen=True, slots=True)
class Taken:
    """One sample, and the requests that each worker answered, the busiest first."""

    workers: int
    sample: Sample
    answered: tuple[int, ...]

    @property
    def shares(self) -> list[float]:
        """Shares of the workers."""
        return [count / max(1, sum(self.answered)) for count in self.answered]


@dataclass(frozen=True, slots=True)
class Figures:
    """A number of workers in a cell: medians over the rounds, and their ratio to one worker."""

    cell: str
    workers: int
    rps: float
    cpu_us: float
    shares: tuple[float, ...]
    rps_ratio: float
    capacity_ratio: float
    errors: int

    @property
    def capacity(self) -> float:
        """Requests per CPU second of the gateway's processes."""
        return 1e6 / self.cpu_us if self.cpu_us else 0.0

    @property
    def holds(self) -> bool:
        """Whether all answers were correct and the capacity did not fall."""
        return self.errors == 0 and self.capacity_ratio >= CAPACITY_KEPT


def told(text: str) -> tuple[str, int]:
    """Return the worker of these metrics, and the number of requests it has answered."""
    worker = WORKER.search(text)
    if worker is None:
        raise Unavailable("the metrics name no worker")
    return worker[1], sum(int(float(count)) for _, count in COUNTER.findall(text))


def _metrics(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def answered(port: int, workers: int) -> dict[str, int]:
    """Return the number of requests that each worker has answered so far.

    The kernel assigns a new connection to a worker: connect until each has answered.
    """
    heard: dict[str, int] = {}
    deadline = time.monotonic() + MEET_SECONDS
    while len(heard) < workers:
        if time.monotonic() > deadline:
            raise Unavailable(f"{len(heard)} of {workers} workers answered within {MEET_SECONDS:.0f} s")
        worker, count = told(_metrics(port))
        heard[worker] = count
    return heard


def _start(stack: ExitStack, workers: int, *, folder: Path, mock: Mock) -> Running:
    own = folder / f"workers-{workers}"
    own.mkdir()
    place = Place(own, free_port(), CELLS[TRAFFIC[0]].variant, mock.ports.whole)
    gateway = stack.enter_context(running(Ours(workers=workers), place, core=None))
    # The first worker reports ready; the load needs all of them.
    answered(gateway.port, workers)
    return replace(gateway, pids=tuple(family(gateway.pids[0])))


def _take(
    gateway: Running, cell: Cell, *, workers: int, number: int, settings: Settings, mock: Mock
) -> Taken:
    before = answered(gateway.port, workers)
    seen = sample(gateway, cell, number=number, settings=settings, mock_pid=mock.pid)
    after = answered(gateway.port, workers)
    counts = sorted((after[worker] - before[worker] for worker in before), reverse=True)
    return Taken(workers, seen, tuple(counts))


def measure(counts: Sequence[int], *, settings: Settings, mock: Mock, folder: Path) -> Iterator[Taken]:
    """Run all rounds: each number of workers, in an order that changes between rounds."""
    with ExitStack() as stack:
        gateways = {count: _start(stack, count, folder=folder, mock=mock) for count in counts}
        for number in range(settings.rounds):
            turn = number % len(counts)
            for cell in (CELLS[name] for name in TRAFFIC):
                for count in (*counts[turn:], *counts[:turn]):
                    gateway = gateways[count]
                    yield _take(gateway, cell, workers=count, number=number, settings=settings, mock=mock)


def figures(taken: Sequence[Taken]) -> list[Figures]:
    """Sort by cell, then by number of workers; the ratios are relative to one worker."""
    rows = summarise([one.sample for one in taken])
    names = {(one.sample.cell, one.workers): one.sample.system for one in taken}
    found: list[Figures] = []
    for cell, count in sorted(names, key=lambda key: (TRAFFIC.index(key[0]), key[1])):
        row, one = rows[names[cell, count], cell], rows[names[cell, 1], cell]
        ranks = zip(
            *(each.shares for each in taken if (each.sample.cell, each.workers) == (cell, count)), strict=True
        )
        found.append(
            Figures(
                cell,
                count,
                row["rps"],
                row["cpu_us"],
                tuple(statistics.median(rank) for rank in ranks),
                row["rps"] / one["rps"] if one["rps"] else 0.0,
                one["cpu_us"] / row["cpu_us"] if row["cpu_us"] else 0.0,
                row.errors,
            )
        )
    return found


def _whole(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")


def rows(found: Sequence[Figures]) -> list[list[str]]:
    """Return the lines of the table."""
    return [
        [
            one.cell,
            str(one.workers),
            _whole(one.rps),
            f"{one.rps_ratio:.2f}",
            _whole(one.cpu_us),
            _whole(one.capacity),
            f"{one.capacity_ratio:.2f}",
            " : ".join(f"{share:.0%}" for share in one.shares).replace("%", " %"),
        ]
        for one in found
    ]


def markdown(found: Sequence[Figures], settings: Settings) -> str:
    """Return the section of the page."""
    how = f"medians of {settings.rounds} rounds, {settings.seconds:g} s each"
    return "\n".join([page.taken(this_machine(), how), "", *page.table(HEADS, rows(found))])


def default_counts(processors: int) -> list[int]:
    """Return the numbers of workers: powers of two up to the cores, and the cores; at least two."""
    doubled = [2**power for power in range(processors.bit_length()) if 2**power <= processors]
    return sorted({1, 2, *doubled, processors})


def _counts(given: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d?(,[1-9]\d?)*", given):
        raise argparse.ArgumentTypeError(f"{given!r} is no comma list of numbers of workers, such as 1,2,4")
    return sorted({1, *map(int, given.split(","))})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.workers", description="Compare one worker with several.")
    processors = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers",
        type=_counts,
        default=default_counts(processors),
        help="comma list of numbers of workers; default: 1, 2, 4 … and one for each core",
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="default %(default)d")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="per sample, default %(default)g"
    )
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    return parser


def _progress(one: Taken) -> None:
    taken, load = one.sample, one.sample.load
    shown = f"{load.rps:>8.0f} rps {taken.cpu_us:>6.0f} µs  {one.answered}  {load.first_error}".rstrip()
    print(f"  round {taken.round + 1}  {taken.cell}  {one.workers} workers {shown}", file=sys.stderr)


def _run(counts: Sequence[int], settings: Settings) -> list[Taken]:
    found: list[Taken] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, native.mock() as mock:
        for one in measure(counts, settings=settings, mock=mock, folder=Path(folder)):
            _progress(one)
            found.append(one)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if the capacity falls with the number of workers, 2 if the gateway did not start."""
    options = _parser().parse_args(arguments)
    # Also stop the started processes when a supervisor stops the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings = Settings(
        rounds=options.rounds,
        seconds=options.seconds,
        warmup=FULL_WARMUP,
        repeats=0,
        load_core=None,
        gateway_core=None,
    )
    try:
        found = figures(_run(options.workers, settings))
    except Unavailable as error:
        print(f"bench.workers: {error}", file=sys.stderr)
        return 2
    print(page.aligned(HEADS, rows(found)))
    if options.write_docs:
        page.put("workers", markdown(found, settings))
    return 0 if all(one.holds for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
