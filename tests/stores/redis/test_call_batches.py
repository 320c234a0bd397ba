"""Calls that share a connection: one system call, and nothing else in common."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from routecodex.stores.redis.call_batches import CallBatches, CallLate, pack_command
from tests.kit.redis_server import RedisServer
from tests.stores.redis.nodes import PATIENCE, eventually

MOST = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis")
    yield running
    running.thaw()
    running.kill()


@pytest.fixture
async def batches(server: RedisServer) -> AsyncIterator[CallBatches]:
    client = Redis(host=server.host, port=server.port, protocol=2, max_connections=4)
    yield CallBatches(client, timeout=10, most=MOST)
    await client.aclose()


def test_a_command_is_an_array_of_strings() -> None:
    assert pack_command(["SET", "k", b"\r\n", 7, "ü"]) == (
        b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n$1\r\n7\r\n$2\r\n\xc3\xbc\r\n"
    )


async def test_calls_of_one_turn_are_sent_together_and_answered_in_order(
    server: RedisServer, batches: CallBatches
) -> None:
    await batches.call("PING")
    with server.client() as client:
        before: Any = client.info("stats")
        found = await asyncio.gather(*(batches.call("INCR", "count") for _ in range(50)))
        after: Any = client.info("stats")
    assert found == list(range(1, 51))
    # All commands, and the question for the figures.
    assert after["total_reads_processed"] - before["total_reads_processed"] == 2


async def test_an_error_is_told_to_its_own_caller_alone(batches: CallBatches) -> None:
    calls = [("SET", "k", "1"), ("LPUSH", "k", "2"), ("GET", "k")]
    first, wrong, last = await asyncio.gather(*(batches.call(*one) for one in calls), return_exceptions=True)
    assert (first, last) == (b"OK", b"1")
    assert isinstance(wrong, ResponseError)


async def test_a_caller_that_leaves_takes_no_reply_of_another(
    server: RedisServer, batches: CallBatches
) -> None:
    await batches.call("SET", "k", "1")
    server.freeze()
    gone, stays = (asyncio.ensure_future(batches.call("GET", key)) for key in ("other", "k"))
    await asyncio.sleep(0.01)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    server.thaw()
    assert await stays == b"1"
    assert await batches.call("GET", "other") is None


async def test_a_connection_for_which_nobody_waits_is_dropped(
    server: RedisServer, batches: CallBatches
) -> None:
    await batches.call("SET", "k", "1")
    server.freeze()
    # More than the pool has connections: each turn takes one.
    for _ in range(6):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batches.call("GET", "k"), 0.02)
    server.thaw()
    assert await batches.call("GET", "k") == b"1"


async def test_calls_wait_for_a_connection_together_while_the_most_are_under_way(
    server: RedisServer, batches: CallBatches
) -> None:
    await batches.call("SET", "k", "1")
    with server.client() as client:
        server.freeze()
        calls = []
        for _ in range(30):
            calls.append(asyncio.ensure_future(batches.call("INCR", "k")))
            await asyncio.sleep(0.001)
        server.thaw()
        assert sorted(await asyncio.gather(*calls)) == list(range(2, 32))
        found: Any = client.info("clients")
    # The most, which wait for it, and this one.
    assert found["connected_clients"] <= MOST + 1


async def test_a_call_is_late_at_its_limit_and_others_are_not(server: RedisServer) -> None:
    client = Redis(host=server.host, port=server.port, protocol=2, max_connections=4)
    batches = CallBatches(client, timeout=0.05, most=MOST)
    await batches.call("SET", "k", "1")
    server.freeze()
    found = await asyncio.gather(*(batches.call("GET", "k") for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [CallLate] * 3
    server.thaw()
    assert await batches.call("GET", "k") == b"1"
    await client.aclose()


async def test_a_call_does_not_join_calls_that_are_late_already(server: RedisServer) -> None:
    """A process that was stopped or busy finds several batches late at once, one of them not sent."""
    client = Redis(host=server.host, port=server.port, protocol=2, max_connections=4)
    batches = CallBatches(client, timeout=0.1, most=1)
    await batches.call("PING")
    late: list[str] = []

    async def call(name: str) -> None:
        with pytest.raises(CallLate):
            await batches.call("PING")
        late.append(name)

    async def call_twice() -> None:
        await call("not sent")
        await call("sent again")

    with server.frozen():
        under_way = asyncio.ensure_future(call("sent"))
        await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(call_twice())
        await asyncio.sleep(0.01)
        time.sleep(0.2)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(under_way, waiting)
    assert late == ["sent", "not sent", "sent again"]
    await client.aclose()


async def test_all_callers_are_told_when_the_connection_is_lost(
    server: RedisServer, batches: CallBatches
) -> None:
    await batches.call("SET", "k", "1")
    server.freeze()
    calls = [asyncio.ensure_future(batches.call("GET", "k")) for _ in range(3)]
    await asyncio.sleep(0.01)
    server.kill()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [RedisConnectionError] * 3
    server.start()

    async def works() -> bool:
        try:
            return await batches.call("GET", "k") is None
        except RedisConnectionError:
            return False

    await eventually(works)
