"""Counters and histograms for Prometheus: plain numbers per request, formatted on a scrape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target

# A list, because compiled code iterates over it without unpacking.
_BOUNDS: Final = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0]
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_BATCH: Final = 128
_MAX_REFUSALS: Final = 200

_Labels = tuple[str, ...]


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        at = 0
        for bound in _BOUNDS:
            if value <= bound:
                break
            at += 1
        self.counts[at] += 1
        self.total += value

    def merge(self, other: _Histogram) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        running = 0
        rows = []
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


class _Series:
    """Totals of the requests with the same protocol, target and status."""

    __slots__ = (
        "cache_read",
        "cache_write",
        "first_byte",
        "input",
        "labels",
        "output",
        "requests",
        "seconds",
    )

    def __init__(self, labels: _Labels) -> None:
        self.labels = labels
        self.requests = 0
        self.input = self.output = self.cache_read = self.cache_write = 0
        self.seconds = _Histogram()
        self.first_byte = _Histogram()


class Metrics:
    """Metrics of this process."""

    def __init__(self, *, active: Callable[[], int], worker: str) -> None:
        self._active = active
        self.worker: Final = worker
        self._series: dict[tuple[str, Target | None, int], _Series] = {}
        self._refusals: defaultdict[_Labels, int] = defaultdict(int)
        self._responses: defaultdict[_Labels, int] = defaultdict(int)
        self._failovers = 0
        self._new: list[RequestRecord] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Show the metrics of another part too."""
        self._registry.register(collector)

    def observe(self, record: RequestRecord) -> None:
        """Add one finished request; it is counted later, in a batch."""
        self._new.append(record)
        if len(self._new) >= _BATCH:
            self._count_new()

    def _count_new(self) -> None:
        new, self._new = self._new, []
        for record in new:
            self._count(record)

    def _count_local(self, record: RequestRecord) -> bool:
        """Count a response that no provider had a part in; return whether it was a request to a model."""
        endpoint, error = record.endpoint, record.error
        if record.status < 400:
            self._responses[(endpoint, str(record.status))] += 1
            return False
        code = (error.code if error is not None else None) or f"http_{record.status}"
        labels = (endpoint, code)
        if labels not in self._refusals and len(self._refusals) >= _MAX_REFUSALS:
            labels = ("other", "other")
        self._refusals[labels] += 1
        return bool(record.protocol)

    def _count(self, record: RequestRecord) -> None:
        if record.endpoint and not self._count_local(record):
            return
        status = -1 if record.gone else record.status
        key = (record.protocol, record.target, status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(_labels(*key))
        series.requests += 1
        arrived, first_byte = record.arrived, record.first_byte
        series.seconds.add(record.finished - arrived)
        if first_byte:
            series.first_byte.add(first_byte - arrived)
        failures = record.failures
        if failures:
            # Rounds of server tools are attempts too, but not failovers.
            self._failovers += min(len(failures), record.attempts - 1)
        usage = record.usage
        if usage is not None:
            series.input += usage.input
            series.output += usage.output
            series.cache_read += usage.cache_read
            series.cache_write += usage.cache_write

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        self._count_new()
        series = list(self._series.values())
        requests = self._family("routecodex_requests", "Requests answered.", "protocol provider model status")
        tokens = self._family("routecodex_tokens", "Tokens counted by providers.", "provider model kind")
        counts: defaultdict[_Labels, int] = defaultdict(int)
        answered: defaultdict[_Labels, int] = defaultdict(int)
        for row in series:
            answered[row.labels] += row.requests
            for kind in ("input", "output", "cache_read", "cache_write"):
                counts[(row.labels[1], row.labels[2], kind)] += getattr(row, kind)
        for labels, count in answered.items():
            requests.add_metric((*labels, self.worker), count)
        for key, count in counts.items():
            tokens.add_metric((*key, self.worker), count)
        failovers = self._family("routecodex_failovers", "Attempts after the first.", "")
        failovers.add_metric((self.worker,), self._failovers)
        refusals = self._family("routecodex_refusals", "Requests refused before routing.", "endpoint code")
        responses = self._family(
            "routecodex_service_responses", "Other responses without a provider.", "endpoint status"
        )
        for family, rows in ((refusals, self._refusals), (responses, self._responses)):
            for row_labels, count in rows.items():
                family.add_metric((*row_labels, self.worker), count)
        active = GaugeMetricFamily("routecodex_active_requests", "Requests in flight.", labels=("worker",))
        active.add_metric((self.worker,), self._active())
        yield from (requests, tokens, refusals, responses, failovers, active)
        yield self._histogram("routecodex_request_seconds", "Whole requests.", series, "seconds")
        yield self._histogram("routecodex_first_byte_seconds", "Until the first byte.", series, "first_byte")

    def _family(self, name: str, about: str, labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, about, labels=(*labels.split(), "worker"))

    def _histogram(self, name: str, about: str, series: list[_Series], which: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, about, labels=("protocol", "provider", "worker"))
        sums: defaultdict[_Labels, _Histogram] = defaultdict(_Histogram)
        for row in series:
            sums[row.labels[:2]].merge(getattr(row, which))
        for key, value in sums.items():
            family.add_metric((*key, self.worker), value.buckets(), value.total)
        return family

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _labels(protocol: str, target: Target | None, status: int) -> _Labels:
    provider, model = (target.provider, target.model) if target is not None else ("", "")
    return (protocol, provider, model, "gone" if status < 0 else str(status))
