"""Answers held for a task that is due soon: kept alive, continued, ended early, cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from routecodex.protocols.grammar.frames import read
from tests.cli.process import serve
from tests.gateway.clock_gateway import (
    admin_call,
    clock_gateway,
    command,
    now_ms,
    reminder,
    reminders,
    store_tasks,
    stored_tasks,
    task_item,
    wait_until_idle,
    whole_config,
    without_time_line,
)
from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SESSION_HEADER,
    SET_STOP_MESSAGE,
    GatewayHarness,
    has_error,
    stored_uses,
)
from tests.kit import answers, asking
from tests.kit.gateway import serving
from tests.kit.raw_client import Call, begin
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Hang, Json, Steps
from tests.kit.upstream import Request, Upstream

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SMALL = "due_window_ms = 1000\nhold_max_ms = 60000\n"
ALIVE = "keepalive_ms = 80\n"
AT_ONCE = "[routing_options]\nmax_wait_ms = 0\n"
SOON = 1250

FAR = 50_000
"""A task so far ahead holds an answer for longer than any test takes."""


def script_with_task(
    harness: GatewayHarness, ahead: int, *texts: str, rest: UpstreamAnswer | None = None
) -> list[int]:
    """Answer with these texts; store a task with the first answer, due after this many milliseconds."""
    due: list[int] = []

    def answer(request: Request, number: int) -> UpstreamAnswer:
        if not due:
            due.append(now_ms() + ahead)
            store_tasks(harness.folder, due[0])
        if number >= len(texts) and rest is not None:
            return rest
        return harness.text_answer(texts[number] if number < len(texts) else f"part {number}", request)

    harness.script(answer)
    return due


async def read_until(request: Call, text: bytes, after: int = 0) -> None:
    """Read until the answer contains this text after its first `after` bytes."""
    if not request.answer.status:
        await request.head()
    while text not in request.answer.body[after:]:
        assert await request.piece(), request.answer.body


async def read_until_held(harness: GatewayHarness, request: Call) -> None:
    """Read until a keep-alive shows that the answer is held."""
    await read_until(request, b"first")
    await read_until(request, b": keep-alive\n\n")


@streaming
@protocols
async def test_an_answer_is_held_until_the_window_opens_and_goes_on_with_the_reminder(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL) as harness:
        due = script_with_task(harness, SOON, "first", "second")
        answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "first\n\nsecond"
        assert due[0] - 1000 <= now_ms() < due[0] + 20_000
        expected = reminder(("water the plants", due[0]))
        texts = [("user", "Hello"), ("assistant", "first"), expected]
        assert [without_time_line(one) for one in harness.upstream_texts] == [[("user", "Hello")], texts]
    (task,) = stored_tasks(tmp_path)
    assert (task["deliveryCount"], "reservation" in task) == (1, False)


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_a_held_stream_is_kept_alive_by_comments(tmp_path: Path, protocol: str) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL, server=ALIVE) as harness:
        script_with_task(harness, FAR, "first", "second")
        request = await harness.begin("Hello")
        await read_until_held(harness, request)
        store_tasks(tmp_path, now_ms())
        reply = await request.rest()
        await request.close()
        assert harness.answer_text(reply, stream=True) == "first\n\nsecond"


@pytest.mark.parametrize("form", ["?alt=sse", ""], ids=["events", "array"])
async def test_a_held_gemini_stream_is_kept_alive_by_empty_parts(tmp_path: Path, form: str) -> None:
    async with clock_gateway("gemini", tmp_path, clock=SMALL, server=ALIVE) as harness:
        script_with_task(harness, FAR, "first", "second")
        path = asking.path("gemini", stream=True).partition("?")[0] + form
        request = await begin(
            harness.port, path, asking.body("gemini", "Hello", stream=True), headers=SESSION_HEADER
        )
        await read_until(request, b"first")
        for _ in range(2):
            at = len(request.answer.body)
            await read_until(request, b'"parts":[{"text":""}]', at)
        store_tasks(tmp_path, now_ms())
        reply = await request.rest()
        await request.close()
    if form:
        assert harness.answer_text(reply, stream=True) == "first\n\nsecond"
    chunks = [frame.json for frame in read(reply.body)] if form else reply.json
    parts = [part for one in chunks for part in one["candidates"][0]["content"]["parts"]]
    silent = [part for part in parts if part == {"text": ""}]
    assert "".join(part["text"] for part in parts) == "first\n\nsecond"
    assert len(silent) > 1
    assert len({(one["responseId"], one["modelVersion"]) for one in chunks}) == 1


@streaming
@protocols
async def test_an_answer_that_is_held_ends_as_it_is_when_the_server_stops(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, protocol, tmp_path / "store", upstream)
        script_with_task(harness, FAR, "first")
        async with serving(whole_config(harness, SMALL)) as running:
            harness.port = running.port
            held = asyncio.ensure_future(harness.send(stream=stream))
            await upstream.received()
            await upstream.requests[0].answered.wait()
            # It is held, or about to be.
            assert await running.service.drain()
            assert harness.answer_text(await held, stream=stream) == "first"
    assert len(harness.upstream_texts) == 1


@streaming
@protocols
async def test_an_answer_that_was_cut_by_its_length_is_held_too(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL) as harness:

        def answer(request: Request, number: int) -> UpstreamAnswer:
            if number:
                return harness.text_answer("second", request)
            store_tasks(tmp_path, now_ms() + SOON)
            return answers.length(protocol, "first", answers.wants_stream(request))

        harness.script(answer)
        reply = await harness.send(stream=stream)
        assert harness.answer_text(reply, stream=stream) == "first\n\nsecond"


@streaming
async def test_an_answer_is_not_held_for_a_task_due_too_late(tmp_path: Path, stream: bool) -> None:
    async with clock_gateway("chat", tmp_path, clock="due_window_ms = 1000\nhold_max_ms = 300\n") as harness:
        script_with_task(harness, FAR, "only")
        assert harness.answer_text(await harness.send(stream=stream), stream=stream) == "only"


async def test_whole_answers_are_not_held_when_that_is_disabled(tmp_path: Path) -> None:
    clock = SMALL + "hold_non_streaming = false\n"
    async with clock_gateway("chat", tmp_path, clock=clock) as harness:
        due = script_with_task(harness, SOON, "first", "second")
        assert harness.answer_text(await harness.send(), stream=False) == "first"
        answer = await harness.send("and now?", stream=True)
        assert harness.answer_text(answer, stream=True) == "second\n\npart 2"
        assert reminders(harness)[2] == [reminder(("water the plants", due[0]))[1]]


async def test_a_task_set_in_the_same_request_is_waited_for_when_it_is_due_later(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL) as harness:
        due: list[int] = []

        def answer(request: Request, number: int) -> UpstreamAnswer:
            if number:
                return harness.text_answer(f"part {number}", request)
            due.append(now_ms() + 3000)
            return answers.tool_call("chat", "clock", command("schedule", task_item(due[0])), stream=False)

        harness.script(answer)
        assert harness.answer_text(await harness.send(), stream=False) == "part 1\n\npart 2"
        assert reminders(harness) == [[], [], [reminder(("water the plants", due[0]))[1]]]


async def test_an_operator_who_cancels_the_task_ends_the_hold(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL, server=ALIVE) as harness:
        script_with_task(harness, FAR, "first")
        request = await harness.begin("Hello")
        await read_until_held(harness, request)
        assert await admin_call(harness, "clock/cancel", {"taskId": "t1"}) == {"removed": "t1"}
        reply = await asyncio.wait_for(request.rest(), 20)
        await request.close()
        assert harness.answer_text(reply, stream=True) == "first"
        assert len(harness.upstream_texts) == 1


@protocols
async def test_another_request_that_clears_the_tasks_ends_the_hold(tmp_path: Path, protocol: str) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL) as harness:
        script_with_task(harness, FAR, "first")
        request = await harness.begin("Hello")
        await read_until(request, b"first")
        await harness.send("<**clock:clear**>")
        reply = await asyncio.wait_for(request.rest(), 20)
        await request.close()
        assert harness.answer_text(reply, stream=True) == "first"


async def test_another_process_that_cancels_the_task_ends_the_hold(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL, server=ALIVE) as harness:
        script_with_task(harness, FAR, "first")
        request = await harness.begin("Hello")
        await read_until_held(harness, request)
        async with Upstream() as unused:
            there = GatewayHarness("chat", "chat", tmp_path, unused)
            async with serve(tmp_path, whole_config(there, SMALL)) as process:
                there.port = await process.port()
                assert await admin_call(there, "clock/cancel", {"taskId": "t1"}) == {"removed": "t1"}
        reply = await asyncio.wait_for(request.rest(), 20)
        await request.close()
        assert harness.answer_text(reply, stream=True) == "first"


@streaming
async def test_a_client_that_disconnects_while_held_is_released_at_once(tmp_path: Path, stream: bool) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL, server=ALIVE) as harness:
        script_with_task(harness, FAR, "first")
        request = await harness.begin("Hello", stream=stream)
        if stream:
            await read_until_held(harness, request)
        else:
            await (await harness.upstream.received()).answered.wait()
        await request.leave()
        await asyncio.wait_for(wait_until_idle(harness), 20)
        assert len(harness.upstream_texts) == 1
    (task,) = stored_tasks(tmp_path)
    assert (task["deliveryCount"], "reservation" in task) == (0, False)


@streaming
@protocols
async def test_a_client_that_disconnects_before_the_held_reminder_is_answered_gets_it_later(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL) as harness:
        script_with_task(harness, 900, "first", rest=Steps([Hang()]))
        request = await harness.begin("Hello", stream=stream)
        second = await harness.upstream.received(2)
        assert "reservation" in stored_tasks(tmp_path)[0]
        await request.leave()
        await asyncio.wait_for(second.gone.wait(), 20)
        await asyncio.wait_for(wait_until_idle(harness), 20)
        (task,) = stored_tasks(tmp_path)
        assert (task["deliveryCount"], "reservation" in task) == (0, False)
        harness.script_texts("again", "again", "again")
        await harness.send()
        assert len(reminders(harness)[2]) == 1
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


@streaming
@protocols
async def test_a_reminder_whose_round_fails_is_released(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL, more=AT_ONCE) as harness:
        script_with_task(harness, 900, "first", rest=Json(500, {"error": {"message": "it broke"}}))
        answer = await harness.send(stream=stream)
        assert harness.answer_text(answer, stream=stream) == "first"
        assert len(harness.upstream_texts) == 2
    (task,) = stored_tasks(tmp_path)
    assert (task["deliveryCount"], "reservation" in task) == (0, False)


async def test_a_reminder_of_an_earlier_round_stays_delivered_when_a_later_one_fails(tmp_path: Path) -> None:
    store_tasks(tmp_path, now_ms())
    async with clock_gateway("chat", tmp_path, more=AT_ONCE) as harness:
        harness.script(
            lambda request, number: (
                Json(500, {"error": {"message": "it broke"}})
                if number
                else harness.text_answer("told", request)
            )
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(3))
        assert harness.answer_text(answer, stream=False) == "told"
        assert [len(found) for found in reminders(harness)] == [1, 1]
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


@protocols
async def test_a_reminder_counts_as_delivered_when_its_stream_breaks_off(
    tmp_path: Path, protocol: str
) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL, more=AT_ONCE) as harness:
        script_with_task(
            harness, 900, "first", rest=answers.stream_error(protocol, "the second part is long")
        )
        answer = await harness.send(stream=True)
        assert has_error(answer)
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


@streaming
@protocols
async def test_stop_message_goes_first_and_only_a_round_without_it_is_held(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with clock_gateway(protocol, tmp_path, clock=SMALL) as harness:
        due = script_with_task(harness, SOON + 500)
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
        assert harness.answer_text(answer, stream=stream).split("\n\n") == [
            f"part {number}" for number in range(4)
        ]
        last = [texts[-1][1] for texts in map(without_time_line, harness.upstream_texts)]
        assert last == ["Hello", "go on", "go on", reminder(("water the plants", due[0]))[1]]
        assert (stored_uses(tmp_path), harness.counts) == (2, [0, 1, 2, 2])


async def test_stop_message_can_go_on_after_a_reminder_was_held_for(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL) as harness:
        due: list[int] = []

        def answer(request: Request, number: int) -> UpstreamAnswer:
            if number:
                return harness.text_answer(f"part {number}", request)
            due.append(now_ms() + SOON)
            store_tasks(tmp_path, due[0])
            return answers.length("chat", "part 0", False)

        harness.script(answer)
        reply = await harness.send(SET_STOP_MESSAGE.format(1))
        assert harness.answer_text(reply, stream=False) == "part 0\n\npart 1\n\npart 2"
        expected = reminder(("water the plants", due[0]))[1]
        assert [texts[-1][1] for texts in map(without_time_line, harness.upstream_texts)] == [
            "Hello",
            expected,
            "go on",
        ]


async def test_calls_of_the_client_are_not_held(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL) as harness:

        def answer(request: Request, _: int) -> UpstreamAnswer:
            store_tasks(tmp_path, now_ms() + FAR)
            return answers.tool_call("chat", "get_weather", {"city": "Oslo"}, stream=False)

        harness.script(answer)
        reply = await asyncio.wait_for(harness.send(tools=True), 20)
        asking.check("chat", reply, stream=False)
        assert len(harness.upstream_texts) == 1


async def test_one_of_several_held_answers_gets_the_reminder(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock=SMALL) as harness:
        due = script_with_task(harness, 1800)
        requests = [harness.send(f"Hello {number}", stream=bool(number % 2)) for number in range(6)]
        await asyncio.gather(*requests)
        sent = [one for some in reminders(harness) for one in some]
        assert sent == [reminder(("water the plants", due[0]))[1]]
    assert stored_tasks(tmp_path)[0]["deliveryCount"] == 1


async def test_a_thousand_held_answers_use_almost_no_cpu_time(tmp_path: Path) -> None:
    many = 1000
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.upstream.answer_with(lambda _: answers.text("chat", "first", True))
        for number in range(many):
            store_tasks(harness.folder, now_ms() + 600_000, session=f"s-{number}")
        clock = "due_window_ms = 1000\nhold_max_ms = 3600000\n"
        async with serve(tmp_path, whole_config(harness, clock)) as process:
            harness.port = await process.port()
            requests: list[Call] = []
            for start in range(0, many, 50):
                some = [_held(harness, f"s-{number}") for number in range(start, start + 50)]
                requests += await asyncio.gather(*some)
            assert (await admin_call(harness, "status"))["active"] == many
            gateway = psutil.Process(process.process.pid)
            before = sum(gateway.cpu_times()[:2])
            await asyncio.sleep(2)
            spent = sum(gateway.cpu_times()[:2]) - before
            assert spent < 0.5
            for one in requests:
                one.writer.transport.abort()
            await asyncio.wait_for(wait_until_idle(harness), 20)


async def _held(harness: GatewayHarness, session: str) -> Call:
    body = asking.body("chat", "Hello", stream=True)
    one = await begin(harness.port, asking.path("chat", stream=True), body, headers={"x-session-id": session})
    await read_until(one, b"first")
    return one
