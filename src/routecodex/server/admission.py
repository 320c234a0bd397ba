"""A short queue for requests beyond `max_concurrent`, with a fair turn for every client.

A finished request passes its place to the next client in turn: clients take turns, then the sessions of each,
and the requests of one session keep their order. So a client with one request waits for one turn, however
many another one has sent, and in however many sessions. When the queue is full, the client with the most
waiting requests makes room for one that has fewer, by the newest request of its longest session; and so does
the longest session for a shorter one of the same client. Below the limit nothing here is called.
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


_Place = asyncio.Future[None]
_Sessions = dict[str, deque[_Place]]


def turn_of(request: HttpRequest, client_name: str) -> tuple[str, str]:
    """Return whose turn a request takes, client and session: its key, or its address and session header."""
    if client_name:
        return client_name, ""
    address = request.client[0] if request.client is not None else ""
    session = next((request.headers[name] for name in SESSION_HEADERS if name in request.headers), "")
    return address, session[:_LONGEST_NAME]


class Admission:
    """The requests that wait for a place, by client and session.

    `leave` gives a place back that was passed to a request whose client disconnected in the same moment.
    """

    def __init__(
        self, *, leave: Callable[[], None], worker: str = "0", now: Callable[[], float] = time.monotonic
    ) -> None:
        self._leave = leave
        self._worker = worker
        self._now = now
        self._clients: dict[str, _Sessions] = {}
        """Waiting requests; the client whose turn is next comes first, and so does its session."""
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

    async def wait(self, client: str, session: str) -> None:
        """Wait for a place that a finished request passes on; raise Overloaded if there is none in time."""
        if self.waiting >= self._most and not self._displace(client, session):
            raise self._refusal("full")
        loop = asyncio.get_running_loop()
        place: _Place = loop.create_future()
        self._clients.setdefault(client, {}).setdefault(session, deque()).append(place)
        self.waiting += 1
        timer = loop.call_later(self._seconds, self._expire, client, session, place)
        began = self._now()
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._remove(client, session, place)
            elif place.exception() is None:
                self._leave()
            raise
        finally:
            timer.cancel()
            self._note_wait(self._now() - began)

    def pass_on(self) -> bool:
        """Pass a place to the next client in turn; return False if none waits."""
        while self._clients:
            place = self._take_next()
            if not place.done():
                place.set_result(None)
                return True
        return False

    def _take_next(self) -> _Place:
        """Take the request whose turn it is; its client and session have their next turn after all others."""
        client = next(iter(self._clients))
        sessions = self._clients.pop(client)
        session = next(iter(sessions))
        queue = sessions.pop(session)
        place = queue.popleft()
        self.waiting -= 1
        if queue:
            sessions[session] = queue
        if sessions:
            self._clients[client] = sessions
        return place

    def _expire(self, client: str, session: str, place: _Place) -> None:
        if not place.done():
            self._remove(client, session, place)
            place.set_exception(self._refusal("timeout"))

    def _displace(self, client: str, session: str) -> bool:
        """Make room for a request of a client that has fewer than another; return whether there is room.

        The client with the most loses the newest request of its longest session. Among equal clients, the
        longest session of the same client makes room for a shorter one.
        """
        own = self._clients.get(client, {})
        most = max(self._clients, key=lambda name: _count(self._clients[name]), default=client)
        sessions = self._clients.get(most, own)
        if _count(sessions) <= _count(own) + 1:
            most, sessions = client, own
        # Of equal sessions, the one whose turn is last.
        longest = max(reversed(sessions), key=lambda name: len(sessions[name]), default=session)
        if most == client and len(own.get(longest, ())) <= len(own.get(session, ())) + 1:
            return False
        place = sessions[longest][-1]
        self._remove(most, longest, place)
        if not place.done():
            place.set_exception(self._refusal("full"))
        return True

    def _remove(self, client: str, session: str, place: _Place) -> None:
        sessions = self._clients.get(client, {})
        queue = sessions.get(session)
        if queue is None or place not in queue:
            return
        queue.remove(place)
        self.waiting -= 1
        if not queue:
            del sessions[session]
        if not sessions:
            del self._clients[client]

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


def _count(sessions: _Sessions) -> int:
    return sum(map(len, sessions.values()))
