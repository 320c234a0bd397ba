"""Limits of clients on several nodes: one window for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.gateway.redis_gateway import OPERATOR, ask, cluster, ready
from tests.kit.gateway import Running
from tests.kit.raw_client import call
from tests.kit.redis_server import RedisServer
from tests.stores.redis.nodes import eventually

LIMITED = '[clients.laptop]\nkey = "key-laptop"\nlimits = ["{limit}"]\n[clients.free]\nkey = "key-free"\n'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.kill()


async def has_status(running: Running, status: str) -> bool:
    return bool((await ready(running))[1]["status"] == status)


async def test_requests_are_counted_exactly_over_all_nodes(server: RedisServer) -> None:
    more = LIMITED.format(limit="7 requests/day")
    async with cluster(server, 3, more=more) as (up, nodes):
        found = await asyncio.gather(*(ask(one, key="key-laptop") for one in nodes for _ in range(5)))
        assert sorted(answer.status for answer in found) == [200] * 7 + [429] * 8
        assert len(up.requests) == 7
        assert (await ask(nodes[0], key="key-free")).status == 200
        refused = await ask(nodes[1], key="key-laptop")
        assert (refused.status, refused.headers["x-should-retry"]) == (429, "false")


async def test_each_node_shows_at_once_what_others_have_counted(server: RedisServer) -> None:
    more = LIMITED.format(limit="7 requests/day")
    async with cluster(server, 2, more=more) as (_, [one, two]):
        for count in range(1, 4):
            assert (await ask(one, key="key-laptop")).status == 200
            await eventually(partial(counted, one, count))
            assert await used(two) == count


async def test_a_limit_that_is_used_up_stays_so_when_redis_comes_back_empty(tmp_path: Path) -> None:
    server, more = RedisServer(tmp_path / "redis"), LIMITED.format(limit="7 requests/day")
    try:
        async with cluster(server, 2, more=more, homes=tmp_path) as (up, nodes):
            for count in range(1, 8):
                assert (await ask(nodes[count % 2], key="key-laptop")).status == 200
                await eventually(partial(counted, nodes[0], count))
            with server.killed():
                for one in nodes:
                    await eventually(partial(has_status, one, "degraded"))
            for one in nodes:
                await eventually(partial(has_status, one, "ok"))
            await eventually(partial(counted, nodes[0], 7))
            assert [(await ask(one, key="key-laptop")).status for one in nodes] == [429, 429]
            assert len(up.requests) == 7
    finally:
        server.kill()


async def used(running: Running) -> int:
    answer = await call(running.port, "/admin/clients/laptop", method="GET", headers=OPERATOR)
    [limit] = answer.json["client"]["limits"]
    return int(limit["used"] or 0)


async def counted(running: Running, count: int) -> bool:
    """Use is counted beside the answer."""
    return await used(running) == count


@pytest.mark.parametrize(("on_down", "status"), [("refuse", 503), ("allow", 200)])
async def test_a_limited_client_is_refused_or_allowed_while_redis_is_down(
    server: RedisServer, on_down: str, status: int
) -> None:
    more = LIMITED.format(limit="100 requests/day") + f'[usage]\non_store_down = "{on_down}"\n'
    async with cluster(server, 1, more=more) as (_, [one]):
        assert (await ask(one, key="key-laptop")).status == 200
        server.kill()
        await eventually(lambda: has_status(one, "degraded"))
        limited, free = await ask(one, key="key-laptop"), await ask(one, key="key-free")
        server.start()
        await eventually(lambda: has_status(one, "ok"))
        assert (await ask(one, key="key-laptop")).status == 200
    assert limited.status == status
    if status == 503:
        assert limited.json["error"]["code"] == "store_unavailable"
    assert free.status == 200


@pytest.mark.parametrize(("on_down", "status"), [("refuse", 503), ("allow", 200)])
async def test_a_limited_client_is_refused_or_allowed_while_redis_cannot_be_written(
    server: RedisServer, on_down: str, status: int
) -> None:
    more = LIMITED.format(limit="100 requests/day") + f'[usage]\non_store_down = "{on_down}"\n'
    async with cluster(server, 1, more=more) as (_, [one]):
        assert (await ask(one, key="key-laptop")).status == 200
        with server.unsaved():
            found = [await ask(one, key="key-laptop") for _ in range(3)]
            free = await ask(one, key="key-free")
        await eventually(lambda: has_status(one, "ok"))
        assert (await ask(one, key="key-laptop")).status == 200
    assert [answer.status for answer in found] == [status] * 3
    if status == 503:
        assert {answer.json["error"]["code"] for answer in found} == {"store_unavailable"}
    assert free.status == 200


async def test_an_outage_of_the_counters_is_logged_once_and_its_end_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    more = LIMITED.format(limit="100 requests/day")
    async with cluster(server, 1, more=more) as (_, [one]):
        assert (await ask(one, key="key-laptop")).status == 200
        with caplog.at_level(logging.INFO, "routecodex.limits"):
            server.kill()
            await eventually(lambda: has_status(one, "degraded"))
            for _ in range(3):
                assert (await ask(one, key="key-laptop")).status == 503
            server.start()
            await eventually(lambda: has_status(one, "ok"))
            for _ in range(2):
                assert (await ask(one, key="key-laptop")).status == 200
    lines = [row.getMessage() for row in caplog.records if row.name == "routecodex.limits"]
    assert [line.partition(",")[0] for line in lines] == [
        "limits cannot be counted",
        "limits are counted again",
    ]


async def test_steps_of_limits_are_among_the_calls_of_the_store(server: RedisServer) -> None:
    async with cluster(server, 1, more=LIMITED.format(limit="100 requests/day")) as (_, [one]):
        before = await updates(one)
        assert (await ask(one, key="key-laptop", session="")).status == 200
        assert (await updates(one))["count"] > before["count"]
        server.kill()
        assert (await ask(one, key="key-laptop", session="")).status == 503
        assert (await updates(one))["errors"] > before["errors"]
        server.start()


async def updates(running: Running) -> dict[str, float]:
    """Return how often values were changed, and how often that failed."""
    headers = {"authorization": "Bearer key-free"}
    text = (await call(running.port, "/metrics", method="GET", headers=headers)).body.decode()
    names = {
        "count": 'routecodex_store_seconds_count{op="update",worker="0"}',
        "errors": 'routecodex_store_errors_total{op="update",worker="0"}',
    }
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(lines[series]) for name, series in names.items()}
