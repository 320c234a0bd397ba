"""Several gateways on one Redis are one: sessions, operators, health, responses, clients, clock."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamFailed, UpstreamLimited
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.gateway.state.probes import SPACE as PROBES
from routecodex.gateway.state.probes import Probes
from routecodex.routing.registry import Selector, Target
from routecodex.server.node_registry import read_nodes
from routecodex.stores.redis.store import RedisStore
from tests.gateway.continuation_gateway import SET_STOP_MESSAGE
from tests.gateway.redis_gateway import OPERATOR, admin, ask, cluster, node, ready, target
from tests.kit import answers
from tests.kit.raw_client import call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Steps, Wait
from tests.kit.upstream import Request
from tests.stores.redis.nodes import eventually, open_node

PATIENT_MS = 10_000


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def server(running_server: RedisServer) -> RedisServer:
    with running_server.client() as client:
        client.flushall()
    return running_server


async def test_a_setting_of_a_session_holds_on_every_node(server: RedisServer) -> None:
    async with cluster(server, 3) as (_, nodes):
        for one in nodes:
            assert target(await ask(one)) == (200, "first.primary.m")
        assert (await ask(nodes[0], "<**!second.m**>")).status == 200
        await asyncio.sleep(0.1)
        for one in nodes:
            assert target(await ask(one)) == (200, "second.primary.m")


async def test_a_known_state_needs_no_call_of_redis(server: RedisServer) -> None:
    async with cluster(server, 1) as (_, [one]):
        await ask(one)
        for session in ("s", ""):
            with server.monitored() as commands:
                for _ in range(20):
                    assert (await ask(one, session=session)).status == 200
            assert not [command for command in commands if "v:" in command and not is_of_a_node(command)]


async def test_the_first_instruction_of_a_session_is_one_call_of_redis(server: RedisServer) -> None:
    async with cluster(server, 2) as (_, (one, two)):
        for running in (one, two):
            await ask(running)
        with server.monitored() as commands:
            assert target(await ask(one, "<**!second.m**> hi", session="new")) == (200, "second.primary.m")
        calls = [command for command in commands if command.startswith("EVALSHA")]
        assert len([call for call in calls if not is_of_a_node(call)]) == 1
        assert target(await ask(two, session="new")) == (200, "second.primary.m")


async def test_a_message_that_was_applied_needs_no_call_of_redis_while_its_turn_goes_on(
    server: RedisServer,
) -> None:
    """An agent sends the message with its instruction again and again, with the results of its tools."""
    async with cluster(server, 2) as (_, nodes):
        for one in nodes:
            for _ in range(2):
                assert target(await ask(one, "<**second.m**> hi")) == (200, "second.primary.m")
        with server.monitored() as calls:
            for one in nodes:
                assert target(await ask(one, "<**second.m**> hi")) == (200, "second.primary.m")
        assert [call for call in calls if "sessions" in call] == []


def is_of_a_node(command: str) -> bool:
    """Whether this is a sign of life or a look at the clock, which come by themselves."""
    return "{servers.0}" in command or "epoch" in command


async def test_the_same_message_on_two_nodes_applies_once_and_uses_are_exact(server: RedisServer) -> None:
    texts: list[str] = []

    def reply(request: Request) -> UpstreamAnswer:
        texts.append("call")
        return answers.text("chat", f"part {len(texts)}", answers.wants_stream(request))

    async with cluster(server, 2, reply=reply) as (_, nodes):
        message = SET_STOP_MESSAGE.format(3)
        first, second = await asyncio.gather(*(ask(one, message) for one in nodes))
        assert (first.status, second.status) == (200, 200)
        # Two requests and three follow-ups between them.
        assert len(texts) == 5


async def test_an_operator_setting_belongs_to_the_cluster(server: RedisServer) -> None:
    async with cluster(server, 2) as (_, (one, two)):
        assert target(await ask(two, session="")) == (200, "first.primary.m")
        assert (await admin(one, "routing", {"disable": ["first"]})).status == 200
        await eventually(lambda: is_target(two, "second.primary.m"))
        assert (await admin(two, "routing")).json["routing"]["disable"] == ["first"]


async def is_target(running: Any, name: str) -> bool:
    return target(await ask(running, session=""))[1] == name


async def test_failures_of_all_nodes_add_up_and_a_cooldown_is_seen_by_all(server: RedisServer) -> None:
    def reply(request: Request) -> UpstreamAnswer:
        if request.headers["authorization"] == "Bearer secret-first":
            return answers.error("chat", 429, "slow down", retry_after="60")
        return answers.text("chat", "hi", answers.wants_stream(request))

    async with cluster(server, 2, reply=reply) as (up, (one, two)):
        assert target(await ask(one, session="")) == (200, "second.primary.m")
        await eventually(lambda: is_cooling(two))
        before = len(up.requests)
        assert target(await ask(two, session="")) == (200, "second.primary.m")
        assert len(up.requests) == before + 1


async def is_cooling(running: Any) -> bool:
    return bool((await admin(running, "health")).json["health"])


async def test_a_request_waits_for_the_health_of_other_nodes_as_long_as_a_call_may_take(
    server: RedisServer,
) -> None:
    async with cluster(server, 1, timeout_ms=PATIENT_MS) as (up, [one]):
        await ask(one, session="")
        store = one.service.gateway.store
        before = store.stamp("health")
        await open_breaker(server, ago=0.0)
        await eventually(lambda: store.stamp("health") != before)
        with server.frozen():
            asked = asyncio.ensure_future(ask(one, session=""))
            await asyncio.wait({asked}, timeout=1.0)
            assert len(up.requests) == 1
        assert target(await asked) == (200, "second.primary.m")


async def test_a_lease_of_a_probe_is_not_taken_for_granted_while_a_call_is_slow(server: RedisServer) -> None:
    stores = [open_node(server.url, timeout=PATIENT_MS / 1000) for _ in range(2)]
    key = Selector("first", "primary", "m")
    one, two = (Probes(store, clock=time.time, wait_saved=nothing_to_save) for store in stores)
    assert await one.lease([key], time.time(), by="a request")
    await stores[1].get(PROBES, "another")
    with server.frozen():
        leased = asyncio.ensure_future(two.lease([key], time.time(), by="a request"))
        await asyncio.wait({leased}, timeout=2.5)
        assert not leased.done()
    assert not await leased
    for store in stores:
        await store.close()


async def test_a_half_open_breaker_lets_one_probe_of_all_nodes_through(server: RedisServer) -> None:
    """Also on nodes that have just learned of the breaker, in a burst."""
    event = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        if request.headers["authorization"] == "Bearer secret-first":
            return Steps([Wait(event)], headers={"content-type": "application/json"})
        return answers.text("chat", "hi", answers.wants_stream(request))

    # While a call of Redis is late there may be a probe of each worker.
    async with cluster(server, 3, reply=reply, timeout_ms=PATIENT_MS) as (up, nodes):
        await open_breaker(server, ago=6.0)
        asked = [asyncio.ensure_future(ask(one, session="")) for one in nodes for _ in range(6)]
        await eventually(lambda: sum(task.done() for task in asked) == len(asked) - 1)
        first = [one for one in up.requests if one.headers["authorization"] == "Bearer secret-first"]
        assert len(first) == 1
        event.set()
        await asyncio.gather(*asked)


async def test_a_node_that_stops_gives_its_probe_back(server: RedisServer) -> None:
    event = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        return Steps([Wait(event)], headers={"content-type": "application/json"})

    store = open_node(server.url)
    async with cluster(server, 1, reply=reply) as (up, [one]):
        await open_breaker(server, ago=6.0)
        under_way = asyncio.ensure_future(ask(one, session=""))
        await up.received()
        assert await store.keys(PROBES) == ["first.primary.m"]
        await one.service.stop()
        with contextlib.suppress(Exception):
            await under_way
        assert await store.keys(PROBES) == []
        event.set()
    await store.close()


async def test_the_lease_of_a_probe_ends_by_the_clock_of_the_store(server: RedisServer) -> None:
    stores = [open_node(server.url) for _ in range(2)]
    key = Selector("first", "primary", "m")
    held: list[bool] = []
    for store, ahead in zip(stores, (0, 86_400), strict=True):
        await store.get("health.probes", "first")
        probes = Probes(store, clock=partial(clock_ahead, ahead), wait_saved=nothing_to_save)
        held.append(await probes.lease([key], clock_ahead(ahead), by="a request"))
    assert held == [True, False]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("ahead", [45.0, -70.0, 300.0, -0.4])
async def test_a_cooldown_ends_by_the_clock_of_the_store(server: RedisServer, ahead: float) -> None:
    """A node whose own clock is wrong waits as long as the others, and its success ends the cooldown."""
    stores = [open_node(server.url) for _ in range(2)]
    right, wrong = KeyHealth(stores[0]), KeyHealth(stores[1], clock=partial(clock_ahead, ahead))
    one = Target("first", "primary", "m")
    right.failed(one, UpstreamLimited("slow down", upstream_status=429, retry_after=30.0))
    await right.flush()
    await wrong.load()
    waits = [
        health.until(one, now) - now for health, now in ((right, time.time()), (wrong, clock_ahead(ahead)))
    ]
    assert waits == [pytest.approx(30.0, abs=2.0)] * 2
    before = stores[0].stamp("health")
    wrong.succeeded(one)
    await wrong.flush()
    await eventually(lambda: stores[0].stamp("health") != before)
    await right.refresh()
    assert right.quiet
    for store in stores:
        await store.close()


def clock_ahead(seconds: float) -> float:
    return time.time() + seconds


async def nothing_to_save() -> None:
    pass


async def open_breaker(server: RedisServer, *, ago: float) -> None:
    """Let another node have seen the failures that opened the breaker of `first.m`."""
    store = open_node(server.url)
    ahead = -ago
    health = KeyHealth(store, clock=lambda: clock_ahead(ahead))
    for _ in range(3):
        health.failed(Target("first", "primary", "m"), UpstreamFailed("broken", upstream_status=500))
    ahead = 0.0
    await health.flush()
    await store.close()
    await asyncio.sleep(0.1)


async def test_a_response_is_continued_on_another_node(server: RedisServer) -> None:
    async with cluster(server, 2) as (up, (one, two)):
        first = await ask(one, protocol="responses", session="")
        following = {"model": "auto", "input": "go on", "previous_response_id": first.json["id"]}
        assert (await call(two.port, "/v1/responses", following)).status == 200
        sent = up.requests[-1].json["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "user"]
        assert (await call(two.port, f"/v1/responses/{first.json['id']}", method="DELETE")).status == 200
        gone = await call(one.port, f"/v1/responses/{first.json['id']}", method="GET")
        assert gone.status == 404


async def test_a_client_key_made_on_one_node_is_valid_on_all(server: RedisServer) -> None:
    async with cluster(server, 2) as (_, (one, two)):
        made = await call(one.port, "/admin/clients", {"name": "ann"}, method="POST", headers=OPERATOR)
        assert made.status == 201

        async def admitted() -> bool:
            return (await ask(two, key=made.json["key"])).status == 200

        await eventually(admitted)
        assert (await ask(two, key="rcx-wrong")).status == 401
        assert (await ask(two)).status == 401


async def test_running_requests_of_a_client_are_those_of_all_nodes(server: RedisServer) -> None:
    event = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        return Steps([Wait(event)], headers={"content-type": "application/json"})

    keys = '[clients.ann]\nkey = "key-ann"\n[clients.bob]\nkey = "key-bob"\n'
    async with cluster(server, 2, reply=reply, more=keys) as (_, (one, two)):

        async def shown(running: Any) -> list[tuple[str, int]]:
            rows = (await admin(running, "clients")).json["clients"]
            return [(row["name"], row["in_flight"]) for row in rows]

        async def all_show(ann: int) -> bool:
            return await shown(one) == await shown(two) == [("ann", ann), ("bob", 0)]

        asked = [asyncio.ensure_future(ask(where, key="key-ann")) for where in (one, one, two)]
        await eventually(lambda: all_show(3))
        assert (await admin(two, "clients/ann")).json["client"]["in_flight"] == 3
        asked[0].cancel()
        await eventually(lambda: all_show(2))
        event.set()
        await asyncio.gather(*asked, return_exceptions=True)
        await eventually(lambda: all_show(0))


async def test_nodes_show_themselves_without_a_token_and_go_when_they_stop(server: RedisServer) -> None:
    watcher = open_node(server.url)
    try:
        async with cluster(server, 2) as (_, nodes):

            async def all_alive() -> bool:
                return [(one.row.id, one.alive) for one in await read_nodes(watcher)] == [
                    ("gw-0", True),
                    ("gw-1", True),
                ]

            await eventually(all_alive)
            [first, second] = await read_nodes(watcher)
            assert first.fields.keys() == {
                *("id", "url", "alive", "version", "started_at", "workers"),
                *("store", "draining", "config"),
            }
            assert [one.row.url for one in (first, second)] == [one.url for one in nodes]
            assert first.row.config == second.row.config
            assert (first.row.draining, first.row.workers) == (False, 1)
            for value in await stored_texts(watcher):
                assert b"operator" not in value
                assert b"secret" not in value

        async def none_left() -> bool:
            return await read_nodes(watcher) == []

        await eventually(none_left)
    finally:
        await watcher.close()


async def stored_texts(store: RedisStore) -> list[bytes]:
    spaces = ("servers", "sessions", "server", "clients", "health")
    return [stored.value for space in spaces for _, stored in await store.read_all(space, most=1000)]


async def test_a_configuration_that_differs_has_another_digest(server: RedisServer) -> None:
    watcher = open_node(server.url)
    try:
        async with cluster(server, 1) as (up, _), node(up, server, number=1, more="[usage]\nkeep_days = 7\n"):

            async def two_rows() -> bool:
                return len(await read_nodes(watcher)) == 2

            await eventually(two_rows)
            first, second = await read_nodes(watcher)
            assert first.row.config != second.row.config
    finally:
        await watcher.close()


async def test_the_console_lists_all_nodes(server: RedisServer) -> None:
    async with cluster(server, 2) as (_, (one, two)):

        async def both() -> bool:
            return len((await admin(two, "servers")).json["servers"]) == 2

        await eventually(both)
        rows = (await admin(two, "servers")).json["servers"]
        assert [(row["id"], row["alive"], row["self"], row["url"]) for row in rows] == [
            ("gw-0", True, False, one.url),
            ("gw-1", True, True, two.url),
        ]


async def test_readiness_names_the_store(server: RedisServer) -> None:
    async with cluster(server, 1) as (_, [one]):
        code, state = await ready(one)
        assert (code, state["status"], state["store"]["kind"], state["store"]["status"]) == (
            200,
            "ok",
            "redis",
            "up",
        )
        text = (await call(one.port, "/metrics", method="GET")).body.decode()
        assert 'routecodex_store_up{kind="redis",worker="0"} 1.0' in text
        assert 'routecodex_store_reconnects_total{worker="0"} 0.0' in text
        assert 'routecodex_store_missed_total{worker="0"} 0.0' in text
