"""Processes killed between the first byte of a reminder's answer and its commit: delivered again, never lost.

The test holds the lock of the task files, so that the commit waits in the store for as long as it takes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routecodex.stores.uptime import uptime
from tests.cli.process import Command, serve, until
from tests.gateway.clock_gateway import (
    clock_gateway,
    now_ms,
    reminders,
    store_tasks,
    stored_tasks,
    until_delivered,
    wait_until_idle,
    whole_config,
)
from tests.gateway.continuation_gateway import PROTOCOLS, GatewayHarness
from tests.gateway.test_clock_faults import delivery_state
from tests.kit import answers
from tests.kit.raw_client import Call, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Send, Sse, Steps, Wait
from tests.kit.upstream import Request, Upstream

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LEASE = "lease_ms = 1000\n"
SMALL = "due_window_ms = 1000\nhold_max_ms = 60000\n"
EVENT_STREAM = {"content-type": "text/event-stream"}


@contextmanager
def locked_tasks(folder: Path) -> Iterator[None]:
    """Hold the lock of the task files: no process can write a task."""
    with (folder / "clock" / ".lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def script_waiting(harness: GatewayHarness, number_waiting: int, event: asyncio.Event) -> None:
    """Answer `part 0`, `part 1`…; the answer of that number waits for the event."""

    def answer(request: Request, number: int) -> UpstreamAnswer:
        if number != number_waiting:
            return harness.text_answer(f"part {number}", request)
        whole = answers.text(harness.upstream_protocol, f"part {number}", True)
        assert isinstance(whole, Sse)
        return Steps([Wait(event), *map(Send, whole.frames)], headers=EVENT_STREAM)

    harness.script(answer)


async def read_text(request: Call, text: bytes, *, stream: bool) -> None:
    """Read until the text has arrived: the whole answer, or its stream so far."""
    if not stream:
        assert text in (await request.rest()).body
        return
    await request.head()
    while text not in request.answer.body:
        assert await request.piece(), request.answer.body


async def kill(process: Command) -> None:
    os.killpg(process.process.pid, signal.SIGKILL)
    await process.ended()


async def until_lease_is_up(folder: Path) -> None:
    ends = stored_tasks(folder)[0]["reservation"]["untilUpMs"]
    await until(lambda: uptime().ms >= ends, "the lease is up")


@streaming
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_process_killed_between_first_byte_and_commit_has_its_reminder_delivered_again(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    event = asyncio.Event()
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, protocol, tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        script_waiting(harness, 0, event)
        config = whole_config(harness, LEASE + "hold_max_ms = 0\n")
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            under_way = await harness.begin("Hello", stream=stream)
            await upstream.received()
            with locked_tasks(harness.folder):
                event.set()
                await asyncio.wait_for(read_text(under_way, b"part 0", stream=stream), 8)
                await kill(process)
            await under_way.close()
        assert delivery_state(harness.folder) == (0, True)
        await until_lease_is_up(harness.folder)
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            for _ in range(2):
                await harness.send(stream=stream)
                await until_delivered(harness.folder)
    assert [len(found) for found in reminders(harness)] == [1, 1, 0]


@streaming
async def test_a_process_killed_in_a_held_answer_has_its_reminder_delivered_again(
    tmp_path: Path, stream: bool
) -> None:
    event = asyncio.Event()
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms() + 2500)
        script_waiting(harness, 1, event)
        config = whole_config(harness, LEASE + SMALL)
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            under_way = await harness.begin("Hello", stream=stream)
            await upstream.received(2)
            with locked_tasks(harness.folder):
                event.set()
                await asyncio.wait_for(read_text(under_way, b"part 1", stream=stream), 8)
                await kill(process)
            await under_way.close()
        assert delivery_state(harness.folder) == (0, True)
        await until_lease_is_up(harness.folder)
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            await harness.send(stream=stream)
            await until_delivered(harness.folder)
    assert [len(found) for found in reminders(harness)] == [0, 1, 1]


@streaming
async def test_a_process_killed_when_its_commit_is_written_has_sent_its_answer(
    tmp_path: Path, stream: bool
) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        script_waiting(harness, -1, asyncio.Event())
        async with serve(tmp_path, whole_config(harness, "hold_max_ms = 0\n")) as process:
            harness.port = await process.port()
            under_way = await harness.begin("Hello", stream=stream)
            while not stored_tasks(harness.folder)[0]["deliveryCount"]:
                await asyncio.sleep(0)
            await kill(process)
            await asyncio.wait_for(read_text(under_way, b"part 0", stream=stream), 8)
            await under_way.close()


@streaming
async def test_a_request_between_first_byte_and_commit_does_not_deliver_the_reminder_too(
    tmp_path: Path, stream: bool
) -> None:
    event = asyncio.Event()
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        script_waiting(harness, 0, event)
        config = whole_config(harness, LEASE + "hold_max_ms = 0\n")
        async with serve(tmp_path, config, "--workers", "2") as process:
            harness.port = await process.port()
            under_way = await harness.begin("Hello", stream=stream)
            await upstream.received()
            with locked_tasks(harness.folder):
                event.set()
                await asyncio.wait_for(read_text(under_way, b"part 0", stream=stream), 8)
                await asyncio.gather(*(harness.send(stream=stream) for _ in range(8)))
            await until_delivered(harness.folder)
            await harness.send(stream=stream)
            await under_way.close()
    assert [len(found) for found in reminders(harness)] == [1] + [0] * 9


async def test_a_client_that_leaves_with_its_whole_answer_is_not_recorded_as_gone(tmp_path: Path) -> None:
    event = asyncio.Event()
    async with clock_gateway("chat", tmp_path, clock=LEASE + "hold_max_ms = 0\n") as harness:
        store_tasks(tmp_path, now_ms())
        script_waiting(harness, 0, event)
        under_way = await harness.begin("Hello", stream=False)
        await harness.upstream.received()
        with locked_tasks(tmp_path):
            event.set()
            await asyncio.wait_for(read_text(under_way, b"part 0", stream=False), 8)
            await under_way.leave()
            await asyncio.wait_for(wait_until_idle(harness), 8)
        await until_delivered(tmp_path)
        metrics = (await call(harness.port, "/metrics", method="GET")).body.decode()
    assert re.findall(r'routecodex_requests_total\{.*status="(\w+)"', metrics) == ["200"]
