"""Held requests: one timer, woken in time, by a change here or in another process, or when they leave."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from routecodex.server_tools.clock import edits
from routecodex.server_tools.clock.due_timer import DueTimer, Holds, Waiter
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Store, Stored, StoreError
from tests.server_tools.clock.world import HOUR, MINUTE, RULES, START, Moving, files, put, task_fields

SOON = START + MINUTE + 50
"""Due so that its window opens 50 ms from the start."""


class Stamps:
    """Stamps set by hand, and how often they were asked for."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.looks = 0
        self.compared = 0

    def stamp(self) -> int:
        self.looks += 1
        return sum(self.of.values())

    def stamp_of(self, session: str) -> int:
        self.compared += 1
        return self.of.get(session, 0)


class World:
    """One process that holds requests of a store."""

    def __init__(self, store: Store, now: Moving) -> None:
        self.now = now
        self.task_store = TaskStore(store, now_ms=now)
        self.timer = DueTimer(self.task_store, now_ms=now, recheck=0.002)
        self.task_store.listen(self.timer.changed)
        self.holds = Holds(self.task_store, self.timer, rules=RULES, now_ms=now)

    def hold(self, *, seconds: float = 60, request_id: str = "r1") -> asyncio.Task[bool]:
        deadline = self.now() + int(seconds * 1000)
        return asyncio.ensure_future(self.holds.until_due("s1", request_id, deadline_ms=deadline))

    async def held(self, count: int = 1) -> None:
        while self.timer.waiting != count:
            await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World(MemoryStore(), Moving())


async def test_a_held_request_wakes_when_the_window_opens(world: World) -> None:
    await put(world.task_store, task_fields(SOON), now=world.now)
    held = world.hold()
    await world.held()
    world.now.ms += 49
    done, _ = await asyncio.wait([held], timeout=0.02)
    assert not done
    world.now.ms += 1
    assert await held is True
    assert world.timer.waiting == 0


@pytest.mark.parametrize("seconds", [0, 60])
async def test_nothing_is_held_for_nothing(world: World, seconds: float) -> None:
    assert await world.hold(seconds=seconds) is False
    await put(world.task_store, task_fields(START + 3 * MINUTE), now=world.now)
    assert await world.hold(seconds=seconds) is False


async def test_what_is_due_already_is_not_waited_for(world: World) -> None:
    await put(world.task_store, task_fields(), now=world.now)
    assert await world.hold() is True
    assert await world.hold(request_id="earlier:clock_followup") is False


async def test_a_server_that_stops_holds_nobody_any_more(world: World) -> None:
    await put(world.task_store, task_fields(SOON), now=world.now)
    held = world.hold()
    await world.held()
    world.timer.release()
    assert await held is False
    assert await world.hold() is False


async def test_a_cancelled_task_ends_the_hold(world: World) -> None:
    await put(world.task_store, task_fields(SOON), now=world.now)
    held = world.hold()
    await world.held()
    await world.task_store.edit("s1", edits.clear)
    assert await held is False


async def test_a_change_of_another_session_wakes_nobody(world: World) -> None:
    await put(world.task_store, task_fields(SOON), now=world.now)
    held = world.hold()
    await world.held()
    await put(world.task_store, task_fields(SOON), now=world.now, session="s2")
    done, _ = await asyncio.wait([held], timeout=0.02)
    assert not done
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    assert world.timer.waiting == 0


async def test_a_task_cancelled_by_another_process_ends_the_hold(tmp_path: Path) -> None:
    now, here, there = Moving(), files(tmp_path), files(tmp_path)
    ours, theirs = World(here, now), World(there, now)
    await put(ours.task_store, task_fields(SOON), now=now)
    held = ours.hold()
    await ours.held()
    await theirs.task_store.edit("s1", edits.clear)
    assert await held is False
    await here.close()
    await there.close()


async def test_an_earlier_task_set_meanwhile_moves_the_moment(world: World) -> None:
    await put(world.task_store, task_fields(START + 2 * MINUTE), now=world.now)
    held = world.hold()
    await world.held()
    await put(world.task_store, task_fields(SOON, "sooner"), now=world.now)
    await world.held()
    world.now.ms += 50
    assert await held is True


