"""The console finds the other nodes while Redis is gone or takes no writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.server.node_registry import SPACE, NodeRow
from tests.gateway.redis_gateway import admin, cluster, hello, node, ready
from tests.kit.gateway import Running
from tests.kit.redis_server import RedisServer
from tests.kit.upstream import Upstream
from tests.stores.redis.nodes import eventually, nodes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.kill()


async def until(running: Running, status: str) -> None:
    async def has_status() -> bool:
        found: Any = (await ready(running))[1]["store"]["status"]
        return bool(found == status)

    await eventually(has_status)


async def servers_of(running: Running) -> dict[str, bool]:
    """Return the servers that a node lists, and whether they are alive."""
    rows = (await admin(running, "servers")).json["servers"]
    return {row["id"]: row["alive"] for row in rows}


async def test_the_nodes_that_were_listed_last_are_asked_while_redis_is_gone(server: RedisServer) -> None:
    async with cluster(server, 2) as (_, [one, _]):

        async def lists_both() -> bool:
            return await servers_of(one) == {"gw-0": True, "gw-1": True}

        await eventually(lists_both)
        with server.killed():
            await until(one, "down")
            assert await lists_both()
            answer = (await admin(one, "providers?server=all")).json
            assert (sorted(answer["servers"]), answer["missing"]) == (["gw-0", "gw-1"], [])
            assert (await admin(one, "status?server=gw-1")).json["id"] == "gw-1"


async def test_a_node_is_alive_by_the_last_sign_of_life_while_redis_takes_no_writes(
    server: RedisServer,
) -> None:
    async with Upstream(hello) as up:
        await write_rows(server, {"gw-7": 60, "gw-8": 64, "gw-9": 600})
        with server.unsaved():
            async with node(up, server) as one:
                await until(one, "read_only")
                assert await servers_of(one) == {"gw-0": True, "gw-7": True, "gw-8": True, "gw-9": False}


async def write_rows(server: RedisServer, ages: dict[str, float]) -> None:
    """Write rows of nodes that showed a sign of life so many seconds ago."""
    async with nodes(server.url, 1) as [store]:
        for id, seconds in ages.items():
            row = NodeRow(
                id=id,
                url="http://127.0.0.1:9",
                version="1",
                started_at=0,
                workers=1,
                config="",
                beat_ms=int(store.uptime().ms - seconds * 1000),
            )
            await store.put(SPACE, id, msgspec.json.encode(row), ttl=3600)
