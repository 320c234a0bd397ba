"""Clocks that are set while reminders are on their way: nothing is delivered twice, and nothing gets lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from routecodex.server_tools.clock.deliveries import Deliveries, Reservation
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.reservations import delivery_mark, effective_reservations
from routecodex.server_tools.clock.task import DeliveryMark
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.stores.uptime import UNKNOWN, SystemUptime, uptime
from tests.server_tools.clock.world import (
    HOUR,
    MINUTE,
    RULES,
    START,
    Failing,
    Machine,
    files,
    put,
    state,
    task,
    task_fields,
)

LEASE = RULES.lease_ms
LONG = DueRules(retention_ms=100 * HOUR)
jumps = pytest.mark.parametrize("jump", [LEASE + 1, 2 * HOUR, -LEASE - 1, -2 * HOUR], ids=str)


class Process:
    """One process of a machine on files that others share."""

    def __init__(self, directory: Path, machine: Machine) -> None:
        self.machine = machine
        self.store = files(directory)
        self.task_store = TaskStore(self.store, now_ms=machine.now)
        self.deliveries = Deliveries(self.task_store, rules=LONG, now_ms=machine.now, up=machine.up)

    async def reserve(self, request_id: str) -> Reservation:
        found = await self.deliveries.reserve("s1", request_id)
        assert found is not None
        return found

    async def close(self) -> None:
        await self.deliveries.close()
        await self.store.close()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
async def two(tmp_path: Path, machine: Machine) -> AsyncIterator[tuple[Process, Process]]:
    """Two processes of one machine, and a task that has been due for hours."""
    both = Process(tmp_path, machine), Process(tmp_path, machine)
    await put(both[0].task_store, task_fields(START - 10 * HOUR), now=lambda: START - 11 * HOUR)
    yield both
    for process in both:
        await process.close()


@jumps
async def test_a_clock_that_jumps_does_not_end_a_reservation(
    two: tuple[Process, Process], machine: Machine, jump: int
) -> None:
    holder, other = two
    held = await holder.reserve("r1")
    machine.now.ms += jump
    assert await holder.deliveries.reserve("s1", "r2") is None
    assert await other.deliveries.reserve("s1", "r3") is None
    await holder.deliveries.renew()
    machine.now.ms += jump
    assert await other.deliveries.reserve("s1", "r4") is None
    assert [one.delivery_count for one in await holder.deliveries.commit(held)] == [1]
    assert await other.deliveries.reserve("s1", "r5") is None


@jumps
async def test_what_a_dead_process_held_comes_free_after_its_lease_wherever_the_clock_stands(
    two: tuple[Process, Process], machine: Machine, jump: int
) -> None:
    dead, alive = two
    await dead.reserve("r1")
    machine.now.ms += jump
    machine.wait(LEASE - 1)
    assert await alive.deliveries.reserve("s1", "r2") is None
    machine.wait(1)
    found = await alive.reserve("r3")
    assert [one.delivery_count for one in await alive.deliveries.commit(found)] == [1]
    assert await alive.deliveries.reserve("s1", "r4") is None


async def test_after_a_restart_of_the_machine_the_time_of_day_decides(
    two: tuple[Process, Process], machine: Machine
) -> None:
    dead, alive = two
    await dead.reserve("r1")
    machine.restart()
    machine.wait(LEASE - 1)
    assert await alive.deliveries.reserve("s1", "r2") is None
    machine.wait(1)
    assert (await alive.reserve("r3")).task_ids == ["t1"]


async def test_between_machines_the_time_of_day_decides(tmp_path: Path) -> None:
    here, there = Process(tmp_path, Machine("here")), Process(tmp_path, Machine("there"))
    await put(here.task_store, task_fields(START - 10 * MINUTE), now=lambda: START - HOUR)
    await here.reserve("r1")
    there.machine.up_ms += 10 * LEASE
    assert await there.deliveries.reserve("s1", "r2") is None
    there.machine.now.ms -= LEASE + 1
    assert (await there.reserve("r2")).task_ids == ["t1"], "a mark from far ahead tells of a wrong clock"
    for process in (here, there):
        await process.close()


async def test_a_store_that_takes_no_renewal_does_not_cost_what_this_process_holds(machine: Machine) -> None:
    store = Failing()
    task_store = TaskStore(store, now_ms=machine.now)
    deliveries = Deliveries(task_store, rules=RULES, now_ms=machine.now, up=machine.up)
    await put(task_store, task_fields(), now=machine.now)
    held = await deliveries.reserve("s1", "r1")
    assert held is not None
    store.broken = True
    machine.wait(2 * LEASE)
    await deliveries.renew()
    store.broken = False
    assert await deliveries.reserve("s1", "r2") is None
    assert [one.task_id for one in await deliveries.commit(held)] == ["t1"]


async def test_renewals_outlive_a_configuration_until_nothing_is_held(
    machine: Machine,
) -> None:
    task_store = TaskStore(Failing(), now_ms=machine.now)
    deliveries = Deliveries(task_store, rules=DueRules(lease_ms=30), now_ms=machine.now, up=machine.up)
    await put(task_store, task_fields(), now=machine.now)
    held = await deliveries.reserve("s1", "r1")
    assert held is not None
    await deliveries.close()
    written = asyncio.Event()
    task_store.listen(lambda session: written.set())
    machine.wait(20)
    await written.wait()
    (renewed,) = (await task_store.load("s1")).tasks
    assert renewed.reservation == delivery_mark(held.id, machine.now(), up=machine.up(), lease_ms=30)
    await deliveries.commit(held)
    written.clear()
    await deliveries.renew()
    assert not written.is_set()


def test_a_shorter_lease_after_a_reload_does_not_let_go_of_what_was_reserved_for_longer() -> None:
    mark = delivery_mark("m", START, up=SystemUptime("boot", 1000), lease_ms=MINUTE)
    marked = state(task(reservation=mark))
    seen = effective_reservations(marked, START, up=SystemUptime("boot", 31_000), lease_ms=500)
    assert [one.reservation and one.reservation.until_ms for one in seen.tasks] == [START + 500]


def test_a_state_without_marks_is_left_as_it_is() -> None:
    plain = state(task())
    assert effective_reservations(plain, START, up=SystemUptime("boot", 1), lease_ms=LEASE) is plain


def test_where_the_machine_tells_nothing_only_the_time_of_day_is_written() -> None:
    assert delivery_mark("m", START, up=UNKNOWN, lease_ms=LEASE) == DeliveryMark("m", START + LEASE)


async def test_all_processes_of_a_machine_share_one_clock() -> None:
    code = "from routecodex.stores.uptime import uptime; print(*uptime(), sep='|')"
    before = uptime()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    start, ms = said.decode().strip().split("|")
    assert start == before.start
    assert before.ms <= int(ms) <= uptime().ms
