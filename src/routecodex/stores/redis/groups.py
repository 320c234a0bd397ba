"""Changes several values of one space in one atomic step, or none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from routecodex.stores.redis.failures import StoreGone
from routecodex.stores.redis.key_names import KeyNames, Stripe
from routecodex.stores.redis.link import RedisLink
from routecodex.stores.redis.scripts import LIST, READ_MANY, WRITE_MANY
from routecodex.stores.store import DamagedValue, GroupChange, StoreError

MOST_TRIES = 64
_LONGEST_PAUSE = 0.05
_MOST_SEEN = 10_000
_READ_AT_ONCE = 200
_MOSTLY_WRONG, _JUDGED = 0.5, 16
"""Share of wrong guesses from which on values are read first, and the number of guesses that count for it."""

T = TypeVar("T")


class RedisGroups:
    """Changes groups of values; what was last seen of them is the first guess of the next change.

    All values of a group are in one stripe, so the space must have a single one. Counts change with every
    request: to tell every process of each would cost them more than the requests.
    """

    def __init__(self, link: RedisLink, names: KeyNames, *, jitter: Callable[[], float]) -> None:
        self._link = link
        self._names = names
        self._jitter = jitter
        self._seen: dict[str, tuple[bytes | None, str]] = {}
        self._wrong = 0.0
        """Share of the last guesses that were wrong."""
        self._lock = asyncio.Lock()

    async def update(
        self, space: str, keys: Sequence[str], change: GroupChange[T], *, id: str, ttl: float
    ) -> T:
        """Apply the change; one change of this process runs at a time."""
        async with self._lock:
            return await self._update(self._names.stripes(space)[0], keys, change, id=id, ttl=ttl)

    async def _update(
        self, stripe: Stripe, keys: Sequence[str], change: GroupChange[T], *, id: str, ttl: float
    ) -> T:
        await self._link.start()
        names = [stripe.value(key) for key in keys]
        guess = [self._seen[name] for name in names if name in self._seen]
        is_guess = len(guess) == len(names) and self._wrong < _MOSTLY_WRONG
        old = guess if is_guess else await self._read(stripe, names)
        if not is_guess and len(guess) == len(names):
            self._judge(was_right=guess == old)
        for attempt in range(MOST_TRIES):
            values, result = change([value for value, _ in old])
            if values is None and is_guess:
                # What was seen last may be out of date, and the change has found nothing to write.
                old, is_guess = await self._read(stripe, names), False
                continue
            if values is None:
                return result
            found = await self._write(stripe, keys, old, values, id=id, ttl=ttl)
            if is_guess:
                self._judge(was_right=found is None)
            if found is None:
                return result
            old, is_guess = found, False
            if attempt % 2:
                # Only then: what was returned before a pause is out of date after it.
                await asyncio.sleep(self._jitter() * min(0.001 * 2.0**attempt, _LONGEST_PAUSE))
        raise StoreError(f"{stripe.space} was changed by others {MOST_TRIES} times; try again")

    def _judge(self, *, was_right: bool) -> None:
        """Note whether the values seen last were those stored: others may write them more often."""
        self._wrong += (float(not was_right) - self._wrong) / _JUDGED

    async def generation(self, space: str) -> int:
        """Return the generation of the space: one more with every change of a group."""
        await self._link.start()
        [found] = await self._link.generations([self._names.stripes(space)[0].generation])
        return found

    async def values(self, space: str, *, most: int) -> dict[str, bytes]:
        """Return the values in two round trips for every 200 of them."""
        stripe = self._names.stripes(space)[0]
        _, *rows = await self._link.run(LIST, stripe.lists, "+inf", most, writes=False)
        keys: list[bytes] = rows[::2]
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), _READ_AT_ONCE):
            part = [key.decode() for key in keys[start : start + _READ_AT_ONCE]]
            names = (stripe.generation, *map(stripe.value, part))
            _, *stored = await self._link.run(READ_MANY, names, writes=False)
            found |= {key: row[0] for key, row in zip(part, stored, strict=True) if row[0] is not None}
        return found

    def forget(self) -> None:
        """Forget what was seen."""
        self._seen.clear()

    async def _read(self, stripe: Stripe, names: Sequence[str]) -> list[tuple[bytes | None, str]]:
        _, *rows = await self._link.run(READ_MANY, (stripe.generation, *names), writes=False)
        return self._note(names, [(row[0], _version(row)) for row in rows])

    async def _write(
        self,
        stripe: Stripe,
        keys: Sequence[str],
        old: Sequence[tuple[bytes | None, str]],
        values: Sequence[bytes],
        *,
        id: str,
        ttl: float,
    ) -> list[tuple[bytes | None, str]] | None:
        """Write the values; return what is stored if that is another than was expected."""
        names = [stripe.value(key) for key in keys]
        rows: list[Any] = []
        for key, (_, version), value in zip(keys, old, values, strict=True):
            rows += [key, version, max(1, round(ttl * 1000)), value]
        for _ in range(2):
            reply = await self._link.run(
                WRITE_MANY,
                (*stripe.lists, *names),
                id,
                f"{self._link.deadline_us():.0f}",
                *rows,
                writes=True,
                replicas=self._link.options.wait_replicas,
            )
            if reply[0] == b"late":
                self._link.correct_clock(float(reply[1]))
                continue
            if reply[0] == b"differs":
                return self._note(names, [(row[0], _version(row)) for row in reply[1:]])
            if reply[0] == b"ok":
                versions = [version.decode() for version in reply[1:]]
                self._note(names, list(zip(values, versions, strict=True)))
            return None
        raise StoreGone("the clock of Redis runs away")

    def _note(
        self, names: Sequence[str], rows: list[tuple[bytes | None, str]]
    ) -> list[tuple[bytes | None, str]]:
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self._seen.update(zip(names, rows, strict=True))
        return rows


def _version(row: Sequence[Any]) -> str:
    if row[0] is None:
        return "0"
    if row[1] is None:
        raise DamagedValue("a value has no version: it was not written by a gateway")
    return str(row[1].decode())
