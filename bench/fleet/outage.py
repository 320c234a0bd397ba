"""Runs an outage of one provider over a fleet: how many requests meet a dead key, and how it comes back.

The plans are the gateway's own (`Router.plan`), the effect of failures too. Traffic, latencies and the delay
of messages are made up, from a seed: the same seed gives the same figures.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field

from bench.fleet.shared_health import Delivery, NodeHealth, SharedHealth
from routecodex.canon.errors import UpstreamFailed
from routecodex.routing.pools import RoundRobin
from routecodex.routing.registry import Model, Pool, Provider, Registry, Selector, Target
from routecodex.routing.route_plan import RouteQuery, failed_provider
from routecodex.routing.router import Router
from routecodex.routing.state import NO_SERVER_STATE, NOTHING_SET

_MAX_ATTEMPTS = 6
_DEAD = "p0"


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A fleet and its traffic; every provider has the same number of keys, and each route has a backup."""

    nodes: int = 1000
    providers: int = 20
    keys: int = 500
    """Keys of one provider."""
    rate: float = 400.0
    """Requests a second on the route whose provider fails, over all nodes."""
    conversations: int = 20_000
    before: float = 2.0
    outage: float = 60.0
    after: float = 40.0
    answer_seconds: tuple[float, float] = (0.5, 4.0)
    failure_seconds: tuple[float, float] = (0.05, 0.5)
    delivery: Delivery = field(default_factory=Delivery)
    seed: int = 1


@dataclass
class Outcome:
    """What happened; times in seconds since the start of the outage, or of the recovery."""

    requests: int = 0
    failed: int = 0
    """Requests that ended with an error."""
    met: int = 0
    """Requests that met a dead key, whether or not another key answered."""
    dead_attempts: int = 0
    dead_by_second: Counter[int] = field(default_factory=Counter)
    failed_by_second: Counter[int] = field(default_factory=Counter)
    probes: int = 0
    probes_at_once: int = 0
    """Most probes of one key under way at the same time."""
    spread: list[float] = field(default_factory=list)
    """For every breaker that opened, the time until the last node knew."""
    back_by_second: Counter[int] = field(default_factory=Counter)
    """Attempts at the recovered provider, by second since its recovery."""
    key_peak: int = 0
    """Most attempts at one recovered key in one second."""
    writes: int = 0

    def clear_after(self, share: float, rate: float) -> int:
        """Return the second of the outage from which fewer than a share of requests meet a dead key."""
        busy = [second for second, count in self.dead_by_second.items() if count >= share * rate]
        return max(busy, default=-1) + 1

    def back_after(self, share: float, rate: float) -> int | None:
        """Return the second after the recovery in which the provider first carries a share of its traffic."""
        seconds = sorted(second for second, count in self.back_by_second.items() if count >= share * rate)
        return seconds[0] if seconds else None


