"""Number of requests of each client that run now, in all workers of a server.

Every worker has a cell of its own for each client in the file of the counters, and writes it without a lock.
The cells of a worker that dies are dropped with its reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from routecodex.accounting.counters import CountersUnavailable
from routecodex.accounting.limits import Limit
from routecodex.accounting.shared_counters import SharedCounters
from routecodex.accounting.windows import MICROS, NoWindow

_UNLIMITED: Final = 1 << 62


class RunningRequests:
    """Running requests by client, over all processes that share the counters."""

    def __init__(self, counters: SharedCounters, *, clock: Callable[[], float]) -> None:
        self._counters = counters
        self._clock = clock
        self._limits: dict[str, Limit] = {}

    def show(self, client: str, count: int) -> None:
        """Show the others how many requests of a client run in this process."""
        try:
            self._counters.show_running(self._limit(client), count, self._now())
        except CountersUnavailable:
            # Only people read these figures.
            return

    def total(self, client: str) -> int:
        """Return the number of requests of a client that run in all processes; 0 if it is not known."""
        try:
            return self._counters.running(self._limit(client), self._now())
        except CountersUnavailable:
            return 0

    def refresh(self, running: Mapping[str, int]) -> None:
        """Show again what runs in this process, if the file was lost; keep the places of all clients."""
        for client, limit in self._limits.items():
            count = running.get(client, 0)
            if count or limit.slot is not None:
                self.show(client, count)
        try:
            self._counters.figures(list(self._limits.values()), self._now())
        except CountersUnavailable:
            return

    def forget(self, client: str) -> None:
        """Drop a client that was revoked; others use its place after a day."""
        self._limits.pop(client, None)

    def _limit(self, client: str) -> Limit:
        found = self._limits.get(client)
        if found is None:
            found = self._limits[client] = Limit(
                f"client:{client}",
                text="running",
                unit="concurrent",
                max=_UNLIMITED,
                window=NoWindow(),
                identity="running",
                code="concurrency_exceeded",
            )
        return found

    def _now(self) -> int:
        return int(self._clock() * MICROS)
