"""The console under load: `python -m bench.console`, a gateway with and without a subscriber to its events.

The subscriber is what an open page is to the gateway: it reads `/admin/events` with all topics. The figure
that counts is the CPU time per request, because workers, load and subscriber share the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import sys
import tempfile
import threading
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

CELL = "n16"
WORKERS = 2
MOST_LOST = 0.05
"""Part of the throughput that an open page may cost."""
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

    @property
    def lost(self) -> float:
        """Part of the capacity that the subscriber costs: requests per CPU second."""
        return 1 - self.closed_us / self.open_us

    @property
    def holds(self) -> bool:
        """Whether all answers were right, frames arrived, and the cost is within the budget."""
        return self.errors == 0 and self.frames > 0 and self.lost < MOST_LOST


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


def cost_of(closed: Sequence[Sample], opened: Sequence[Sample], frames: int) -> Cost:
    """Return the medians of all rounds."""
    return Cost(
        statistics.median(one.load.rps for one in closed),
        statistics.median(one.load.rps for one in opened),
        statistics.median(one.cpu_us for one in closed),
        statistics.median(one.cpu_us for one in opened),
        frames,
        sum(one.load.errors for one in (*closed, *opened)),
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
        closed.append(sample(gateway, CELLS[CELL], number=number, settings=settings, mock_pid=mock_pid))
        with subscribed(gateway.port, token) as subscriber:
            opened.append(sample(gateway, CELLS[CELL], number=number, settings=settings, mock_pid=mock_pid))
            frames += subscriber.frames
    return cost_of(closed, opened, frames)


def shown(cost: Cost) -> str:
    """Return the result as text."""
    return (
        f"closed {cost.closed_rps:.0f} requests/s, {cost.closed_us:.0f} µs CPU each\n"
        f"open   {cost.open_rps:.0f} requests/s, {cost.open_us:.0f} µs CPU each, {cost.frames} frames\n"
        f"the subscriber costs {cost.lost:.1%} of the capacity; at most {MOST_LOST:.0%} is allowed"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; return 1 if a subscriber costs too much."""
    parser = argparse.ArgumentParser(prog="bench.console", description="Measure the cost of an open console.")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)d")
    parser.add_argument("--seconds", type=float, default=3.0, help="per sample, default %(default)g")
    options = parser.parse_args(arguments)
    settings = Settings(
        rounds=options.rounds,
        seconds=options.seconds,
        warmup=FULL_WARMUP,
        repeats=0,
        load_core=None,
        gateway_core=None,
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cost = measure(settings, Path(folder))
    print(shown(cost))
    return 0 if cost.holds else 1


if __name__ == "__main__":
    sys.exit(main())
