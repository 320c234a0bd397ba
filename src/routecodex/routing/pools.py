"""Orders the targets of a pool by its mode, or by conversation.

A pool balances by provider and model first and by key inside, so that a provider with many keys gets no
larger share. A conversation keeps its target by rendezvous hashing: the score of a target depends only on the
conversation and the target itself, so a conversation moves only while its own target is down.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from routecodex.routing.registry import PlanStep, Pool, Registry, Target


class RoundRobin:
    """Turn counters by name, each from 0; the names are configured pools and targets, so they are few."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        count = self._counts.get(name, 0)
        self._counts[name] = count + 1
        return count

    def peek(self, name: str) -> int:
        """Return the next number without using it."""
        return self._counts.get(name, 0)


NextTurn = Callable[[str], int]
"""Returns the next number of a named counter, from 0."""

T = TypeVar("T")

_GOLDEN_RATIO = 0.6180339887498949
_CACHED_ORDERS = 8192


class KeyGroup:
    """One model of one provider with its keys."""

    __slots__ = ("name", "steps", "weight")

    def __init__(self, name: str, weight: float, steps: tuple[PlanStep, ...]) -> None:
        self.name = name
        self.weight = weight
        self.steps = steps


class PoolSelector:
    """A pool prepared for selection."""

    def __init__(self, name: str, mode: str, groups: Sequence[KeyGroup]) -> None:
        self.name = name
        self.mode = mode
        self.groups = tuple(group for group in groups if group.steps)
        self._only = (
            self.groups[0].steps if len(self.groups) == 1 and len(self.groups[0].steps) == 1 else None
        )
        self._affinity_order = functools.lru_cache(maxsize=_CACHED_ORDERS)(self._order_by_affinity)

    def order(self, *, affinity: str | None, next_turn: NextTurn) -> tuple[PlanStep, ...]:
        """Return every target of the pool in the order to try them."""
        if self._only is not None:
            return self._only
        if affinity is not None:
            return self._affinity_order(affinity)
        turn = next_turn(self.name)
        groups = _ORDERS[self.mode](self.groups, turn)
        turn //= len(self.groups) if self.mode == "round-robin" else 1
        return tuple(step for group in groups for step in _rotated(group.steps, turn))

    def _order_by_affinity(self, affinity: str) -> tuple[PlanStep, ...]:
        groups: Iterable[KeyGroup] = self.groups
        if self.mode != "priority":
            groups = sorted(groups, key=lambda group: _score(affinity, group.name, group.weight))
        return tuple(
            step
            for group in groups
            for step in sorted(group.steps, key=lambda step: _score(affinity, str(step.target), 1.0))
        )


def _score(affinity: str, name: str, weight: float) -> float:
    """Return the score of a name, smallest first; twice the weight wins twice as many conversations."""
    digest = blake2b(f"{affinity}\0{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return -math.log((int.from_bytes(digest, "big") + 1) / 2.0**64) / weight


def _rotated(items: tuple[T, ...], turn: int) -> tuple[T, ...]:
    at = turn % len(items)
    return items[at:] + items[:at]


def _by_weight(groups: tuple[KeyGroup, ...], turn: int) -> tuple[KeyGroup, ...]:
    # Multiples of the golden ratio are spread evenly over [0, 1) for any number of requests.
    point = (turn * _GOLDEN_RATIO) % 1.0 * sum(group.weight for group in groups)
    ends = itertools.accumulate(group.weight for group in groups)
    at = next((at for at, end in enumerate(ends) if point < end), len(groups) - 1)
    others = groups[:at] + groups[at + 1 :]
    return (groups[at], *sorted(others, key=lambda group: -group.weight))


_ORDERS: dict[str, Callable[[tuple[KeyGroup, ...], int], tuple[KeyGroup, ...]]] = {
    "round-robin": _rotated,
    "weighted": _by_weight,
    "priority": lambda groups, _turn: groups,
}


def pool_selectors(registry: Registry, route: str) -> tuple[PoolSelector, ...]:
    """Return the pools of a route, backups last; a target belongs to the first pool that names it."""
    placed: set[Target] = set()
    pools = sorted(registry.routes.get(route, ()), key=lambda pool: pool.backup)
    return tuple(_pool_selector(registry, route, pool, placed) for pool in pools)


def _pool_selector(registry: Registry, route: str, pool: Pool, placed: set[Target]) -> PoolSelector:
    reason = f"pool {pool.id}" + (" (backup)" if pool.backup else "")
    groups: dict[str, list[PlanStep]] = {}
    weights: dict[str, float] = {}
    for name in pool.targets:
        for target in registry.targets_of(name):
            model = f"{target.provider}.{target.model}"
            weights.setdefault(model, pool.weights.get(name, pool.weights.get(model, 1.0)))
            if target not in placed:
                placed.add(target)
                groups.setdefault(model, []).append(PlanStep(target, reason, route))
    mode = "weighted" if pool.weights and pool.mode == "round-robin" else pool.mode
    return PoolSelector(
        f"{route}/{pool.id}",
        mode,
        [KeyGroup(name, weights[name], tuple(steps)) for name, steps in groups.items()],
    )


def group_selector(name: str, steps: Iterable[PlanStep]) -> PoolSelector:
    """Return a selector for targets outside of configured pools: keys of one model, in turn."""
    return PoolSelector(name, "round-robin", [KeyGroup(name, 1.0, tuple(steps))])
