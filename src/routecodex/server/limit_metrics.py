"""Metrics of limits: requests that they refused, and the share of each that is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from routecodex.accounting.counters import CountersUnavailable, LimitFigures
from routecodex.accounting.limits import Limit
from routecodex.accounting.windows import MICROS
from routecodex.gateway.gateway import Gateway

_MOST_CLIENTS: Final = 200
_LABELS: Final = ("owner", "limit", "worker")


class LimitMetrics(Collector):
    """Metrics of the limits of clients and teams; `gateway` is called each time, a reload replaces it.

    Beyond 200 clients the refusals of the rest count as those of `other`.
    """

    def __init__(self, gateway: Callable[[], Gateway], *, worker: str) -> None:
        self._gateway = gateway
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        gateway = self._gateway()
        limits = _shown_limits(gateway)
        yield self._refusals(gateway, {limit.owner for limit in limits})
        yield self._ratios(gateway, limits)

    def _refusals(self, gateway: Gateway, shown: set[str]) -> Metric:
        family = CounterMetricFamily(
            "routecodex_limit_refusals", "Requests that a limit refused.", labels=_LABELS
        )
        counts: dict[tuple[str, str], int] = {}
        for (owner, limit), count in gateway.limiter.refusals.items():
            name = owner if owner in shown else "other"
            counts[name, limit] = counts.get((name, limit), 0) + count
        for (owner, limit), count in counts.items():
            family.add_metric((owner, limit, self._worker), count)
        return family

    def _ratios(self, gateway: Gateway, limits: list[Limit]) -> Metric:
        family = GaugeMetricFamily(
            "routecodex_limit_used_ratio", "Share of a limit that is used.", labels=_LABELS
        )
        limiter = gateway.limiter
        try:
            rows = limiter.counters.figures(limits, int(limiter.clock() * MICROS)) if limits else []
        except CountersUnavailable:
            return family
        shares: dict[tuple[str, str], float] = {}
        for row in rows:
            # Two limits may differ in their time zone alone: a scrape must not have a series twice.
            name = (row.limit.owner, row.limit.label)
            shares[name] = max(_used_share(row), shares.get(name, 0.0))
        for (owner, limit), share in shares.items():
            family.add_metric((owner, limit, self._worker), share)
        return family


def _used_share(row: LimitFigures) -> float:
    return row.taken / row.limit.max


def _shown_limits(gateway: Gateway) -> list[Limit]:
    """Return the limits of all teams, and of the first clients."""
    table, limits = gateway.clients.table, gateway.limiter.limits
    clients = list(table.clients.values())[:_MOST_CLIENTS]
    own = (limit for client in clients for limit in limits.of_client(client, table))
    teams = (limit for name in table.teams for limit in limits.of_team(name, table))
    return list(dict.fromkeys((*own, *teams)))
