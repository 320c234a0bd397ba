"""Metrics of state that outlives a request: keys in cooldown, breakers, and the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from routecodex.accounting.ledger import Ledger
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.records import KeyHealthRow
from routecodex.routing.registry import Registry, Selector
from routecodex.server.metrics import Histogram

_BOUNDS: Final = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
_OPERATIONS: Final = ("get", "put", "delete", "update", "keys", "trim")
_BREAKERS: Final = {"open": "open", "half-open": "half_open"}


class StoreCalls:
    """Times and failures of the calls of the store."""

    def __init__(self) -> None:
        self.seconds = {op: Histogram(_BOUNDS) for op in _OPERATIONS}
        self.errors = dict.fromkeys(_OPERATIONS, 0)

    def add(self, op: str, seconds: float, failed: bool) -> None:
        """Add one call."""
        self.seconds[op].add(seconds)
        self.errors[op] += failed


class StateMetrics(Collector):
    """Metrics of the health of keys and of the store; `gateway` is called for each, a reload replaces it.

    Keys and models come from the configuration, so that the number of series is bounded: other servers may
    share the store.
    """

    def __init__(
        self,
        calls: StoreCalls,
        *,
        gateway: Callable[[], Gateway],
        worker: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._calls = calls
        self._gateway = gateway
        self._worker = worker
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        gateway = self._gateway()
        rows = [
            (key, row)
            for key, row in gateway.health.report_by_key(self._clock())
            if _is_known(key, gateway.registry)
        ]
        yield self._keys(gateway.registry, rows)
        yield self._cooldowns(rows)
        yield self._breakers(rows)
        yield from self._store(gateway)

    def _keys(self, registry: Registry, rows: Iterable[tuple[Selector, KeyHealthRow]]) -> Metric:
        out = {(key.provider, key.key) for key, _ in rows if key.model is None}
        up = self._gauge("routecodex_key_up", "Whether the key of a provider can be used.", "provider key")
        for provider in registry.providers.values():
            for key in provider.keys:
                up.add_metric((provider.name, key, self._worker), 0.0 if (provider.name, key) in out else 1.0)
        return up

    def _cooldowns(self, rows: Iterable[tuple[Selector, KeyHealthRow]]) -> Metric:
        cooldowns = self._gauge(
            "routecodex_key_cooldown_seconds",
            "Seconds until a key, or a key for one model, is tried again.",
            "provider key model cause",
        )
        for key, row in rows:
            cause = row.reason.replace(" ", "_")
            cooldowns.add_metric((*_names(key), cause, self._worker), row.seconds)
        return cooldowns

    def _breakers(self, rows: Iterable[tuple[Selector, KeyHealthRow]]) -> Metric:
        breakers = self._gauge(
            "routecodex_breaker_state", "Breakers that are not closed.", "provider key model state"
        )
        for key, row in rows:
            if row.state in _BREAKERS:
                breakers.add_metric((*_names(key), _BREAKERS[row.state], self._worker), 1.0)
        return breakers

    def _store(self, gateway: Gateway) -> Iterator[Metric]:
        up = self._gauge("routecodex_store_up", "Whether the store can be read and written.", "kind")
        up.add_metric((gateway.store.kind, self._worker), 1.0 if gateway.store.works else 0.0)
        reconnects = CounterMetricFamily(
            "routecodex_store_reconnects", "Times that the store came back.", labels=("worker",)
        )
        reconnects.add_metric((self._worker,), gateway.store.returns)
        missed = CounterMetricFamily(
            "routecodex_store_missed",
            "Times that changes of other nodes were found by a check only.",
            labels=("worker",),
        )
        missed.add_metric((self._worker,), gateway.store.missed)
        errors = CounterMetricFamily(
            "routecodex_store_errors", "Calls that the store could not carry out.", labels=("op", "worker")
        )
        seconds = HistogramMetricFamily(
            "routecodex_store_seconds", "Calls of the store.", labels=("op", "worker")
        )
        for op in _OPERATIONS:
            errors.add_metric((op, self._worker), self._calls.errors[op])
            times = self._calls.seconds[op]
            seconds.add_metric((op, self._worker), times.buckets(), times.total)
        yield from (up, errors, seconds, reconnects, missed)

    def _gauge(self, name: str, about: str, labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, about, labels=(*labels.split(), "worker"))


class LedgerMetrics(Collector):
    """Requests that the usage ledger has, and those that it lost; no series without a ledger."""

    def __init__(self, ledger: Callable[[], Ledger[Any] | None], *, worker: str) -> None:
        self._ledger = ledger
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        ledger = self._ledger()
        rows = self._family("routecodex_ledger_rows", "Requests written to the usage ledger.")
        lost = self._family("routecodex_ledger_lost", "Requests that the usage ledger could not take.")
        if ledger is not None:
            rows.add_metric((self._worker,), ledger.rows)
            lost.add_metric((self._worker,), ledger.lost)
        yield from (rows, lost)

    def _family(self, name: str, about: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, about, labels=("worker",))


def _names(key: Selector) -> tuple[str, str, str]:
    return key.provider, key.key or "", key.model or ""


def _is_known(key: Selector, registry: Registry) -> bool:
    provider = registry.providers.get(key.provider)
    if provider is None or key.key not in provider.keys:
        return False
    return key.model is None or key.model in provider.models
