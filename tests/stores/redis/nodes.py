"""Stores of several processes on one server, as a test drives them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from routecodex.canon.store_url import parse_redis_url
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import StoreError

PATIENCE = 20.0


def open_node(url: str, *, timeout: float = 5.0, **settings: object) -> RedisStore:
    return RedisStore(
        msgspec.structs.replace(RedisOptions(address=parse_redis_url(url), timeout=timeout), **settings)
    )


@contextlib.asynccontextmanager
async def nodes(
    url: str, count: int, *, timeout: float = 5.0, **settings: object
) -> AsyncIterator[list[RedisStore]]:
    """Open stores that are connected; they are closed at the end."""
    opened = [open_node(url, timeout=timeout, **settings) for _ in range(count)]
    try:
        for one in opened:
            await one.get("sessions", "first")
        yield opened
    finally:
        for one in opened:
            await one.close()


async def eventually(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while True:
            result = condition()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.01)


def add_one(value: bytes | None) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value or b"0", type=int) + 1)


async def value_of(store: RedisStore, space: str, key: str) -> bytes | None:
    stored = await store.get(space, key)
    return None if stored is None else stored.value


async def is_up(store: RedisStore) -> bool:
    try:
        await store.check("sessions")
    except StoreError:
        return False
    return True
