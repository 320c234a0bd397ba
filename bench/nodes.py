"""Several nodes on one Redis: `python -m bench.nodes`, one node and three of them.

Each node has a load of its own, the same as the single one: requests of a process that are under way together
share calls of Redis. No process is pinned, and on a small machine nodes, loads, mock and Redis share
the cores: the figure that counts is the capacity, requests per CPU second of the nodes. Three nodes on
machines of their own do three times the work of one if a request costs them the same CPU time as one alone;
what they hear of each other's writes makes it more.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import native, page, requests
from bench.accounting import cpu_seconds
from bench.cells import CELLS, Cell
from bench.native import LoadRun, Mock
from bench.peers import Unavailable
from bench.ports import free_port
from bench.processes import Running, running, started
from bench.setups import SETUPS
from bench.systems import Ours, Place, redis_beside

COUNTS = (1, 3)
DEFAULT_ROUNDS, DEFAULT_SECONDS, WARMUP = 3, 2.0, 0.5
# Work of three nodes, relative to one, for the same CPU time of each.
LEAST_SCALE = 2.5
# Not judged: every node writes the limits of all clients.
SHOWN = ("redisclients16",)
TRAFFIC = ("redis16", "redissticky16", *SHOWN)
HEADS = ["cell", "nodes", "rps", "µs CPU of a node", "µs CPU of Redis", "× one node per CPU s"]


@dataclass(frozen=True, slots=True)
class NodesSample:
    """One measurement: requests of all nodes, CPU time per request of the nodes together and of Redis."""

    cell: str
    nodes: int
    rps: float
    cpu_us: float
    redis_us: float
    errors: int


@dataclass(frozen=True, slots=True)
class NodesFigures:
    """Medians of a number of nodes in a cell; `scale` is their work relative to one node."""

    cell: str
    nodes: int
    rps: float
    cpu_us: float
    redis_us: float
    scale: float
    errors: int

    @property
    def holds(self) -> bool:
        """Whether all answers were correct and the nodes add up."""
        is_judged = self.nodes > 1 and self.cell not in SHOWN
        return self.errors == 0 and (not is_judged or self.scale >= LEAST_SCALE * self.nodes / 3)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Running nodes and the process of the Redis that they share."""

    gateways: tuple[Running, ...]
    redis_pid: int

    @property
    def pids(self) -> list[int]:
        return [pid for gateway in self.gateways for pid in gateway.pids]


@contextmanager
def _start(count: int, cell: Cell, *, folder: Path, mock: Mock) -> Iterator[Nodes]:
    own = folder / f"{cell.name}-{count}"
    own.mkdir()
    with ExitStack() as stack:
        beside = redis_beside(own, free_port())
        pid = stack.enter_context(started(beside))
        gateways: list[Running] = []
        for number in range(count):
            place = Place(own / str(number), free_port(), cell.variant, mock.ports.whole)
            place.folder.mkdir()
            gateways.append(stack.enter_context(running(Ours(redis=beside.port), place, core=None)))
        yield Nodes(tuple(gateways), pid)


def _load(gateway: Running, cell: Cell, seconds: float) -> LoadRun:
    place = gateway.place
    file = requests.write(place.folder / f"{cell.name}.http", gateway.system.request(cell, place))
    return LoadRun(
        gateway.port,
        file,
        connections=cell.connections,
        seconds=seconds,
        warmup=WARMUP,
        needle=cell.needle,
        sessions=SETUPS[cell.setup].numbers,
    )


def take(nodes: Nodes, cell: Cell, *, seconds: float) -> NodesSample:
    """Load all nodes at once, each with the connections of the cell."""
    count = len(nodes.gateways)
    loads = [_load(gateway, cell, seconds) for gateway in nodes.gateways]
    for load in loads:
        load.measuring()
    before, redis_before, began = cpu_seconds(nodes.pids), cpu_seconds([nodes.redis_pid]), time.monotonic()
    found = [load.result() for load in loads]
    done = max(1, sum(one.requests for one in found))
    used, redis_used = cpu_seconds(nodes.pids) - before, cpu_seconds([nodes.redis_pid]) - redis_before
    return NodesSample(
        cell.name,
        count,
        done / (time.monotonic() - began),
        used * 1e6 / done,
        redis_used * 1e6 / done,
        sum(one.errors for one in found),
    )


def figures(samples: Sequence[NodesSample]) -> list[NodesFigures]:
    """Return medians by cell and number of nodes, each relative to one node."""
    groups: dict[tuple[str, int], list[NodesSample]] = {}
    for one in samples:
        groups.setdefault((one.cell, one.nodes), []).append(one)
    cpu = {key: statistics.median(one.cpu_us for one in group) for key, group in groups.items()}
    return [
        NodesFigures(
            cell,
            count,
            statistics.median(one.rps for one in group),
            cpu[cell, count],
            statistics.median(one.redis_us for one in group),
            count * cpu[cell, 1] / cpu[cell, count] if cpu[cell, count] else 0.0,
            sum(one.errors for one in group),
        )
        for (cell, count), group in groups.items()
    ]


def rows(found: Sequence[NodesFigures]) -> list[list[str]]:
    """Return the lines of the table."""
    return [
        [
            one.cell,
            str(one.nodes),
            f"{one.rps:.0f}",
            f"{one.cpu_us:.0f}",
            f"{one.redis_us:.0f}",
            f"{one.scale:.2f}",
        ]
        for one in found
    ]


def measure(rounds: int, seconds: float, *, mock: Mock, folder: Path) -> Iterator[NodesSample]:
    """Measure one node and several in turn, for every kind of traffic."""
    for cell in (CELLS[name] for name in TRAFFIC):
        with ExitStack() as stack:
            sets = [stack.enter_context(_start(count, cell, folder=folder, mock=mock)) for count in COUNTS]
            for _ in range(rounds):
                for nodes in sets:
                    yield take(nodes, cell, seconds=seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if three nodes do too little, 2 if they could not be started."""
    parser = argparse.ArgumentParser(prog="bench.nodes", description="Compare one node on Redis with three.")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="default %(default)d")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_SECONDS, help="per sample, default %(default)g"
    )
    options = parser.parse_args(arguments)
    # Also stop the started processes when a supervisor stops the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, native.mock() as mock:
            found = figures(list(measure(options.rounds, options.seconds, mock=mock, folder=Path(folder))))
    except Unavailable as error:
        print(f"bench.nodes: {error}", file=sys.stderr)
        return 2
    print(page.aligned(HEADS, rows(found)))
    return 0 if all(one.holds for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
