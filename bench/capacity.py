"""Model of large deployments: from measured costs to nodes, Redis shards and bandwidth.

    python -m bench.capacity                # prints the tables
    python -m bench.capacity --write-docs   # writes them into docs/capacity.md

CPU times come from the newest run in `bench/results` that has the cells needed, the memory of a stream from
the newest run that measured it, the cost of Redis from a server that is started for it. All other inputs are
assumptions about traffic; they stand in `Traffic` and on the page.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.page import DOCS, put, table, taken
from bench.report import RESULTS, Machine, Results
from bench.store_costs import StoreCosts, measure_store
from bench.summary import summarise

PAGE = DOCS / "capacity.md"
CELLS = ("n16", "m16", "A16", "B4")
SIZES = (100, 10_000, 1_000_000)
"""Concurrent streams of the three deployments."""

_EVENTS_OF_A_CELL = 50
_STEPS = 2
"""Calls for the limits of a request: one reserves, one settles."""
_BODY_KB_OF_B4 = 500


class NoFigures(Exception):
    """No run has the figures that the model needs."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Assumptions: the traffic of coding agents, and how full a machine may be."""

    stream_seconds: float = 20.0
    events_per_second: float = 40.0
    event_bytes: int = 260
    body_kb: float = 120.0
    converted: float = 0.5
    """Share of the requests whose protocol is converted."""
    limited: float = 1.0
    """Share of the requests whose client has a limit: one reservation and one settlement each."""
    state_changes: float = 0.05
    """Share of the requests that change the state of their session, a clock task or a stored response."""
    first_reads: float = 0.05
    """Share of the requests whose session this node has not seen."""
    cores: int = 16
    """Cores of a node, one worker each."""
    busy: float = 0.6
    """Most a core is used at the peak."""
    store_busy: float = 0.5
    """Most the one thread of a Redis shard is used."""
    memory_share: float = 0.7
    node_memory_gb: float = 64.0


