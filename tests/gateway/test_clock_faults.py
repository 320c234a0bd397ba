"""Faults of the clock: a reminder is never lost and never sent twice."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from routecodex.stores.uptime import uptime
from tests.cli.process import running, serve, until
from tests.gateway.clock_gateway import (
    admin_call,
    clock_gateway,
    command,
    now_ms,
    reminders,
    script_tool_calls,
    store_tasks,
    stored_tasks,
    task_file,
    task_item,
    tool_results,
    until_delivered,
    wait_until_idle,
    whole_config,
)
from tests.gateway.continuation_gateway import PROTOCOLS, GatewayHarness
from tests.gateway.store_outage import replace_by_directory
from tests.kit import answers
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import CutOff, Hang, Json, Raw, Sse, Steps
from tests.kit.upstream import Request, Upstream
from tests.server_tools.clock.time_server import answer as time_answer
from tests.server_tools.clock.time_server import time_server

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
HOUR = 3_600_000
AT_ONCE = "[routing_options]\nmax_wait_ms = 0\nhealth = false\n"
FAILURES: dict[str, UpstreamAnswer] = {
    "500": Json(500, {"error": {"message": "it broke"}}),
    "400": Json(400, {"error": {"message": "not so"}}),
    "no-answer": Raw([CutOff()]),
    "no-content": Steps([CutOff()]),
}


def delivery_state(folder: Path) -> tuple[int, bool]:
    """Return the delivery count of the only task, and whether it is reserved."""
    (task,) = stored_tasks(folder)
    assert ("deliveredAtMs" in task) == bool(task["deliveryCount"])
    return task["deliveryCount"], "reservation" in task


@streaming
@protocols
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_reminder_is_sent_again_after_the_upstream_failed(
    tmp_path: Path, protocol: str, stream: bool, failure: UpstreamAnswer
) -> None:
    store_tasks(tmp_path, now_ms())
    marks: list[tuple[int, bool]] = []
    async with clock_gateway(protocol, tmp_path, more=AT_ONCE) as harness:

        def answer(request: Request, number: int) -> UpstreamAnswer:
            marks.append(delivery_state(tmp_path))
            return harness.text_answer("reminded", request) if number else failure

        harness.script(answer)
        assert (await harness.send(stream=stream)).status >= 400
        assert delivery_state(tmp_path) == (0, False)
        assert harness.answer_text(await harness.send(stream=stream), stream=stream) == "reminded"
        assert [len(found) for found in reminders(harness)] == [1, 1]
        assert marks == [(0, True)] * 2
        await until_delivered(tmp_path)


async def test_an_instruction_in_the_text_of_a_task_is_stripped(tmp_path: Path) -> None:
    store_tasks(tmp_path, now_ms(), text="look <**!glm**> now")
    async with clock_gateway("chat", tmp_path) as harness:
        harness.script(lambda request, _: harness.text_answer("reminded", request))
        await harness.send(stream=False)
        ((text,),) = reminders(harness)
    assert '[scheduled task:"look  now"]' in text


@streaming
@protocols
async def test_a_reminder_without_an_answer_is_sent_again(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway(protocol, tmp_path, more=AT_ONCE) as harness:

        def answer(request: Request, number: int) -> UpstreamAnswer:
            if number == 0:
                return answers.tool_call(
                    harness.upstream_protocol, "clock", command("get"), "call_0", stream=stream
                )
            return (
                Json(500, {"error": {"message": "it broke"}})
                if number == 1
                else harness.text_answer("reminded", request)
            )

        harness.script(answer)
        await harness.send(stream=stream)
        await asyncio.wait_for(wait_until_idle(harness), 20)
        assert delivery_state(tmp_path) == (0, False)
        assert harness.answer_text(await harness.send(stream=stream), stream=stream) == "reminded"
    assert delivery_state(tmp_path) == (1, False)


@streaming
@protocols
async def test_a_client_that_disconnects_before_the_first_byte_gets_the_reminder_later(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway(protocol, tmp_path) as harness:
        harness.script(
            lambda request, number: harness.text_answer("reminded", request) if number else Steps([Hang()])
        )
        under_way = await harness.begin("Hello", stream=stream)
        first = await harness.upstream.received()
        assert delivery_state(tmp_path) == (0, True)
        await under_way.leave()
        await asyncio.wait_for(first.gone.wait(), 20)
        await asyncio.wait_for(wait_until_idle(harness), 20)
        assert delivery_state(tmp_path) == (0, False)
        await harness.send(stream=stream)
        assert len(reminders(harness)[1]) == 1
    assert delivery_state(tmp_path) == (1, False)


@protocols
async def test_a_reminder_counts_as_delivered_with_the_first_byte(tmp_path: Path, protocol: str) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway(protocol, tmp_path) as harness:
        half = answers.cut_off(protocol, "a long answer that has no end")
        harness.script(lambda request, _: Sse(half.frames, end=Hang()))
        under_way = await harness.begin("Hello")
        await under_way.head()
        assert await under_way.piece()
        await until_delivered(tmp_path)
        await under_way.leave()
        await asyncio.wait_for(wait_until_idle(harness), 20)
    assert delivery_state(tmp_path) == (1, False)


@contextmanager
def block_task_directory(folder: Path) -> Iterator[None]:
    """Make writes of tasks fail: replace their directory by a file."""
    (folder / "clock").rename(folder / "moved")
    (folder / "clock").write_text("in the way")
    try:
        yield
    finally:
        (folder / "clock").unlink()
        (folder / "moved").rename(folder / "clock")


@streaming
@protocols
async def test_a_failed_write_is_an_error_of_the_tool_and_nothing_is_stored(
    tmp_path: Path, protocol: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    due = now_ms() + HOUR
    store_tasks(tmp_path, due)
    before = task_file(tmp_path).read_bytes()
    async with clock_gateway(protocol, tmp_path) as harness:
        orders = (
            command("schedule", task_item(due, "more")),
            command("cancel", task_id="t1"),
            command("clear"),
        )
        script_tool_calls(harness, *orders, command("get"))
        with block_task_directory(tmp_path), caplog.at_level(logging.ERROR):
            answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "done"
        *failed, got = tool_results(harness, 4)
    assert [result["error"]["code"] for result in failed] == ["store_unavailable"] * 3
    assert got["ok"]
    assert str(tmp_path) not in "".join(result["error"]["message"] for result in failed)
    assert task_file(tmp_path).read_bytes() == before
    assert [path.name for path in (tmp_path / "clock").iterdir() if path.suffix == ".tmp"] == []


@streaming
async def test_a_store_outage_drops_the_reminder_but_not_the_answer(tmp_path: Path, stream: bool) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway("chat", tmp_path, clock='time_tag = "with_tasks"\nhold_max_ms = 0\n') as harness:
        harness.script_texts(then="part ")
        with block_task_directory(tmp_path):
            answer = await harness.send(stream=stream)
            assert harness.answer_text(answer, stream=stream) == "part 0"
        assert delivery_state(tmp_path) == (0, False)
        await harness.send(stream=stream)
        assert [len(found) for found in reminders(harness)] == [0, 1]


async def test_holding_for_a_task_that_cannot_be_reserved_ends_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with clock_gateway("chat", tmp_path, clock="due_window_ms = 1000\nhold_max_ms = 700\n") as harness:

        def answer(request: Request) -> UpstreamAnswer:
            store_tasks(tmp_path, now_ms() + 1300)
            replace_by_directory(tmp_path / "clock" / ".lock")
            return harness.text_answer("only", request)

        (tmp_path / "clock").mkdir()
        harness.upstream.answer_with(answer)
        with caplog.at_level(logging.ERROR):
            reply = await asyncio.wait_for(harness.send(), 20)
        assert harness.answer_text(reply, stream=False) == "only"
        assert len([record for record in caplog.records if "no reminders" in record.getMessage()]) < 4
        (tmp_path / "clock" / ".lock").rmdir()


DAMAGED = {
    "no-json": b'{"version": 1, "sessionId": "s-1", "tas',
    "another-shape": b'{"version": 1, "tasks": "none"}',
    "another-session": b'{"version": 1, "sessionId": "other", "tasks": [], "updatedAtMs": 1}',
    "no-text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_file_is_set_aside_at_the_start_and_named(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store_tasks(tmp_path, now_ms() + HOUR, session="s-2")
    task_file(tmp_path).write_bytes(content)
    (tmp_path / "clock" / "ntp-state.json").write_bytes(b'{"version": 1}')
    with caplog.at_level(logging.WARNING):
        async with clock_gateway("chat", tmp_path) as harness:
            script_tool_calls(harness, command("list"))
            answer = await harness.send()
            assert harness.answer_text(answer, stream=False) == "done"
            assert tool_results(harness, 1) == [{"ok": True, "items": []}]
            found = await admin_call(harness, "clock")
    assert [session["id"] for session in found["sessions"]] == ["s-2"]
    assert (tmp_path / "clock" / "s-1.json.corrupt-1").read_bytes() == content
    assert (tmp_path / "clock" / "ntp-state.json").exists()
    assert not task_file(tmp_path).exists()
    assert f"damaged file {task_file(tmp_path)} set aside as s-1.json.corrupt-1" in caplog.text


async def test_expired_tasks_are_deleted_at_start_and_late_tasks_are_kept(tmp_path: Path) -> None:
    store_tasks(tmp_path, now_ms() - 21 * 60_000, now_ms() - 19 * 60_000)
    async with clock_gateway("chat", tmp_path) as harness:
        while len(stored_tasks(tmp_path)) > 1:
            await asyncio.sleep(0.01)
        harness.script_texts("hi")
        await harness.send()
        assert len(reminders(harness)[0]) == 1
        assert "water the plants 2" in reminders(harness)[0][0]


async def test_twenty_concurrent_requests_send_a_reminder_once(tmp_path: Path) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway("chat", tmp_path, clock="hold_max_ms = 0\n") as harness:
        harness.script_texts(then="part ")
        await asyncio.gather(*(harness.send(stream=bool(number % 2)) for number in range(20)))
        assert sorted(len(found) for found in reminders(harness)) == [0] * 19 + [1]
    assert delivery_state(tmp_path) == (1, False)


async def test_two_workers_send_a_reminder_once_and_share_tasks(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, now_ms())
        harness.script_texts(then="part ")
        config = whole_config(harness, "hold_max_ms = 0\n")
        async with serve(tmp_path, config, "--workers", "2") as process:
            harness.port = await process.port()
            await asyncio.gather(*(harness.send() for _ in range(20)))
            assert sorted(len(found) for found in reminders(harness)) == [0] * 19 + [1]
            await until_delivered(harness.folder)
            due = now_ms() + HOUR
            harness.script(
                lambda request, number: (
                    answers.tool_call("chat", "clock", command("schedule", task_item(due)), stream=False)
                    if number == 20
                    else harness.text_answer("ok", request)
                )
            )
            await harness.send()
            found = [await admin_call(harness, "clock") for _ in range(6)]
            assert [len(one["sessions"][0]["tasks"]) for one in found] == [2] * 6
            process.signal()
            assert await process.ended() == 0


async def test_a_kill_between_reservation_and_delivery_neither_loses_nor_repeats_a_reminder(
    tmp_path: Path,
) -> None:
    due = now_ms()
    lease_config = "lease_ms = 1500\n"
    async with (
        Upstream() as upstream,
        time_server(lambda query: [time_answer(query, time.time() + 90)]) as server,
    ):
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        store_tasks(harness.folder, due)
        harness.script(
            lambda request, number: (
                Steps([Hang()]) if not number else harness.text_answer(f"part {number}", request)
            )
        )
        async with serve(tmp_path, whole_config(harness, lease_config)) as process:
            harness.port = await process.port()
            under_way = await harness.begin("Hello")
            await upstream.received()
            os.killpg(process.process.pid, signal.SIGKILL)
            await process.ended()
            await under_way.close()
        assert delivery_state(harness.folder) == (0, True)
        ends = stored_tasks(harness.folder)[0]["reservation"]["untilUpMs"]
        # A gateway whose clock is ahead of the dead one's waits just as long.
        config = whole_config(harness, lease_config, ntp=f'ntp = {{ servers = ["{server}"] }}\n')
        async with serve(tmp_path, config) as process:
            harness.port = await process.port()
            while (await admin_call(harness, "clock"))["clock"]["ntp"]["status"] != "ok":
                await asyncio.sleep(0.02)
            await until(lambda: uptime().ms >= ends, "the lease is up")
            for _ in range(3):
                await harness.send()
            await until_delivered(harness.folder)
        assert [len(found) for found in reminders(harness)] == [1, 1, 0, 0]


async def test_tasks_survive_a_restart(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        script_tool_calls(harness, command("schedule", task_item(now_ms())))
        async with serve(tmp_path, whole_config(harness)) as process:
            harness.port = await process.port()
            await harness.send()
            process.signal()
            assert await process.ended() == 0
        async with serve(tmp_path, whole_config(harness)) as process:
            harness.port = await process.port()
            await harness.send()
            await harness.send()
        assert [len(found) for found in reminders(harness)] == [0, 0, 1, 0]


SWITCHES = {"on": ({}, "ok", 5000), "off": ({"ROUTECODEX_CLOCK_NTP": "0"}, "off", 0)}


@pytest.mark.parametrize(("switch", "status", "offset"), SWITCHES.values(), ids=SWITCHES)
async def test_tasks_live_below_the_session_dir_and_network_time_beside_them(
    tmp_path: Path, switch: dict[str, str], status: str, offset: int
) -> None:
    here = tmp_path / "here"
    store_tasks(here, now_ms())
    async with (
        Upstream() as upstream,
        time_server(lambda query: [time_answer(query, time.time() + 5)]) as server,
    ):
        harness = GatewayHarness("chat", "chat", here, upstream)
        harness.script_texts("hi")
        text = whole_config(harness, ntp=f'ntp = {{ servers = ["{server}"] }}\n')
        file = tmp_path / "gateway.toml"
        file.write_text(text.replace(f'url = "file:{here}"', 'url = "file:"'))
        environ = {"ROUTECODEX_SESSION_DIR": str(here), **switch}
        async with running(tmp_path, "serve", "--config", str(file), environ=environ) as process:
            harness.port = await process.port()
            while (found := (await admin_call(harness, "clock"))["clock"]["ntp"])["status"] != status:
                await asyncio.sleep(0.02)
            assert abs(found["offsetMs"] - offset) < 1000
            await harness.send()
            text = harness.upstream_texts[0][1][1]
            await until_delivered(here)
    assert f"ntpOffsetMs=`{found['offsetMs']}`" in text
    assert (here / "clock" / "ntp-state.json").exists() == (status == "ok")


@streaming
async def test_invalid_or_silent_ntp_servers_do_not_delay_requests(tmp_path: Path, stream: bool) -> None:
    store_tasks(tmp_path, now_ms())
    async with time_server(lambda query: [b"no time"]) as liar, time_server(lambda query: []) as silent:
        ntp = f'ntp = {{ servers = ["{liar}", "{silent}"], timeout_ms = 100 }}\n'
        async with clock_gateway("chat", tmp_path, ntp=ntp) as harness:
            harness.script_texts("hi", "hi")
            answer = await harness.send(stream=stream)
            assert harness.answer_text(answer, stream=stream) == "hi"
            while (found := (await admin_call(harness, "clock"))["clock"]["ntp"])["status"] != "error":
                await asyncio.sleep(0.02)
            assert (found["offsetMs"], bool(found["lastError"])) == (0, True)
            assert len(reminders(harness)[0]) == 1
