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
from routecodex.server.usage_metrics import UsageMetrics

# A list, because compiled code iterates over it without unpacking.
_BOUNDS: Final = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0]
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_BATCH: Final = 128
_MAX_REFUSALS: Final = 200
_MAX_SERIES: Final = 2000
_OTHER: Final = "other"

_GONE: Final = -1
_BROKEN: Final = -2
_ENDS: Final = {_GONE: "gone", _BROKEN: "broken"}
"""Labels of requests whose status does not tell how they ended."""

_Labels = tuple[str, ...]


class Histogram:
    """Counts of values by bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: list[float] | None = None) -> None:
        self.bounds: list[float] = _BOUNDS if bounds is None else bounds
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        at = 0
        for bound in self.bounds:
            if value <= bound:
                break
            at += 1
        self.counts[at] += 1
        self.total += value

    def merge(self, other: Histogram) -> None:
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def buckets(self) -> list[tuple[str, float]]:
        """Return the counts as Prometheus wants them: each with those of all smaller buckets."""
        running = 0
        rows = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows


class _Series:
    """Totals of the requests with the same protocol, target and status."""

    __slots__ = ("first_byte", "labels", "requests", "seconds")

    def __init__(self, labels: _Labels) -> None:
        self.labels = labels
        self.requests = 0
        self.seconds = Histogram()
        self.first_byte = Histogram()


class Metrics:
    """Metrics of this process."""

    def __init__(self, *, active: Callable[[], int], worker: str) -> None:
        self._active = active
        self.worker: Final = worker
        self._series: dict[tuple[str, Target | None, int], _Series] = {}
        self._refusals: defaultdict[_Labels, int] = defaultdict(int)
        self._responses: defaultdict[_Labels, int] = defaultdict(int)
        self._failovers: defaultdict[str, int] = defaultdict(int)
        self._attempts: defaultdict[_Labels, int] = defaultdict(int)
        """Attempts that are not the only, successful one of a request; those follow from the series."""
        self._new: list[RequestRecord] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._usage = UsageMetrics(worker=worker)
        self._registry.register(self._usage)

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
        if record.gone:
            return bool(record.protocol)
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
        status = record.status
        if record.gone:
            status = _GONE
        elif record.error is not None and status == 200:
            status = _BROKEN
        key = (record.protocol, record.target, status)
        series = self._series.get(key)
        if series is None:
            series = self._new_series(key)
        series.requests += 1
        arrived, first_byte = record.arrived, record.first_byte
        series.seconds.add(record.finished - arrived)
        if first_byte:
            series.first_byte.add(first_byte - arrived)
        if record.attempts != 1 or status != 200:
            self._count_attempts(record, status)
        self._usage.count(record)

    def _new_series(self, key: tuple[str, Target | None, int]) -> _Series:
        """Add a series; beyond the limit those of a provider share one, because clients may choose models."""
        protocol, target, status = key
        if target is not None and len(self._series) >= _MAX_SERIES:
            key = (protocol, Target(target.provider, "", _OTHER), status)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(_labels(*key))
        return series

    def _count_attempt(self, target: Target, outcome: str, count: int = 1) -> None:
        labels = (target.provider, target.model, outcome)
        if labels not in self._attempts and len(self._attempts) >= _MAX_SERIES:
            labels = (target.provider, _OTHER, outcome)
        self._attempts[labels] += count

    def _count_attempts(self, record: RequestRecord, status: int) -> None:
        """Count the attempts of a request that did not just succeed."""
        failures, target = record.failures, record.target
        for failure in failures:
            self._count_attempt(failure.target, failure.outcome)
        # Rounds of server tools are attempts too, but not failovers.
        for failure in failures[: record.attempts - 1]:
            self._failovers[failure.target.provider] += 1
        opened = record.attempts - len(failures)
        if target is None:
            return
        if status != 200 and opened:
            self._count_attempt(target, _ENDS.get(status, "failed"))
            opened -= 1
        elif status == 200:
            # The series counts one success for each request.
            opened -= 1
        self._count_attempt(target, "ok", opened)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        self._count_new()
        series = list(self._series.values())
        requests = self._family("routecodex_requests", "Requests answered.", "protocol provider model status")
        answered: defaultdict[_Labels, int] = defaultdict(int)
        for row in series:
            answered[row.labels] += row.requests
        for labels, count in answered.items():
            requests.add_metric((*labels, self.worker), count)
        failovers = self._family(
            "routecodex_failovers", "Attempts after one of this provider failed.", "provider"
        )
        for provider, count in self._failovers.items():
            failovers.add_metric((provider, self.worker), count)
        refusals = self._family("routecodex_refusals", "Requests refused before routing.", "endpoint code")
        responses = self._family(
            "routecodex_service_responses", "Other responses without a provider.", "endpoint status"
        )
        for family, rows in ((refusals, self._refusals), (responses, self._responses)):
            for row_labels, count in rows.items():
                family.add_metric((*row_labels, self.worker), count)
        active = GaugeMetricFamily("routecodex_active_requests", "Requests in flight.", labels=("worker",))
        active.add_metric((self.worker,), self._active())
        yield from (requests, refusals, responses, failovers, active)
        yield from self._attempt_families(answered)
        yield self._histogram("routecodex_request_seconds", "Whole requests.", series, "seconds")
        yield self._histogram("routecodex_first_byte_seconds", "Until the first byte.", series, "first_byte")

    def _attempt_families(self, answered: dict[_Labels, int]) -> list[CounterMetricFamily]:
        attempts = self._family(
            "routecodex_attempts", "Attempts at targets, by their end.", "provider model outcome"
        )
        broken = self._family("routecodex_broken_streams", "Streams that broke off.", "provider model")
        counts = self._attempts.copy()
        cut: defaultdict[_Labels, int] = defaultdict(int)
        for (_, provider, model, status), count in answered.items():
            if status == "200" and provider:
                counts[(provider, model, "ok")] += count
            elif status == "broken":
                cut[(provider, model)] += count
        for family, rows in ((attempts, counts), (broken, cut)):
            for labels, count in rows.items():
                if count:
                    family.add_metric((*labels, self.worker), count)
        return [attempts, broken]

    def _family(self, name: str, about: str, labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, about, labels=(*labels.split(), "worker"))

    def _histogram(self, name: str, about: str, series: list[_Series], which: str) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, about, labels=("protocol", "provider", "worker"))
        sums: defaultdict[_Labels, Histogram] = defaultdict(Histogram)
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
    return (protocol, provider, model, _ENDS.get(status) or str(status))
