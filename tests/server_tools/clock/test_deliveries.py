"""Reserve, commit, roll back: once, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from routecodex.server_tools.clock.deliveries import Deliveries, Reservation
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Change
from routecodex.stores.uptime import SystemUptime
from tests.server_tools.clock.world import DAY, HOUR, MINUTE, RULES, START, Failing, Moving, put, task_fields


class World:
    """One process on a store that others may share."""

    def __init__(
        self, store: MemoryStore, now: Moving, *, rules: DueRules = RULES, start: str = "boot"
    ) -> None:
        self.now = now
        self.task_store = TaskStore(store, now_ms=now)
        # Here time only passes: clocks that are set are tested in test_reservations.
        self.deliveries = Deliveries(
            self.task_store, rules=rules, now_ms=now, up=lambda: SystemUptime(start, now.ms)
        )

    async def tasks(self) -> tuple[Task, ...]:
        return (await self.task_store.load("s1")).tasks

    async def reserve(self, request_id: str) -> Reservation:
        found = await self.deliveries.reserve("s1", request_id)
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    return World(MemoryStore(), Moving())


async def test_a_due_task_is_delivered_once(world: World) -> None:
    await put(world.task_store, task_fields(), task_fields(START + HOUR, "later"), now=world.now)
    first = await world.reserve("r1")
    assert (first.task_ids, first.session, first.request_id) == (["t1"], "s1", "r1")
    assert await world.deliveries.reserve("s1", "r2") is None
    world.now.ms += 5
    done = await world.deliveries.commit(first)
    assert [(one.task_id, one.delivered_at_ms, one.delivery_count) for one in done] == [("t1", START + 5, 1)]
    assert await world.deliveries.reserve("s1", "r3") is None
    assert await world.deliveries.commit(first) == ()
    await world.deliveries.roll_back(first)
    assert [one.delivery_count for one in await world.tasks()] == [1, 0]
    await world.deliveries.close()


async def test_what_was_rolled_back_is_as_if_nothing_had_happened(world: World) -> None:
    await put(world.task_store, task_fields(), now=world.now)
    before = await world.tasks()
    first = await world.reserve("r1")
    await world.deliveries.roll_back(first)
    assert await world.tasks() == before
    second = await world.reserve("r2")
    assert await world.deliveries.commit(first) == ()
    assert len(await world.deliveries.commit(second)) == 1
    await world.deliveries.close()


async def test_a_task_set_inside_the_window_waits_for_the_next_request(world: World) -> None:
    await put(world.task_store, task_fields(), now=world.now)
    chain = ["earlier", "earlier:clock_followup", "earlier:tools"]
    assert [await world.deliveries.reserve("s1", one) for one in chain] == [None] * 3
    assert (await world.reserve("next")).task_ids == ["t1"]
    await world.deliveries.close()


async def test_twenty_requests_at_once_deliver_once() -> None:
    store, now = MemoryStore(), Moving()
    workers = [World(store, now) for _ in range(4)]
    await put(workers[0].task_store, task_fields(), task_fields(START, "else"), now=now)
    asked = [worker.deliveries.reserve("s1", f"r{n}") for n in range(5) for worker in workers]
    found = [one for one in await asyncio.gather(*asked) if one is not None]
    assert [one.task_ids for one in found] == [["t1", "t2"]]
    for worker in workers:
        await worker.deliveries.close()


async def test_what_a_dead_process_had_reserved_comes_free_and_is_delivered_once() -> None:
    store, now = MemoryStore(), Moving()
    dead, alive = World(store, now), World(store, now)
    await put(dead.task_store, task_fields(), now=now)
    lost = await dead.reserve("r1")
    await dead.deliveries.close()
    now.ms += RULES.lease_ms - 1
    assert await alive.deliveries.reserve("s1", "r2") is None
    now.ms += 1
    found = await alive.reserve("r2")
    assert found.task_ids == lost.task_ids
    assert [one.delivery_count for one in await alive.deliveries.commit(found)] == [1]
    assert await alive.deliveries.reserve("s1", "r3") is None
    await alive.deliveries.close()


async def test_a_slow_request_keeps_its_reservation() -> None:
    store, now = MemoryStore(), Moving()
    slow, other = World(store, now), World(store, now)
    await put(slow.task_store, task_fields(), now=now)
    held = await slow.reserve("r1")
    for _ in range(10):
        now.ms += RULES.lease_ms // 2
        await slow.deliveries.renew()
        assert await other.deliveries.reserve("s1", "r2") is None
    assert len(await slow.deliveries.commit(held)) == 1
    await slow.deliveries.close()
    await other.deliveries.close()


async def test_a_slow_request_keeps_a_repeated_task_past_its_retention() -> None:
    store, now = MemoryStore(), Moving()
    slow, other = World(store, now), World(store, now)
    await put(slow.task_store, task_fields(repeat="every 1 minutes"), now=now)
    now.ms += RULES.retention_ms
    held = await slow.reserve("r1")
    for _ in range(5):
        now.ms += RULES.lease_ms // 2
        await slow.deliveries.renew()
        assert [await one.deliveries.reserve("s1", "r2") for one in (slow, other)] == [None, None]
    assert [one.delivery_count for one in await slow.deliveries.commit(held)] == [1]
    await slow.deliveries.close()
    await other.deliveries.close()


async def test_reservations_are_renewed_by_themselves() -> None:
    now = Moving()
    world = World(MemoryStore(), now, rules=DueRules(lease_ms=30))
    await put(world.task_store, task_fields(), now=now)
    held = await world.reserve("r1")
    before = held.tasks[0].reservation
    now.ms += 20
    written = asyncio.Event()
    world.task_store.listen(lambda session: written.set())
    await written.wait()
    renewed = (await world.tasks())[0].reservation
    assert before is not None
    assert renewed == replace(before, until_ms=START + 20 + 30, until_up_ms=START + 20 + 30)
    await world.deliveries.close()


async def test_a_commit_that_cannot_be_written_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    store, now = Failing(), Moving()
    world = World(store, now)
    await put(world.task_store, task_fields(), now=now)
    held = await world.reserve("r1")
    store.broken = True
    assert await world.deliveries.commit(held) == ()
    await world.deliveries.roll_back(held)
    store.broken = False
    now.ms += RULES.lease_ms // 3
    await world.deliveries.renew()
    assert [(one.delivered_at_ms, one.delivery_count) for one in await world.tasks()] == [(START, 1)]
    assert caplog.messages == [], "the store itself says that it is down"
    await world.deliveries.close()


async def test_a_store_that_fails_costs_the_reminder_and_not_the_request() -> None:
    store, now = Failing(), Moving()
    world = World(store, now)
    await put(world.task_store, task_fields(), now=now)
    store.broken = True
    assert await world.deliveries.reserve("s1", "r1") is None
    store.broken = False
    held = await world.reserve("r2")
    store.broken = True
    await world.deliveries.roll_back(held)
    store.broken = False
    now.ms += RULES.lease_ms
    assert (await world.reserve("r3")).task_ids == ["t1"]
    await world.deliveries.close()


class Slow(MemoryStore):
    """A store whose writes wait at a door."""

    def __init__(self) -> None:
        super().__init__()
        self.door = asyncio.Event()
        self.door.set()
        self.at_the_door = asyncio.Event()

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        self.at_the_door.set()
        await self.door.wait()
        return await super().update(space, key, change, ttl=ttl)


async def leave(store: Slow, asked: Any) -> None:
    """Start a call and cancel it during its write."""
    store.door.clear()
    store.at_the_door.clear()
    asking = asyncio.ensure_future(asked)
    await store.at_the_door.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    store.door.set()


async def test_a_client_that_leaves_during_the_reservation_gives_it_back() -> None:
    store, now = Slow(), Moving()
    world = World(store, now)
    await put(world.task_store, task_fields(), now=now)
    before = await world.tasks()
    await leave(store, world.deliveries.reserve("s1", "r1"))
    await world.deliveries.close()
    assert await world.tasks() == before


async def test_a_client_that_leaves_during_the_commit_has_been_served() -> None:
    store, now = Slow(), Moving()
    world = World(store, now)
    await put(world.task_store, task_fields(), now=now)
    held = await world.reserve("r1")
    await leave(store, world.deliveries.commit(held))
    await world.deliveries.roll_back(held)
    await world.deliveries.close()
    assert [one.delivery_count for one in await world.tasks()] == [1]


async def test_a_task_stays_reserved_while_its_commit_is_written_however_long_that_takes() -> None:
    store = Slow()
    world = World(store, Moving())
    await put(world.task_store, task_fields(), now=world.now)
    first = await world.reserve("r1")
    store.door.clear()
    commit = world.deliveries.start_commit(first)
    assert commit is not None
    assert world.deliveries.start_commit(first) is None
    world.now.ms += 10 * RULES.lease_ms
    assert await world.deliveries.reserve("s1", "r2") is None
    await world.deliveries.renew()
    await world.deliveries.roll_back(first)
    settled = asyncio.ensure_future(world.task_store.settled("s1"))
    store.door.set()
    assert [one.delivery_count for one in (await settled).tasks] == [1]
    assert [(one.task_id, one.delivered_at_ms) for one in await commit] == [("t1", START)]
    assert await world.deliveries.reserve("s1", "r3") is None
    await world.deliveries.close()


async def test_a_repeated_task_comes_again_but_not_in_the_same_chain(world: World) -> None:
    await put(world.task_store, task_fields(repeat="every 1 minutes", max_runs=2), now=world.now)
    assert await world.deliveries.commit(await world.reserve("r1"))
    assert await world.deliveries.reserve("s1", "r1:clock_followup") is None
    second = await world.reserve("r2")
    assert [one.due_at_ms for one in second.tasks] == [START + MINUTE]
    assert [one.delivery_count for one in await world.deliveries.commit(second)] == [2]
    world.now.ms += 2 * MINUTE
    assert await world.deliveries.reserve("s1", "r3") is None
    await world.deliveries.close()


async def test_a_missed_day_of_a_repeated_task_is_not_made_up_for(world: World) -> None:
    await put(world.task_store, task_fields(repeat="daily"), now=world.now)
    world.now.ms += 3 * DAY + MINUTE
    found = await world.reserve("r1")
    assert [one.due_at_ms for one in found.tasks] == [START + 3 * DAY]
    assert [one.due_at_ms for one in await world.deliveries.commit(found)] == [START + 4 * DAY]
    await world.deliveries.close()


async def test_the_log_tells_what_happened_without_the_text(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.clock")
    await put(world.task_store, task_fields(), now=world.now)
    await world.deliveries.roll_back(await world.reserve("r1"))
    await world.deliveries.commit(await world.reserve("r2"))
    assert caplog.messages == [
        "r1: 1 due tasks of session 's1' injected: t1",
        "r1: 1 tasks released",
        "r2: 1 due tasks of session 's1' injected: t1",
        "r2: 1 tasks delivered: t1 (1)",
    ]
    await world.deliveries.close()
