"""A store in memory, which ends with the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any

from routecodex.stores.store import (
    Change,
    OnAvailability,
    Place,
    Stored,
    check_key,
    check_space,
    check_value,
    check_version,
)
from routecodex.stores.uptime import SystemUptime, uptime


class MemoryStore:
    """Values in dictionaries, in the order they were written."""

    kind = "memory"
    missed = 0
    settle_seconds = 0.0
    reads_by_updates = False
    bounds_calls = False
    groups = None
    processes = None

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._spaces: dict[str, OrderedDict[str, Stored]] = {}
        self._versions = count(1)
        self._stamps: dict[str, int] = {}
        self._clock = clock

    async def get(self, space: str, key: str) -> Stored | None:
        return self._live(space, key)

    async def get_intact(self, space: str, key: str) -> Stored | None:
        return await self.get(space, key)

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        check_version(expected, self._live(space, key), where=f"{space}/{key[:80]!r}")
        return self._write(space, key, value, ttl)

    async def delete(self, space: str, key: str) -> bool:
        live = self._live(space, key) is not None
        self._remove(space, key)
        return live

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        old = self._live(space, key)
        value = change(old.value if old is not None else None)
        if value is None:
            self._remove(space, key)
        else:
            self._write(space, key, value, ttl)
        return value

    async def read_all(self, space: str, *, most: int) -> list[tuple[str, Stored]]:
        found = [(key, await self.get(space, key)) for key in (await self.keys(space))[-most:]]
        return [(key, stored) for key, stored in found if stored is not None]

    async def keys(self, space: str) -> list[str]:
        return [key for key in list(self._space(space)) if self._live(space, key) is not None]

    async def recent(self, space: str, *, limit: int, before: Place | None = None) -> list[Place]:
        found: list[Place] = []
        for key, stored in reversed(self._space(space).items()):
            if len(found) >= limit:
                break
            if (before is None or stored.version < before.stamp) and self._live(space, key) is not None:
                found.append(Place(stored.version, key))
        return found

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        values = self._space(space)
        expired = [key for key in values if self._live(space, key) is None]
        for key in expired:
            self._remove(space, key)
        total = sum(len(stored.value) for stored in values.values())
        removed = len(expired)
        while values and (len(values) > entries or total > size):
            key, stored = next(iter(values.items()))
            self._remove(space, key)
            total -= len(stored.value)
            removed += 1
        return removed

    def stamp(self, space: str) -> int:
        check_space(space)
        return self._stamps.get(space, 0)

    def stamp_of(self, space: str, key: str) -> int:
        check_key(key)
        stored = self._space(space).get(key)
        return 0 if stored is None else stored.version

    def uptime(self) -> SystemUptime:
        return uptime()

    def was_back_within(self, seconds: float) -> bool:
        return False

    def judge(self, listener: OnAvailability) -> bool:
        return False

    async def spaces(self) -> list[str]:
        return [space for space, values in self._spaces.items() if values]

    async def describe(self) -> dict[str, Any]:
        return {"persistence": "none", "warnings": ["state ends with the process"]}

    async def check(self, space: str) -> None:
        return None

    async def close(self) -> None:
        return None

    def _space(self, space: str) -> OrderedDict[str, Stored]:
        check_space(space)
        return self._spaces.setdefault(space, OrderedDict())

    def _live(self, space: str, key: str) -> Stored | None:
        check_key(key)
        stored = self._space(space).get(key)
        if stored is None or (stored.expires is not None and stored.expires <= self._clock()):
            return None
        return stored

    def _write(self, space: str, key: str, value: bytes, ttl: float | None) -> int:
        check_value(value)
        stored = Stored(value, next(self._versions), None if ttl is None else self._clock() + ttl)
        self._space(space)[key] = stored
        self._space(space).move_to_end(key)
        self._stamps[space] = stored.version
        return stored.version

    def _remove(self, space: str, key: str) -> None:
        if self._space(space).pop(key, None) is not None:
            self._stamps[space] = next(self._versions)
