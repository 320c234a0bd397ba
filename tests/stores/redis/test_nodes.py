"""Several processes on one Redis: what one writes, the others know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from routecodex.canon.store_url import parse_redis_url
from routecodex.stores.cell import Cell
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.redis.scripts import REMOVE, SET_ASIDE
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import Stored, StoreError
from tests.kit.redis_server import RedisServer
from tests.stores.redis.losing_proxy import LosingProxy
from tests.stores.redis.nodes import add_one, eventually, nodes, open_node, value_of
from tests.stores.test_cell import SPACE, numbers
from tests.stores.test_cell import add_one as add_to_cell


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path_factory.mktemp("redis"))
    yield running
    running.kill()


@pytest.fixture
def redis(server: RedisServer) -> Iterator[Any]:
    with server.client(decode_responses=True) as client:
        client.flushall()
        yield client


async def test_keys_are_named_by_prefix_space_and_stripe(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        version = await one.put("health", "glm.primary", b"[1]")
        await one.put("sessions", "s-1", b"[2]", ttl=100)
        assert redis.hget("routecodex:{health.0}:v:glm.primary", "d") == "[1]"
        assert redis.hget("routecodex:{health.0}:v:glm.primary", "n") == str(version)
        assert redis.zrange("routecodex:{health.0}:i", 0, -1) == ["glm.primary"]
        assert redis.get("routecodex:{health.0}:g") == "1"
        [name] = redis.keys("routecodex:{sessions.*}:v:s-1")
        assert 99_000 < redis.pttl(name) <= 100_000
        assert all(name.startswith("routecodex:") for name in redis.keys("*"))


async def test_sessions_are_spread_over_sixteen_stripes_and_health_has_one(
    server: RedisServer, redis: Any
) -> None:
    async with nodes(server.url, 1) as (one,):
        for number in range(200):
            await one.put("sessions", f"s-{number}", b"1")
            await one.put("health", f"h-{number}", b"1")
        assert len(redis.keys("routecodex:{sessions.*}:g")) == 16
        assert redis.keys("routecodex:{health.*}:g") == ["routecodex:{health.0}:g"]
        assert len(await one.keys("sessions")) == 200


async def test_stores_with_another_prefix_share_nothing(server: RedisServer, redis: Any) -> None:
    other = open_node(server.url, prefix="other")
    async with nodes(server.url, 1) as (one,):
        await one.put("sessions", "s-1", b"1")
        assert await other.get("sessions", "s-1") is None
    await other.close()


async def test_a_change_changes_the_stamps_of_every_node(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 2) as (one, two):
        assert await two.get("sessions", "s-1") is None
        assert two.stamp_of("sessions", "s-1") == 0
        before = two.stamp("sessions")
        version = await one.put("sessions", "s-1", b"1")
        assert one.stamp_of("sessions", "s-1") == version
        await eventually(lambda: two.stamp_of("sessions", "s-1") == version)
        assert two.stamp("sessions") != before
        await one.delete("sessions", "s-1")
        await eventually(lambda: two.stamp_of("sessions", "s-1") == 0)


async def test_an_unknown_key_has_a_negative_stamp_and_never_the_same_twice(
    server: RedisServer, redis: Any
) -> None:
    async with nodes(server.url, 1) as (one,):
        stamps = [one.stamp_of("sessions", "unread") for _ in range(100)]
        assert len(set(stamps)) == 100
        assert max(stamps) < -1


async def test_counts_of_several_nodes_are_exact(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 3) as stores:
        await asyncio.gather(
            *(store.update("sessions", "count", add_one) for store in stores for _ in range(20))
        )
        assert await value_of(stores[0], "sessions", "count") == b"60"


async def test_a_change_of_a_known_value_is_one_call(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        await one.update("sessions", "s-1", add_one)
        before = redis.info("commandstats")["cmdstat_publish"]["calls"]
        reads = scripts_without_checks(redis)
        await one.update("sessions", "s-1", add_one)
        assert scripts_without_checks(redis) - reads == 1
        assert redis.info("commandstats")["cmdstat_publish"]["calls"] - before == 1
        assert await value_of(one, "sessions", "s-1") == b"2"


async def test_a_change_of_a_value_that_is_not_known_costs_no_read(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 2) as (one, two):
        scripts = scripts_without_checks(redis)
        assert await one.update("sessions", "s-1", add_one) == b"1"
        assert scripts_without_checks(redis) - scripts == 1
        redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        # The write that expected no value returns the one that there is.
        assert await two.update("sessions", "s-1", add_one) == b"2"
        assert scripts_without_checks(redis) - scripts == 3
        assert await value_of(one, "sessions", "s-1") == b"2"


def scripts_without_checks(redis: Any) -> int:
    """Return how many scripts have run that read or write a value: each begins with HMGET."""
    found: int = redis.info("commandstats")["cmdstat_hmget"]["calls"]
    return found


async def test_a_change_that_others_forestall_64_times_is_given_up(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        await one.put("sessions", "s-1", b"1")
        [value] = redis.keys("routecodex:{sessions.*}:v:s-1")
        tries = 0

        def forestalled(raw: bytes | None) -> bytes:
            nonlocal tries
            tries += 1
            redis.hincrby(value, "n", 1)
            return b"2"

        with pytest.raises(StoreError, match="was changed by others 64 times; try again"):
            await one.update("sessions", "s-1", forestalled)
        assert tries == 64
        assert await value_of(one, "sessions", "s-1") == b"1"


@pytest.mark.parametrize("how", ["one value", "a group"])
async def test_what_others_have_just_written_is_tried_without_a_pause(
    server: RedisServer, redis: Any, how: str
) -> None:
    """After a pause the value is out of date if others write more often than that."""
    value, tries, pauses = "routecodex:{budgets.0}:v:b-1", 0, 0

    def write_in_the_pause() -> float:
        nonlocal pauses
        pauses += 1
        redis.hincrby(value, "n", 1)
        return 0.0

    def change(raw: bytes | None) -> bytes:
        nonlocal tries
        tries += 1
        if tries < 3:
            redis.hincrby(value, "n", 1)
        return b"2"

    one = RedisStore(RedisOptions(address=parse_redis_url(server.url), timeout=5), jitter=write_in_the_pause)
    await one.put("budgets", "b-1", b"1")
    if how == "one value":
        await one.update("budgets", "b-1", change)
    else:
        await one.groups.update("budgets", ["b-1"], lambda old: ([change(old[0])], None), id="x.1", ttl=60)
    assert (tries, pauses) == (4, 1)
    assert await value_of(one, "budgets", "b-1") == b"2"
    await one.close()


async def test_a_change_that_rejects_what_is_kept_runs_again_on_what_is_stored(
    server: RedisServer, redis: Any
) -> None:
    async with nodes(server.url, 2) as (one, two):
        await one.put("sessions", "s-1", b"1")
        redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await two.put("sessions", "s-1", b"2")

        def only_two(value: bytes | None) -> bytes:
            if value != b"2":
                raise ValueError(value)
            return b"3"

        assert await one.update("sessions", "s-1", only_two) == b"3"


async def test_a_change_that_was_not_published_is_found_by_the_check(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        version = await one.put("health", "glm", b"1")
        before = one.stamp("health")
        redis.hset("routecodex:{health.0}:v:glm", mapping={"d": "2", "n": str(version + 1)})
        redis.incr("routecodex:{health.0}:g")
        await eventually(lambda: one.stamp_of("health", "glm") < 0)
        assert one.stamp("health") != before
        assert one.missed == 1
        assert await value_of(one, "health", "glm") == b"2"
        assert one.stamp_of("health", "glm") == version + 1


async def test_a_lost_subscription_is_no_outage_and_leaves_nothing_stale(
    server: RedisServer, redis: Any
) -> None:
    states: list[str] = []
    async with nodes(server.url, 2) as (one, two):
        two.judge(lambda status, reason: states.append(status))
        old = await one.put("sessions", "s-1", b"1")
        await two.get("sessions", "s-1")
        redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        new = await one.put("sessions", "s-1", b"2")
        await eventually(lambda: two.stamp_of("sessions", "s-1") != old)
        assert await value_of(two, "sessions", "s-1") == b"2"

        async def knows() -> bool:
            return await two.get("sessions", "s-1") is not None and two.stamp_of("sessions", "s-1") == new

        await eventually(knows)
        assert states == []


@pytest.mark.parametrize("message", [b"hello", b"\xff\xfe", b"sessions one 1 1 writer key"])
async def test_a_message_that_no_gateway_sent_does_not_end_the_subscription(
    server: RedisServer, redis: Any, message: bytes
) -> None:
    async with nodes(server.url, 2) as (one, two):
        assert redis.publish("routecodex:changes", message) == 2
        version = await one.put("sessions", "s-1", b"1")
        await eventually(lambda: two.stamp_of("sessions", "s-1") == version)


async def test_connections_that_the_server_closed_are_no_outage(server: RedisServer, redis: Any) -> None:
    states: list[str] = []
    async with nodes(server.url, 1) as (one,):
        one.judge(lambda status, reason: states.append(status))
        await asyncio.gather(*(one.get("sessions", f"s-{number}") for number in range(8)))
        me = redis.client_id()
        for row in redis.client_list(_type="normal"):
            if row["id"] != str(me):
                redis.client_kill_filter(_id=row["id"])
        assert await one.put("sessions", "s-1", b"1") > 0
        assert await value_of(one, "sessions", "s-1") == b"1"
        assert states == []


async def test_a_server_that_forgot_the_scripts_gets_their_text(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        await one.put("sessions", "s-1", b"1")
        redis.script_flush()
        assert await one.update("sessions", "s-1", add_one) == b"2"


async def test_scripts_are_never_loaded_and_little_is_needed_of_an_access_list(
    server: RedisServer, redis: Any
) -> None:
    redis.execute_command(
        "ACL", "SETUSER", "gateway", "on", ">pass", "~routecodex:*", "&routecodex:*", "+@all", "-@admin",
        "-@dangerous", "-script",
    )  # fmt: skip
    async with nodes(server.url.replace("://", "://gateway:pass@"), 2) as (one, two):
        version = await one.put("sessions", "s-1", b"1")
        await eventually(lambda: two.stamp_of("sessions", "s-1") == version)
        assert await one.keys("sessions") == ["s-1"]
        assert await one.trim("sessions", entries=0, size=0) == 1


async def test_an_access_list_without_the_channel_is_named(server: RedisServer, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "gateway", "on", ">pass", "~*", "resetchannels", "+@all")
    one = open_node(server.url.replace("://", "://gateway:pass@"))
    with pytest.raises(StoreError, match=r"cannot subscribe to routecodex:changes: .*permissions"):
        await one.get("sessions", "s-1")
    await one.close()


async def test_at_most_sixteen_connections_and_a_subscription_are_open(
    server: RedisServer, redis: Any
) -> None:
    async with nodes(server.url, 1) as (one,):
        before = len(redis.client_list()) - 2
        await asyncio.gather(*(one.get("sessions", f"s-{number}") for number in range(500)))
        assert len(redis.client_list()) - before <= 17


async def test_a_cell_reads_a_value_once_and_then_knows_it(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 2) as (one, two):
        cell, other = (Cell(store, numbers(), cached=10, ttl=None) for store in (one, two))
        await cell.edit("s-1", add_to_cell)
        assert other.peek("s-1") is None
        assert await other.load("s-1") == 1
        assert other.peek("s-1") == 1
        assert await other.load("s-2") == 0
        assert other.peek("s-2") == 0
        await cell.edit("s-1", add_to_cell)
        await eventually(lambda: other.peek("s-1") is None)
        assert await other.load("s-1") == 2


async def test_a_value_of_another_type_is_set_aside(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 1) as (one,):
        await one.put("health", "glm", b"1")
        redis.delete("routecodex:{health.0}:v:glm")
        redis.set("routecodex:{health.0}:v:glm", "by hand")
        assert await one.get("health", "glm") is None
        assert redis.get("routecodex:{health.0}:damaged:glm") == "by hand"
        assert await one.keys("health") == []


async def test_a_damaged_value_that_another_node_replaces_meanwhile_is_not_set_aside(
    server: RedisServer, redis: Any
) -> None:
    name = "routecodex:{health.0}:v:glm"
    redis.set(name, "by hand")

    async def replace(data: bytes) -> None:
        if SET_ASIDE.sha.encode() in data:
            redis.delete(name)
            redis.hset(name, mapping={"d": "1", "n": "7"})

    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url)
        proxy.before = replace
        assert await one.get("health", "glm") == Stored(b"1", 7)
        assert redis.exists("routecodex:{health.0}:damaged:glm") == 0
        await one.close()


async def test_a_key_that_another_node_writes_during_a_trim_is_not_taken_for_absent(
    server: RedisServer, redis: Any
) -> None:
    async with LosingProxy(server.port) as proxy, nodes(server.url, 1) as (other,):
        one = open_node(proxy.url)
        for key in ("a", "b"):
            await one.put("health", key, b"1")
        # Forget what is known of the space, but keep the values.
        redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await eventually(lambda: one.stamp_of("health", "a") < 0 and one.stamp("x") == one.stamp("x"))

        async def write(data: bytes) -> None:
            if REMOVE.sha.encode() in data:
                proxy.swallows = b"message"
                await other.put("health", "a", b"2")

        proxy.before = write
        assert await one.trim("health", entries=0, size=0) == 1
        assert one.stamp_of("health", "a") != 0
        assert await value_of(one, "health", "a") == b"2"
        await one.close()


async def test_the_clock_of_all_nodes_is_that_of_the_server(server: RedisServer, redis: Any) -> None:
    async with nodes(server.url, 2) as (one, two):
        seconds, _ = redis.time()
        assert one.uptime().start == two.uptime().start
        assert one.uptime().start.startswith("store:")
        assert abs(one.uptime().ms - seconds * 1000) < 60_000
        assert abs(one.uptime().ms - two.uptime().ms) < 1000


@pytest.mark.parametrize("hours", [-1, 1])
async def test_values_end_by_the_clock_of_the_server_whatever_that_of_the_node_says(
    server: RedisServer, redis: Any, hours: int
) -> None:
    def clock() -> float:
        return time.time() + 3600 * hours

    async with nodes(server.url, 1) as (one,):
        other = RedisStore(RedisOptions(address=parse_redis_url(server.url), timeout=5.0), clock=clock)
        cell = Cell(other, numbers(), cached=10, ttl=None, clock=clock)
        await one.put(SPACE, "s-1", b"1", ttl=600)
        assert await cell.load("s-1") == 1
        assert cell.peek("s-1") == 1
        await one.put(SPACE, "s-1", b"2", ttl=0.3)

        async def is_gone() -> bool:
            return await cell.load("s-1") == 0

        await eventually(is_gone)
        await other.close()


async def test_a_server_that_was_emptied_is_the_truth(
    server: RedisServer, redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server.url, 1) as (one,):
        start = one.uptime().start
        await one.put("sessions", "s-1", b"1")
        redis.flushall()
        await eventually(lambda: one.stamp_of("sessions", "s-1") < 0)
        assert await one.get("sessions", "s-1") is None
        await eventually(lambda: one.uptime().start not in ("", start))
        assert "lost its data" in caplog.text


@pytest.mark.parametrize("count", [0, 3])
async def test_versions_never_repeat_even_if_the_data_is_lost(
    server: RedisServer, redis: Any, count: int
) -> None:
    async def version(store: RedisStore) -> int:
        return await store.put("sessions", "s-1", b"1")

    async with nodes(server.url, 1) as (one,):
        versions = [await version(one) for _ in range(count + 1)]
        redis.flushall()
        versions.append(await version(one))
        await one.delete("sessions", "s-1")
        versions.append(await version(one))
        assert versions == sorted(set(versions))


async def test_versions_go_on_from_the_last_one_if_the_clock_of_the_server_goes_back(
    server: RedisServer, redis: Any
) -> None:
    ahead = 3_600_000_000
    async with nodes(server.url, 1) as (one,):
        last = await one.put("health", "glm", b"1") + ahead
        redis.hset("routecodex:{health.0}:v:glm", "n", str(last))
        assert await one.put("health", "glm", b"2") == last + 1
        # A key that was deleted an hour ago is known by the others of its stripe alone.
        assert await one.put("health", "other", b"1") == last + 2
        assert await one.update("health", "glm", add_one) == b"3"
        stored = await one.get("health", "glm")
        assert stored is not None
        assert stored.version == last + 3
