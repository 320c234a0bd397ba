"""A store that knows whether it can be used: what it counts, when it goes, when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.monitored import MonitoredStore, StoreReport
from routecodex.stores.store import Change, Conflict, Stored, StoreError


class Faulty(MemoryStore):
    """A store whose reads or writes fail, or whose calls do not end."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: set[str] = set()
        self.ends = asyncio.Event()
        self.ends.set()

    async def _call(self, *kinds: str) -> None:
        await self.ends.wait()
        if self.fails & set(kinds):
            raise StoreError("the disk is full")

    async def get(self, space: str, key: str) -> Stored | None:
        await self._call("read")
        return await super().get(space, key)

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        await self._call("write")
        return await super().update(space, key, change, ttl=ttl)

    async def check(self, space: str) -> None:
        await self._call("read", "write")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """Sleeps that end when a test lets them, and the seconds that were asked for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._waiting.append(asyncio.get_running_loop().create_future())
        await self._waiting[-1]

    async def step(self) -> None:
        """End the sleep that runs, and let its task go on."""
        await settled()
        self._waiting.pop().set_result(None)
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def keep(value: bytes | None) -> bytes | None:
    return value or b"1"


@pytest.fixture
def calls() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def faulty() -> Faulty:
    return Faulty()


@pytest.fixture
async def store(
    faulty: Faulty, calls: list[tuple[str, bool]], clock: Clock, steps: Steps
) -> AsyncIterator[MonitoredStore]:
    made = MonitoredStore(
        faulty,
        on_call=lambda op, seconds, failed: calls.append((op, failed)),
        clock=clock,
        sleep=steps.sleep,
        jitter=lambda: 1.0,
    )
    yield made
    await made.close()


async def test_every_call_is_counted_and_passed_on(
    store: MonitoredStore, calls: list[tuple[str, bool]]
) -> None:
    assert await store.put("a", "x", b"1") == 1
    assert (await store.get("a", "x")) == (await store.get_intact("a", "x")) == Stored(b"1", 1)
    assert await store.update("a", "x", lambda _: b"2") == b"2"
    assert await store.keys("a") == ["x"]
    assert store.stamp_of("a", "x") == store.stamp("a") == 2
    assert await store.trim("a", entries=1, size=100) == 0
    assert await store.delete("a", "x")
    assert calls == [(op, False) for op in ("put", "get", "get", "update", "keys", "trim", "delete")]
    assert store.report == StoreReport("memory", "up", 1000.0)


async def test_a_call_that_is_refused_is_not_a_failure_of_the_store(
    store: MonitoredStore, calls: list[tuple[str, bool]]
) -> None:
    with pytest.raises(Conflict):
        await store.put("a", "x", b"1", expected=7)
    with pytest.raises(StoreError):
        await store.put("Not a space", "x", b"1")
    with pytest.raises(LookupError):
        await store.update("a", "x", lambda _: {}[1])  # type: ignore[index]  # it must fail
    assert (calls, store.works) == ([("put", False), ("put", False), ("update", False)], True)


@pytest.mark.parametrize(
    ("kind", "status", "text"),
    [
        ("read", "down", "the memory store is down, requests continue with the last known state: "),
        ("write", "read_only", "the memory store cannot be written, nothing new is saved: "),
    ],
)
async def test_it_is_said_once_when_it_goes_and_once_when_it_is_back(
    store: MonitoredStore,
    faulty: Faulty,
    clock: Clock,
    steps: Steps,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    status: str,
    text: str,
) -> None:
    returns: list[bool] = []
    store.on_return.append(lambda: returns.append(store.works))
    for outage in (1, 2):
        clock.now += 10
        gone = clock.now
        faulty.fails = {kind}
        for key in "abc":
            with pytest.raises(StoreError):
                await (store.get("s", key) if kind == "read" else store.update("s", key, keep))
        assert (store.report.status, store.report.since) == (status, gone)
        clock.now += 2
        await steps.step()
        assert not store.works
        faulty.fails = set()
        await steps.step()
        assert (store.report, returns) == (StoreReport("memory", "up", gone + 2), [True] * outage)
    assert caplog.messages == [f"{text}the disk is full", "the memory store works again after 2 s"] * 2
    assert steps.seconds == [0.05, 0.1] * 2


async def test_pauses_between_checks_grow_to_two_seconds(
    store: MonitoredStore, faulty: Faulty, steps: Steps
) -> None:
    faulty.fails = {"read"}
    with pytest.raises(StoreError):
        await store.get("s", "a")
    for _ in range(8):
        await steps.step()
    assert steps.seconds == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


async def test_a_store_that_cannot_be_read_either_is_down_since_then(
    store: MonitoredStore, faulty: Faulty, clock: Clock, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.fails = {"read", "write"}
    with pytest.raises(StoreError):
        await store.update("s", "a", keep)
    reports = [store.report]
    clock.now += 5
    with pytest.raises(StoreError):
        await store.get("s", "a")
    reports.append(store.report)
    clock.now += 2
    with pytest.raises(StoreError):
        await store.get("s", "b")
    reports.append(store.report)
    down = StoreReport("memory", "down", 1005.0)
    assert reports == [StoreReport("memory", "read_only", 1000.0), down, down]
    faulty.fails = set()
    await steps.step()
    assert store.works
    assert caplog.messages[1:] == ["the memory store works again after 7 s"]


async def test_a_call_that_does_not_end_counts_as_failed(
    faulty: Faulty, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    store = MonitoredStore(faulty, sleep=steps.sleep, late_after=0.0)
    faulty.ends.clear()
    reading = asyncio.ensure_future(store.get("s", "a"))
    async with asyncio.timeout(20):
        while store.works:
            await asyncio.sleep(0)
    assert store.report.status == "down"
    faulty.ends.set()
    assert await reading is None
    await steps.step()
    assert store.works
    assert "get of s/'a' has taken more than 0 s" in caplog.text
    await store.close()


async def test_a_directory_that_cannot_be_written_is_noticed_and_its_repair_too(
    tmp_path: Path, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    store = MonitoredStore(FileStore(tmp_path), sleep=steps.sleep)
    lock = tmp_path / "s" / ".lock"
    lock.mkdir(parents=True)
    with caplog.at_level(logging.ERROR), pytest.raises(StoreError):
        await store.update("s", "a", keep)
    assert store.report.status == "read_only"
    assert str(lock) in caplog.text
    lock.rmdir()
    async with asyncio.timeout(20):
        await steps.step()
        while not store.works:
            await asyncio.sleep(0.001)
    assert await store.update("s", "a", keep) == b"1"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [".lock", "a.json"]
    await store.close()
