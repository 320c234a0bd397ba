"""Calls with `server=all` over real sockets: two servers with their own ledgers, and nodes of one store."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.gateway.redis_gateway import admin, ask, cluster, node
from tests.gateway.redis_gateway import config as node_config
from tests.kit import answers
from tests.kit.gateway import Running
from tests.kit.redis_server import RedisServer
from tests.kit.upstream import Upstream
from tests.server.admin_gateway import asked, done, get, post, refusal, refused, running, two_targets
from tests.server.events.event_stream import subscribe
from tests.stores.redis.nodes import eventually

BEARER = {"authorization": "Bearer operator"}


@contextlib.asynccontextmanager
async def two_servers(home: Path, *, more: str = "") -> AsyncIterator[tuple[int, int]]:
    """Run the servers `main` and `other` in front of one upstream; return their ports."""
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = two_targets(up)
        other = text.replace('id = "main"', 'id = "other"') + more
        async with running(text, home) as one, running(other, home) as two:
            yield one.port, two.port


def ids(answer: Any) -> list[str]:
    return [row["request"] for row in answer["requests"]]


def is_by_time(rows: list[Any]) -> bool:
    times = [row["time"] for row in rows]
    return times == sorted(times)


async def test_requests_of_all_servers_are_one_list_by_time(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        sent = [(await asked(port), name) for port, name in ((one, "main"), (two, "other"), (one, "main"))]
        found = await get(one, "requests?server=all")
        assert sorted((row["request"], row["server"]) for row in found["requests"]) == sorted(sent)
        assert is_by_time(found["requests"])
        assert (found["total"], found["next"]) == (3, None)
        assert (found["servers"], found["missing"]) == (["main", "other"], [])
        # Asked at the other server the list is the same.
        assert ids(await get(two, "requests?server=all")) == ids(found)


async def test_pages_of_all_servers_have_every_request_once(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        # The newest requests are those of one server, so that the first pages have none of the other.
        sent = [await asked(port) for port in (two, two, one, two, one, one, one, one)]
        page = await get(one, "requests?server=all&limit=2")
        seen = page["requests"]
        # What comes later belongs to no earlier page.
        late = [await asked(port) for port in (two, one)]
        while page["next"] is not None:
            page = await get(one, f"requests?server=all&limit=2&before={page['next']}")
            assert len(page["requests"]) == 2
            seen = page["requests"] + seen
        assert sorted(row["request"] for row in seen) == sorted(sent)
        assert is_by_time(seen)
        assert ids(await get(two, "requests?server=all&limit=100"))[: len(seen)] == [
            row["request"] for row in seen
        ]
        assert not set(late) & {row["request"] for row in seen}


async def test_a_cursor_of_one_server_is_none_of_all(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        id = await asked(one)
        for before in (id, "all.", "all.!!", "all.e30x", "all.eyJiZWZvcmUiOjF9"):
            assert await refused(one, f"requests?server=all&before={before}") == (
                400,
                "invalid_request",
                "before",
            )
        assert await refused(one, "requests?server=all&limit=x") == (400, "invalid_request", "limit")
        assert await refused(one, "requests?server=all&nonsense=1") == (400, "invalid_request", "nonsense")


async def test_a_request_is_found_at_the_server_that_has_it(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for id in (await asked(one), await asked(two)):
            assert (await get(one, f"requests/{id}?server=all"))["request"]["request"] == id
        assert await refused(one, "requests/nothing?server=all") == (404, "unknown_request", "")


async def test_sessions_grouped_by_requests_are_those_of_all_servers(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for port, session in ((one, "a"), (two, "b"), (one, "a"), (two, "a")):
            await asked(port, session=session)
        found = await get(one, "requests?server=all&group=session")
        rows = sorted((row["session"], row["server"], row["requests"]) for row in found["groups"])
        # Each server has a store of its own: the two sessions `a` are not the same.
        assert rows == [("a", "main", 2), ("a", "other", 1), ("b", "other", 1)]
        lasts = [row["last"] for row in found["groups"]]
        assert lasts == sorted(lasts)
        assert (found["total"], found["next"]) == (3, None)


async def test_series_add_up_and_percentiles_come_from_all_times(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for port, model in ((one, "up.m"), (one, "other.m"), (two, "up.m"), (two, "up.m")):
            await asked(port, model=model)
        found = await get(one, "series?server=all&by=provider&since=1h")
        parts = [await get(port, "series?by=provider&since=1h") for port in (one, two)]
        totals = {
            line["name"]: sum(point["requests"] for point in line["points"]) for line in found["series"]
        }
        assert totals == {"up": 3, "other": 1}
        assert list(totals) == ["up", "other"]
        costs = [
            sum(point["cost"] or 0 for line in part["series"] for point in line["points"])
            for part in (found, *parts)
        ]
        assert costs[0] == pytest.approx(costs[1] + costs[2])
        assert costs[0] > 0
        assert all("first_bytes" not in point for line in found["series"] for point in line["points"])
        everything = await get(one, "series?server=all&since=1h&step=7200")
        (line,) = everything["series"]
        (point,) = line["points"]
        assert point["requests"] == 4
        assert 0 < point["first_byte_p50"] <= point["first_byte_p95"]
        assert "first_bytes" not in str(await get(one, "series"))


async def test_usage_of_all_servers_is_added(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for port in (one, two, two):
            await asked(port)
        found = await get(one, "usage?server=all&by=provider")
        assert [(row["provider"], row["requests"]) for row in found["rows"]] == [("up", 3)]
        assert found["total"]["requests"] == 3
        assert found["servers"] == ["main", "other"]


async def test_equal_keys_are_one_row_with_the_worst_state(tmp_path: Path) -> None:
    extra = '[providers.spare]\nprotocol = "demo"\n[providers.spare.models.demo-1]\n'
    async with two_servers(tmp_path, more=extra) as (one, two):
        for port in (one, two, two):
            await asked(port)
        await done(one, "routing?server=other", {"disable": ["up"]})
        found = await get(one, "providers?server=all")
        keys = {key["name"]: key for provider in found["providers"] for key in provider["keys"]}
        assert list(keys) == ["up.primary", "other.primary", "spare.key1"]
        merged = keys["up.primary"]
        assert (merged["requests"], merged["errors"], merged["state"]) == (3, 0, "disabled")
        assert (merged["disabled_by"], merged["servers"]) == ("operator", ["main", "other"])
        assert merged["first_byte_p50"] > 0
        assert keys["spare.key1"]["servers"] == ["other"]


async def test_sessions_of_servers_with_their_own_stores_stay_apart(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for port in (one, two, two):
            await asked(port, session="s")
        await done(one, "routing?server=other", {"session": "s", "sticky": "other.m"})
        found = await get(one, "sessions?server=all")
        rows = [(row["id"], row["server"], row["requests"], row["sticky"]) for row in found["sessions"]]
        assert rows == [("s", "main", 1, None), ("s", "other", 2, "other.m")]
        one_session = (await get(one, "sessions?server=all&id=s"))["session"]
        assert (one_session["server"], len(one_session["turns"])) == ("main", 1)
        assert await refused(one, "sessions?server=all&id=nothing") == (404, "unknown_session", "")


async def test_sessions_of_all_servers_come_by_pages(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for number in range(3):
            await asked(one, session=f"a{number}")
            await asked(two, session=f"b{number}")
        await asked(two, session="b3")
        seen: list[str] = []
        page = await get(one, "sessions?server=all&limit=2")
        seen += [row["id"] for row in page["sessions"]]
        while page["next"]:
            page = await get(one, f"sessions?server=all&limit=2&before={page['next']}")
            seen += [row["id"] for row in page["sessions"]]
        assert sorted(seen) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]


async def test_a_write_for_all_servers_must_name_one(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, two):
        for path in ("routing", "health/reset", "reload"):
            answer = await post(one, f"{path}?server=all", {})
            assert refusal(answer) == (400, "server_required", "server")
        for port in (one, two):
            assert (await get(port, "routing"))["routing"]["disable"] == []
        explained = {"protocol": "chat", "body": {"model": "auto", "messages": []}}
        assert (await post(one, "explain?server=all", explained)).status != 404


async def test_what_cannot_be_merged_is_answered_by_this_server(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        assert (await get(one, "status?server=all"))["id"] == "main"
        assert (await get(one, "routing?server=all"))["id"] == "main"
        stream = await subscribe(one, query="?server=all", headers=BEARER)
        assert (await stream.next()).data["server"] == "main"
        await stream.close()


async def test_a_server_that_is_gone_is_named_as_missing(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (one, _):
        id = await asked(one)
        row = msgspec.json.decode((tmp_path / "servers" / "other.json").read_bytes())
        file = tmp_path / "servers" / "gone.json"
        file.write_bytes(msgspec.json.encode({**row, "id": "gone", "pid": 2**22 + 1, "ledger": None}))
        found = await get(one, "requests?server=all")
        assert ids(found) == [id]
        assert found["servers"] == ["main", "other"]
        ((server, code),) = [(one["server"], one["code"]) for one in found["missing"]]
        assert (server, code) == ("gone", "server_unreachable")
        assert "is not running" in found["missing"][0]["message"]
        assert (await get(one, f"requests/{id}?server=all"))["request"]["request"] == id


async def test_servers_that_write_one_ledger_are_counted_once(tmp_path: Path) -> None:
    usage = f'[usage]\nfile = "{tmp_path}/common.sqlite"\n'
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = two_targets(up, more=usage)
        other = text.replace('id = "main"', 'id = "other"')
        async with running(text, tmp_path) as one, running(other, tmp_path) as two:
            sent = [await asked(port) for port in (one.port, two.port)]
            # The other server writes within a second; a page of its own makes it write now.
            await get(two.port, "requests")
            found = await get(one.port, "requests?server=all")
            assert (sorted(ids(found)), found["total"]) == (sorted(sent), 2)


@pytest.fixture(scope="module")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis(running_redis: RedisServer) -> RedisServer:
    with running_redis.client() as client:
        client.flushall()
    return running_redis


async def both_listed(running: Running) -> bool:
    rows = (await admin(running, "servers")).json["servers"]
    return [row["id"] for row in rows if row["alive"]] == ["gw-0", "gw-1"]


async def test_a_node_of_the_store_is_reached_by_its_own_address(redis: RedisServer) -> None:
    async with cluster(redis, 2) as (_, (one, two)):
        await eventually(lambda: both_listed(one))
        found = (await admin(one, "status?server=gw-1")).json
        assert (found["id"], found["url"]) == ("gw-1", two.url)
        (row,) = [row for row in (await admin(one, "servers")).json["servers"] if row["id"] == "gw-1"]
        assert row.keys() >= {"started_at", "workers", "store", "draining", "config", "self"}


async def test_what_a_killed_server_left_behind_hides_no_node_that_runs(
    redis: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "servers").mkdir()
    left = {"id": "gw-1", "url": "http://127.0.0.1:1", "pid": ended_pid(), "token": "old", "started_at": 1.0}
    (tmp_path / "servers" / "gw-1.json").write_bytes(msgspec.json.encode(left))
    async with (
        Upstream() as up,
        running(node_config(up, redis), tmp_path) as one,
        node(up, redis, number=1) as two,
    ):
        await eventually(lambda: both_listed(one))
        found = (await admin(one, "status?server=gw-1")).json
        assert (found["id"], found["url"]) == ("gw-1", two.url)


def ended_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


async def test_sessions_of_one_store_are_one_row_with_the_figures_of_all_nodes(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with Upstream(lambda request: answers.text("chat", "hi", answers.wants_stream(request))) as up:
        texts = [node_config(up, redis, number=number) for number in range(2)]
        async with running(texts[0], tmp_path / "a") as one, running(texts[1], tmp_path / "b") as two:
            await eventually(lambda: both_listed(one))
            for node_ in (one, two, two):
                assert (await ask(node_, session="s")).status == 200
            assert (await ask(one, "<**!second.m**> go on", session="s")).status == 200
            found = (await admin(one, "sessions?server=all")).json
            assert [(row["id"], row["requests"]) for row in found["sessions"]] == [("s", 4)]
            session = (await admin(two, "sessions?server=all&id=s")).json["session"]
            assert (session["requests"], len(session["turns"])) == (4, 4)
            # The nodes have their settings in common, so that a write needs no name.
            changed = await admin(one, "routing?server=all", {"disable": ["first"]})
            assert changed.status == 200
            health = (await admin(two, "providers?server=all")).json["providers"]
            assert {key["name"]: key["state"] for provider in health for key in provider["keys"]} == {
                "first.primary": "disabled",
                "second.primary": "ok",
            }
            assert (await admin(one, "reload?server=all", {})).json["code"] == "server_required"


async def test_a_node_that_stops_is_missing_and_then_unknown(redis: RedisServer) -> None:
    async with cluster(redis, 1) as (up, (one,)):
        async with node(up, redis, number=1):
            await eventually(lambda: both_listed(one))
            assert (await admin(one, "providers?server=all")).json["servers"] == ["gw-0", "gw-1"]
        answer = await admin(one, "status?server=gw-1")
        assert (answer.status, answer.json["code"]) == (404, "unknown_server")
        assert (await admin(one, "providers?server=all")).json["servers"] == ["gw-0"]
