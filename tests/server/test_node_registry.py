"""The row of a node: its address, and when it is written."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import AddressFamily

import pytest

from routecodex.canon.store_url import HostPort, parse_redis_url
from routecodex.config import Config, ServerConfig, StoreConfig
from routecodex.server.node_registry import (
    FoundNode,
    NodeRegistry,
    advertised_url,
    own_address_towards,
    read_nodes,
)
from routecodex.stores.monitored import MonitoredStore
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
def test_a_node_advertises_its_host_or_its_own_address_of_that_family(server: ServerConfig, url: str) -> None:
    addresses = {AddressFamily.AF_INET: "192.0.2.9", AddressFamily.AF_INET6: "2001:db8::9"}
    assert advertised_url(Config(server=server), 5520, own_address=addresses.__getitem__) == url


@pytest.mark.parametrize(
    ("family", "address"), [(AddressFamily.AF_INET, "127.0.0.1"), (AddressFamily.AF_INET6, "::1")]
)
def test_its_own_address_is_the_one_from_which_it_reaches_the_store(
    family: AddressFamily, address: str
) -> None:
    hosts = parse_redis_url("redis+sentinel://nowhere.invalid,[::1],127.0.0.1/main").hosts
    assert own_address_towards(hosts, family) == address


def test_a_node_on_ipv6_names_itself_rather_than_an_ipv4_address_that_it_does_not_listen_on() -> None:
    hosts = parse_redis_url("redis://127.0.0.1").hosts
    assert own_address_towards(hosts, AddressFamily.AF_INET6) == socket.gethostname()


async def test_an_address_that_takes_long_to_find_holds_nothing_up(redis: RedisServer) -> None:
    found = threading.Event()

    def own_address(hosts: Sequence[HostPort], family: AddressFamily) -> str:
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
