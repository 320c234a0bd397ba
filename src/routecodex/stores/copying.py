"""Copies values from one store to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from routecodex.stores.store import Conflict, Store

LEFT_OUT = frozenset({"servers", "health.probes", "console"})
"""Spaces that belong to running processes: the registry, leases, logins."""


class KeyExists(Exception):
    """The target has a key that would be overwritten; nothing was copied."""

    def __init__(self, space: str, key: str) -> None:
        super().__init__(f"{space}/{key[:80]!r}")
        self.space = space
        self.key = key


async def copy_store(
    source: Store,
    target: Store,
    *,
    spaces: Collection[str] | None = None,
    replace: bool = False,
    clock: Callable[[], float] = time.time,
) -> dict[str, int]:
    """Copy values with their expiry, and return how many of each space; versions are made anew.

    Without `replace`, a key that the target has already is a KeyExists, and nothing is copied. A target that
    cannot be reached is a StoreError, even if there is nothing to copy.
    """
    await target.spaces()
    found = sorted(set(await source.spaces()) - LEFT_OUT)
    chosen = [space for space in found if spaces is None or space in spaces]
    keys = {space: await source.keys(space) for space in chosen}
    if not replace:
        for space in chosen:
            taken = set(await target.keys(space)) & set(keys[space])
            if taken:
                raise KeyExists(space, min(taken))
    counts: dict[str, int] = {}
    for space, names in keys.items():
        counts[space] = 0
        for key in names:
            counts[space] += await _copy_value(source, target, space, key, replace=replace, now=clock)
    return {space: count for space, count in counts.items() if count}


async def _copy_value(
    source: Store, target: Store, space: str, key: str, *, replace: bool, now: Callable[[], float]
) -> int:
    stored = await source.get_intact(space, key)
    if stored is None:
        return 0
    ttl = None if stored.expires is None else stored.expires - now()
    if ttl is not None and ttl <= 0:
        return 0
    try:
        await target.put(space, key, stored.value, ttl=ttl, expected=None if replace else 0)
    except Conflict as exc:
        raise KeyExists(space, key) from exc
    return 1
