"""Measures what a call of the store costs Redis and its client: a real server, started for it and ended."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.accounting import cpu_seconds
from bench.peers import system_redis
from bench.ports import free_port
from routecodex.accounting.counters import LimitReservation
from routecodex.accounting.limits import Limit, make_limits
from routecodex.accounting.stored_counters import StoredCounters
from routecodex.config import LimitConfig
from routecodex.stores.store import Store

if TYPE_CHECKING:
    from routecodex.stores.redis.store import RedisStore

_WRITERS = 16
_CALLS = 320 * _WRITERS
_PATIENCE = 10.0
_PUBLICATIONS = 1_000
_SUBSCRIBERS = 50
# Never reached; the same as those of the cell redisbudget16.
_LIMITS = ("$1M/month", "1000M requests/60s", "1000000M tokens/60s")


@dataclass(frozen=True, kw_only=True)
class CallCosts:
    """Microseconds of CPU time of a call or several, at their sender and at Redis."""

    client_us: float
    server_us: float


@dataclass(frozen=True, kw_only=True)
class StoreCosts:
    """Costs of a change of a session, of the limits of a request, of a message to one subscriber at Redis.

    Sixteen requests at a time. Each has three limits, and takes a step to reserve and one to settle. They are
    those of eight clients, at two processes that count in the same limits.
    """

    change: CallCosts
    limits: CallCosts
    message_us: float


def measure_store() -> StoreCosts:
    """Start a Redis, measure and end it."""
    with started_redis() as (port, server):
        return asyncio.run(_measure(port, server))


@contextmanager
def started_redis(*, keeps: bool = False) -> Iterator[tuple[int, int]]:
    """Start a Redis, which keeps its data on disk if told so; return its port and process id."""
    program, port = system_redis(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        command += ["--appendonly", "yes" if keeps else "no"]
        with (Path(folder) / "log").open("w") as log, subprocess.Popen(command, stdout=log) as process:
            try:
                yield port, process.pid
            finally:
                process.terminate()


def own_cpu() -> float:
    """Return the CPU seconds of this process, to the microsecond; /proc has ticks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _measure(port: int, server: int) -> StoreCosts:
    # Imported here: redis is an extra.
    from redis.asyncio import Redis

    from routecodex.canon.store_url import parse_redis_url
    from routecodex.stores.redis.options import RedisOptions
    from routecodex.stores.redis.store import RedisStore

    client: Any = Redis(host="127.0.0.1", port=port)
    await reachable(client)
    address = parse_redis_url(f"redis://127.0.0.1:{port}")
    stores = [RedisStore(RedisOptions(address=address, timeout=_PATIENCE)) for _ in range(2)]
    change = await _cost(lambda writer: _change(stores[0], writer), server)
    limited = await _limits_cost(stores, server)
    for store in stores:
        await store.close()
    message_us = await _message_us(client, port, server)
    await client.aclose()
    return StoreCosts(change=change, limits=limited, message_us=message_us)


async def _limits_cost(stores: Sequence[RedisStore], server: int) -> CallCosts:
    """Return what the limits of a request cost: each client is counted by two processes at a time."""
    counters = [
        StoredCounters(store, store.groups, node=lambda: "bench", works=lambda: True) for store in stores
    ]
    texts = [LimitConfig(limit=text) for text in _LIMITS]
    clients = [make_limits(f"client:{number}", texts, concurrent=None) for number in range(_WRITERS // 2)]
    cost = await _cost(lambda writer: _count(counters[writer % 2], clients[writer // 2]), server)
    for one in counters:
        await one.flush()
        one.close()
    return cost


async def _cost(write: Callable[[int], Awaitable[None]], server: int) -> CallCosts:
    """Return what one of the `_CALLS` of all writers costs."""
    await write(0)
    server_before, own_before = cpu_seconds([server]), own_cpu()
    await asyncio.gather(*(write(number) for number in range(_WRITERS)))
    server_seconds, own_seconds = cpu_seconds([server]) - server_before, own_cpu() - own_before
    return CallCosts(client_us=own_seconds / _CALLS * 1e6, server_us=server_seconds / _CALLS * 1e6)


async def _count(counters: StoredCounters, limits: Sequence[Limit]) -> None:
    """Reserve and settle, one request after the other."""
    for _ in range(_CALLS // _WRITERS):
        reserved = await counters.reserve(limits, [1] * len(limits), 0)
        assert isinstance(reserved, LimitReservation)
        counters.settle(reserved, [1] * len(limits), 0)


async def _change(store: Store, writer: int) -> None:
    """Change values of sessions, one after the other."""
    value = b'"%b"' % (b"x" * 300)
    for number in range(_CALLS // _WRITERS):
        await store.update("sessions", f"s-{writer}-{number % 30}", lambda _: value, ttl=86_400)


async def reachable(client: Any) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(OSError, Exception):
            await client.ping()
            return
        if time.monotonic() > until:
            raise SystemExit("redis-server does not answer")
        await asyncio.sleep(0.02)


async def _message_us(client: Any, port: int, server: int) -> float:
    """Return what one message to one subscriber costs Redis; the subscribers only read."""
    readers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_SUBSCRIBERS)]
    for reader, writer in readers:
        writer.write(b"SUBSCRIBE changes\r\n")
        await reader.read(200)
    drains = [asyncio.create_task(_drain(reader)) for reader, _ in readers]
    before = cpu_seconds([server])
    for _ in range(_PUBLICATIONS):
        await client.publish("changes", "x" * 80)
    spent = cpu_seconds([server]) - before
    for drain in drains:
        drain.cancel()
    for _, writer in readers:
        writer.close()
    return spent / (_PUBLICATIONS * _SUBSCRIBERS) * 1e6


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass
