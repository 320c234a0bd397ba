"""Reminders on several nodes: delivered once, by the clock of the store, also across outages and kills."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import StoreError
from tests.cli import process
from tests.gateway.clock_gateway import HEAD, OPERATOR, SESSION, config, now_ms
from tests.gateway.redis_gateway import TIMEOUT_MS, cluster, ready
from tests.gateway.redis_gateway import ask as ask_node
from tests.gateway.redis_gateway import config as node_config
from tests.kit import answers, asking
from tests.kit.gateway import Running
from tests.kit.raw_client import Answer, begin, call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Hang, Steps, Wait
from tests.kit.upstream import Request, Upstream
from tests.stores.redis.nodes import eventually, is_up, open_node

LEASE_MS = 2000
CLOCK = config(f"lease_ms = {LEASE_MS}\nhold_max_ms = 20000\n")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.thaw()
    running.kill()


@contextlib.asynccontextmanager
async def watcher(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = open_node(server.url)
    try:
        yield store
    finally:
        await store.close()


async def ask(running: Running, text: str = "hi") -> Answer:
    return await ask_node(running, text, session=SESSION)


async def schedule(store: RedisStore, due_ms: int, *, reservation: Any = None) -> None:
    """Write a task as a node does."""
    task = {
        "taskId": "t1",
        "sessionId": SESSION,
        "dueAtMs": due_ms,
        "createdAtMs": 1,
        "updatedAtMs": 1,
        "task": "water the plants",
        "deliveryCount": 0,
        **({} if reservation is None else {"reservation": reservation}),
    }
    state = {"version": 1, "sessionId": SESSION, "tasks": [task], "updatedAtMs": 1}
    await store.put("clock", SESSION, msgspec.json.encode(state))


async def stored_task(store: RedisStore) -> dict[str, Any]:
    stored = await store.get("clock", SESSION)
    assert stored is not None
    [found] = msgspec.json.decode(stored.value)["tasks"]
    return dict(found)


async def delivery_count(store: RedisStore) -> int:
    return int((await stored_task(store))["deliveryCount"])


def reminded(up: Upstream) -> int:
    """Return how many requests to the upstream had the reminder."""
    return sum(HEAD in request.body.decode() for request in up.requests)


async def test_concurrent_requests_on_several_nodes_deliver_a_reminder_once(server: RedisServer) -> None:
    async with watcher(server) as store, cluster(server, 3, more=CLOCK) as (up, nodes):
        await schedule(store, now_ms())
        found = await asyncio.gather(*(ask(one) for one in nodes for _ in range(4)))
        assert {answer.status for answer in found} == {200}
        assert reminded(up) == 1
        await eventually(lambda: is_delivered(store))


async def is_delivered(store: RedisStore) -> bool:
    return await delivery_count(store) == 1


async def test_a_mark_ends_by_the_clock_of_the_store(server: RedisServer) -> None:
    event = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        return Steps([Wait(event)], headers={"content-type": "text/event-stream"})

    async with watcher(server) as store, cluster(server, 1, more=CLOCK, reply=reply) as (up, [one]):
        await schedule(store, now_ms())
        body = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        under_way = await begin(one.port, "/v1/chat/completions", body, headers={"x-session-id": SESSION})
        await up.received()
        mark = (await stored_task(store))["reservation"]
        up_now = store.uptime()
        assert mark["start"] == up_now.start
        assert abs(mark["untilUpMs"] - up_now.ms) <= LEASE_MS
        event.set()
        await under_way.leave()


async def test_the_mark_of_a_dead_node_is_taken_over_when_its_lease_is_up(server: RedisServer) -> None:
    async with watcher(server) as store, cluster(server, 1, more=CLOCK) as (up, [one]):
        await store.get("clock", SESSION)
        up_now = store.uptime()
        ends = up_now.ms + LEASE_MS
        mark = {
            "id": "dead:clock:1",
            "untilMs": now_ms() + 10_000_000,
            "start": up_now.start,
            "untilUpMs": ends,
        }
        await schedule(store, now_ms(), reservation=mark)
        await ask(one)
        if store.uptime().ms < ends:
            assert reminded(up) == 0
        await eventually(lambda: store.uptime().ms >= ends)
        await ask(one)
        assert reminded(up) == 1


async def test_nobody_takes_over_a_mark_for_one_lease_after_an_outage(server: RedisServer) -> None:
    async with watcher(server) as store, cluster(server, 1, more=CLOCK) as (up, [one]):
        await schedule(store, now_ms(), reservation=await ended_mark(store))
        server.kill()
        await eventually(lambda: has_status(one, "degraded"))
        server.start()
        await eventually(lambda: has_status(one, "ok"))
        await taken_over_after_a_lease(one, up)


async def test_a_node_that_starts_after_an_outage_takes_over_no_mark_for_one_lease(
    server: RedisServer,
) -> None:
    async with watcher(server) as store:
        await schedule(store, now_ms(), reservation=await ended_mark(store))
        server.kill()
        with pytest.raises(StoreError):
            await stored_task(store)
        server.start()
        await eventually(lambda: is_up(store))
        async with cluster(server, 1, more=CLOCK) as (up, [one]):
            await taken_over_after_a_lease(one, up)


async def ended_mark(store: RedisStore) -> dict[str, Any]:
    """Return the mark of a node that was cut off until its lease was up."""
    await store.get("clock", SESSION)
    up_now = store.uptime()
    return {"id": "cut-off:clock:1", "untilMs": now_ms(), "start": up_now.start, "untilUpMs": up_now.ms}


async def taken_over_after_a_lease(node: Running, up: Upstream) -> None:
    back = time.monotonic()
    await ask(node)
    if time.monotonic() - back < LEASE_MS / 1000 / 2:
        assert reminded(up) == 0

    async def delivered() -> bool:
        await ask(node)
        return reminded(up) == 1

    await eventually(delivered)


async def has_status(running: Running, status: str) -> bool:
    return bool((await ready(running))[1]["status"] == status)


async def test_a_held_request_wakes_when_another_node_changes_its_tasks(server: RedisServer) -> None:
    async with watcher(server) as store, cluster(server, 2, more=CLOCK) as (up, (one, two)):
        window = 60_000
        await schedule(store, now_ms() + window + 15_000)
        held = asyncio.ensure_future(ask(one))
        await up.received()
        await eventually(lambda: len(up.requests) == 1)
        began = time.monotonic()
        done = await call(two.port, "/admin/clock/cancel", {"taskId": "t1"}, method="POST", headers=OPERATOR)
        assert done.status == 200
        answer = await held
        assert answer.status == 200
        # Far less than the fifteen seconds until the task would have been due.
        assert time.monotonic() - began < 8


async def test_tools_that_a_session_has_declared_before_need_no_call_of_redis(server: RedisServer) -> None:
    body = asking.body("chat", stream=False, model="auto", tools=True)

    async def declare(running: Running) -> int:
        path = "/v1/chat/completions"
        return (await call(running.port, path, body, headers={"x-session-id": SESSION})).status

    async with cluster(server, 2, more=CLOCK) as (_, nodes):
        for one in nodes:
            assert [await declare(one) for _ in range(2)] == [200, 200]
        with server.monitored() as calls:
            for one in nodes:
                assert await declare(one) == 200
    assert [call for call in calls if "{tools." in call] == []


async def test_due_reminders_wait_while_the_store_cannot_be_written(server: RedisServer) -> None:
    # A task that is due and cannot be reserved is waited for as long as answers may be held.
    briefly = CLOCK.replace("hold_max_ms = 20000", "hold_max_ms = 500")
    async with watcher(server) as store, cluster(server, 1, more=briefly) as (up, [one]):
        await schedule(store, now_ms())
        with server.unsaved():
            assert (await ask(one)).status == 200
            assert reminded(up) == 0
        await eventually(lambda: has_status(one, "ok"))
        await ask(one)
        assert reminded(up) == 1


async def test_due_reminders_wait_while_the_store_is_down(server: RedisServer) -> None:
    async with watcher(server) as store, cluster(server, 1, more=CLOCK) as (up, [one]):
        await schedule(store, now_ms())
        server.kill()
        await eventually(lambda: has_status(one, "degraded"))
        assert (await ask(one)).status == 200
        assert reminded(up) == 0
        server.start()
        await eventually(lambda: has_status(one, "ok"))
        await ask(one)
        assert reminded(up) == 1


LONG_LEASE = config("lease_ms = 3600000\nhold_max_ms = 0\n")


async def test_a_delivery_that_could_not_be_written_is_written_when_the_store_is_back(
    server: RedisServer,
) -> None:
    """Long before the next renewal: a node that stops then leaves no reminder to be told again."""

    def reply(request: Request) -> UpstreamAnswer:
        server.kill()
        return answers.text("chat", "hi", answers.wants_stream(request))

    async with watcher(server) as store, cluster(server, 1, more=LONG_LEASE, reply=reply) as (up, [one]):
        await schedule(store, now_ms())
        assert (await ask(one)).status == 200
        assert reminded(up) == 1
        await eventually(lambda: has_status(one, "degraded"))
        server.start()
        await eventually(lambda: has_status(one, "ok"))
        await eventually(lambda: is_up(store))
        await eventually(lambda: is_delivered(store))


async def test_a_mark_that_could_not_be_given_back_is_given_back_when_the_store_is_back(
    server: RedisServer,
) -> None:
    def reply(request: Request) -> UpstreamAnswer:
        return Steps([Hang()])

    async with watcher(server) as store, cluster(server, 1, more=LONG_LEASE, reply=reply) as (up, [one]):
        await schedule(store, now_ms())
        body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
        under_way = await begin(one.port, "/v1/chat/completions", body, headers={"x-session-id": SESSION})
        await up.received()
        assert (await stored_task(store)).get("reservation")
        server.kill()
        await eventually(lambda: has_status(one, "degraded"))
        await under_way.leave()
        await up.requests[0].gone.wait()
        await eventually(lambda: is_idle(one))
        server.start()
        await eventually(lambda: is_given_back(store))


async def is_idle(running: Running) -> bool:
    status = await call(running.port, "/admin/status", method="GET", headers=OPERATOR)
    return bool(status.json["active"] == 0)


async def is_given_back(store: RedisStore) -> bool:
    try:
        return not (await stored_task(store)).get("reservation")
    except StoreError:
        return False


async def test_a_node_that_stops_gives_its_marks_back(tmp_path: Path, server: RedisServer) -> None:
    """Another node tells the reminder at once, long before the lease would end."""
    event = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        if len(up.requests) == 1:
            return Steps([Wait(event)], headers={"content-type": "application/json"})
        return answers.text("chat", "hi", answers.wants_stream(request))

    more = config("lease_ms = 3600000\nhold_max_ms = 20000\n")
    async with watcher(server) as store, cluster(server, 1, more=more, reply=reply) as (up, [other]):
        file = tmp_path / "node.toml"
        file.write_text(node_config(up, server, number=7, more=more).replace(f"= {TIMEOUT_MS}", "= 2000"))
        await schedule(store, now_ms())
        async with process.running(tmp_path, "serve", "--config", str(file)) as command:
            port = await command.port()
            body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
            under_way = asyncio.ensure_future(
                call(port, "/v1/chat/completions", body, headers={"x-session-id": SESSION})
            )
            await up.received()
            assert (await stored_task(store)).get("reservation")
            command.signal(signal.SIGTERM)
            assert (await under_way).status == 503
            assert await command.ended() == 0
        event.set()
        assert not (await stored_task(store)).get("reservation")
        await ask(other)
        assert reminded(up) == 2
        await eventually(lambda: is_delivered(store))


async def test_a_node_killed_before_the_first_byte_has_its_reminder_told_by_another(
    tmp_path: Path, server: RedisServer
) -> None:
    event = asyncio.Event()
    calls: list[Request] = []

    def reply(request: Request) -> UpstreamAnswer:
        calls.append(request)
        if len(calls) == 1:
            return Steps([Wait(event)], headers={"content-type": "application/json"})
        return answers.text("chat", "hi", answers.wants_stream(request))

    async with watcher(server) as store, cluster(server, 1, more=CLOCK, reply=reply) as (up, [other]):
        file = tmp_path / "node.toml"
        file.write_text(node_config(up, server, number=7, more=CLOCK).replace(f"= {TIMEOUT_MS}", "= 2000"))
        await schedule(store, now_ms())
        async with process.running(tmp_path, "serve", "--config", str(file)) as command:
            port = await command.port()
            body = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
            lost = asyncio.ensure_future(
                call(port, "/v1/chat/completions", body, headers={"x-session-id": SESSION})
            )
            await up.received()
            await command.kill()
            with contextlib.suppress(Exception):
                await lost
        event.set()

        async def told() -> bool:
            await ask(other)
            return reminded(up) == 2

        await eventually(told)
        await eventually(lambda: is_delivered(store))
