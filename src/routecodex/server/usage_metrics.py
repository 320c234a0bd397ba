"""Metrics of tokens, costs and clients, from the calls of each request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from routecodex.accounting.cost import NANOS
from routecodex.canon.events import Usage
from routecodex.gateway.request import RequestRecord
from routecodex.routing.registry import Target

_MAX_CLIENTS: Final = 200
_OTHER: Final = "other"
_GATEWAY: Final = "gateway"
_GONE: Final = 499
_KINDS: Final = ("input", "output", "cache_read", "cache_write", "reasoning")


class TokenTotals:
    """Sums of the token counts of one target."""

    __slots__ = ("cache_read", "cache_write", "input", "output", "reasoning")

    def __init__(self) -> None:
        self.input = self.output = self.cache_read = self.cache_write = self.reasoning = 0

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.output += usage.output
        self.cache_read += usage.cache_read
        self.cache_write += usage.cache_write
        self.reasoning += usage.reasoning


class UsageMetrics(Collector):
    """Counts the usage of finished requests; past 200 clients the rest count as `other`."""

    def __init__(self, *, worker: str) -> None:
        self._worker: Final = worker
        self._tokens: dict[Target | None, TokenTotals] = {}
        self._nanos: defaultdict[tuple[str, str, Target, str], int] = defaultdict(int)
        self._unknown: defaultdict[Target, int] = defaultdict(int)
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._clients: set[str] = set()

    def count(self, record: RequestRecord) -> None:
        """Add one request.

        A call of the gateway itself has a record of its own, which has its tokens. Its cost is that of the
        request that caused it.
        """
        name = record.client_name
        if name != _GATEWAY:
            name = self._client(name)
            self._requests[(name, _GONE if record.gone else record.status)] += 1
        calls = record.calls
        if not calls:
            if record.usage is not None:
                self._totals(record.target).add(record.usage)
            return
        for call in calls:
            target, cost = call.target, call.cost
            if call.kind != "internal":
                self._totals(target).add(call.usage)
            if cost.nanos is None:
                self._unknown[target] += 1
            else:
                self._nanos[(name, record.team, target, cost.kind)] += cost.nanos

    def _totals(self, target: Target | None) -> TokenTotals:
        totals = self._tokens.get(target)
        if totals is None:
            totals = self._tokens[target] = TokenTotals()
        return totals

    def _client(self, name: str) -> str:
        if name not in self._clients:
            if len(self._clients) >= _MAX_CLIENTS:
                return _OTHER
            self._clients.add(name)
        return name

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families for prometheus_client."""
        yield self._token_family()
        costs = self._family(
            "routecodex_cost_usd", "Cost of answers, where it is known.", "client team provider model kind"
        )
        for labels, nanos in _summed(
            ((client, team, *_names(target), kind), amount)
            for (client, team, target, kind), amount in self._nanos.items()
        ):
            costs.add_metric((*labels, self._worker), nanos / NANOS)
        yield costs
        unknown = self._family(
            "routecodex_cost_unknown", "Calls of models without a price.", "provider model"
        )
        for labels, count in _summed((_names(target), count) for target, count in self._unknown.items()):
            unknown.add_metric((*labels, self._worker), count)
        yield unknown
        requests = self._family(
            "routecodex_client_requests", "Requests by client; 499: the client disconnected.", "client status"
        )
        for (client, status), count in self._requests.items():
            requests.add_metric((client, str(status), self._worker), count)
        yield requests

    def _token_family(self) -> Metric:
        tokens = self._family("routecodex_tokens", "Tokens counted by providers.", "provider model kind")
        rows = (
            ((*_names(target), kind), getattr(totals, kind))
            for target, totals in self._tokens.items()
            for kind in _KINDS
        )
        for labels, count in _summed(rows):
            tokens.add_metric((*labels, self._worker), count)
        return tokens

    def _family(self, name: str, about: str, labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(name, about, labels=(*labels.split(), "worker"))


def _names(target: Target | None) -> tuple[str, str]:
    return (target.provider, target.model) if target is not None else ("", "")


def _summed(rows: Iterator[tuple[tuple[str, ...], int]]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Add up the rows with the same labels: all keys of a provider count as one."""
    sums: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for labels, amount in rows:
        sums[labels] += amount
    yield from sums.items()
