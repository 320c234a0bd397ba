"""The health of keys as the nodes of a fleet see it: one truth in the store, a late copy on every node.

Changes are made by the gateway's own functions (`routing.cooldown`), on the stored value, as the store does
it. Every node learns of a change after a delay of its own; a message that is lost is found by the next check
of the generation. The node that made a change knows it at once.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from routecodex.canon.errors import UpstreamError
from routecodex.routing import cooldown
from routecodex.routing.cooldown import DEFAULT, Cooldown, HealthState
from routecodex.routing.registry import Selector, Target

_FORGET_AFTER = 5.0
"""Seconds after which every node has heard of a change."""

_LEASE = 30.0


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How changes reach the nodes; times in seconds."""

    shortest: float = 0.001
    longest: float = 0.100
    lost: float = 0.001
    """Share of messages that are lost."""
    check_every: float = 0.5
    """Interval at which a node compares generations, and so finds what it missed."""


@dataclass(frozen=True)
class StoredVersion:
    """A stored value of one key; None after its removal."""

    at: float
    writer: int
    value: Cooldown | None
    number: int


@dataclass
class SharedHealth:
    """The stored health of all keys, with the versions that some node may not have seen yet."""

    delivery: Delivery
    seed: int
    versions: dict[Selector, list[StoredVersion]] = field(default_factory=dict)
    leases: dict[Selector, float] = field(default_factory=dict)
    writes: int = 0

    def latest(self, key: Selector) -> Cooldown | None:
        """Return the stored value of a key."""
        known = self.versions.get(key)
        return known[-1].value if known else None

    def seen_at(self, version: StoredVersion, node: int) -> float:
        """Return the time at which a node learns of a version."""
        if version.writer == node:
            return version.at
        delivery = self.delivery
        luck = random.Random(f"{self.seed}/{version.number}/{node}")
        if luck.random() < delivery.lost:
            phase = random.Random(f"{self.seed}/{node}").random() * delivery.check_every
            checks = int((version.at - phase) / delivery.check_every) + 1
            return phase + checks * delivery.check_every + delivery.longest
        return version.at + luck.uniform(delivery.shortest, delivery.longest)

    def seen(self, key: Selector, node: int, now: float) -> Cooldown | None:
        """Return the value of a key that a node knows."""
        known = self.versions.get(key)
        if not known:
            return None
        for version in reversed(known):
            if version.at + _FORGET_AFTER < now or self.seen_at(version, node) <= now:
                return version.value
        return None

    def change(
        self, keys: tuple[Selector, ...], change: Callable[[HealthState], HealthState], node: int, now: float
    ) -> None:
        """Apply a change to the stored values, as one script of the store does."""
        before = {key: value for key in keys if (value := self.latest(key)) is not None}
        after = change(before)
        for key in keys:
            if before.get(key) != after.get(key):
                self._write(key, StoredVersion(now, node, after.get(key), self.writes))

    def _write(self, key: Selector, version: StoredVersion) -> None:
        self.writes += 1
        known = self.versions.setdefault(key, [])
        known.append(version)
        old = bisect_right([one.at for one in known], version.at - _FORGET_AFTER)
        # The newest of the old versions is what nodes saw before the others.
        del known[: max(old - 1, 0)]

    def lease(self, key: Selector, now: float) -> bool:
        """Take the only probe of a key; False if a node holds it."""
        if self.leases.get(key, 0.0) > now:
            return False
        self.leases[key] = now + _LEASE
        return True


class _View(Mapping[Selector, Cooldown]):
    """What one node knows at one time, for the functions of `routing.cooldown`."""

    def __init__(self, shared: SharedHealth, node: int) -> None:
        self._shared = shared
        self._node = node
        self.now = 0.0

    def __getitem__(self, key: Selector) -> Cooldown:
        found = self._shared.seen(key, self._node, self.now)
        if found is None:
            raise KeyError(key)
        return found

    def get(self, key: Selector, default: object = None) -> Cooldown | None:  # type: ignore[override]  # shorter than Mapping.get, and much faster
        return self._shared.seen(key, self._node, self.now)

    def __len__(self) -> int:
        return len(self._shared.versions)

    def __iter__(self) -> Iterator[Selector]:
        return iter(self._shared.versions)


class NodeHealth:
    """The health of keys on one node, for plans and attempts."""

    def __init__(self, shared: SharedHealth, node: int) -> None:
        self._shared = shared
        self._node = node
        self._view = _View(shared, node)

    @property
    def quiet(self) -> bool:
        return not self._shared.versions

    def until(self, target: Target, now: float) -> float:
        self._view.now = now
        return cooldown.cooling_until(self._view, target, now)

    def why(self, target: Target, now: float) -> str:
        return "cooling"

    def is_limit(self, target: Target, now: float) -> bool:
        return False

    def claim(self, target: Target, now: float) -> tuple[bool, tuple[Selector, ...]]:
        """Return whether an attempt may be made, and the keys that it probes."""
        self._view.now = now
        if cooldown.cooling_until(self._view, target, now):
            return False, ()
        needed = cooldown.probes(self._view, target, now)
        if not needed:
            return True, ()
        if not all(self._shared.lease(key, now) for key in needed):
            return False, ()
        return self._still_due(target, now, needed), needed

    def _still_due(self, target: Target, now: float, needed: tuple[Selector, ...]) -> bool:
        """Look at the stored values once more: another node may have probed just before."""
        stored = {key: value for key in cooldown.health_keys(target) if (value := self._shared.latest(key))}
        due = not cooldown.cooling_until(stored, target, now) and set(
            cooldown.probes(stored, target, now)
        ) <= set(needed)
        if not due:
            self.release(needed)
        return due

    def release(self, keys: tuple[Selector, ...]) -> None:
        """Give back the probes of an attempt."""
        for key in keys:
            self._shared.leases.pop(key, None)

    def failed(self, target: Target, error: UpstreamError, now: float) -> None:
        """Record a failed attempt."""
        impact = cooldown.failure_impact(target, error)
        if impact is not None:
            self._shared.change(
                cooldown.health_keys(target),
                lambda state: cooldown.record_failure(state, impact, now=now, options=DEFAULT),
                self._node,
                now,
            )

    def succeeded(self, target: Target, began: float, now: float) -> None:
        """Record a successful attempt."""
        self._view.now = now
        keys = cooldown.health_keys(target)
        if all(self._shared.latest(key) is None for key in keys):
            return
        self._shared.change(
            keys, lambda state: cooldown.after_success(state, target, now, began=began), self._node, now
        )
