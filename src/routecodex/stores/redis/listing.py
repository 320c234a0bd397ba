"""Lists and trims a space, stripe by stripe."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Sequence

from msgspec import Struct

from routecodex.stores.redis.key_names import KeyNames, Stripe
from routecodex.stores.redis.link import RedisLink
from routecodex.stores.redis.scripts import EXPIRE, LIST, OLDEST, REMOVE
from routecodex.stores.redis.stamp_table import StampTable
from routecodex.stores.store import Place

ALL = 1_000_000_000
_REMOVED_AT_ONCE = 100


class OldKey(Struct, frozen=True, order=True):
    """A key that may be deleted, the least recently written first."""

    version: int
    key: str
    size: int
    stripe_number: int


class RemovedKey(Struct, frozen=True):
    """A key that was deleted, and the generation of its stripe after that."""

    stripe: Stripe
    key: str
    generation: int


async def recent(
    link: RedisLink, table: StampTable, stripes: Sequence[Stripe], *, limit: int, before: Place | None
) -> list[Place]:
    """Return up to `limit` places of all stripes, the most recently written first."""
    if limit <= 0:
        return []
    era = table.era
    highest = "+inf" if before is None else str(before.stamp)
    # Keys of several stripes may have been written in the same microsecond: those at `before` come again.
    most = limit + (0 if before is None else len(stripes))
    replies = await asyncio.gather(
        *(link.run(LIST, stripe.lists, highest, most, writes=False) for stripe in stripes)
    )
    found: list[Place] = []
    for stripe, (generation, *rows) in zip(stripes, replies, strict=True):
        table.observe(stripe.space, stripe.number, int(generation), era=era)
        found += [
            Place(int(float(version)), key.decode())
            for key, version in zip(rows[::2], rows[1::2], strict=True)
        ]
    return heapq.nlargest(limit, (place for place in found if before is None or place < before))


async def trim(
    link: RedisLink, names: KeyNames, space: str, *, entries: int, size: int, writer: str
) -> tuple[int, list[RemovedKey]]:
    """Delete expired keys, then the oldest until both limits hold.

    Return how many, and those of them that had not expired, as far as it is known which were deleted.
    """
    stripes = names.stripes(space)
    tallies = await asyncio.gather(*(_expire(link, stripe) for stripe in stripes))
    deleted = sum(gone for gone, _, _ in tallies)
    number, total = sum(one for _, one, _ in tallies), sum(one for _, _, one in tallies)
    removed: list[RemovedKey] = []
    while number > entries or (total > size and number):
        oldest = await _oldest(link, stripes)
        chosen = _surplus(oldest, number - entries, total - size)
        if not chosen:
            break
        for stripe in stripes:
            keys = [one for one in chosen if one.stripe_number == stripe.number]
            if keys:
                count, found = await _remove(link, names, stripe, keys, writer=writer)
                deleted += count
                removed += found
        number -= len(chosen)
        total -= sum(one.size for one in chosen)
    return deleted, removed


async def _expire(link: RedisLink, stripe: Stripe) -> tuple[int, int, int]:
    gone = 0
    while True:
        count, number, total = await link.run(EXPIRE, stripe.lists, writes=True)
        gone += count
        if count < 200:
            return gone, number, total


async def _oldest(link: RedisLink, stripes: Iterable[Stripe]) -> list[OldKey]:
    found: list[OldKey] = []
    for stripe in stripes:
        rows = await link.run(OLDEST, stripe.lists, _REMOVED_AT_ONCE, writes=False)
        found += [OldKey(int(float(row[1])), row[0].decode(), int(row[2]), stripe.number) for row in rows]
    return heapq.nsmallest(_REMOVED_AT_ONCE, found)


def _surplus(oldest: Iterable[OldKey], number: int, size: int) -> list[OldKey]:
    """Return the oldest keys that are too many, or take too much room."""
    chosen: list[OldKey] = []
    for one in oldest:
        if number <= 0 and size <= 0:
            break
        chosen.append(one)
        number -= 1
        size -= one.size
    return chosen


async def _remove(
    link: RedisLink, names: KeyNames, stripe: Stripe, keys: Sequence[OldKey], *, writer: str
) -> tuple[int, list[RemovedKey]]:
    values = [stripe.value(one.key) for one in keys]
    pairs = [text for one in keys for text in (one.key, str(one.version))]
    count, generation = await link.run(
        REMOVE, (*stripe.lists, *values), names.channel, stripe.place, writer, *pairs, writes=True
    )
    if count < len(keys):
        # Somebody has written some of them meanwhile: the messages tell which.
        return count, []
    return count, [RemovedKey(stripe, one.key, int(generation)) for one in keys]
