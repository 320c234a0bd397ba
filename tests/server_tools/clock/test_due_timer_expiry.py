"""The expiry sweep at the start and with every tick."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from routecodex.server_tools.clock.due_timer import ExpirySweep, SweepReport
from routecodex.server_tools.clock.task import encode, no_tasks
from routecodex.server_tools.clock.task_store import SPACE, TaskStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Stored, StoreError
from tests.server_tools.clock.world import DAY, HOUR, MINUTE, RULES, START, Moving, files, put, task_fields


class Counting(MemoryStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.listings = 0
        self.down = False

    async def get(self, space: str, key: str) -> Stored | None:
        self.reads += 1
        return await super().get(space, key)

    async def keys(self, space: str) -> list[str]:
        if self.down:
            raise StoreError("gone")
        self.listings += 1
        return await super().keys(space)


class World:
    def __init__(self, now: Moving) -> None:
        self.store = Counting()
        self.now = now
        self.task_store = TaskStore(self.store, now_ms=now)
        self.upkeep = ExpirySweep(self.task_store, rules=RULES, now_ms=now)


@pytest.fixture
def world() -> World:
    return World(Moving())


async def test_tasks_past_retention_go_and_all_others_stay(world: World) -> None:
    tasks = [task_fields(), task_fields(START + HOUR, "later"), task_fields(START, "again", repeat="daily")]
    await put(world.task_store, *tasks, now=world.now)
    await put(world.task_store, task_fields(), now=world.now, session="s2")
    world.now.ms = START + RULES.retention_ms
    assert await world.upkeep.sweep() == SweepReport(sessions=2, tasks=4, dropped=0)
    world.now.ms += 1
    assert await world.upkeep.sweep() == SweepReport(sessions=1, tasks=2, dropped=2)
    assert [one.task for one in (await world.task_store.load("s1")).tasks] == ["later", "again"]
    assert await world.store.keys(SPACE) == ["s1"]


async def test_a_repeated_task_that_nobody_comes_back_for_goes_in_the_end(world: World) -> None:
    await put(world.task_store, task_fields(repeat="daily"), now=world.now)
    world.now.ms += 30 * DAY + 1
    assert await world.upkeep.sweep() == SweepReport(sessions=0, tasks=0, dropped=1)


async def test_what_has_not_changed_is_not_read_again(world: World) -> None:
    await put(world.task_store, task_fields(START + DAY), now=world.now)
    await world.upkeep.sweep()
    before = (world.store.reads, world.store.listings)
    for _ in range(5):
        world.now.ms += MINUTE
        assert await world.upkeep.sweep() == SweepReport(sessions=1, tasks=1, dropped=0)
    assert (world.store.reads, world.store.listings) == before


async def test_a_session_without_tasks_left_behind_is_removed(world: World) -> None:
    await world.store.put(SPACE, "s1", encode(no_tasks("s1")))
    assert await world.upkeep.sweep() == SweepReport()
    assert await world.store.keys(SPACE) == []


async def test_a_store_that_is_down_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await put(world.task_store, task_fields(), now=world.now)
    world.store.down = True
    with caplog.at_level(logging.DEBUG):
        assert await world.upkeep.sweep() == SweepReport()
    assert caplog.messages == ["expired tasks could not be deleted: gone"]
    world.store.down = False
    assert await world.upkeep.sweep() == SweepReport(sessions=1, tasks=1, dropped=0)


async def test_the_start_survives_damaged_files_and_says_what_it_did(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now, store = Moving(), files(tmp_path)
    task_store = TaskStore(store, now_ms=now)
    await put(task_store, task_fields(), task_fields(START + HOUR, "later"), now=now)
    for name, content in [("a.json", b"{"), ("b.json", b"[]"), ("ntp-state.json", b"nonsense")]:
        (tmp_path / "clock" / name).write_bytes(content)
    now.ms += RULES.retention_ms + 1
    assert await ExpirySweep(task_store, rules=RULES, now_ms=now).sweep() == SweepReport(
        sessions=1, tasks=1, dropped=1
    )
    others = [path for path in (tmp_path / "clock").iterdir() if path.name not in (".lock", "s1.json")]
    assert {path.name: path.read_bytes() for path in others} == {
        "a.json.corrupt-1": b"{",
        "b.json.corrupt-1": b"[]",
        "ntp-state.json": b"nonsense",
    }
    assert ["a.json" in caplog.text, "b.json" in caplog.text, caplog.messages[-1]] == [
        True,
        True,
        "1 tasks dropped, 1 kept in 1 sessions",
    ]
    await store.close()


async def test_it_sweeps_at_the_start_and_with_every_tick(world: World) -> None:
    await put(world.task_store, task_fields(), now=world.now)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        world.now.ms += int(seconds * 1000)
        if not await world.store.keys(SPACE):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await world.upkeep.run(60, sleep=sleep)
    assert slept == [60] * 22
