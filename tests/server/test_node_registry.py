"""The row of a node: its address, and when it is written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from routecodex.canon.store_url import HostPort, parse_redis_url
from routecodex.config import Config, ServerConfig, StoreConfig
from routecodex.server.node_registry import (
    SPACE,
    FoundNode,
    NodeRegistry,
    advertised_url,
    own_address_towards,
    read_nodes,
)
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer
from tests.stores.redis.nodes import eventually, open_node


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (ServerConfig(host="10.0.0.7"), "http://10.0.0.7:5520"),
        (ServerConfig(host="::1"), "http://[::1]:5520"),
        (ServerConfig(host="gw-1.internal"), "http://gw-1.internal:5520"),
        (ServerConfig(host="0.0.0.0"), "http://192.0.2.9:5520"),
        (ServerConfig(host="::"), "http://[2001:db8::9]:5520"),
        (ServerConfig(host="0.0.0.0", advertise_url="https://gw-1.example"), "https://gw-1.example"),
    ],
)
def test_a_node_advertises_its_host_or_its_own_address(server: ServerConfig, url: str) -> None:
    own = {socket.AF_INET: "192.0.2.9", socket.AF_INET6: "2001:db8::9"}
    assert advertised_url(Config(server=server), 5520, own_address=own.__getitem__) == url


@pytest.mark.parametrize("hosts", ["nowhere.invalid,127.0.0.1", "[::1]", "localhost"])
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_its_own_address_is_the_one_from_which_it_reaches_the_store(
    hosts: str, family: socket.AddressFamily, address: str
) -> None:
    assert own_address_towards(parse_redis_url(f"redis+sentinel://{hosts}/main").hosts, family) == address


def test_its_own_address_is_one_where_it_accepts_connections_wherever_the_store_is() -> None:
    hosts = parse_redis_url("redis://[2001:db8::7]").hosts
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = own_address_towards(hosts, socket.AF_INET)
        with socket.create_connection((address, server.getsockname()[1]), timeout=5) as client:
            accepted, peer = server.accept()
            accepted.close()
            assert client.getsockname() == peer


async def test_an_address_that_takes_long_to_find_holds_nothing_up(redis: RedisServer) -> None:
    found = threading.Event()

    def own_address(hosts: Sequence[HostPort], family: socket.AddressFamily) -> str:
        found.wait(20)
        return "192.0.2.9"

    store = MonitoredStore(open_node(redis.url))
    config = Config(
        server=ServerConfig(host="0.0.0.0", id="gw-1"),
        store=StoreConfig(url=redis.url),
    )
    registry = NodeRegistry(store, is_first_worker=True, own_address=own_address)
    registry.start(lambda: config, port=5520, workers=2)
    registry.drain()
    assert await read_nodes(store) == []
    found.set()

    async def row() -> FoundNode | None:
        return next(iter(await read_nodes(store)), None)

    async def is_written() -> bool:
        return await row() is not None

    await eventually(is_written)
    node = await row()
    assert node is not None
    assert (node.row.url, node.row.workers, node.row.draining) == ("http://192.0.2.9:5520", 2, True)
    await registry.close()
    assert await read_nodes(store) == []
    await store.close()


@contextlib.asynccontextmanager
async def registered(
    redis: RedisServer, *, port: int = 5520
) -> AsyncIterator[tuple[NodeRegistry, MonitoredStore]]:
    """Run the registry of node gw-1, which writes its row again only when there is a reason."""
    store = MonitoredStore(open_node(redis.url))
    config = Config(server=ServerConfig(id="gw-1"), store=StoreConfig(url=redis.url))
    registry = NodeRegistry(store, is_first_worker=True, beat=3600)
    registry.start(lambda: config, port=port, workers=1)
    await eventually(lambda: is_listed(store))
    try:
        yield registry, store
    finally:
        await registry.close()
        await store.close()


async def is_listed(store: MonitoredStore) -> bool:
    return store.works and await read_nodes(store) != []


async def test_a_row_is_written_at_once_when_the_store_is_back_and_when_the_node_drains(
    redis: RedisServer,
) -> None:
    async with registered(redis) as (registry, store):
        with redis.killed():
            await eventually(lambda: is_down(store))
        # Its data is gone with it.
        await eventually(lambda: is_listed(store))
        assert [node.row.draining for node in await read_nodes(store)] == [False]
        registry.drain()

        async def is_draining() -> bool:
            [node] = await read_nodes(store)
            return node.row.draining

        await eventually(is_draining)


@pytest.mark.parametrize("steps", range(8))
async def test_a_registry_ends_however_soon_after_a_reason_to_write_it_is_closed(
    redis: RedisServer, steps: int
) -> None:
    async with registered(redis) as (registry, store):
        await read_nodes(store)
        registry.renew()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await registry.close()
        assert await read_nodes(store) == []


async def is_down(store: MonitoredStore) -> bool:
    with contextlib.suppress(StoreError):
        await read_nodes(store)
    return not store.works


async def test_a_row_is_dropped_an_hour_after_the_last_sign_of_life(redis: RedisServer) -> None:
    async with registered(redis):
        with redis.client() as client:
            left = client.pttl(f"routecodex:{{{SPACE}.0}}:v:gw-1")
    assert 3_540_000 < left <= 3_600_000


async def test_a_node_removes_no_row_of_another_one_that_has_its_id(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(registered(redis))
        with caplog.at_level(logging.WARNING, "routecodex.server"):
            async with registered(redis, port=5521) as (_, store):

                async def urls() -> list[str]:
                    return [node.row.url for node in await read_nodes(store)]

                async def is_replaced() -> bool:
                    return await urls() == ["http://127.0.0.1:5521"]

                await eventually(is_replaced)
                await stack.aclose()
                assert await is_replaced()
    assert "node id 'gw-1' is also used by http://127.0.0.1:5520" in caplog.text
