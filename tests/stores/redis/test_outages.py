"""Redis is killed, frozen, restarted, read-only, full: what callers are told, and what is stored after."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer
from tests.kit.stream_server import StreamServer
from tests.stores.redis.nodes import add_one, eventually, is_up, nodes, open_node, value_of

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


class LosingProxy:
    """Passes bytes to the server, and drops its answers while `is_losing`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.is_losing = False
        self.is_cut = False
        """Nothing passes in either direction, and nobody is told: a cable that was pulled."""
        self._server = StreamServer(self._serve)

    async def __aenter__(self) -> LosingProxy:
        await self._server.start()
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}"

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._pump(reader, out), self._pump(upstream, writer, answers=True))
        finally:
            out.close()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        try:
            while data := await source.read(65536):
                if not self.is_cut and not (answers and self.is_losing):
                    target.write(data)
                    await target.drain()
        except OSError:
            return
        finally:
            target.close()


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


async def test_a_node_that_is_cut_off_goes_on_alone_and_is_current_when_it_is_back(
    server: RedisServer,
) -> None:
    async with LosingProxy(server.port) as proxy, nodes(server.url, 1) as (other,):
        one = open_node(proxy.url, timeout=TIMEOUT)
        states: list[str] = []
        one.judge(lambda status, reason: states.append(status))
        old = await one.put("sessions", "s-1", b"1")
        await asyncio.gather(*(one.get("sessions", f"s-{number}") for number in range(16)))
        proxy.is_cut = True
        await eventually(lambda: states == ["down"])
        new = await other.put("sessions", "s-1", b"2")
        assert one.stamp_of("sessions", "s-1") == old
        await refused(one)
        proxy.is_cut = False
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
