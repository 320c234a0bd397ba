"""Reservations over HTTP: of requests from before a reload, and of concurrent requests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from routecodex.stores.uptime import uptime
from tests.cli.process import until
from tests.gateway.clock_gateway import (
    admin_call,
    clock_gateway,
    now_ms,
    reminders,
    store_tasks,
    stored_tasks,
    whole_config,
)
from tests.gateway.continuation_gateway import GatewayHarness
from tests.kit import answers
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Send, Sse, Steps, Wait
from tests.kit.upstream import Request, Upstream
from tests.server.test_reload import serving_file

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SHORT = "lease_ms = 300\n"
CHANGED = "hold_max_ms = 1000\n"


def reservation(folder: Path) -> dict[str, Any] | None:
    (task,) = stored_tasks(folder)
    found: dict[str, Any] | None = task.get("reservation")
    return found


def script_delayed(harness: GatewayHarness, event: asyncio.Event) -> None:
    """Delay the first answer until the event is set; send the others at once."""

    def answer(request: Request, number: int) -> UpstreamAnswer:
        answer_now = harness.text_answer(f"part {number}", request)
        if number:
            return answer_now
        if isinstance(answer_now, Sse):
            return Steps(
                [Wait(event), *map(Send, answer_now.frames)], headers={"content-type": "text/event-stream"}
            )
        whole = answers.text(harness.upstream_protocol, "part 0", True)
        assert isinstance(whole, Sse)
        return Steps([Wait(event), *map(Send, whole.frames)], headers={"content-type": "text/event-stream"})

    harness.script(answer)


@streaming
async def test_a_request_from_before_a_reload_keeps_its_reservations(tmp_path: Path, stream: bool) -> None:
    event = asyncio.Event()
    file = tmp_path / "gateway.toml"
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        script_delayed(harness, event)
        file.write_text(whole_config(harness, SHORT))
        async with serving_file(file) as gateway:
            harness.port = gateway.port
            under_way = await harness.begin("Hello", stream=stream)
            await upstream.received()
            before = reservation(harness.folder)
            assert before is not None
            file.write_text(whole_config(harness, SHORT + CHANGED))
            assert (await admin_call(harness, "reload", {}))["reloaded"]
            await until(lambda: uptime().ms > before["untilUpMs"], "the lease is up")
            await harness.send("and?")
            assert [len(found) for found in reminders(harness)] == [1, 0]
            event.set()
            assert harness.answer_text(await under_way.rest(), stream=stream) == "part 0"
            await under_way.close()
            await harness.send("again?")
    assert [len(found) for found in reminders(harness)] == [1, 0, 0]
    (task,) = stored_tasks(harness.folder)
    assert (task["deliveryCount"], "reservation" in task) == (1, False)


async def test_a_request_from_before_a_reload_releases_undelivered_reservations(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        script_delayed(harness, asyncio.Event())
        file.write_text(whole_config(harness))
        async with serving_file(file) as gateway:
            harness.port = gateway.port
            under_way = await harness.begin("Hello")
            await upstream.received()
            file.write_text(whole_config(harness, CHANGED))
            assert (await admin_call(harness, "reload", {}))["reloaded"]
            await under_way.leave()
            await until(lambda: reservation(harness.folder) is None, "it is given back")
            await harness.send("and?")
    assert [len(found) for found in reminders(harness)] == [1, 1]
    assert stored_tasks(harness.folder)[0]["deliveryCount"] == 1


@streaming
async def test_an_answer_is_not_held_for_a_reminder_that_another_request_delivers(
    tmp_path: Path, stream: bool
) -> None:
    event = asyncio.Event()
    async with clock_gateway("chat", tmp_path) as harness:
        store_tasks(tmp_path, now_ms())
        script_delayed(harness, event)
        slow = await harness.begin("Hello", stream=stream)
        await harness.upstream.received()
        quick = await asyncio.wait_for(harness.send("beside it", stream=stream), 20)
        assert harness.answer_text(quick, stream=stream) == "part 1"
        assert reservation(tmp_path) is not None
        event.set()
        assert harness.answer_text(await slow.rest(), stream=stream) == "part 0"
        await slow.close()
    assert [len(found) for found in reminders(harness)] == [1, 0]
