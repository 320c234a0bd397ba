"""TLS, passwords, sentinels and clusters, each with real servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bench.ports import free_port
from routecodex.config import Secret, StoreConfig, StoreSecret
from routecodex.server.state_store import redis_options
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer, close_all
from tests.kit.redis_sets import knows_replica, start_cluster, start_replicated, wait_for_replica
from tests.stores.redis.nodes import add_one, eventually, is_up, nodes, open_node, value_of


async def test_a_password_is_needed_and_used(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, password="p@ss word")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", ">other", "~*", "&*", "+@all")
    try:
        for login in (":p%40ss%20word@", "ann:other@"):
            async with nodes(f"redis://{login}127.0.0.1:{server.port}", 1) as (one,):
                await one.put("sessions", "s-1", b"1")
                assert await value_of(one, "sessions", "s-1") == b"1"
        denied = open_node(f"redis://127.0.0.1:{server.port}")
        with pytest.raises(StoreError, match="Authentication required"):
            await denied.get("sessions", "s-1")
        await denied.close()
    finally:
        server.kill()


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, issued in (("server", ca.issue_cert("127.0.0.1")), ("client", ca.issue_cert("gateway"))):
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    return ca


def tls_server(directory: Path, *options: str) -> RedisServer:
    port = str(free_port())
    pem = str(directory / "server.pem")
    files = ("--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", str(directory / "ca.pem"))
    return RedisServer(directory / "data", *options, "--tls-port", port, *files, tls_port=int(port))


async def test_tls_checks_the_certificate_and_presents_one(tmp_path: Path, authority: trustme.CA) -> None:
    server = tls_server(tmp_path, "--tls-auth-clients", "yes")
    ca, pem = str(tmp_path / "ca.pem"), str(tmp_path / "client.pem")
    url = f"rediss://127.0.0.1:{server.tls_port}"
    try:
        one, two = (open_node(url, ca_file=ca, cert_file=pem) for _ in range(2))
        await two.get("sessions", "s-1")
        version = await one.put("sessions", "s-1", b"1")
        await eventually(lambda: two.stamp_of("sessions", "s-1") == version)
        stranger, nobody = open_node(url, cert_file=pem), open_node(url, ca_file=ca)
        with pytest.raises(StoreError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            await stranger.get("sessions", "s-1")
        with pytest.raises(StoreError):
            await nobody.get("sessions", "s-1")
        trusting = open_node(url, cert_file=pem, verify=False)
        assert await value_of(trusting, "sessions", "s-1") == b"1"
        for store in (one, two, stranger, nobody, trusting):
            await store.close()
    finally:
        server.kill()


async def test_a_frozen_server_with_tls_is_used_again_when_it_goes_on(
    tmp_path: Path, authority: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections with TLS that are closed wait for a goodbye, which a frozen server does not send."""
    caplog.set_level(logging.DEBUG, "routecodex.stores")
    server = tls_server(tmp_path, "--tls-auth-clients", "no")
    one = open_node(f"rediss://127.0.0.1:{server.tls_port}", timeout=0.8, ca_file=str(tmp_path / "ca.pem"))
    states: list[str] = []
    one.judge(lambda status, reason: states.append(status))
    try:
        await one.get("sessions", "s-1")
        # A list of spaces needs a connection of its own: the others are idle when a call is late.
        await asyncio.gather(one.get("sessions", "s-1"), one.spaces(), one.spaces())
        with server.frozen():
            await eventually(lambda: "is still down" in caplog.text)
        await eventually(lambda: is_up(one))
        assert states == ["down", "up"]
    finally:
        await one.close()
        server.kill()


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[list[RedisServer]]:
    servers = start_replicated(tmp_path)
    yield servers
    close_all(servers)


async def test_the_store_follows_a_failover_of_sentinels(replicated: list[RedisServer]) -> None:
    master, replica, *sentinels = replicated
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
    await eventually(lambda: all(knows_replica(one) for one in sentinels))
    async with nodes(f"redis+sentinel://{hosts}/mymaster", 2, timeout=0.5) as (one, two):
        assert await one.update("sessions", "count", add_one) == b"1"
        with master.client() as client:
            # WAIT is about the writes of its own connection: the replica has those before them too.
            client.set("barrier", 1)
            assert client.execute_command("WAIT", 1, 5000) == 1
        master.kill()

        async def counts() -> bool:
            try:
                return await one.update("sessions", "count", add_one) is not None
            except StoreError:
                return False

        await eventually(counts)
        await eventually(lambda: is_up(two))
        assert await value_of(two, "sessions", "count") == b"2"
        with replica.client() as client:
            info: Any = client.info("replication")
            assert info["role"] == "master"


