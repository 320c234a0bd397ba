"""Measures what a call of the store costs Redis and its client: a real server, started for it and ended."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.accounting import cpu_seconds
from bench.peers import system_redis
from bench.ports import free_port

_CALLS = 5_000
_PUBLICATIONS = 1_000
_SUBSCRIBERS = 50

_COMPARE_AND_SET = """
local version = redis.call('HGET', KEYS[1], 'n')
if version and version ~= ARGV[1] then return {0, version} end
local next = (tonumber(version) or 0) + 1
redis.call('HSET', KEYS[1], 'd', ARGV[2], 'n', next)
redis.call('PEXPIRE', KEYS[1], 86400000)
redis.call('ZADD', KEYS[2], next, KEYS[1])
local generation = redis.call('INCR', KEYS[3])
redis.call('PUBLISH', 'changes', 'sessions 3 ' .. generation .. ' ' .. KEYS[1] .. ' ' .. next)
return {1, next}
"""
"""A change of one value, of the shape of the store's scripts."""


@dataclass(frozen=True, kw_only=True)
class StoreCosts:
    """Microseconds of CPU time: a change at the client and at Redis, a message to one subscriber at Redis."""

    client_us: float
    server_us: float
    message_us: float


def measure_store() -> StoreCosts:
    """Start a Redis, measure and end it."""
    with _redis() as (port, server):
        return asyncio.run(_measure(port, server))


@contextmanager
def _redis() -> Iterator[tuple[int, int]]:
    program, port = system_redis(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        with (Path(folder) / "log").open("w") as log, subprocess.Popen(command, stdout=log) as process:
            try:
                yield port, process.pid
            finally:
                process.terminate()


def _own_cpu() -> float:
    # Of this process, in microseconds; /proc has ticks.
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _measure(port: int, server: int) -> StoreCosts:
    # Imported here: redis is an extra.
    from redis.asyncio import Redis

    client: Any = Redis(host="127.0.0.1", port=port)
    await _reachable(client)
    script = client.register_script(_COMPARE_AND_SET)
    await script(keys=["v:0", "i", "g"], args=["", "x" * 300])
    server_before, own_before = cpu_seconds([server]), _own_cpu()
    for number in range(_CALLS):
        await script(
            keys=[f"v:{number % 500}", "i", "g"], args=[str(number // 500 + (number % 500 == 0)), "x" * 300]
        )
    server_us = (cpu_seconds([server]) - server_before) / _CALLS * 1e6
    client_us = (_own_cpu() - own_before) / _CALLS * 1e6
    message_us = await _message_us(client, port, server)
    await client.aclose()
    return StoreCosts(client_us=client_us, server_us=server_us, message_us=message_us)


async def _reachable(client: Any) -> None:
    until = time.monotonic() + 10
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
