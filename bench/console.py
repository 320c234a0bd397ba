"""The console under load: `make bench-console`, a gateway with and without a subscriber to its events.

The subscriber is what an open page is to the gateway: it reads `/admin/events` with all topics. The compiled
gateway gets a fixed rate, and the figure that counts is the CPU time per request: both cases do the same work
in the same time, and batches of events have the same size in every run. The two alternate.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import native
from bench.accounting import family
from bench.cells import CELLS
from bench.measure import Sample, Settings, sample
from bench.ports import free_port
from bench.processes import Running, running
from bench.run import FULL_WARMUP
from bench.systems import Ours, Place
from routecodex.compiled import matching_build
from routecodex.server.events.event_service import LINGER_SECONDS

CELL = "n16"
WORKERS = 2
RATE = 2000.0
"""Requests a second, of the budget."""
MOST_LOST = 0.05
"""Part of the throughput that an open page may cost."""
LEAST_RATE = 0.98
"""Part of the rate that must be carried, for the figures to mean anything."""
_READ = 64 * 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians with and without a subscriber, and the frames that it received."""

    closed_rps: float
    open_rps: float
    closed_us: float
    open_us: float
    frames: int
    errors: int
    rate: float = RATE

    @property
    def lost(self) -> float:
        """Part of the capacity that the subscriber costs: requests per CPU second."""
        return 1 - self.closed_us / self.open_us

    @property
    def holds(self) -> bool:
        """Whether the rate was carried, answers were right, frames arrived, and the cost is in the budget."""
        carried = min(self.closed_rps, self.open_rps) >= self.rate * LEAST_RATE
        return carried and self.errors == 0 and self.frames > 0 and self.lost < MOST_LOST


class Subscriber(threading.Thread):
    """Reads the events of a server until it is closed, as a page does."""

    def __init__(self, port: int, token: str) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(("127.0.0.1", port))
        head = (
            f"GET /admin/events HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        self.frames = 0

    def run(self) -> None:
        while data := self._socket.recv(_READ):
            self.frames += data.count(b"event: ")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self._socket.close()


@contextlib.contextmanager
def subscribed(port: int, token: str) -> Iterator[Subscriber]:
    """Subscribe for the time of the context."""
    subscriber = Subscriber(port, token)
    subscriber.start()
    try:
        yield subscriber
    finally:
        subscriber.close()


def cost_of(closed: Sequence[Sample], opened: Sequence[Sample], *, frames: int, rate: float) -> Cost:
    """Return the medians of all rounds."""
    return Cost(
        statistics.median(one.load.rps for one in closed),
        statistics.median(one.load.rps for one in opened),
        statistics.median(one.cpu_us for one in closed),
        statistics.median(one.cpu_us for one in opened),
        frames,
        sum(one.load.errors for one in (*closed, *opened)),
        rate,
    )


def measure(settings: Settings, folder: Path) -> Cost:
    """Run all rounds, each without and with a subscriber."""
    with native.mock() as mock:
        place = Place(folder, free_port(), CELLS[CELL].variant, mock.ports.whole)
        with running(Ours(workers=WORKERS), place, core=None) as started:
            gateway = replace(started, pids=tuple(family(started.pids[0])))
            token = (folder / "user" / "admin-token").read_text().strip()
            return _rounds(gateway, token, settings, mock.pid)


def _rounds(gateway: Running, token: str, settings: Settings, mock_pid: int) -> Cost:
    closed: list[Sample] = []
    opened: list[Sample] = []
    frames = 0
    for number in range(settings.rounds):
        if number:
            # The gateway collects for a while after the last subscriber has left.
            time.sleep(LINGER_SECONDS + 1)
        closed.append(sample(gateway, CELLS[CELL], number=number, settings=settings, mock_pid=mock_pid))
        with subscribed(gateway.port, token) as subscriber:
            opened.append(sample(gateway, CELLS[CELL], number=number, settings=settings, mock_pid=mock_pid))
            frames += subscriber.frames
    return cost_of(closed, opened, frames=frames, rate=settings.rate)


def shown(cost: Cost) -> str:
    """Return the result as text."""
    return (
        f"rate   {cost.rate:.0f} requests/s\n"
        f"closed {cost.closed_rps:.0f} requests/s, {cost.closed_us:.0f} µs CPU each\n"
        f"open   {cost.open_rps:.0f} requests/s, {cost.open_us:.0f} µs CPU each, {cost.frames} frames\n"
        f"the subscriber costs {cost.lost:.1%} of the capacity; at most {MOST_LOST:.0%} is allowed"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a subscriber costs too much, 2 without a compiled build."""
    parser = argparse.ArgumentParser(prog="bench.console", description="Measure the cost of an open console.")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)d")
    parser.add_argument("--seconds", type=float, default=3.0, help="per sample, default %(default)g")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second, default %(default)g")
    parser.add_argument("--sources", action="store_true", help="measure without a compiled build too")
    options = parser.parse_args(arguments)
    if matching_build() is None and not options.sources:
        print("there is no compiled build of these sources; run `make compile`", file=sys.stderr)
        return 2
    settings = Settings(
        rounds=options.rounds,
        seconds=options.seconds,
        warmup=FULL_WARMUP,
        repeats=0,
        load_core=None,
        gateway_core=None,
        rate=options.rate,
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cost = measure(settings, Path(folder))
    print(shown(cost))
    return 0 if cost.holds else 1


if __name__ == "__main__":
    sys.exit(main())
