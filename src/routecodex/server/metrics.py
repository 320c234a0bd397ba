"""Counters and histograms for Prometheus: plain numbers while requests pass, formatted when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from routecodex.gateway.ask import Record

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_Labels = tuple[str, ...]


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(_BOUNDS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        running = 0
        rows = []
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


class Metrics:
    """What has passed through this process."""

    def __init__(self, *, active: Callable[[], int], worker: str) -> None:
        self._active = active
        self._worker = worker
        self._requests: defaultdict[_Labels, int] = defaultdict(int)
        self._tokens: defaultdict[_Labels, int] = defaultdict(int)
        self._failovers = 0
        self._seconds: defaultdict[_Labels, _Histogram] = defaultdict(_Histogram)
        self._first_byte: defaultdict[_Labels, _Histogram] = defaultdict(_Histogram)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe(self, record: Record) -> None:
        """Takes one finished request."""
        provider = record.target.provider if record.target is not None else ""
        model = record.target.model if record.target is not None else ""
        outcome = "gone" if record.gone else str(record.status)
        self._requests[(record.protocol, provider, model, outcome)] += 1
        self._seconds[(record.protocol, provider)].add(record.finished - record.arrived)
        if record.first_byte:
            self._first_byte[(record.protocol, provider)].add(record.first_byte - record.arrived)
        if record.attempts > 1:
            self._failovers += record.attempts - 1
        if record.usage is not None:
            self._tokens[(provider, model, "input")] += record.usage.input
            self._tokens[(provider, model, "output")] += record.usage.output
            self._tokens[(provider, model, "cache_read")] += record.usage.cache_read

    def collect(self) -> Iterator[Metric]:
        """The families, for the exposition library."""
        yield self._counter(
            "routecodex_requests",
            "Requests answered.",
            ("protocol", "provider", "model", "status"),
            self._requests,
        )
        yield self._counter(
            "routecodex_tokens", "Tokens counted by providers.", ("provider", "model", "kind"), self._tokens
        )
        failovers = CounterMetricFamily(
            "routecodex_failovers", "Attempts after the first.", labels=("worker",)
        )
        failovers.add_metric((self._worker,), self._failovers)
        yield failovers
        active = GaugeMetricFamily("routecodex_active_requests", "Requests in flight.", labels=("worker",))
        active.add_metric((self._worker,), self._active())
        yield active
        yield self._histogram("routecodex_request_seconds", "Whole requests.", self._seconds)
        yield self._histogram("routecodex_first_byte_seconds", "Until the first byte.", self._first_byte)

    def _counter(
        self, name: str, about: str, labels: _Labels, values: dict[_Labels, int]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(name, about, labels=(*labels, "worker"))
        for key, value in list(values.items()):
            family.add_metric((*key, self._worker), value)
        return family

    def _histogram(self, name: str, about: str, values: dict[_Labels, _Histogram]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, about, labels=("protocol", "provider", "worker"))
        for key, value in list(values.items()):
            family.add_metric((*key, self._worker), value.buckets(), value.total)
        return family

    def text(self) -> bytes:
        """Everything, in the text format."""
        return generate_latest(self._registry)
