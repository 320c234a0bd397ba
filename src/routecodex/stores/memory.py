"""A store that lives as long as the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from routecodex.stores.store import Change, Conflict, Stored


class MemoryStore:
    """Values in dictionaries, in the order they were written."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._spaces: dict[str, OrderedDict[str, Stored]] = {}
        self._clock = clock

    def _space(self, space: str) -> OrderedDict[str, Stored]:
        return self._spaces.setdefault(space, OrderedDict())

    def _live(self, space: str, key: str) -> Stored | None:
        stored = self._space(space).get(key)
        if stored is None or (stored.expires is not None and stored.expires <= self._clock()):
            return None
        return stored

    def _write(self, space: str, key: str, value: bytes, ttl: float | None) -> int:
        old = self._live(space, key)
        version = (old.version if old is not None else 0) + 1
        expires = None if ttl is None else self._clock() + ttl
        self._space(space)[key] = Stored(value, version, expires)
        self._space(space).move_to_end(key)
        return version

    async def get(self, space: str, key: str) -> Stored | None:
        return self._live(space, key)

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        old = self._live(space, key)
        if expected is not None and expected != (old.version if old is not None else 0):
            raise Conflict(f"{space}/{key} changed meanwhile")
        return self._write(space, key, value, ttl)

    async def delete(self, space: str, key: str) -> bool:
        live = self._live(space, key) is not None
        self._space(space).pop(key, None)
        return live

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        old = self._live(space, key)
        value = change(old.value if old is not None else None)
        if value is None:
            self._space(space).pop(key, None)
        else:
            self._write(space, key, value, ttl)
        return value

    async def keys(self, space: str) -> list[str]:
        return [key for key in list(self._space(space)) if self._live(space, key) is not None]

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        values = self._space(space)
        doomed = [key for key in values if self._live(space, key) is None]
        for key in doomed:
            del values[key]
        total = sum(len(stored.value) for stored in values.values())
        gone = len(doomed)
        while values and (len(values) > entries or total > size):
            _, stored = values.popitem(last=False)
            total -= len(stored.value)
            gone += 1
        return gone

    async def close(self) -> None:
        return None
