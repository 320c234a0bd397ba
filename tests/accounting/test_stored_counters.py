"""Counters in Redis: atomic reservations of several processes, true figures, dead processes, outages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from routecodex.accounting.counters import (
    CountersUnavailable,
    LimitEvent,
    LimitRefusal,
    LimitReservation,
    Reserved,
)
from routecodex.accounting.limit_changes import SPACE
from routecodex.accounting.limits import Limit, make_limits
from routecodex.accounting.stored_counters import StoredCounters
from routecodex.accounting.windows import MICROS
from routecodex.config import LimitConfig
from routecodex.stores.monitored import MonitoredStore
from routecodex.stores.store import StoreError
from tests.kit.redis_server import RedisServer
from tests.stores.redis.losing_proxy import LosingProxy
from tests.stores.redis.nodes import eventually, open_node


def limits(*texts: str, owner: str = "client:laptop", concurrent: int | None = None) -> tuple[Limit, ...]:
    return make_limits(owner, [LimitConfig(limit=text) for text in texts], concurrent=concurrent)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


class Process:
    """The counters of one process, on a store of its own."""

    def __init__(self, server: RedisServer | LosingProxy, node: str, *, timeout: float = 5.0) -> None:
        self.node = node
        self.store = MonitoredStore(open_node(server.url, timeout=timeout))
        assert self.store.groups is not None
        self.counters = StoredCounters(
            self.store, self.store.groups, node=lambda: node, works=lambda: self.store.works
        )
        self.events: list[LimitEvent] = []
        self.counters.on_events = self.events.extend

    async def reserve(self, rows: tuple[Limit, ...], *amounts: int) -> Reserved:
        return await self.counters.reserve(rows, list(amounts), 0)

    async def settle(self, reserved: Reserved, *used: int, last: bool = True) -> None:
        assert isinstance(reserved, LimitReservation)
        self.counters.settle(reserved, list(used), 0, last=last)
        await self.counters.flush()

    def state(self, rows: tuple[Limit, ...]) -> list[tuple[int, int]]:
        return [(one.used, one.reserved) for one in self.counters.latest(rows)]

    async def close(self) -> None:
        self.counters.close()
        await self.store.close()


@pytest.fixture
async def processes(running: RedisServer) -> AsyncIterator[list[Process]]:
    with running.client() as client:
        client.flushall()
    made = [Process(running, f"gw-{number}") for number in range(3)]
    yield made
    for one in made:
        await one.close()


async def test_the_true_figure_replaces_the_reservation(processes: list[Process]) -> None:
    one, rows = processes[0], limits("100 tokens/day", "$1/day")
    reserved = await one.reserve(rows, 40, 7)
    assert one.state(rows) == [(0, 40), (0, 7)]
    await one.settle(reserved, 12, 3)
    assert one.state(rows) == [(12, 0), (3, 0)]


async def test_requests_of_several_nodes_are_admitted_exactly(processes: list[Process]) -> None:
    rows = [limits("25 requests/day") for _ in processes]
    found = await asyncio.gather(
        *(one.reserve(row, 1) for one, row in zip(processes, rows, strict=True) for _ in range(20))
    )
    assert sum(isinstance(one, LimitReservation) for one in found) == 25
    for one, row, start in zip(processes, rows, (0, 20, 40), strict=True):
        for reserved in found[start : start + 20]:
            if isinstance(reserved, LimitReservation):
                await one.settle(reserved, 1)
        assert isinstance(await one.reserve(row, 1), LimitRefusal)
    assert processes[-1].state(rows[-1]) == [(25, 0)]


async def test_a_request_reserves_against_all_limits_or_none(processes: list[Process]) -> None:
    one, two = processes[:2]
    wide, narrow = limits("100 tokens/day"), limits("10 tokens/day", owner="team:core")
    refusal = await one.reserve((*wide, *narrow), 20, 20)
    assert isinstance(refusal, LimitRefusal)
    assert refusal.exceeded.limit is narrow[0]
    assert [event.name for event in refusal.events] == ["limit_exceeded"]
    assert isinstance(await two.reserve(limits("100 tokens/day"), 100), LimitReservation)


async def test_neither_of_two_concurrent_requests_refuses_the_other(processes: list[Process]) -> None:
    """Only what is admitted counts: with room for one, one of them is admitted."""
    one, rows = processes[0], limits("1 requests/day")
    found = await asyncio.gather(*(one.reserve(rows, 1) for _ in range(10)))
    assert sum(isinstance(reserved, LimitReservation) for reserved in found) == 1


async def test_requests_at_the_same_time_stay_reserved_between_rounds(processes: list[Process]) -> None:
    one, two = processes[:2]
    rows = limits(concurrent=1)
    reserved = await one.reserve(rows, 1)
    await one.settle(reserved, 0, last=False)
    assert isinstance(await two.reserve(limits(concurrent=1), 1), LimitRefusal)
    await one.settle(reserved, 0)
    assert isinstance(await two.reserve(limits(concurrent=1), 1), LimitReservation)


async def test_reservations_of_a_process_that_is_gone_end(processes: list[Process]) -> None:
    one, two = processes[:2]
    rows = limits("10 tokens/day")
    await one.reserve(rows, 10)
    assert isinstance(await two.reserve(limits("10 tokens/day"), 1), LimitRefusal)
    [(key, stored)] = await two.store.read_all(SPACE, most=10)
    value = msgspec.json.decode(stored.value)
    value["held"] = {name: [amount, two.store.uptime().ms - 1] for name, (amount, _) in value["held"].items()}
    await two.store.put(SPACE, key, msgspec.json.encode(value))
    assert isinstance(await two.reserve(limits("10 tokens/day"), 10), LimitReservation)


async def test_every_node_adds_what_its_ledger_knows_once(processes: list[Process]) -> None:
    def past(limit: Limit, since: int) -> list[tuple[int, int]]:
        return [(int(time.time() * MICROS), 10)]

    for one in processes:
        one.counters.past_use = past
    for one in processes * 2:
        await one.settle(await one.reserve(limits("100 tokens/24h"), 1), 1)
    assert processes[-1].state(limits("100 tokens/24h")) == [(36, 0)]


async def test_warnings_are_reported_once_for_all_nodes(processes: list[Process]) -> None:
    for one in processes:
        await one.settle(await one.reserve(limits("10 tokens/day"), 3), 3)
    for one in processes[:1]:
        assert isinstance(await one.reserve(limits("10 tokens/day"), 3), LimitRefusal)
    names = [event.name for one in processes for event in one.events]
    assert names == ["limit_warn"]


async def test_figures_of_limits_that_others_use_are_read_beside_the_requests(
    processes: list[Process],
) -> None:
    one, two = processes[:2]
    rows = limits("10 tokens/day")
    with pytest.raises(CountersUnavailable):
        two.counters.figures(rows, 0)
    await one.settle(await one.reserve(limits("10 tokens/day"), 4), 4)
    two.counters.beat()
    await two.counters.flush()
    assert [(row.used, row.remaining) for row in two.counters.figures(rows, 0)] == [(4, 6)]


async def test_no_process_is_told_of_the_steps_of_others(
    running: RedisServer, processes: list[Process]
) -> None:
    one, two = processes[:2]
    rows = limits("10 tokens/day", "10 requests/60s")
    await two.counters.refresh()
    with running.monitored() as commands:
        await one.settle(await one.reserve(rows, 4, 1), 4, 1)
    assert any(command.startswith("HSET") for command in commands)
    assert not [command for command in commands if command.startswith("PUBLISH")]
    await two.counters.refresh()
    assert [row.used for row in two.counters.figures(rows, 0)] == [4, 1]


async def test_figures_are_read_again_only_when_a_limit_was_used(
    running: RedisServer, processes: list[Process]
) -> None:
    one, two = processes[:2]
    rows = limits("10 tokens/day")
    await one.settle(await one.reserve(rows, 4), 4)
    await two.counters.refresh()
    with running.monitored() as commands:
        await two.counters.refresh()
    assert not [command for command in commands if "HMGET" in command]


async def test_steps_that_wait_are_joined_and_each_is_admitted_or_refused_for_itself(
    running: RedisServer, processes: list[Process]
) -> None:
    one, small, large = processes[0], limits("5 tokens/day"), limits("100 tokens/day", owner="client:other")
    await one.reserve(large, 1)
    await one.counters.flush()
    with running.monitored() as commands:
        found = await asyncio.gather(
            *(one.reserve(rows, 2) for _ in range(10) for rows in (small, large)),
        )
        admitted = [row for row in found if isinstance(row, LimitReservation)]
        for row in admitted:
            one.counters.settle(row, [1], 0)
        await one.counters.flush()
    assert [isinstance(row, LimitReservation) for row in found[::2]] == [True] * 2 + [False] * 8
    assert all(isinstance(row, LimitReservation) for row in found[1::2])
    assert one.state(small) == [(2, 0)]
    assert one.state(large) == [(10, 1)]
    # Alone they were 32: one for each request, one for each that was admitted.
    assert len([command for command in commands if "EVALSHA" in command]) < 12


async def test_a_request_that_is_cancelled_while_it_reserves_holds_nothing(processes: list[Process]) -> None:
    one, rows = processes[0], limits("10 tokens/day")
    for turns in range(12):
        task = asyncio.ensure_future(one.reserve(rows, 3))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(done, LimitReservation):
            await one.settle(done, 0)
    await one.settle(await one.reserve(rows, 1), 0)
    assert one.state(rows) == [(0, 0)]


async def test_a_reservation_that_is_ready_when_its_request_is_cancelled_is_given_back(
    processes: list[Process],
) -> None:
    one, rows = processes[0], limits("10 tokens/day")

    async def first() -> Reserved:
        """The result of the other one, which is joined, has come in the same moment."""
        found = await one.reserve(rows, 3)
        second.cancel()
        return found

    going_on = asyncio.ensure_future(first())
    second = asyncio.ensure_future(one.reserve(rows, 3))
    reserved, cancelled = await asyncio.gather(going_on, second, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(reserved, LimitReservation)
    await one.settle(reserved, 0)
    assert one.state(rows) == [(0, 0)]


async def test_what_a_cancelled_request_had_reserved_is_free_for_other_nodes(
    processes: list[Process],
) -> None:
    one, two = processes[:2]

    async def first() -> None:
        await one.reserve(limits("10 tokens/day", owner="client:other"), 1)
        second.cancel()

    going_on = asyncio.ensure_future(first())
    second = asyncio.ensure_future(one.reserve(limits("10 tokens/day"), 10))
    await asyncio.wait([going_on, second])
    assert second.cancelled()
    await eventually(partial(is_admitted, two, 10))


async def is_admitted(process: Process, amount: int) -> bool:
    return isinstance(await process.reserve(limits("10 tokens/day"), amount), LimitReservation)


async def test_no_step_waits_for_counters_that_are_closed(processes: list[Process]) -> None:
    one = processes[0]
    waiting = [asyncio.ensure_future(one.reserve(limits("10 tokens/day"), 1)) for _ in range(40)]
    await asyncio.sleep(0)
    one.counters.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(row) for row in found] == [CountersUnavailable] * 40


async def test_reset_sets_use_to_zero_for_all_nodes(processes: list[Process]) -> None:
    one, two = processes[:2]
    await one.settle(await one.reserve(limits("10 tokens/day"), 10), 10)
    two.counters.reset(limits("10 tokens/day"), 0)
    await two.counters.flush()
    assert isinstance(await one.reserve(limits("10 tokens/day"), 10), LimitReservation)


async def test_what_redis_has_lost_is_added_again_from_the_ledger(tmp_path: Any) -> None:
    server = RedisServer(tmp_path / "redis")
    one = Process(server, "gw-1")
    rows, spent = limits("100 tokens/24h"), 10
    one.counters.past_use = lambda limit, since: [(int(time.time() * MICROS), spent)]
    try:
        await one.settle(await one.reserve(rows, 7), 7)
        assert one.state(rows) == [(17, 0)]
        spent = 17
        server.kill()
        server.start()
        await eventually(lambda: can_reserve(one, rows))
        await one.counters.refresh()
        assert [row.used for row in one.counters.figures(rows, 0)] == [17]
    finally:
        await one.close()
        server.kill()


async def test_nodes_add_at_once_what_redis_has_lost_of_limits_that_they_know(tmp_path: Any) -> None:
    server = RedisServer(tmp_path / "redis")
    made, rows = [Process(server, f"gw-{number}") for number in range(3)], limits("100 tokens/24h")
    try:
        for one in made:
            await one.settle(await one.reserve(rows, 5), 5)
            one.counters.beat()
            await one.counters.flush()
            one.counters.past_use = lambda limit, since: [(int(time.time() * MICROS), 5)]
        server.kill()
        server.start()
        for one in made:
            await eventually(partial(has_added, one))
        await made[0].counters.refresh()
        assert [row.used for row in made[0].counters.figures(rows, 0)] == [15]
    finally:
        for one in made:
            await one.close()
        server.kill()


async def has_added(process: Process) -> bool:
    """Let the process show that it is alive; return whether the store has its node."""
    with contextlib.suppress(CountersUnavailable):
        process.counters.beat()
    await process.counters.flush()
    with contextlib.suppress(StoreError):
        for _, stored in await process.store.read_all(SPACE, most=10):
            return process.node in msgspec.json.decode(stored.value)["nodes"]
    return False


async def can_reserve(process: Process, rows: tuple[Limit, ...]) -> bool:
    """Try a request that costs nothing."""
    try:
        await process.settle(await process.reserve(rows, 1), 0)
    except CountersUnavailable:
        return False
    return True


async def test_use_during_an_outage_is_counted_once_when_redis_is_back(tmp_path: Any) -> None:
    server = RedisServer(tmp_path / "redis", saves=True)
    one = Process(server, "gw-1", timeout=0.5)
    rows = limits("100 tokens/day")
    try:
        reserved = await one.reserve(rows, 40)
        server.kill()
        await one.settle(reserved, 12)
        with pytest.raises(CountersUnavailable):
            await one.reserve(rows, 1)
        with pytest.raises(CountersUnavailable):
            one.counters.reset(rows, 0)
        server.start()
        await eventually(lambda: one.store.works)
        one.counters.beat()
        await one.counters.flush()
        await one.reserve(rows, 1)
        assert one.state(rows) == [(12, 1)]
    finally:
        await one.close()
        server.kill()


async def test_use_whose_answer_was_lost_counts_once_however_much_others_have_counted_since(
    running: RedisServer, processes: list[Process]
) -> None:
    other, rows = processes[0], limits("100 tokens/day", "$1/day")
    async with LosingProxy(running.port) as proxy:
        one = Process(proxy, "gw-9", timeout=0.3)
        reserved = await one.reserve(rows, 40, 7)
        proxy.is_losing = True
        await one.settle(reserved, 12, 3)
        await eventually(lambda: not one.store.works)
        for _ in range(8):
            await other.settle(await other.reserve(rows, 1, 1), 1, 1)
        proxy.is_losing = False
        await eventually(lambda: one.store.works)
        await one.counters.flush()
        assert one.state(rows) == [(20, 0), (11, 0)]
        await one.close()
