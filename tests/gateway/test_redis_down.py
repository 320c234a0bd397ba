"""Redis is gone, frozen, read-only, full or empty: what clients, operators and people are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from routecodex.protocols import grammar
from tests.gateway.continuation_gateway import PROTOCOLS, SET_STOP_MESSAGE
from tests.gateway.redis_gateway import (
    OPERATOR,
    TIMEOUT_MS,
    admin,
    ask,
    cluster,
    config,
    hello,
    node,
    notices,
    ready,
    target,
)
from tests.kit import answers
from tests.kit.gateway import Running, serving
from tests.kit.raw_client import call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream
from tests.stores.redis.nodes import eventually

UNKNOWN_SESSION = "the settings of this session are not known now: the store is unavailable"
UNSTORED = "this response cannot be continued: the store is unavailable"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.thaw()
    running.kill()


@contextlib.contextmanager
def full(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            client.config_set("maxmemory", "0")


@contextlib.contextmanager
def replica(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            yield
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")


Outage = Callable[[RedisServer], contextlib.AbstractContextManager[None]]
GONE: dict[str, Outage] = {"killed": RedisServer.killed, "frozen": RedisServer.frozen}
UNWRITABLE: dict[str, Outage] = {"full": full, "replica": replica, "unsaved": RedisServer.unsaved}
gone = pytest.mark.parametrize("outage", GONE.values(), ids=GONE)
any_outage = pytest.mark.parametrize(
    "outage", [*GONE.values(), *UNWRITABLE.values()], ids=[*GONE, *UNWRITABLE]
)


async def until_ready(running: Running) -> None:
    async def is_ready() -> bool:
        return bool((await ready(running))[1]["status"] == "ok")

    await eventually(is_ready)


async def until_degraded(running: Running) -> None:
    async def is_degraded() -> bool:
        return bool((await ready(running))[1]["status"] == "degraded")

    await eventually(is_degraded)


@gone
async def test_what_a_node_knows_goes_on_at_full_speed(server: RedisServer, outage: Outage) -> None:
    async with cluster(server, 1) as (_, [one]):
        assert target(await ask(one, "hi <**!second.m**>")) == (200, "second.primary.m")
        assert (await ask(one)).status == 200
        with outage(server):
            await until_degraded(one)
            began = time.monotonic()
            for _ in range(20):
                known, plain = await ask(one), await ask(one, session="")
                assert (target(known), notices(known)) == ((200, "second.primary.m"), [])
                assert (target(plain), notices(plain)) == ((200, "first.primary.m"), [])
            # Not one of the requests waited for Redis.
            assert time.monotonic() - began < 20 * TIMEOUT_MS / 1000
        await until_ready(one)
        assert target(await ask(one)) == (200, "second.primary.m")


@gone
async def test_a_message_that_was_applied_stays_applied_and_the_next_ends_its_turn(
    server: RedisServer, outage: Outage
) -> None:
    forced = {"role": "user", "content": "<**second.m**> hi"}
    more = [forced, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"}]

    async def chat(running: Running, messages: list[Any]) -> Any:
        body = {"model": "auto", "messages": messages}
        return target(await call(running.port, "/v1/chat/completions", body, headers={"x-session-id": "s"}))

    async with cluster(server, 1) as (_, [one]):
        assert await chat(one, [forced]) == (200, "second.primary.m")
        with outage(server):
            await until_degraded(one)
            assert await chat(one, [forced]) == (200, "second.primary.m")
            # What the first message forced has ended, though that cannot be saved now.
            for _ in range(2):
                assert await chat(one, more) == (200, "first.primary.m")
        await until_ready(one)
        assert await chat(one, more) == (200, "first.primary.m")
        assert (await admin(one, "routing?session=s")).json["sessions"][0]["force"] is None


async def test_a_sticky_target_that_cannot_be_used_is_passed_over_though_it_cannot_be_cleared(
    server: RedisServer,
) -> None:
    def reply(request: Request) -> UpstreamAnswer:
        if request.headers["authorization"] == "Bearer secret-second" and b"again" in request.body:
            return answers.error("chat", 429, "slow down", retry_after="60")
        return answers.text("chat", "hi", answers.wants_stream(request))

    async with cluster(server, 1, reply=reply) as (_, [one]):
        assert target(await ask(one, "hi <**!second.m**>")) == (200, "second.primary.m")
        assert target(await ask(one)) == (200, "second.primary.m")
        with server.killed():
            await until_degraded(one)
            for _ in range(2):
                answer = await ask(one, "again")
                assert target(answer) == (200, "first.primary.m")
                assert "sticky second.m cleared: no key of it can be used" in notices(answer)
        await until_ready(one)
        assert target(await ask(one, "again")) == (200, "first.primary.m")
        assert (await admin(one, "routing?session=s")).json["sessions"][0]["sticky"] is None


async def test_what_a_node_knows_outlives_a_return_that_fails(server: RedisServer) -> None:
    async with cluster(server, 1, store='on_down = "refuse"\n') as (_, [one]):
        assert (await ask(one)).status == 200
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-subscribe")
            with server.frozen():
                await until_degraded(one)
            before = rejected_subscriptions(client)
            # It answers again, but changes of others cannot be heard of.
            await eventually(lambda: rejected_subscriptions(client) >= before + 2)
            assert [(answer.status, notices(answer)) for answer in [await ask(one)]] == [(200, [])]
            client.execute_command("ACL", "SETUSER", "default", "+subscribe")
        await until_ready(one)
        assert target(await ask(one)) == (200, "first.primary.m")


def rejected_subscriptions(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_subscribe", {}).get("rejected_calls", 0))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_unknown_session_goes_on_with_a_notice_or_is_refused(
    server: RedisServer, protocol: str
) -> None:
    async with cluster(server, 1) as (up, [one]):
        await ask(one, "hi <**!second.m**>")
        async with (
            node(up, server, number=1) as two,
            node(up, server, number=2, store='on_down = "refuse"\n') as three,
        ):
            with server.killed():
                await until_degraded(two)
                await until_degraded(three)
                answer = await ask(two, protocol=protocol)
                refused = await ask(three, protocol=protocol)
                assert (await ask(three, protocol=protocol, session="")).status == 200
            await until_ready(two)
            again = await ask(two, protocol=protocol)
    assert (target(answer), UNKNOWN_SESSION in notices(answer)) == ((200, "first.primary.m"), True)
    assert target(again) == (200, "second.primary.m")
    grammar.check_error(protocol, refused.status, refused.body)
    assert refused.status in ((503, 529) if protocol == "messages" else (503,))
    assert b'"store_unavailable"' in refused.body


@any_outage
async def test_an_instruction_and_an_operator_are_told_that_nothing_was_saved(
    server: RedisServer, outage: Outage
) -> None:
    async with cluster(server, 1) as (_, [one]):
        await ask(one)
        with outage(server):
            refused = await ask(one, "hi <**!second.m**>")
            operator = await admin(one, "routing", {"disable": ["first"]})
        await until_ready(one)
        routing = (await admin(one, "routing?session=s")).json
        after = await ask(one)
    assert (refused.status, refused.json["error"]["code"]) == (503, "state_not_saved")
    assert (operator.status, operator.json["error"]["code"]) == (503, "state_not_saved")
    assert (routing["routing"]["disable"], routing["sessions"][0]["sticky"]) == ([], None)
    assert target(after) == (200, "first.primary.m")


@any_outage
async def test_a_stop_message_pauses_and_no_use_is_lost(server: RedisServer, outage: Outage) -> None:
    with contextlib.ExitStack() as stack:
        calls: list[int] = []

        def reply(request: Request) -> UpstreamAnswer:
            calls.append(1)
            if len(calls) == 1:
                stack.enter_context(outage(server))
            return answers.text("chat", f"part {len(calls)}", answers.wants_stream(request))

        async with cluster(server, 1, reply=reply) as (_, [one]):
            paused = await ask(one, SET_STOP_MESSAGE.format(3))
            assert len(calls) == 1
            stack.close()
            await until_ready(one)
            await ask(one, "go")
    assert paused.status == 200
    assert "stopMessage paused: store unavailable" in notices(paused)
    # The second request and all three follow-ups.
    assert len(calls) == 5


@gone
async def test_stored_responses_are_unavailable_and_never_not_found(
    server: RedisServer, outage: Outage
) -> None:
    async with cluster(server, 1) as (_, [one]):
        stored = (await ask(one, protocol="responses", session="")).json["id"]
        following = {"model": "auto", "input": "go on", "previous_response_id": stored}
        with outage(server):
            await until_degraded(one)
            found = [
                await call(one.port, f"/v1/responses/{stored}", method="GET"),
                await call(one.port, f"/v1/responses/{stored}", method="DELETE"),
                await call(one.port, "/v1/responses", following),
            ]
            unstored = await ask(one, protocol="responses", session="")
        await until_ready(one)
        assert (await call(one.port, f"/v1/responses/{stored}", method="GET")).status == 200
    assert [(answer.status, answer.json["error"]["code"]) for answer in found] == [
        (503, "store_unavailable")
    ] * 3
    assert (unstored.status, unstored.json["store"], notices(unstored)) == (200, False, [UNSTORED])


async def test_a_key_that_is_not_known_is_not_called_wrong_while_redis_is_down(server: RedisServer) -> None:
    async with cluster(server, 1) as (_, [one]):
        made = await call(one.port, "/admin/clients", {"name": "ann"}, method="POST", headers=OPERATOR)
        assert (await ask(one, key="rcx-unknown")).status == 401
        with server.killed():
            await until_degraded(one)
            known, unknown = await ask(one, key=made.json["key"]), await ask(one, key="rcx-unknown")
        await until_ready(one)
        assert (await ask(one, key="rcx-unknown")).status == 401
    assert known.status == 200
    assert (unknown.status, unknown.json["error"]["code"]) == (503, "store_unavailable")


@pytest.mark.parametrize(
    ("outage", "status"),
    [(one, "down") for one in GONE.values()] + [(one, "read_only") for one in UNWRITABLE.values()],
    ids=[*GONE, *UNWRITABLE],
)
async def test_readiness_metrics_and_one_log_line_tell_of_an_outage(
    server: RedisServer, outage: Outage, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(server, 1) as (_, [one]):
        await ask(one)
        with caplog.at_level(logging.INFO, "routecodex.stores"), outage(server):
            for number in range(3):
                assert (await ask(one, f"<**!second.m**> {number}")).status == 503
            code, state = await ready(one)
            assert (code, state["status"], state["store"]["status"]) == (200, "degraded", status)
            text = (await call(one.port, "/metrics", method="GET")).body.decode()
            assert 'routecodex_store_up{kind="redis",worker="0"} 0.0' in text
            assert 'routecodex_store_errors_total{op="update",worker="0"} 0.0' not in text
        await until_ready(one)
        text = (await call(one.port, "/metrics", method="GET")).body.decode()
        assert 'routecodex_store_reconnects_total{worker="0"} 1.0' in text
    lines = [row.getMessage() for row in caplog.records if row.levelno >= logging.WARNING]
    texts = {"down": "the redis store is down, ", "read_only": "the redis store cannot be written, "}
    assert len(lines) == 2, lines
    assert lines[0].startswith(texts[status])
    assert lines[1].startswith("the redis store works again after ")


@pytest.mark.parametrize("outage", UNWRITABLE.values(), ids=UNWRITABLE)
async def test_reads_go_on_while_redis_cannot_be_written(server: RedisServer, outage: Outage) -> None:
    async with cluster(server, 1) as (up, [one]):
        await ask(one, "hi <**!second.m**>")
        stored = (await ask(one, protocol="responses", session="")).json["id"]
        with outage(server):
            async with node(up, server, number=1) as two:
                answer = await ask(two)
                found = await call(two.port, f"/v1/responses/{stored}", method="GET")
                deleted = await call(two.port, f"/v1/responses/{stored}", method="DELETE")
                unstored = await ask(two, protocol="responses", session="")
        assert (target(answer), notices(answer)) == ((200, "second.primary.m"), [])
        assert found.status == 200
        assert (deleted.status, deleted.json["error"]["code"]) == (503, "store_unavailable")
        assert (unstored.status, unstored.json["store"], notices(unstored)) == (200, False, [UNSTORED])


@gone
async def test_a_node_starts_without_its_store_and_is_whole_when_it_comes(
    server: RedisServer, outage: Outage
) -> None:
    async with cluster(server, 1) as (up, [first]):
        await ask(first, "hi <**!second.m**>")
        with outage(server):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(5):
                    one = await stack.enter_async_context(node(up, server, number=1))
                code, state = await ready(one)
                assert (code, state["status"], state["store"]["status"]) == (200, "degraded", "down")
                assert target(await ask(one)) == (200, "first.primary.m")
                kept = stack.pop_all()
        async with kept:
            await until_ready(one)
            assert target(await ask(one)) == (200, "second.primary.m")


async def test_a_long_timeout_of_calls_does_not_delay_the_start(server: RedisServer) -> None:
    async with Upstream(hello) as up:
        text = config(up, server).replace(f"timeout_ms = {TIMEOUT_MS}", "timeout_ms = 60000")
        with server.frozen():
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(5):
                    one = await stack.enter_async_context(serving(text))
                assert (await ready(one))[1]["status"] == "degraded"


async def test_health_that_was_not_saved_is_saved_when_redis_is_back(server: RedisServer) -> None:
    def reply(request: Request) -> UpstreamAnswer:
        if request.headers["authorization"] == "Bearer secret-first":
            return answers.error("chat", 429, "slow down", retry_after="60")
        return answers.text("chat", "hi", answers.wants_stream(request))

    async with cluster(server, 2, reply=reply) as (_, (one, two)):
        with server.killed():
            await until_degraded(one)
            await until_degraded(two)
            assert target(await ask(one, session="")) == (200, "second.primary.m")
        await until_ready(one)
        await until_ready(two)

        async def is_cooling() -> bool:
            return bool((await admin(two, "health")).json["health"])

        await eventually(is_cooling)


async def test_an_empty_redis_is_the_truth_and_an_error_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path / "empty")
    async with cluster(server, 1) as (_, [one]):
        assert target(await ask(one, "hi <**!second.m**>")) == (200, "second.primary.m")
        with server.killed():
            await until_degraded(one)
        await until_ready(one)
        assert target(await ask(one)) == (200, "first.primary.m")
        # The next write is known to all again.
        assert target(await ask(one, "hi <**!second.m**>")) == (200, "second.primary.m")
    server.kill()
    assert [row.levelno for row in caplog.records if "lost its data" in row.getMessage()] == [logging.ERROR]


@contextlib.asynccontextmanager
async def breakable(server: RedisServer) -> AsyncIterator[tuple[Upstream, Running]]:
    async with Upstream(hello) as up, node(up, server) as running:
        yield up, running


async def test_a_burst_after_the_return_reads_each_state_once_and_is_answered(server: RedisServer) -> None:
    async with breakable(server) as (_, one):
        sessions = [f"s-{number}" for number in range(50)]
        for session in sessions:
            assert (await ask(one, session=session)).status == 200
        with server.killed():
            await until_degraded(one)
        await until_ready(one)
        found: list[Any] = await asyncio.gather(*(ask(one, session=session) for session in sessions))
        assert [target(answer) for answer in found] == [(200, "first.primary.m")] * 50
        assert all(notices(answer) == [] for answer in found)
