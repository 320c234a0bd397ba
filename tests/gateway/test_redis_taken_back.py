"""Changes that a gateway takes back, while Redis is down at that moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.continuation_gateway import SET_STOP_MESSAGE
from tests.gateway.redis_gateway import admin, cluster, ready
from tests.kit import answers, asking
from tests.kit.gateway import Running
from tests.kit.raw_client import Call, begin
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Sse
from tests.kit.upstream import Request
from tests.stores.redis.nodes import eventually

PATIENT = "[routing_options]\nmax_wait_ms = 60000\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis", saves=True)
    yield running
    running.kill()


async def begin_chat(running: Running, text: str, *, session: str = "") -> Call:
    headers = {"x-session-id": session} if session else {}
    body = asking.body("chat", text, stream=True, model="auto")
    return await begin(running.port, asking.path("chat", stream=True), body, headers=headers)


async def uses(running: Running) -> int:
    [row] = (await admin(running, "routing?session=s")).json["sessions"]
    return int(row["stop_message"]["used"])


async def test_a_use_that_was_never_sent_is_given_back_when_redis_is_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = asyncio.Event()

    def reply(request: Request) -> UpstreamAnswer:
        if b"exhaust" in request.body:
            return answers.error("chat", 429, retry_after="50")
        whole: Any = answers.text("chat", "part", True)
        return Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})

    async with cluster(server, 1, reply=reply, more=PATIENT) as (up, [one]):
        armed = await begin_chat(one, SET_STOP_MESSAGE.format(3), session="s")
        await up.received(1)
        # Both targets are in cooldown now: the follow-up has to wait for one.
        waiting = await begin_chat(one, "exhaust")
        await up.received(3)
        goes_on.set()

        async def is_counted() -> bool:
            return await uses(one) == 1

        async def is_idle() -> bool:
            return bool((await admin(one, "status")).json["active"] == 0)

        await eventually(is_counted)
        with caplog.at_level(logging.ERROR), server.killed():
            await armed.leave()
            await waiting.leave()
            await eventually(is_idle)

        async def is_given_back() -> bool:
            return (await ready(one))[1]["status"] == "ok" and await uses(one) == 0

        await eventually(is_given_back)
    assert len(up.requests) == 3
    assert "Traceback" not in caplog.text
