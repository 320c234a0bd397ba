"""Measures writes of both stores, without a gateway: `python -m bench.store_writes`.

Each call changes another session, as the first instruction of a session does. One at a time shows what a
caller waits; 32 at once what a process carries.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import msgspec

from bench import page
from bench.store_costs import own_cpu, reachable, started_redis
from routecodex.stores.file import FileStore
from routecodex.stores.store import Store

AT_ONCE = (1, 32)
ROUNDS = 3
_CALLS = 3_200
_VALUE = b'"%b"' % (b"x" * 300)
_PATIENCE = 10.0


class StoreWrites(msgspec.Struct, frozen=True):
    """Writes of one store, so many at once: a second, and microseconds of CPU time of the caller for each."""

    store: str
    at_once: int
    rate: float
    cpu_us: float


def measure_writes() -> list[StoreWrites]:
    """Write to files and to a Redis that is started for it, in turns; return the medians."""
    taken: list[StoreWrites] = []
    with started_redis(keeps=True) as (port, _):
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                taken += asyncio.run(_round(port, Path(folder)))
    return [_median(taken, store, at_once) for store in ("file", "redis") for at_once in AT_ONCE]


def ratio(writes: Sequence[StoreWrites], at_once: int) -> float:
    """Return the rate of Redis as a multiple of that of files."""
    rates = {one.store: one.rate for one in writes if one.at_once == at_once}
    return rates["redis"] / rates["file"]


def _median(taken: Sequence[StoreWrites], store: str, at_once: int) -> StoreWrites:
    rows = [one for one in taken if (one.store, one.at_once) == (store, at_once)]
    rate, cpu_us = (statistics.median(getattr(one, name) for one in rows) for name in ("rate", "cpu_us"))
    return StoreWrites(store, at_once, rate, cpu_us)


async def _round(port: int, folder: Path) -> list[StoreWrites]:
    # Imported here: redis is an extra.
    from redis.asyncio import Redis

    from routecodex.canon.store_url import parse_redis_url
    from routecodex.stores.redis.options import RedisOptions
    from routecodex.stores.redis.store import RedisStore

    client = Redis(host="127.0.0.1", port=port)
    await reachable(client)
    await client.flushall()
    await client.aclose()
    address = parse_redis_url(f"redis://127.0.0.1:{port}")
    stores: list[Store] = [FileStore(folder), RedisStore(RedisOptions(address=address, timeout=_PATIENCE))]
    numbers = count()
    found = [await _write(store, at_once, numbers) for store in stores for at_once in AT_ONCE]
    for store in stores:
        await store.close()
    return found


async def _write(store: Store, at_once: int, numbers: count[int]) -> StoreWrites:
    calls = _CALLS // (1 if at_once > 1 else 8)

    async def writer() -> None:
        for _ in range(calls // at_once):
            await store.update("sessions", f"s-{next(numbers)}", lambda _: _VALUE, ttl=86_400)

    await writer()
    cpu, began = own_cpu(), time.monotonic()
    await asyncio.gather(*(writer() for _ in range(at_once)))
    made = calls // at_once * at_once
    seconds = time.monotonic() - began
    return StoreWrites(store.kind, at_once, made / seconds, (own_cpu() - cpu) / made * 1e6)


def main() -> None:
    """Print the figures."""
    writes = measure_writes()
    rows = [[one.store, str(one.at_once), f"{one.rate:,.0f}", f"{one.cpu_us:.0f}"] for one in writes]
    print(page.aligned(["store", "at once", "writes/s", "µs CPU"], rows))
    print("\n".join(f"{at_once} at once: {ratio(writes, at_once):.3g} × files" for at_once in AT_ONCE))


if __name__ == "__main__":
    main()