async def test_sentinels_that_do_not_know_the_master_are_named(replicated: list[RedisServer]) -> None:
    sentinel = replicated[-1]
    one = open_node(f"redis+sentinel://127.0.0.1:{sentinel.port}/other")
    expected = f"No master found for 'other': 127.0.0.1:{sentinel.port} does not know it"
    with pytest.raises(StoreError, match=f"{expected}$"):
        await one.get("sessions", "s-1")
    await one.close()


async def test_a_sentinel_that_does_not_answer_keeps_nobody_from_the_master(
    replicated: list[RedisServer],
) -> None:
    _, _, *sentinels = replicated
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
    for frozen in sentinels[:2]:
        frozen.freeze()
    one = open_node(f"redis+sentinel://{hosts}/mymaster", timeout=1.0)
    try:
        await eventually(lambda: is_up(one))
        await one.put("sessions", "s-1", b"1")
        assert await value_of(one, "sessions", "s-1") == b"1"
    finally:
        for frozen in sentinels[:2]:
            frozen.thaw()
        await one.close()


async def test_sentinels_have_a_login_of_their_own(tmp_path: Path) -> None:
    master, replica, *sentinels = start_replicated(tmp_path, sentinel_password="watch-secret")
    try:
        with sentinels[0].client() as client:
            user = ("ACL", "SETUSER", "gateway", "on", ">other-secret", "+@all")
            client.execute_command(*user)
        for chosen, login in (
            (sentinels, {"sentinel_password": "watch-secret"}),
            (sentinels[:1], {"sentinel_username": "gateway", "sentinel_password": "other-secret"}),
        ):
            hosts = ",".join(f"127.0.0.1:{one.port}" for one in chosen)
            config = StoreConfig(
                url=f"redis+sentinel://{hosts}/mymaster",
                sentinel_username=login.get("sentinel_username", ""),
                sentinel_password=StoreSecret(value=Secret(login["sentinel_password"])),
            )
            one = RedisStore(redis_options(config))
            await one.put("sessions", "s-1", b"1")
            assert await value_of(one, "sessions", "s-1") == b"1"
            assert "secret" not in repr(redis_options(config))
            await one.close()
        denied = open_node(f"redis+sentinel://127.0.0.1:{sentinels[0].port}/mymaster")
        with pytest.raises(StoreError, match="No master found"):
            await denied.get("sessions", "s-1")
        await denied.close()
    finally:
        close_all([master, replica, *sentinels])


async def test_counts_wait_for_replicas_and_are_undone_without(tmp_path: Path) -> None:
    master = RedisServer(tmp_path / "master")
    replica = RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {master.port}")
    wait_for_replica(master)
    one = open_node(master.url, timeout=1.0, wait_replicas=1)
    try:
        assert await one.update("sessions", "count", add_one) == b"1"
        with replica.client() as client:
            assert client.keys("routecodex:{sessions.*}:v:count")
        replica.freeze()
        with pytest.raises(StoreError, match="0 of 1 replicas"):
            await one.update("sessions", "count", add_one)
        # Other spaces do not wait, and nothing is down.
        await one.put("health", "glm", b"1")
        await eventually(lambda: is_value(one, b"1"))
        with pytest.raises(StoreError, match="0 of 1 replicas"):
            await one.update("clock", "session:a", add_one)
        with pytest.raises(StoreError, match="0 of 1 replicas"):
            await one.groups.update("budgets", ["b-1"], lambda _: ([b"1"], None), id="x.1", ttl=60)
        replica.thaw()
        assert await one.update("sessions", "count", add_one) == b"2"
    finally:
        await one.close()
        replica.thaw()
        close_all([master, replica])


async def is_value(store: RedisStore, value: bytes) -> bool:
    return await value_of(store, "sessions", "count") == value


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[RedisServer]]:
    servers = start_cluster(tmp_path)
    yield servers
    close_all(servers)


async def test_a_cluster_holds_all_spaces_and_every_node_hears_of_changes(
    cluster: list[RedisServer],
) -> None:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    async with nodes(f"redis+cluster://{hosts}", 2) as (one, two):
        keys = [f"s-{number}" for number in range(64)]
        for key in keys:
            await two.get("sessions", key)
            await one.put("sessions", key, b"1")
        await eventually(lambda: all(two.stamp_of("sessions", key) > 0 for key in keys))
        assert await two.spaces() == ["sessions"]
        assert sorted(await two.keys("sessions")) == sorted(keys)
        await asyncio.gather(
            *(store.update("sessions", "count", add_one) for store in (one, two) for _ in range(10))
        )
        assert await value_of(two, "sessions", "count") == b"20"
        assert len(await one.read_all("sessions", most=100)) == 65
        assert await one.trim("sessions", entries=10, size=1_000_000) == 55
        sizes: list[Any] = []
        for server in cluster:
            with server.client() as client:
                sizes.append(client.dbsize())
        assert min(sizes) > 0
    lonely = open_node(f"redis+cluster://{hosts}", wait_replicas=1, timeout=1.0)
    with pytest.raises(StoreError, match="0 of 1 replicas"):
        await lonely.put("sessions", "s-0", b"2")
    await lonely.close()


