"""Redis is killed, frozen, restarted, read-only, full: what callers are told, and what is stored after."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.redis.options import POOL_SIZE
from routecodex.stores.redis.scripts import WRITE
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer
from tests.kit.wires import ServerNamespace, Wire, missing_for_wires
from tests.stores.redis.losing_proxy import LosingProxy
from tests.stores.redis.nodes import PATIENCE, add_one, eventually, is_up, nodes, open_node, value_of

TIMEOUT = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.thaw()
    running.kill()


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    async with nodes(server.url, 1, timeout=TIMEOUT) as (one,):
        yield one


async def refused(store: RedisStore, key: str = "s-1") -> None:
    """Check that a call is refused without waiting."""
    began = time.monotonic()
    with pytest.raises(StoreError, match="the Redis store is down"):
        await store.get("sessions", key)
    assert time.monotonic() - began < TIMEOUT


async def refused_at_last(store: RedisStore) -> None:
    """Wait until calls are refused."""

    async def is_refused() -> bool:
        return not await is_up(store)

    await eventually(is_refused)


async def test_calls_fail_at_once_while_the_server_is_dead_and_work_when_it_is_back(
    server: RedisServer, store: RedisStore
) -> None:
    version = await store.put("sessions", "s-1", b"1")
    server.kill()
    with pytest.raises(StoreError):
        await store.get("sessions", "s-1")
    for _ in range(50):
        await refused(store)
    assert store.stamp_of("sessions", "s-1") == version
    server.start()
    await eventually(lambda: is_up(store))
    assert store.stamp_of("sessions", "s-1") < 0
    assert await value_of(store, "sessions", "s-1") == b"1"
    assert store.stamp_of("sessions", "s-1") == version


async def test_all_waiting_calls_fail_with_the_first_late_one(server: RedisServer, store: RedisStore) -> None:
    server.freeze()
    calls = [asyncio.ensure_future(store.get("sessions", f"s-{number}")) for number in range(100)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, StoreError) for one in results)
    await refused(store)
    server.thaw()
    await eventually(lambda: is_up(store))


async def test_a_list_of_spaces_ends_when_the_server_does_not_answer(
    server: RedisServer, store: RedisStore
) -> None:
    await store.put("sessions", "s-1", b"1")
    assert await store.spaces() == ["sessions"]
    with server.frozen():
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreError):
                await store.spaces()
    await eventually(lambda: is_up(store))


async def test_calls_that_wait_for_a_connection_fail_with_the_first_late_one_too(
    server: RedisServer,
) -> None:
    async with nodes(server.url, 1, timeout=1.0, wait_replicas=1) as (one,):
        with server.frozen():
            early = [asyncio.ensure_future(one.put("sessions", f"s-{n}", b"1")) for n in range(POOL_SIZE)]
            await asyncio.sleep(0.5)
            late = [asyncio.ensure_future(one.put("sessions", f"s-{n}", b"2")) for n in range(POOL_SIZE)]
            await asyncio.wait(early)
            # Their own time would be over half a second later.
            ended, _ = await asyncio.wait(late, timeout=0.25)
        assert len(ended) == POOL_SIZE
        assert all(isinstance(call.exception(), StoreError) for call in (*early, *late))


async def test_a_write_that_is_sent_again_is_recognised_behind_three_of_others(server: RedisServer) -> None:
    with server.client() as redis:
        async with LosingProxy(server.port) as proxy, nodes(server.url, 1) as (other,):
            one = open_node(proxy.url, timeout=PATIENCE)
            await one.put("health", "count", b"7")
            proxy.is_losing = True
            call = asyncio.ensure_future(one.update("health", "count", add_one))
            await eventually(lambda: redis.hget("routecodex:{health.0}:v:count", "d") == b"8")
            for _ in range(3):
                await other.update("health", "count", add_one)
            proxy.is_losing = False
            redis.client_kill_filter(_type="normal", skipme=True)
            assert await call == b"8"
            assert await value_of(other, "health", "count") == b"11"
            await one.close()


async def test_a_call_that_is_sent_again_has_only_the_rest_of_its_time(server: RedisServer) -> None:
    order: list[str] = []

    async def stall(data: bytes) -> None:
        if WRITE.sha.encode() in data:
            order.append("sent")
            await asyncio.sleep(0.8 if order == ["sent"] else PATIENCE)
            raise ConnectionResetError

    async def after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append("limit")

    async with LosingProxy(server.port) as proxy:
        one = open_node(proxy.url, timeout=1.0)
        await one.put("health", "count", b"1")
        proxy.before = stall
        # Each of both would have had a second for itself.
        limit = asyncio.ensure_future(after(1.4))
        with pytest.raises(StoreError, match="no answer"):
            await one.put("health", "count", b"2")
        order.append("ended")
        await limit
        assert order == ["sent", "sent", "ended", "limit"]
        await one.close()


async def test_a_write_that_a_frozen_server_received_is_not_carried_out_later(
    server: RedisServer, store: RedisStore
) -> None:
    await store.put("sessions", "count", b"7")
    server.freeze()
    with pytest.raises(StoreError):
        await store.update("sessions", "count", add_one)
    await asyncio.sleep(2 * TIMEOUT)
    server.thaw()
    await eventually(lambda: is_up(store))
    assert await value_of(store, "sessions", "count") == b"7"


class CutProxy:
    """A proxy as a way to the server that can be cut."""

    def __init__(self, proxy: LosingProxy) -> None:
        self.url = proxy.url
        self._proxy = proxy

    def cut(self) -> None:
        self._proxy.is_cut = True

    def repair(self) -> None:
        self._proxy.is_cut = False


class CutWire:
    """A wire into the network namespace of the server as a way that can be cut."""

    def __init__(self, wire: Wire, port: int) -> None:
        self.url = f"redis://{wire.host}:{port}"
        self.cut, self.repair = wire.cut, wire.repair


@contextlib.asynccontextmanager
async def by_proxy(folder: Path) -> AsyncIterator[tuple[RedisServer, CutProxy]]:
    server = RedisServer(folder / "redis")
    try:
        async with LosingProxy(server.port) as proxy:
            yield server, CutProxy(proxy)
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def by_namespace(folder: Path) -> AsyncIterator[tuple[RedisServer, CutWire]]:
    if missing_for_wires():
        pytest.skip(f"{missing_for_wires()}; the cut is tried with a proxy alone")
    namespace = ServerNamespace(2)
    own, cut = namespace.wires
    try:
        server = RedisServer(folder / "redis", host=own.host, launcher=namespace.launcher)
        try:
            yield server, CutWire(cut, server.port)
        finally:
            server.kill()
    finally:
        namespace.close()


CutPath = Callable[[Path], contextlib.AbstractAsyncContextManager[tuple[RedisServer, CutProxy | CutWire]]]


@pytest.mark.parametrize("path", [by_proxy, by_namespace], ids=["proxy", "namespace"])
async def test_a_node_that_is_cut_off_goes_on_alone_and_is_current_when_it_is_back(
    tmp_path: Path, path: CutPath
) -> None:
    async with path(tmp_path) as (server, way), nodes(server.url, 1) as (other,):
        one = open_node(way.url, timeout=TIMEOUT)
        states: list[str] = []
        one.judge(lambda status, reason: states.append(status))
        old = await one.put("sessions", "s-1", b"1")
        await asyncio.gather(*(one.get("sessions", f"s-{number}") for number in range(16)))
        way.cut()
        await eventually(lambda: states == ["down"])
        new = await other.put("sessions", "s-1", b"2")
        assert one.stamp_of("sessions", "s-1") == old
        await refused(one)
        way.repair()
        await eventually(lambda: is_up(one))
        # Connections that were half open do not bring it down again.
        assert await value_of(one, "sessions", "s-1") == b"2"
        assert one.stamp_of("sessions", "s-1") == new
        assert states == ["down", "up"]
        await one.close()


async def test_a_restart_without_data_is_told_and_nothing_old_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path / "redis")
    async with nodes(server.url, 1, timeout=TIMEOUT) as (one,):
        old = await one.put("sessions", "s-1", b"1")
        server.kill()
        with pytest.raises(StoreError):
            await one.get("sessions", "s-1")
        server.start()
        await eventually(lambda: is_up(one))
        assert await one.get("sessions", "s-1") is None
        assert await one.put("sessions", "s-1", b"2") > old
        assert [row.levelno for row in caplog.records if "lost its data" in row.message] == [logging.ERROR]
    server.kill()


async def test_a_replica_is_read_and_refuses_writes_until_it_is_a_master_again(
    server: RedisServer, store: RedisStore
) -> None:
    states: list[str] = []
    store.judge(lambda status, reason: states.append(status))
    await store.put("sessions", "s-1", b"1")
    with server.client() as redis:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        redis.config_set("replica-serve-stale-data", "yes")
        with pytest.raises(StoreError, match=r"READONLY|read only"):
            await store.put("sessions", "s-1", b"2")
        with pytest.raises(StoreError, match="takes no writes"):
            await store.put("sessions", "s-1", b"2")
        assert await value_of(store, "sessions", "s-1") == b"1"
        assert states == ["read_only"]
        redis.execute_command("REPLICAOF", "NO", "ONE")
        await eventually(lambda: states == ["read_only", "up"])
        await store.put("sessions", "s-1", b"3")


async def test_a_full_memory_refuses_writes_and_serves_reads(server: RedisServer, store: RedisStore) -> None:
    states: list[str] = []
    store.judge(lambda status, reason: states.append(status))
    await store.put("sessions", "s-1", b"1")
    with server.client() as redis:
        redis.config_set("maxmemory", "1")
        redis.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(StoreError, match=r"OOM|maxmemory"):
            await store.put("sessions", "s-1", b"2")
        assert await value_of(store, "sessions", "s-1") == b"1"
        assert states == ["read_only"]
        redis.config_set("maxmemory", "0")
        await eventually(lambda: states == ["read_only", "up"])
        assert await store.update("sessions", "s-1", add_one) == b"2"


async def test_a_failed_save_refuses_writes_and_serves_reads(server: RedisServer, store: RedisStore) -> None:
    """Redis answers MISCONF to writes while `stop-writes-on-bgsave-error` holds, its default."""
    states: list[str] = []
    store.judge(lambda status, reason: states.append(status))
    await store.put("sessions", "s-1", b"1")
    with server.unsaved():
        with pytest.raises(StoreError, match="MISCONF"):
            await store.put("sessions", "s-1", b"2")
        with pytest.raises(StoreError, match="takes no writes"):
            await store.update("sessions", "s-1", add_one)
        async with nodes(server.url, 1, timeout=TIMEOUT) as (late,):
            assert await value_of(late, "sessions", "s-1") == b"1"
        assert await value_of(store, "sessions", "s-1") == b"1"
        assert states == ["read_only"]
    await eventually(lambda: states == ["read_only", "up"])
    assert await store.update("sessions", "s-1", add_one) == b"2"


async def test_what_is_known_stays_known_while_only_writes_are_refused(
    server: RedisServer, store: RedisStore
) -> None:
    version = await store.put("sessions", "s-1", b"1")
    with server.unsaved(), server.client(decode_responses=True) as redis:
        with pytest.raises(StoreError, match="MISCONF"):
            await store.put("sessions", "s-1", b"2")

        def probes() -> int:
            found: Any = redis.info("commandstats")
            return int(found["cmdstat_set"]["rejected_calls"])

        await eventually(lambda: probes() > 0)
        assert await value_of(store, "sessions", "s-1") == b"1"
        before = probes()
        await eventually(lambda: probes() > before + 1)
        assert store.stamp_of("sessions", "s-1") == version


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of one megabyte; skip the test where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a full disk cannot be made here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_refuses_writes_until_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        server = RedisServer(disk, "--appendonly", "yes", "--appendfsync", "everysec")
        try:
            async with nodes(server.url, 1, timeout=TIMEOUT) as (one,):
                states: list[str] = []
                one.judge(lambda status, reason: states.append(status))
                await one.put("sessions", "s-1", b"1")
                with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
                    filler.write(bytes(1024 * 1024))
                written = b"1"

                async def is_refused() -> bool:
                    # What was written before the server found its disk full is in its memory.
                    nonlocal written
                    try:
                        written = await one.update("sessions", "s-1", add_one) or written
                    except StoreError:
                        return True
                    return False

                await eventually(is_refused)
                assert await value_of(one, "sessions", "s-1") == written
                assert states == ["read_only"]
                (disk / "filler").unlink()
                await eventually(lambda: states == ["read_only", "up"])
                assert await one.update("sessions", "s-1", add_one) == add_one(written)
        finally:
            server.kill()


async def test_a_store_that_is_down_from_the_start_is_used_when_it_comes(server: RedisServer) -> None:
    server.kill()
    one = open_node(server.url, timeout=TIMEOUT)
    with pytest.raises(StoreError):
        await one.get("sessions", "s-1")
    await refused(one)
    assert one.uptime().start == ""
    server.start()
    await eventually(lambda: is_up(one))
    assert one.uptime().start
    await one.close()


async def test_a_process_that_starts_after_an_outage_knows_when_the_server_came_back(
    server: RedisServer, store: RedisStore
) -> None:
    server.kill()
    with pytest.raises(StoreError):
        await store.get("sessions", "s-1")
    server.start()
    await eventually(lambda: is_up(store))
    later = open_node(server.url, timeout=TIMEOUT)
    other = open_node(server.url, timeout=TIMEOUT, prefix="other")
    for one in (later, other):
        await one.get("sessions", "s-1")
    # `other` has no outage in its data, and started after `later`.
    await eventually(lambda: not other.was_back_within(3600))
    assert later.was_back_within(3600)
    assert not later.was_back_within(0)
    for one in (later, other):
        await one.close()


async def test_a_process_that_has_just_started_assumes_an_outage_that_others_have_not_noticed_yet(
    server: RedisServer,
) -> None:
    one = open_node(server.url, timeout=TIMEOUT)
    await one.get("sessions", "s-1")
    assert one.was_back_within(3600)
    assert not one.was_back_within(0)
    await eventually(lambda: not one.was_back_within(3600))
    await one.close()


async def test_a_process_that_noticed_nothing_is_told_by_the_others_of_an_outage(
    server: RedisServer,
) -> None:
    calm, cut_off = open_node(server.url, timeout=TIMEOUT), open_node(server.url, timeout=TIMEOUT / 6)
    for one in (calm, cut_off):
        await one.get("sessions", "s-1")
    await eventually(lambda: not calm.was_back_within(3600))
    server.freeze()
    with pytest.raises(StoreError):
        await cut_off.get("sessions", "s-1")
    server.thaw()
    await eventually(lambda: is_up(cut_off))
    await eventually(lambda: calm.was_back_within(3600))
    for one in (calm, cut_off):
        await one.close()


async def test_a_busy_process_does_not_take_the_server_for_dead(
    server: RedisServer, store: RedisStore
) -> None:
    states: list[str] = []
    store.judge(lambda status, reason: states.append(status))
    call = asyncio.ensure_future(store.update("sessions", "count", add_one))
    await asyncio.sleep(0)
    time.sleep(2 * TIMEOUT)
    assert await call == b"1"
    assert await store.update("sessions", "count", add_one) == b"2"
    assert states == []


async def test_a_cancelled_write_happens_completely(server: RedisServer, store: RedisStore) -> None:
    call = asyncio.ensure_future(store.update("sessions", "count", add_one))
    await asyncio.sleep(0.001)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await store.update("sessions", "count", add_one) in (b"1", b"2")


async def test_a_cancelled_write_that_fails_leaves_no_traceback_in_the_log(
    server: RedisServer, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    with server.frozen():
        call = asyncio.ensure_future(store.put("sessions", "s-1", b"1"))
        await asyncio.sleep(TIMEOUT / 4)
        call.cancel()
        await refused_at_last(store)
    await eventually(lambda: is_up(store))
    gc.collect()
    assert call.cancelled()
    assert [row.message for row in caplog.records if row.name == "asyncio"] == []


async def test_a_change_that_is_cancelled_while_its_write_is_under_way_is_made_once(
    server: RedisServer, store: RedisStore
) -> None:
    server.freeze()
    call = asyncio.ensure_future(store.update("sessions", "count", add_one))
    await asyncio.sleep(TIMEOUT / 4)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    server.thaw()

    async def is_made() -> bool:
        return await value_of(store, "sessions", "count") == b"1"

    await eventually(is_made)
    assert await store.update("sessions", "count", add_one) == b"2"


async def test_a_change_that_is_cancelled_before_its_turn_lets_the_others_through(
    server: RedisServer, store: RedisStore
) -> None:
    server.freeze()
    calls = [asyncio.ensure_future(store.update("sessions", "count", add_one)) for _ in range(4)]
    await asyncio.sleep(TIMEOUT / 4)
    for one in (calls[1], calls[2]):
        one.cancel()
    server.thaw()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [found[0], found[3]] == [b"1", b"2"]
    assert await store.update("sessions", "count", add_one) == b"3"


async def test_one_line_is_logged_when_it_goes_and_one_when_it_is_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "routecodex.stores")
    monitored = MonitoredStore(open_node(server.url, timeout=TIMEOUT))
    returns: list[str] = []
    monitored.on_return.append(lambda: returns.append("back"))
    await monitored.put("sessions", "s-1", b"1")
    server.kill()
    for _ in range(5):
        with pytest.raises(StoreError):
            await monitored.get("sessions", "s-1")
    assert monitored.report.status == "down"
    server.start()
    await eventually(lambda: monitored.works)
    assert returns == ["back"]
    assert monitored.returns == 1
    assert monitored.was_back_within(60)
    assert not monitored.was_back_within(0)
    later = MonitoredStore(open_node(server.url, timeout=TIMEOUT))
    await later.get("sessions", "s-1")
    assert later.was_back_within(60)
    await later.close()
    lines = [row.message for row in caplog.records if row.levelno >= logging.WARNING]
    assert [line.partition(" after")[0].partition(":")[0] for line in lines] == [
        "the redis store is down, requests continue with the last known state",
        "the redis store works again",
    ]
    await monitored.close()


async def test_no_password_is_in_what_callers_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = RedisServer(tmp_path / "redis", password="right-secret")
    monitored = MonitoredStore(open_node(server.url.replace("right", "wrong"), timeout=TIMEOUT))
    with pytest.raises(StoreError) as told:
        await monitored.get("sessions", "s-1")
    assert "secret" not in str(told.value)
    assert "secret" not in caplog.text
    await monitored.close()
    server.kill()


def test_no_thread_is_left() -> None:
    assert threading.active_count() < 20