async def test_a_client_that_leaves_is_forgotten(world: World) -> None:
    await put(world.task_store, task_fields(SOON), now=world.now)
    held = world.hold()
    await world.held()
    held.cancel()
    await asyncio.gather(held, return_exceptions=True)
    assert world.timer.waiting == 0


class Deaf(MemoryStore):
    """A store that cannot be read."""

    def stamp_of(self, space: str, key: str) -> int:
        return 1

    async def get(self, space: str, key: str) -> Stored | None:
        raise StoreError("gone")


async def test_a_store_that_cannot_be_read_holds_nobody() -> None:
    assert await World(Deaf(), Moving()).hold() is False


class Interrupted(MemoryStore):
    """A store that can be down, and counts the reads that fail."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.failures = 0
        self.unknown = 0

    def stamp(self, space: str) -> int:
        return super().stamp(space) if not self.down else self._unknown()

    def stamp_of(self, space: str, key: str) -> int:
        return super().stamp_of(space, key) if not self.down else self._unknown()

    def _unknown(self) -> int:
        self.unknown -= 1
        return self.unknown

    async def get(self, space: str, key: str) -> Stored | None:
        if self.down:
            self.failures += 1
            raise StoreError("gone")
        return await super().get(space, key)


@pytest.mark.parametrize("returns", [True, False])
async def test_a_hold_goes_on_while_the_store_is_down(returns: bool) -> None:
    store, now = Interrupted(), Moving()
    world = World(store, now)
    await put(world.task_store, task_fields(SOON), now=now)
    held = world.hold(seconds=10)
    await world.held()
    store.down = True
    async with asyncio.timeout(20):
        while store.failures < 2:
            await asyncio.sleep(0.001)
            now.ms += 1
        assert not held.done()
        store.down = not returns
        now.ms += 50 if returns else 10_000
        assert await held is returns


async def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    stamps = Stamps()
    timer = DueTimer(stamps, now_ms=Moving())
    stamps.of["s1"] = 2
    await timer.wait("s1", START + HOUR, stamp=1)
    assert timer.waiting == 0


async def test_thousands_wake_in_order_with_one_timer() -> None:
    stamps, now, order = Stamps(), Moving(), list[int]()
    timer = DueTimer(stamps, now_ms=now, recheck=0.001)

    async def one(number: int) -> None:
        await timer.wait(f"s{number}", START + number, stamp=0)
        order.append(number)

    waiting = [asyncio.ensure_future(one(number)) for number in reversed(range(1, 3001))]
    while timer.waiting < 3000:
        await asyncio.sleep(0)
    timers = [handle for handle in vars(timer).values() if isinstance(handle, asyncio.TimerHandle)]
    assert (len(timers), stamps.compared) == (1, 3000)
    now.ms += 3000
    await asyncio.gather(*waiting)
    assert order == list(range(1, 3001))
    assert stamps.compared == 3000


async def test_while_nobody_waits_nothing_is_looked_at() -> None:
    stamps, now = Stamps(), Moving()
    timer = DueTimer(stamps, now_ms=now, recheck=0.001)
    held = asyncio.ensure_future(timer.wait("s1", START + 5, stamp=0))
    while not timer.waiting:
        await asyncio.sleep(0)
    now.ms += 5
    await held
    looks = stamps.looks
    await asyncio.sleep(0.01)
    assert stamps.looks == looks


async def test_those_who_left_do_not_pile_up() -> None:
    timer = DueTimer(Stamps(), now_ms=Moving())
    stays = asyncio.ensure_future(timer.wait("s1", START + HOUR, stamp=0))
    for _ in range(500):
        leaves = asyncio.ensure_future(timer.wait("s2", START + HOUR, stamp=0))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
    assert timer.waiting == 1
    assert sum(isinstance(found, Waiter) for found in gc.get_objects()) < 100
    stays.cancel()
    await asyncio.gather(stays, return_exceptions=True)


async def test_a_clock_that_is_set_forward_wakes_who_is_due(world: World) -> None:
    await put(world.task_store, task_fields(START + 90_000), now=world.now)
    held = world.hold()
    await world.held()
    world.now.ms += HOUR // 4
    assert await held is True
