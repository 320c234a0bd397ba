"""Writes whose callers were told that they failed: what is stored when the server can be reached again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from routecodex.stores.redis import undo_list
from routecodex.stores.redis.scripts import UNDO
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer
from tests.stores.redis.losing_proxy import LosingProxy
from tests.stores.redis.nodes import add_one, eventually, is_up, nodes, open_node, value_of

TIMEOUT = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis")
    yield running
    running.kill()


@pytest.mark.parametrize("before", [None, b"7"])
@pytest.mark.parametrize("how", ["update", "put", "delete"])
async def test_a_write_whose_answer_was_lost_is_undone(
    server: RedisServer, before: bytes | None, how: str
) -> None:
    with server.client() as redis:
        async with LosingProxy(server.port) as proxy:
            one = open_node(proxy.url, timeout=TIMEOUT)
            await one.put("health", "other", b"1")
            if before is not None:
                await one.put("health", "count", before, ttl=1000)
            assert await value_of(one, "health", "count") == before
            generation: Any = redis.get("routecodex:{health.0}:g")
            proxy.is_losing = True
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "update": lambda: one.update("health", "count", add_one),
                "put": lambda: one.put("health", "count", b"99"),
                "delete": lambda: one.delete("health", "count"),
            }
            with pytest.raises(StoreError):
                await calls[how]()
            if before is not None or how != "delete":
                assert redis.get("routecodex:{health.0}:g") != generation
            proxy.is_losing = False
            await eventually(lambda: is_up(one))
            stored = await one.get("health", "count")
            assert (None if stored is None else stored.value) == before
            if stored is not None:
                assert stored.expires is not None
            await one.close()


async def test_a_lost_write_is_undone_however_many_were_refused_after_it(server: RedisServer) -> None:
    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=TIMEOUT)
        await one.put("health", "count", b"7")
        proxy.is_losing = True
        with pytest.raises(StoreError):
            await one.update("health", "count", add_one)
        for number in range(undo_list.MOST):
            with pytest.raises(StoreError, match="the Redis store is down"):
                await one.put("responses", f"r-{number}", b"1")
        proxy.is_losing = False
        await eventually(lambda: is_up(one))
        assert await value_of(one, "health", "count") == b"7"
        await one.close()


async def test_a_lost_put_that_expects_a_version_is_undone_also_if_the_node_has_not_kept_the_value(
    server: RedisServer,
) -> None:
    large = b'"%b"' % (b"x" * 100_000)
    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=TIMEOUT)
        version = await one.put("conversations", "c-1", large)
        proxy.is_losing = True
        with pytest.raises(StoreError):
            await one.put("conversations", "c-1", b"1", expected=version)
        proxy.is_losing = False
        await eventually(lambda: is_up(one))
        assert await value_of(one, "conversations", "c-1") == large
        await one.close()


async def test_of_two_lost_puts_of_a_key_the_one_that_was_written_over_stays(server: RedisServer) -> None:
    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=TIMEOUT)
        await one.put("health", "count", b"7")
        proxy.is_losing = True
        puts = (one.put("health", "count", value) for value in (b"8", b"9"))
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert [isinstance(result, StoreError) for result in results] == [True, True]
        proxy.is_losing = False
        await eventually(lambda: is_up(one))
        assert await value_of(one, "health", "count") == b"8"
        await one.close()


async def test_a_key_that_is_no_value_any_more_keeps_no_other_write_from_being_undone(
    server: RedisServer,
) -> None:
    with server.client() as redis:
        async with LosingProxy(server.port) as proxy:
            one = open_node(proxy.url, timeout=TIMEOUT)
            await one.put("health", "count", b"7")
            proxy.is_losing = True
            writes = (one.update("health", "count", add_one), one.put("health", "later", b"1"))
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [isinstance(result, StoreError) for result in results] == [True, True]
            redis.set("routecodex:{health.0}:v:later", "a text")
            proxy.is_losing = False
            await eventually(lambda: is_up(one))
            assert await value_of(one, "health", "count") == b"7"
            assert redis.get("routecodex:{health.0}:v:later") == b"a text"
            await one.close()


async def test_calls_wait_until_the_lost_writes_are_undone(server: RedisServer) -> None:
    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=TIMEOUT)
        await one.put("health", "count", b"7")
        proxy.is_losing = True
        with pytest.raises(StoreError):
            await one.update("health", "count", add_one)
        proxy.swallows = UNDO.sha.encode()
        proxy.is_losing = False
        await eventually(lambda: proxy.swallowed > 1)
        assert not await is_up(one)
        proxy.swallows = b""
        await eventually(lambda: is_up(one))
        assert await value_of(one, "health", "count") == b"7"
        await one.close()


async def test_a_lost_write_that_others_have_written_over_stays(server: RedisServer) -> None:
    async with LosingProxy(server.port) as proxy, nodes(server.url, 1) as (other,):
        one = open_node(proxy.url, timeout=TIMEOUT)
        await one.put("health", "count", b"1")
        proxy.is_losing = True
        with pytest.raises(StoreError):
            await one.update("health", "count", add_one)
        assert await other.update("health", "count", add_one) == b"3"
        proxy.is_losing = False
        await eventually(lambda: is_up(one))
        assert await value_of(one, "health", "count") == b"3"
        await one.close()


async def test_a_write_that_arrives_after_its_undoing_is_not_carried_out(server: RedisServer) -> None:
    """The circuit opens for all calls at once: some have time left until their deadline."""
    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=3 * TIMEOUT)
        await one.put("health", "count", b"7")
        await asyncio.gather(*(one.get("health", f"other-{number}") for number in range(4)))
        proxy.is_holding = True
        first = asyncio.ensure_future(one.get("health", "other"))
        await asyncio.sleep(2 * TIMEOUT)
        writes = [one.update("health", "count", add_one), one.put("health", "new", b"1")]
        results = await asyncio.gather(first, *writes, return_exceptions=True)
        assert [type(result).__mro__[1] for result in results] == [StoreError] * 3
        proxy.is_holding = False
        await eventually(lambda: is_up(one))
        with server.client() as redis:
            # The mark of a key without a value ends by itself.
            assert cast(int, redis.pttl("routecodex:{health.0}:v:new")) > 0
        await proxy.release()
        assert await value_of(one, "health", "count") == b"7"
        assert await value_of(one, "health", "new") is None
        # The keys can be written as always.
        assert await one.update("health", "count", add_one) == b"8"
        assert await one.update("health", "new", add_one) == b"1"
        await one.close()