class Outage:
    """One run of a fleet through the outage of its first provider."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.outcome = Outcome()
        self._luck = random.Random(fleet.seed)
        self._shared = SharedHealth(fleet.delivery, fleet.seed)
        self._router = Router(_registry(fleet))
        self._health = [NodeHealth(self._shared, node) for node in range(fleet.nodes)]
        self._turns = [RoundRobin() for _ in range(fleet.nodes)]
        self._running_probes: Counter[Selector] = Counter()
        self._back: Counter[tuple[str, int]] = Counter()
        self._opened: set[tuple[Selector, float]] = set()
        self._now = 0.0
        self._dies, self._returns = fleet.before, fleet.before + fleet.outage
        self._end = self._returns + fleet.after

    def run(self) -> Outcome:
        """Play all requests in the order of time."""
        serial = itertools.count()
        events: list[tuple[float, int, Generator[float, None, None]]] = []
        arrival = 0.0
        while arrival < self._end:
            heapq.heappush(events, (arrival, next(serial), self._request()))
            arrival += self._luck.expovariate(self.fleet.rate)
        while events:
            self._now, _, request = heapq.heappop(events)
            wait = next(request, None)
            if wait is not None:
                heapq.heappush(events, (self._now + wait, next(serial), request))
        self.outcome.writes = self._shared.writes
        self.outcome.key_peak = max(self._back.values(), default=0)
        return self.outcome

    def _request(self) -> Generator[float, None, None]:
        """Play one request; yields the seconds until its next step."""
        luck, outcome = self._luck, self.outcome
        node = luck.randrange(self.fleet.nodes)
        conversation = f"c{luck.randrange(self.fleet.conversations)}"
        began_in_outage = self._is_dead(_DEAD)
        outcome.requests += 1
        met = False
        tried: frozenset[Target] = frozenset()
        for attempts_left in range(_MAX_ATTEMPTS, 0, -1):
            claimed = self._claim(node, conversation, tried, attempts_left)
            if claimed is None:
                break
            target, probed = claimed
            began = self._now
            self._count_attempt(target)
            for key in probed:
                self._running_probes[key] += 1
                outcome.probes += 1
                outcome.probes_at_once = max(outcome.probes_at_once, self._running_probes[key])
            dead = self._is_dead(target.provider)
            span = self.fleet.failure_seconds if dead else self.fleet.answer_seconds
            yield luck.uniform(*span)
            self._settle(node, target, probed, began=began, dead=dead)
            if not dead:
                outcome.met += met
                return
            met = True
            tried |= {target}
        outcome.met += met
        outcome.failed += 1
        if began_in_outage or met:
            outcome.failed_by_second[int(self._now - self._dies)] += 1

    def _claim(
        self, node: int, conversation: str, tried: frozenset[Target], attempts_left: int
    ) -> tuple[Target, tuple[Selector, ...]] | None:
        """Plan with what the node knows, and take the first target that may be tried."""
        health = self._health[node]
        plan = self._router.plan(
            RouteQuery(model="auto", affinity=conversation, tried=tried),
            session=NOTHING_SET,
            server=NO_SERVER_STATE,
            health=health,
            now=self._now,
            next_turn=self._turns[node],
        )
        failed = failed_provider(tried, attempts_left=attempts_left, max_attempts=_MAX_ATTEMPTS)
        if failed is not None:
            plan = plan.with_provider_last(failed)
        for step in plan.steps:
            may, probed = health.claim(step.target, self._now)
            if may:
                return step.target, probed
        return None

    def _settle(
        self, node: int, target: Target, probed: tuple[Selector, ...], *, began: float, dead: bool
    ) -> None:
        health = self._health[node]
        if dead:
            health.failed(target, UpstreamFailed("no connection", provider=target.provider), self._now)
            self._note_spread(target)
        else:
            health.succeeded(target, began, self._now)
        health.release(probed)
        for key in probed:
            self._running_probes[key] -= 1

    def _note_spread(self, target: Target) -> None:
        """Measure how long the news of a breaker that has just opened takes to the last node."""
        key = Selector(target.provider, target.key)
        version = self._shared.versions[key][-1]
        value = version.value
        if value is None or value.until <= self._now or (key, value.until) in self._opened:
            return
        self._opened.add((key, value.until))
        if len(self._opened) % 50 == 1:
            last = max(self._shared.seen_at(version, node) for node in range(self.fleet.nodes))
            self.outcome.spread.append(last - version.at)

    def _is_dead(self, provider: str) -> bool:
        return provider == _DEAD and self._dies <= self._now < self._returns

    def _count_attempt(self, target: Target) -> None:
        if target.provider != _DEAD:
            return
        if self._is_dead(_DEAD):
            self.outcome.dead_attempts += 1
            self.outcome.dead_by_second[int(self._now - self._dies)] += 1
        elif self._now >= self._returns:
            second = int(self._now - self._returns)
            self.outcome.back_by_second[second] += 1
            self._back[target.key, second] += 1


def _registry(fleet: Fleet) -> Registry:
    providers = [
        Provider(
            name=f"p{number}",
            protocol="chat",
            keys=tuple(f"k{key}" for key in range(fleet.keys)),
            models={"m": Model(id="m")},
        )
        for number in range(fleet.providers)
    ]
    routes = {
        "default" if number == 0 else f"route{number}": (
            Pool(id="main", targets=(f"p{number}.m",)),
            Pool(id="spare", targets=(f"p{(number + 1) % fleet.providers}.m",), backup=True),
        )
        for number in range(fleet.providers)
    }
    return Registry(providers, routes=routes, aliases={})
