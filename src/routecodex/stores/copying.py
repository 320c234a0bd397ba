"""Copies values from one store to another."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from routecodex.stores.store import Conflict, DamagedValue, Store, StoreError

LEFT_OUT = frozenset({"servers", "health.probes", "console"})
"""Spaces that belong to running processes: the registry, leases, logins."""
SPACES = frozenset(
    {
        *("budgets", "client-use", "clients", "clock", "health", "makers", "models", "pairs", "responses"),
        *("responses.items", "server", "sessions", "thoughts", "tools", "vision"),
    }
)
"""Spaces of a gateway that are copied. One that has no values yet is not in the store."""


class KeyExists(Exception):
    """The target has a key that would be overwritten; nothing was copied."""

    def __init__(self, space: str, key: str) -> None:
        super().__init__(f"{space}/{key[:80]!r}")
        self.space = space
        self.key = key


class UnknownSpaces(Exception):
    """The source has no such spaces, or they are never copied; nothing was copied."""

    def __init__(self, missing: Sequence[str], found: Sequence[str]) -> None:
        super().__init__(", ".join(map(repr, missing)))
        self.missing = missing
        self.found = found


class DamagedValues(Exception):
    """The source has values that cannot be read; nothing was copied."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class CopyInterrupted(Exception):
    """The copy failed after its first value; `copied` is the number of values that the target has got."""

    def __init__(self, copied: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.copied = copied


async def copy_store(
    source: Store,
    target: Store,
    *,
    spaces: Collection[str] | None = None,
    replace: bool = False,
    clock: Callable[[], float] = time.time,
) -> dict[str, int]:
    """Copy values with their expiry, and return how many of each space; versions are made anew.

    Every value is read before the first one is written. Without `replace`, a key that the target has already
    is a KeyExists. A target that cannot be reached is a StoreError, even if there is nothing to copy.
    """
    await target.spaces()
    found = sorted(set(await source.spaces()) - LEFT_OUT)
    missing = sorted(set(spaces or ()) - set(found) - SPACES)
    if missing:
        raise UnknownSpaces(missing, found)
    keys = {space: await source.keys(space) for space in found if spaces is None or space in spaces}
    if not replace:
        await _require_absent(target, keys)
    await _require_readable(source, keys)
    return await _copy_values(source, target, keys, replace=replace, now=clock)


async def _require_absent(target: Store, keys: Mapping[str, Iterable[str]]) -> None:
    for space, names in keys.items():
        taken = set(await target.keys(space)) & set(names)
        if taken:
            raise KeyExists(space, min(taken))


async def _require_readable(source: Store, keys: Mapping[str, Iterable[str]]) -> None:
    """Read every value, one after the other: all of them may be more than fits into memory."""
    problems: list[str] = []
    for space, names in keys.items():
        for key in names:
            try:
                await source.get_intact(space, key)
            except DamagedValue as exc:
                problems.append(str(exc))
    if problems:
        raise DamagedValues(problems)


async def _copy_values(
    source: Store,
    target: Store,
    keys: Mapping[str, Iterable[str]],
    *,
    replace: bool,
    now: Callable[[], float],
) -> dict[str, int]:
    counts: dict[str, int] = {}
    for space, names in keys.items():
        for key in names:
            try:
                copied = await _copy_value(source, target, space, key, replace=replace, now=now)
            except (KeyExists, StoreError) as exc:
                if not counts:
                    raise
                raise CopyInterrupted(sum(counts.values()), exc) from exc
            if copied:
                counts[space] = counts.get(space, 0) + 1
    return counts


async def _copy_value(
    source: Store, target: Store, space: str, key: str, *, replace: bool, now: Callable[[], float]
) -> bool:
    stored = await source.get_intact(space, key)
    if stored is None:
        return False
    ttl = None if stored.expires is None else stored.expires - now()
    if ttl is not None and ttl <= 0:
        return False
    try:
        await target.put(space, key, stored.value, ttl=ttl, expected=None if replace else 0)
    except Conflict as exc:
        raise KeyExists(space, key) from exc
    return True
