"""Faults of stopMessage: the count is exact, and the client always gets a proper end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.process import serve, until
from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SESSION_HEADER,
    SET_STOP_MESSAGE,
    GatewayHarness,
    configuration,
    file_store_gateway,
    has_error,
    stored_stop_message,
    stored_uses,
)
from tests.gateway.instruction_gateway import answer_text
from tests.kit import answers, asking
from tests.kit.gateway import provider, serving
from tests.kit.raw_client import begin, call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import CutOff, Hang, Json, Raw, Sse, Steps
from tests.kit.upstream import Request, Upstream

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
AT_ONCE = "[routing_options]\nmax_wait_ms = 0\n"
NO_MENDING = "[server_tools.empty_reply_continue]\nenabled = false\n"
FAILURES: dict[str, UpstreamAnswer] = {
    "500": Json(500, {"error": {"message": "it broke"}}),
    "400": Json(400, {"error": {"message": "not so"}}),
    "429": Json(429, {"error": {"message": "slow down"}}),
    "no-answer": Raw([CutOff()]),
    "no-content": Steps([CutOff()]),
}


@streaming
@protocols
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
async def test_a_follow_up_that_fails_before_its_content_ends_the_answer_as_it_is(
    tmp_path: Path, protocol: str, stream: bool, failure: UpstreamAnswer
) -> None:
    async with file_store_gateway(protocol, tmp_path, more=AT_ONCE) as harness:
        harness.script(
            lambda request, number: harness.text_answer(f"part {number}", request) if number < 2 else failure
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(5), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "part 0\n\npart 1"
        assert stored_uses(tmp_path) == 2
        # A dropped idle connection does not count as a failure: the request is retried once on a new one.
        assert len(harness.upstream_texts) == (4 if isinstance(failure, Raw) else 3)
        if not stream:
            assert "the follow-up failed: " in answer.headers["x-routecodex-notice"]


@streaming
async def test_a_failed_follow_up_shows_the_last_round_where_only_that_is_shown(
    tmp_path: Path, stream: bool
) -> None:
    more = AT_ONCE + '[server_tools]\nvisible_rounds = "last"\n'
    async with file_store_gateway("chat", tmp_path, more=more) as harness:
        harness.script(
            lambda request, number: (
                harness.text_answer(f"part {number}", request) if number < 2 else FAILURES["500"]
            )
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(5), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "part 1"


BREAKS = {
    "cut": lambda protocol: answers.cut_off(protocol, "two, and then much more of it"),
    "reported": lambda protocol: answers.stream_error(protocol, "two, and then much more of it"),
}


@protocols
@pytest.mark.parametrize("how", BREAKS)
async def test_a_follow_up_that_breaks_off_ends_with_the_error_of_the_protocol(
    tmp_path: Path, protocol: str, how: str
) -> None:
    async with file_store_gateway(protocol, tmp_path, more=AT_ONCE + NO_MENDING) as harness:
        harness.script(
            lambda request, number: BREAKS[how](protocol) if number else harness.text_answer("one", request)
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(5), stream=True)
        assert answer.status == 200
        assert has_error(answer)
        assert answer.body.index(b'"one') < answer.body.index(b'"\\n\\ntwo, a')
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (1, 2)


@streaming
@protocols
async def test_a_disconnect_during_a_follow_up_ends_it_at_once(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        hangs = Steps([Hang()])
        harness.script(
            lambda request, number: hangs if number else harness.text_answer("the first part", request)
        )
        under_way = await harness.begin(SET_STOP_MESSAGE.format(5), stream=stream)
        follow_up = await harness.upstream.received(2)
        await under_way.leave()
        await asyncio.wait_for(follow_up.gone.wait(), 20)
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (1, 2)


@protocols
async def test_a_disconnect_in_the_middle_of_a_later_round_ends_it_at_once(
    tmp_path: Path, protocol: str
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        half = answers.cut_off(protocol, "two, and then much more of it")

        def answer(request: Request, number: int) -> UpstreamAnswer:
            return Sse(half.frames, end=Hang()) if number else harness.text_answer("the first part", request)

        harness.script(answer)
        under_way = await harness.begin(SET_STOP_MESSAGE.format(5))
        await under_way.head()
        while b"two, a" not in under_way.answer.body:
            assert await under_way.piece()
        await under_way.leave()
        await asyncio.wait_for(harness.upstream.requests[1].gone.wait(), 20)
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (1, 2)


@streaming
async def test_a_disconnect_between_rounds_ends_the_turn_and_nothing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    command = tmp_path / "bin" / "bd"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho > {tmp_path}/asked\nexec sleep 600\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ROUTECODEX_STOPMESSAGE_BD_TIMEOUT_MS", "60000")
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script_texts(then="part ")
        under_way = await harness.begin(SET_STOP_MESSAGE.format(5), stream=stream)
        await until((tmp_path / "asked").exists, "bd was asked")
        await under_way.leave()
        other = await harness.send("are you there?", headers={})
        assert answer_text("chat", other, stream=False) == "part 1"
        assert (stored_uses(tmp_path / "state"), len(harness.upstream_texts)) == (0, 2)


async def test_a_bd_that_hangs_does_not_hold_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "bin" / "bd"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexec sleep 600\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ROUTECODEX_STOPMESSAGE_BD_TIMEOUT_MS", "50")
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script_texts("one", "two")
        assert (
            harness.answer_text(await harness.send(SET_STOP_MESSAGE.format(1)), stream=False) == "one\n\ntwo"
        )


async def test_twenty_requests_of_one_session_share_one_count(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script_texts(then="part ")
        requests = [harness.send(SET_STOP_MESSAGE.format(7), stream=bool(number % 2)) for number in range(20)]
        for number, answer in enumerate(await asyncio.gather(*requests)):
            asking.check("chat", answer, stream=bool(number % 2))
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (7, 27)


async def test_two_processes_share_one_count(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script_texts(then="part ")
        async with serve(tmp_path, configuration(harness), "--workers", "2") as command:
            harness.port = await command.port()
            await asyncio.gather(*(harness.send(SET_STOP_MESSAGE.format(7)) for _ in range(20)))
            assert (stored_uses(harness.folder), len(harness.upstream_texts)) == (7, 27)
            command.signal()
            assert await command.ended() == 0


async def test_the_count_survives_a_kill_right_after_the_follow_up_was_sent(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script(
            lambda request, number: (
                Steps([Hang()]) if number == 1 else harness.text_answer(f"part {number}", request)
            )
        )
        async with serve(tmp_path, configuration(harness)) as command:
            harness.port = await command.port()
            under_way = await harness.begin(SET_STOP_MESSAGE.format(3))
            await upstream.received(2)
            os.killpg(command.process.pid, signal.SIGKILL)
            await command.ended()
            await under_way.close()
        assert stored_uses(harness.folder) == 1
        async with serve(tmp_path, configuration(harness)) as command:
            harness.port = await command.port()
            answer = await harness.send("are you there?")
            assert harness.answer_text(answer, stream=False) == "part 2\n\npart 3\n\npart 4"
        assert (stored_uses(harness.folder), harness.counts) == (3, [0, 1, 1, 2, 3])


@streaming
@protocols
async def test_a_count_that_cannot_be_stored_ends_the_answer_without_follow_up(
    tmp_path: Path, protocol: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:

        def answer(request: Request) -> UpstreamAnswer:
            (tmp_path / "sessions").rename(tmp_path / "moved")
            (tmp_path / "sessions").write_text("in the way")
            return harness.text_answer("the only part", request)

        harness.upstream.answer_with(answer)
        with caplog.at_level(logging.ERROR):
            reply = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream)
        assert harness.answer_text(reply, stream=stream) == "the only part"
        assert "the file store cannot be written" in caplog.text
        assert len(harness.upstream_texts) == 1
        (tmp_path / "sessions").unlink()
        (tmp_path / "moved").rename(tmp_path / "sessions")
    assert stored_uses(tmp_path) == 0


async def test_a_turn_past_its_time_limit_is_not_followed_up(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path, more="[server_tools]\nmax_turn_ms = 1000\n") as harness:

        async def answer(request: Request) -> UpstreamAnswer:
            await asyncio.sleep(1.01)
            return harness.text_answer("slowly", request)

        harness.upstream.answer_with(answer)
        reply = await harness.send(SET_STOP_MESSAGE.format(3))
        assert harness.answer_text(reply, stream=False) == "slowly"
        notice = reply.headers["x-routecodex-notice"]
        assert notice == "no follow-up: the turn has taken all the time it may"
        assert stored_uses(tmp_path) == 0


async def test_a_follow_up_without_an_available_target_is_not_counted(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path, more=AT_ONCE) as harness:
        goes_on = asyncio.Event()
        whole = answers.text("chat", "the only part", True)
        assert isinstance(whole, Sse)

        def answer(request: Request, number: int) -> UpstreamAnswer:
            return (
                answers.error("chat", 429, retry_after="60")
                if number
                else Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})
            )

        harness.script(answer)
        under_way = await harness.begin(SET_STOP_MESSAGE.format(3))
        await harness.upstream.received(1)
        await under_way.head()
        refused = await harness.send("another", headers={})
        assert refused.status == 429
        goes_on.set()
        reply = await under_way.rest()
        await under_way.close()
        assert harness.answer_text(reply, stream=True) == "the only part"
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (0, 2)


async def test_a_released_count_does_not_change_a_message_set_meanwhile(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        goes_on = asyncio.Event()

        def answer(request: Request, number: int) -> UpstreamAnswer:
            whole = answers.text("chat", f"part {number}", answers.wants_stream(request))
            return Sse(whole.frames, pace={0: goes_on}) if isinstance(whole, Sse) else whole

        harness.script(answer)
        under_way = await harness.begin(SET_STOP_MESSAGE.format(3))
        await harness.upstream.received(1)
        await harness.send('<**stopMessage:"other",2**>Hello')
        found = stored_stop_message(tmp_path)
        assert found is not None
        assert (found["text"], found["used"]) == ("other", 2)
        await under_way.leave()
        await harness.upstream.requests[0].gone.wait()
        assert stored_uses(tmp_path) == 2


def pool(first: Upstream, second: Upstream) -> str:
    return (
        "[server]\nport = 0\ndrain_seconds = 1\n"
        + AT_ONCE
        + provider("one", "chat", first)
        + provider("two", "chat", second)
        + '[routing]\ndefault = [{ id = "both", mode = "round-robin", targets = ["one.m", "two.m"] }]\n'
    )


async def test_a_follow_up_goes_to_the_same_target_while_it_is_healthy(tmp_path: Path) -> None:
    served: list[int] = []

    def script(place: int) -> Callable[[Request], UpstreamAnswer]:
        def answer(_: Request) -> UpstreamAnswer:
            served.append(place)
            number = len(served)
            return FAILURES["500"] if number == 8 else answers.text("chat", f"part {number}", False)

        return answer

    async with (
        Upstream(script(0)) as first,
        Upstream(script(1)) as second,
        serving(pool(first, second)) as gateway,
    ):
        body = asking.body("chat", SET_STOP_MESSAGE.format(2), stream=False, model="auto")
        for _ in range(3):
            answer = await call(gateway.port, "/v1/chat/completions", body)
    assert answer_text("chat", answer, stream=False) == "part 7\n\npart 9\n\npart 10"
    one, other = served[0], 1 - served[0]
    assert served == [one] * 3 + [other] * 3 + [one] * 2 + [other] * 2


async def test_a_disconnect_in_the_first_round_of_a_whole_answer_ends_the_turn(
    tmp_path: Path,
) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script(lambda request, number: Raw([Hang()]))
        path = asking.path("chat", stream=False)
        under_way = await begin(
            harness.port,
            path,
            asking.body("chat", SET_STOP_MESSAGE.format(3), stream=False),
            headers=SESSION_HEADER,
        )
        first = await harness.upstream.received(1)
        await under_way.leave()
        await asyncio.wait_for(first.gone.wait(), 20)
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (0, 1)
