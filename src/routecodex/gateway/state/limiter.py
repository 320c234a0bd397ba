"""Limits of all clients, teams and provider keys: who is limited, by what, and what was reported of it.

`CallLimits` (gateway/request_limits.py) applies them to one request. A client without limits, at
targets whose keys have none, is not even looked up twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from routecodex.accounting.clients import Client, ClientTable
from routecodex.accounting.cost import TargetPrice
from routecodex.accounting.counters import CountersUnavailable, LimitCounters, LimitEvent
from routecodex.accounting.limit_table import CountedUse, LimitTable, limit_line
from routecodex.accounting.limits import Limit, key_limits
from routecodex.config import Config, UsageConfig
from routecodex.gateway.limit_headers import LimitHeaders
from routecodex.gateway.state.limit_webhook import LimitWebhook
from routecodex.routing.registry import Model, Target

FIRST_OUTPUT: Final = 1024
"""Tokens that a target is expected to answer with, before it has answered."""
_UNKNOWN_OUTPUT: Final = 32_768
"""Most output of a model whose maximum is not known."""
_MEAN_OF: Final = 50
_MOST_TARGETS: Final = 4096
_BEAT_SECONDS: Final = 2.0

log = logging.getLogger("routecodex.limits")


class TargetLimits:
    """Limits that requests of one client to one target fall under; the first `general` hold for all targets.

    `headers` are about those of the client and its team. `needs_price`: a money limit holds, so that a target
    without a price cannot be used.
    """

    __slots__ = (
        "counts_money",
        "general",
        "headers",
        "limits",
        "max_output",
        "needs_price",
        "prepared",
        "price",
    )

    def __init__(
        self,
        limits: Sequence[Limit],
        general: int,
        *,
        price: TargetPrice,
        max_output: int | None,
        counters: LimitCounters,
    ) -> None:
        self.limits: Final = limits
        self.general: Final = general
        self.headers: Final = LimitHeaders([limit for limit in limits if not limit.owner.startswith("key:")])
        self.prepared: Final = counters.prepare(limits) if general == len(limits) else None
        """The same for the usual request; None if some belong to the target, and are exchanged with it."""
        self.price: Final = price
        self.max_output: Final = max_output
        money = [limit for limit in limits if limit.unit == "usd"]
        self.counts_money: Final = bool(money)
        self.needs_price: Final = any(limit.enforced for limit in money)


class LimitSet:
    """Limits of one client, prepared for each target that it uses."""

    __slots__ = ("_limiter", "_targets", "client", "general", "headers", "is_limited", "models")

    def __init__(self, limiter: Limiter, client: Client | None, limits: Sequence[Limit]) -> None:
        self.client: Final = client
        self.general: Final = tuple(limit for limit in limits if not limit.skips)
        self.models: Final = tuple(limit for limit in limits if limit.skips)
        self.headers: Final = LimitHeaders(self.general)
        self.is_limited: Final = bool(limits)
        """Whether the client itself has limits."""
        self._limiter: Final = limiter
        self._targets: dict[Target, TargetLimits] = {}

    def at(self, target: Target) -> TargetLimits:
        """Return the limits of requests to a target."""
        found = self._targets.get(target)
        if found is None:
            if len(self._targets) >= _MOST_TARGETS:
                # Clients choose the names of models that a provider lists itself.
                self._targets.clear()
            found = self._targets[target] = self._make(target)
        return found

    def _make(self, target: Target) -> TargetLimits:
        limiter = self._limiter
        models = (limit for limit in self.models if limit.covers(target.provider, target.model))
        limits = (*self.general, *models, *limiter.limits_of_key(target))
        model = limiter.model_of(target)
        return TargetLimits(
            limits,
            len(self.general),
            price=limiter.price_of(target),
            max_output=model.max_output_tokens,
            counters=limiter.counters,
        )


class MeanOutput:
    """The running mean of the output of a target's answers."""

    __slots__ = ("_count", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0
        self._count = 0

    def add(self, tokens: int) -> None:
        """Learn from one answer."""
        if self._count < _MEAN_OF:
            self._count += 1
        self.tokens += (float(tokens) - self.tokens) / float(self._count)


class Limiter:
    """The limits of one configuration, over counters that outlive it."""

    def __init__(
        self,
        counters: LimitCounters,
        *,
        table: Callable[[], ClientTable],
        clock: Callable[[], float],
        webhook: LimitWebhook,
    ) -> None:
        self.counters = counters
        self.clock = clock
        self.refusals: dict[tuple[str, str], int] = {}
        """Refused requests by owner and limit."""
        self._table = table
        self._webhook = webhook
        self._beating: asyncio.Task[None] | None = None
        self._is_down = False
        self.on_beat: list[Callable[[], None]] = []
        """Called with every sign of life, as long as there are clients."""
        self._means: dict[Target, MeanOutput] = {}

    def configure(
        self,
        config: Config,
        *,
        price_of: Callable[[Target], TargetPrice],
        model_of: Callable[[Target], Model],
    ) -> None:
        """Use the limits of this configuration from now on."""
        self.usage: UsageConfig = config.usage
        self.price_of = price_of
        self.model_of = model_of
        self.limits = LimitTable(config.usage.timezone)
        self.use = CountedUse(self.counters, self.limits, table=self._table, clock=self.clock)
        self._webhook.configure(config)
        self._keys = {
            (name, key.alias): limits
            for name, row in config.providers.items()
            for key in row.keys
            if (limits := key_limits(name, key.alias, rpm=key.rpm, tpm=key.tpm, concurrent=key.concurrent))
        }
        self._sets: dict[str, LimitSet] = {}
        self.limits_keys: bool = bool(self._keys)
        """Whether the limits of any provider key are known."""
        self._anyone = LimitSet(self, None, ()) if self._keys else None

    def set_of(self, client: Client | None) -> LimitSet | None:
        """Return the limits of a client; None if nothing limits it."""
        if client is None:
            return self._anyone
        found = self._sets.get(client.name)
        if found is None or found.client is not client:
            limits = self.limits.of_client(client, self._table())
            found = self._sets[client.name] = LimitSet(self, client, limits)
        return found if found.is_limited or self.limits_keys else None

    def limits_of_key(self, target: Target) -> tuple[Limit, ...]:
        """Return the known limits of the key of a target."""
        return self._keys.get((target.provider, target.key), ())

    def expected_output(self, target: Target, most: int | None, choices: int) -> int:
        """Return the output to reserve for one call of a target that sends at most `most` for each choice."""
        if self.usage.reserve == "max":
            return (_UNKNOWN_OUTPUT if most is None else most) * choices
        mean = self._means.get(target)
        typical = FIRST_OUTPUT * choices if mean is None else int(2.0 * mean.tokens) + 1
        return typical if most is None else min(most * choices, typical)

    def note_output(self, target: Target, tokens: int) -> None:
        """Learn from the length of an answer."""
        mean = self._means.get(target)
        if mean is None:
            if len(self._means) >= _MOST_TARGETS:
                self._means.clear()
            mean = self._means[target] = MeanOutput()
        mean.add(tokens)

    def status_lines(self, client: Client | None) -> list[str]:
        """Return a line for each limit of a client and its team."""
        return [] if client is None else [f"limit: {limit_line(row)}" for row in self.use.of_client(client)]

    def note_refusal(self, limit: Limit) -> None:
        """Count a request that a limit refused."""
        key = (limit.owner, limit.label)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def report(self, events: Iterable[LimitEvent]) -> None:
        """Log events of limits, and send them to the webhook, beside the request."""
        for event in events:
            log.warning("%s: %s", _EVENTS[event.name], limit_line(event.figures))
            self._webhook.send(event)

    def note_down(self, error: CountersUnavailable) -> None:
        """Log once that limits cannot be counted."""
        if not self._is_down:
            self._is_down = True
            effect = "are refused" if self.usage.on_store_down == "refuse" else "pass uncounted"
            log.error("limits cannot be counted, requests of limited clients %s: %s", effect, error)

    def note_up(self) -> None:
        """Log that limits are counted again."""
        if self._is_down:
            self._is_down = False
            log.warning("limits are counted again")

    @property
    def is_down(self) -> bool:
        """Whether limits could not be counted the last time."""
        return self._is_down

    def start(self) -> None:
        """Start to show that this process is alive."""
        if self._beating is None:
            self.counters.use_loop(asyncio.get_running_loop().call_soon)
            self._beating = asyncio.ensure_future(self._beat())

    async def close(self) -> None:
        """Release what is reserved, and finish reports under way."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            self._beating = None
        await self._webhook.close()
        self.counters.use_loop(None)
        await self.counters.flush()
        self.counters.close()

    async def _beat(self) -> None:
        while True:
            if self._counts():
                try:
                    self.counters.beat()
                except CountersUnavailable as exc:
                    self.note_down(exc)
                for call in self.on_beat:
                    call()
            await asyncio.sleep(_BEAT_SECONDS)

    def _counts(self) -> bool:
        """Return whether anything is counted."""
        table = self._table()
        return bool(
            self._keys
            or (self.on_beat and table.clients)
            or any(team.limits for team in table.teams.values())
            or any(client.limits or client.concurrent for client in table.clients.values())
        )


_EVENTS: Final = {
    "limit_warn": "a limit is nearly used",
    "limit_exceeded": "a limit has no room for a request",
}