@dataclass(frozen=True, kw_only=True)
class GatewayCosts:
    """Measured costs of the gateway: microseconds of CPU time and memory."""

    machine: Machine
    request_us: float
    event_us: float
    """One event of a stream that is passed on, in a write of its own."""
    converted_event_us: float
    body_kb_us: float
    stream_kb: float
    worker_mb: float


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What a number of concurrent streams needs."""

    streams: int
    requests: float
    cores: float
    nodes: int
    memory_gb: float
    gigabits: float
    store_calls: float
    """Calls a second, those of limits included."""
    invalidations: float
    """Messages a second that Redis sends to workers, in one cluster."""
    shards: int
    cells: int
    """Clusters of nodes, each with a Redis of its own, so that one shard can do what is not divided."""


def read_costs(folder: Path = RESULTS) -> GatewayCosts:
    """Return the costs from the newest runs; NoFigures where a cell is missing."""
    runs = [msgspec.json.decode(path.read_bytes(), type=Results) for path in sorted(folder.glob("*.json"))]
    for run in reversed(runs):
        rows = summarise(run.findings.samples)
        if all(("ours", cell) in rows for cell in CELLS):
            cpu = {cell: rows["ours", cell]["cpu_us"] for cell in CELLS}
            break
    else:
        raise NoFigures(
            f"no run has the cells {', '.join(CELLS)}: python -m bench.run --cells {','.join(CELLS)}"
        )
    memory = next((one.memory for one in reversed(runs) if one.memory is not None), None)
    if memory is None:
        raise NoFigures("no run measured memory: make bench")
    base = cpu["n16"]
    return GatewayCosts(
        machine=run.machine,
        request_us=base,
        event_us=(cpu["m16"] - base) / _EVENTS_OF_A_CELL,
        converted_event_us=(cpu["A16"] - base) / _EVENTS_OF_A_CELL + (cpu["m16"] - base) / _EVENTS_OF_A_CELL,
        body_kb_us=(cpu["B4"] - base) / _BODY_KB_OF_B4,
        stream_kb=memory.stream_kb,
        worker_mb=memory.idle_mb,
    )


def deploy(streams: int, traffic: Traffic, costs: GatewayCosts, store: StoreCosts) -> Deployment:
    """Return what a number of concurrent streams needs."""
    requests = streams / traffic.stream_seconds
    events = streams * traffic.events_per_second
    event_us = (1 - traffic.converted) * costs.event_us + traffic.converted * costs.converted_event_us
    changes = requests * (traffic.state_changes + traffic.first_reads)
    limited = requests * traffic.limited
    client_us = changes * store.change.client_us + limited * store.limits.client_us
    cpu = events * event_us + requests * (costs.request_us + traffic.body_kb * costs.body_kb_us) + client_us
    cores = cpu / 1e6 / traffic.busy
    streams_gb = streams * (costs.stream_kb + traffic.body_kb) / 1e6
    workers_gb = traffic.cores * costs.worker_mb / 1e3
    by_memory = streams_gb / (traffic.memory_share * traffic.node_memory_gb - workers_gb)
    nodes = max(1, math.ceil(max(cores / traffic.cores, by_memory)))
    # One more node than needed, so that one can be away.
    nodes += 1
    cells = _cells(nodes, requests, traffic, store)
    invalidations = requests / cells * traffic.state_changes * nodes / cells * traffic.cores
    # Changes are divided among the shards of a cluster; every message passes through each of them, and the
    # limits of all clients are on one.
    left_us = traffic.store_busy * 1e6 - invalidations * store.message_us
    first_us = left_us - limited / cells * store.limits.server_us
    others_us = max(0.0, changes / cells * store.change.server_us - first_us)
    return Deployment(
        streams=streams,
        requests=requests,
        cores=cores,
        nodes=nodes,
        memory_gb=streams_gb + nodes * workers_gb,
        gigabits=2 * 8 * (events * traffic.event_bytes + requests * traffic.body_kb * 1e3) / 1e9,
        store_calls=changes + _STEPS * limited,
        invalidations=invalidations,
        shards=cells * (1 + math.ceil(others_us / left_us)),
        cells=cells,
    )


def _cells(nodes: int, requests: float, traffic: Traffic, store: StoreCosts) -> int:
    """Return the fewest clusters in which messages, and limits, each take at most half of what a shard may.

    Messages grow with changes times workers, so they are quartered when the fleet is halved; a Redis Cluster
    does not help, because every shard passes every message on, and all limits are on one shard.
    """
    most_us = traffic.store_busy / 2 * 1e6
    messages_us = requests * traffic.state_changes * nodes * traffic.cores * store.message_us
    limits_us = requests * traffic.limited * store.limits.server_us
    return max(1, math.ceil(math.sqrt(messages_us / most_us)), math.ceil(limits_us / most_us))


def _figure(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _deployment_rows(deployments: Sequence[Deployment]) -> list[list[str]]:
    lines = (
        ("requests a second", [one.requests for one in deployments]),
        ("cores busy at the allowed share", [one.cores for one in deployments]),
        ("nodes, with one to spare", [one.nodes for one in deployments]),
        ("memory in all, GB", [one.memory_gb for one in deployments]),
        ("bandwidth, in and out, Gbit/s", [one.gigabits for one in deployments]),
        ("store calls a second", [one.store_calls for one in deployments]),
        ("clusters", [one.cells for one in deployments]),
        ("messages to workers a second, per cluster", [one.invalidations for one in deployments]),
        ("Redis shards in all", [one.shards for one in deployments]),
    )
    return [[name, *map(_figure, values)] for name, values in lines]


def _cost_rows(costs: GatewayCosts, store: StoreCosts) -> list[list[str]]:
    return [
        ["a request, 1 KB, answered whole", f"{costs.request_us:.0f} µs of CPU", "n16"],
        ["an event of a stream, passed on alone", f"{costs.event_us:.1f} µs", "m16 − n16, of 50 events"],
        ["an event that is converted", f"{costs.converted_event_us:.1f} µs", "m16 and A16 − n16"],
        ["a kilobyte of body", f"{costs.body_kb_us:.2f} µs", "B4 − n16, of 500 KB"],
        ["an open stream", f"{costs.stream_kb:.0f} KB", "1 000 open streams"],
        ["a worker", f"{costs.worker_mb:.0f} MB", "idle"],
        [
            "a change of state, at the gateway",
            f"{store.change.client_us:.0f} µs",
            "a session is changed, 16 at a time",
        ],
        ["a change of state, at Redis", f"{store.change.server_us:.0f} µs", "the same, with its message"],
        [
            "limits of a request, at the gateway",
            f"{store.limits.client_us:.0f} µs",
            "two steps in three limits, 16 at a time of 8 clients at 2 workers",
        ],
        ["limits of a request, at Redis", f"{store.limits.server_us:.0f} µs", "the same"],
        [
            "a message to one worker, at Redis",
            f"{store.message_us:.2f} µs",
            "one publication, 50 subscribers",
        ],
    ]


def _traffic_rows(traffic: Traffic) -> list[list[str]]:
    return [
        ["length of a stream", f"{traffic.stream_seconds:.0f} s"],
        ["events of a stream", f"{traffic.events_per_second:.0f} a second, {traffic.event_bytes} bytes each"],
        ["body of a request", f"{traffic.body_kb:.0f} KB"],
        ["requests whose protocol is converted", f"{traffic.converted:.0%}"],
        ["requests of clients with a limit", f"{traffic.limited:.0%}: a reservation and a settlement each"],
        ["requests that change stored state", f"{traffic.state_changes:.0%}"],
        ["requests of sessions new to the node", f"{traffic.first_reads:.0%}"],
        ["a node", f"{traffic.cores} cores, one worker each, {traffic.node_memory_gb:.0f} GB"],
        [
            "most that is used",
            f"{traffic.busy:.0%} of a core, {traffic.memory_share:.0%} of the memory, "
            f"{traffic.store_busy:.0%} of a Redis thread",
        ],
    ]


def _write_docs(costs: GatewayCosts, store: StoreCosts, traffic: Traffic, page: Path = PAGE) -> None:
    sizes = [deploy(streams, traffic, costs, store) for streams in SIZES]
    put("traffic", "\n".join(table(["Assumption", "Value"], _traffic_rows(traffic))), page)
    measured = table(["What", "Cost", "From"], _cost_rows(costs, store))
    put("costs", "\n".join([*measured, "", taken(costs.machine, "medians of a run of `bench`")]), page)
    heads = ["", *(f"{streams:,}".replace(",", " ") + " streams" for streams in SIZES)]
    put("deployments", "\n".join(table(heads, _deployment_rows(sizes))), page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__.split("\n")[0])
    parser.add_argument("--write-docs", action="store_true", help="write the tables into docs/capacity.md")
    options = parser.parse_args(arguments)
    try:
        costs = read_costs()
    except NoFigures as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    store, traffic = measure_store(), Traffic()
    if options.write_docs:
        _write_docs(costs, store, traffic)
        return 0
    print("\n".join(table(["what", "cost", "from"], _cost_rows(costs, store))))
    print()
    sizes = [deploy(streams, traffic, costs, store) for streams in SIZES]
    print("\n".join(table(["", *map(str, SIZES)], _deployment_rows(sizes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