async def test_weaknesses_of_every_server_of_a_cluster_are_named(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    for number, server in enumerate(cluster):
        with server.client() as client:
            client.config_set("appendonly", "yes" if number else "no")
            client.config_set("maxmemory-policy", "allkeys-lru" if number == 2 else "noeviction")
    async with nodes(f"redis+cluster://{hosts}", 1) as (one,):
        found = await one.describe()
    assert {*found["persistence"].split(", ")} == {"none", "aof"}
    assert {*found["eviction"].split(", ")} == {"noeviction", "allkeys-lru"}
    assert sorted(text.partition(": ")[0] for text in found["warnings"]) == sorted(
        f"127.0.0.1:{cluster[number].port}" for number in (0, 2)
    )


def rejected_probes(client: Any) -> int:
    """Return how many probes the server has refused."""
    return int(client.info("commandstats").get("cmdstat_set", {}).get("rejected_calls", 0))


async def test_a_cluster_of_which_a_server_takes_no_writes_is_read(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    async with nodes(f"redis+cluster://{hosts}", 1) as (one,):
        states: list[str] = []
        one.judge(lambda status, reason: states.append(status))
        keys = [f"s-{number}" for number in range(32)]
        await asyncio.gather(*(one.put("sessions", key, b"1") for key in keys))
        with cluster[0].client() as full:
            full.config_set("maxmemory", "1")

            writes = (one.put("sessions", key, b"2") for key in keys)
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert any(isinstance(result, StoreError) for result in results)
            assert states == ["read_only"]

            async def read_until_probed(key: str) -> None:
                while rejected_probes(full) < 4:
                    for _ in range(20):
                        assert await one.get("sessions", key) is not None

            await asyncio.gather(*map(read_until_probed, keys))
            assert states == ["read_only"]


async def test_any_server_of_a_cluster_that_takes_no_writes_is_waited_for(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    async with nodes(f"redis+cluster://{hosts}", len(cluster)) as opened:
        for server, one in zip(cluster, opened, strict=True):
            await is_waited_for(server, one)


async def is_waited_for(server: RedisServer, one: RedisStore) -> None:
    states: list[str] = []
    one.judge(lambda status, reason: states.append(status))
    with server.client() as full:
        full.config_set("maxmemory", "1")
        writes = (one.put("sessions", f"s-{number}", b"1") for number in range(32))
        assert any(
            isinstance(one, StoreError) for one in await asyncio.gather(*writes, return_exceptions=True)
        )
        await eventually(lambda: rejected_probes(full) > 2)
        assert states == ["read_only"]
        full.config_set("maxmemory", "0")
    await eventually(lambda: states == ["read_only", "up"])


def subscribers(server: RedisServer) -> int:
    """Return the number of connections that have subscribed to changes."""
    with server.client() as client:
        found: Any = client.client_list(_type="pubsub")
        return len(found)


async def test_changes_are_heard_when_the_only_server_in_the_url_has_left_a_cluster(
    cluster: list[RedisServer], tmp_path: Path
) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    guest = RedisServer(tmp_path / "guest", *options)
    try:
        with guest.client() as client, cluster[0].client() as member:
            bus: Any = member.config_get("cluster-port")
            meet = ("CLUSTER", "MEET", "127.0.0.1", cluster[0].port, bus["cluster-port"])
            client.execute_command(*meet)

            def knows_all() -> bool:
                info: Any = client.execute_command("CLUSTER INFO")
                return bool(info["cluster_state"] == "ok")

            await eventually(knows_all)
        by_member = f"redis+cluster://127.0.0.1:{cluster[0].port}"
        by_guest = f"redis+cluster://127.0.0.1:{guest.port}"
        async with nodes(by_guest, 1) as (one,), nodes(by_member, 1) as (other,):
            guest.kill()
            await eventually(lambda: sum(map(subscribers, cluster)) == 2)
            version = await other.put("sessions", "s-1", b"1")
            await eventually(lambda: one.stamp_of("sessions", "s-1") == version)
            assert await value_of(one, "sessions", "s-1") == b"1"
    finally:
        guest.kill()


async def test_a_cluster_that_lost_a_server_is_down_until_it_is_back(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in cluster)
    async with nodes(f"redis+cluster://{hosts}", 1, timeout=1.0) as (one,):
        cluster[2].kill()

        async def fails(store: RedisStore) -> bool:
            try:
                await asyncio.gather(*(store.get("sessions", f"s-{number}") for number in range(64)))
            except StoreError:
                return True
            return False

        await eventually(lambda: fails(one))
        cluster[2].start()
        await eventually(lambda: is_up(one))
        await one.put("sessions", "s-1", b"1")
