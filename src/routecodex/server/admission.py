"""A short queue for requests beyond `max_concurrent`, with a fair turn for every client.

A finished request passes its place to the next client in turn: clients take turns, and the requests of one
client keep their order. So a client with one request waits for one turn, however many another one has sent.
When the queue is full, the newest request of the client with the most waiting ones makes room for a client
that has fewer. Below the limit nothing here is called.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from routecodex.canon.errors import Overloaded
from routecodex.config.model import ServerConfig
from routecodex.gateway.context.identity import SESSION_HEADERS
from routecodex.server.http import HttpRequest

_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_REASONS = ("full", "timeout")
_LONGEST_NAME = 200


def client_of(request: HttpRequest, client_name: str) -> str:
    """Return whose turn a request takes: that of its key, or else of its address and session header."""
    if client_name:
        return client_name
    address = request.client[0] if request.client is not None else ""
    session = next((request.headers[name] for name in SESSION_HEADERS if name in request.headers), "")
    return f"{address} {session[:_LONGEST_NAME]}"


class Admission:
    """The requests that wait for a place, by client.

    `leave` gives a place back that was passed to a request whose client disconnected in the same moment.
    """

    def __init__(
        self, *, leave: Callable[[], None], worker: str = "0", now: Callable[[], float] = time.monotonic
    ) -> None:
        self._leave = leave
        self._worker = worker
        self._now = now
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting requests; the client whose turn is next comes first."""
        self.waiting = 0
        self._places = self._most = 0
        self._seconds = 0.0
        self._refused = dict.fromkeys(_REASONS, 0)
        self._waits = [0] * (len(_BOUNDS) + 1)
        self._waited = 0.0

    def configure(self, config: ServerConfig) -> None:
        """Use the limits of a configuration; requests that wait keep their time."""
        self._places = config.max_concurrent
        self._most = config.max_queued
        self._seconds = config.queue_wait_ms / 1000

    async def wait(self, client: str) -> None:
        """Wait for a place that a finished request passes on; raise Overloaded if there is none in time."""
        if self.waiting >= self._most and not self._displace(client):
            raise self._refusal("full")
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._queues.setdefault(client, deque()).append(place)
        self.waiting += 1
        timer = loop.call_later(self._seconds, self._expire, client, place)
        began = self._now()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._remove(client, place)
            elif place.exception() is None:
                self._leave()
            raise
        finally:
            timer.cancel()
            self._note_wait(self._now() - began)

    def pass_on(self) -> bool:
        """Pass a place to the next client in turn; return False if none waits."""
        while self._queues:
            client, queue = next(iter(self._queues.items()))
            place = queue.popleft()
            self.waiting -= 1
            del self._queues[client]
            if queue:
                self._queues[client] = queue  # its next turn comes after those of all others
            if not place.done():
                place.set_result(None)
                return True
        return False

    def _expire(self, client: str, place: asyncio.Future[None]) -> None:
        if not place.done():
            self._remove(client, place)
            place.set_exception(self._refusal("timeout"))

    def _displace(self, client: str) -> bool:
        """Refuse the newest request of the client with the most, if `client` has fewer; return whether."""
        longest, queue = max(self._queues.items(), key=lambda row: len(row[1]), default=("", deque()))
        if len(queue) <= len(self._queues.get(client, ())) + 1:
            return False
        place = queue[-1]
        self._remove(longest, place)
        if not place.done():
            place.set_exception(self._refusal("full"))
        return True

    def _remove(self, client: str, place: asyncio.Future[None]) -> None:
        queue = self._queues.get(client)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        self.waiting -= 1
        if not queue:
            del self._queues[client]

    def _refusal(self, reason: str) -> Overloaded:
        self._refused[reason] += 1
        state = f"{self._places} requests are in flight already"
        if reason == "timeout":
            return Overloaded(f"{state}, and none ended within {self._seconds:g} s; retry shortly")
        if self._most:
            return Overloaded(f"{state}, and {self._most} more wait; retry shortly")
        return Overloaded(f"{state}; retry shortly")

    def _note_wait(self, seconds: float) -> None:
        self._waits[bisect_left(_BOUNDS, seconds)] += 1
        self._waited += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the queue, for prometheus_client."""
        labels = (self._worker,)
        waiting = GaugeMetricFamily(
            "routecodex_queue_waiting", "Requests that wait for a place.", labels=("worker",)
        )
        waiting.add_metric(labels, self.waiting)
        refused = CounterMetricFamily(
            "routecodex_queue_refused", "Requests refused at the limit.", labels=("reason", "worker")
        )
        for reason, count in self._refused.items():
            refused.add_metric((reason, *labels), count)
        waits = HistogramMetricFamily(
            "routecodex_queue_wait_seconds", "Time in the queue.", labels=("worker",)
        )
        waits.add_metric(labels, self._buckets(), self._waited)
        yield from (waiting, refused, waits)

    def _buckets(self) -> list[tuple[str, float]]:
        running, rows = 0, []
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self._waits, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows
