"""Drain in a real process: requests in flight finish, new ones are refused, exit code 0."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from routecodex.protocols import grammar
from tests.cli.process import Command, serve
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Call, begin, call
from tests.kit.steps import Hang, Json, Sse, Steps
from tests.kit.upstream import Request, Upstream

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


def frames() -> list[bytes]:
    answer = answers.text("chat", "one two three four five six", True)
    assert isinstance(answer, Sse)
    return list(answer.frames)


def config(up: Upstream, *, seconds: int) -> str:
    return one_target("chat", up).replace("drain_seconds = 1", f"drain_seconds = {seconds}")


async def stream(port: int) -> Call:
    """Start a stream and read its first frame."""
    under_way = await begin(port, asking.path("messages", stream=True), asking.body("messages", stream=True))
    await under_way.head()
    assert await under_way.piece()
    return under_way


async def refused(port: int) -> None:
    """Wait until new connections are refused."""
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionError:
                continue
            writer.transport.abort()
            await asyncio.sleep(0.01)


@SIGNALS
async def test_a_stream_in_flight_finishes_and_nothing_new_is_accepted(
    tmp_path: Path, number: signal.Signals
) -> None:
    release = asyncio.Event()
    async with (
        Upstream(lambda _: Sse(frames(), pace={3: release})) as up,
        serve(tmp_path, config(up, seconds=600)) as command,
    ):
        port = await command.port()
        under_way = await stream(port)
        command.signal(number)
        await refused(port)
        assert command.process.returncode is None
        release.set()
        answer = await under_way.rest()
        assert await under_way.reader.read() == b""
        await under_way.close()
        assert await command.ended() == 0
    asking.check("messages", answer, stream=True)
    assert "Traceback" not in command.text


async def test_an_answer_that_has_not_begun_is_still_given(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slowly(_: Request) -> Json | Sse:
        await release.wait()
        return answers.text("chat", "late, but here", False)

    async with Upstream(slowly) as up, serve(tmp_path, config(up, seconds=600)) as command:
        port = await command.port()
        under_way = await begin(port, "/v1/chat/completions", asking.body("chat", stream=False))
        await up.received()
        command.signal()
        await refused(port)
        release.set()
        answer = await under_way.rest()
        await under_way.close()
        assert await command.ended() == 0
    asking.check("chat", answer, stream=False)
    assert answer.headers["connection"] == "close"


def is_shutting_down(body: bytes) -> bool:
    return b"the gateway is shutting down; send the request again" in body


async def test_past_the_limit_a_stream_ends_with_an_error(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: Sse(frames()[:3], end=Hang())) as up,
        serve(tmp_path, config(up, seconds=1)) as command,
    ):
        under_way = await stream(await command.port())
        command.signal()
        answer = await under_way.rest()
        await under_way.close()
        assert await command.ended() == 0
        await asyncio.wait_for(up.requests[0].gone.wait(), 20)
    grammar.check_broken("messages", answer.body)
    assert is_shutting_down(answer.body)
    assert b"message_stop" not in answer.body
    assert "Traceback" not in command.text


PROTOCOLS = ("chat", "responses", "messages", "gemini")


@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_past_the_limit_every_protocol_gets_its_own_error(client: str, upstream: str) -> None:
    whole = answers.text(upstream, "one two three four five six", True)
    assert isinstance(whole, Sse)
    some = list(whole.frames)[: len(whole.frames) // 2 + 1]
    async with (
        Upstream(lambda _: Sse(some, end=Hang())) as up,
        serving(at_once(upstream, up)) as gateway,
    ):
        path, body = asking.path(client, stream=True), asking.body(client, stream=True)
        under_way = await begin(gateway.port, path, body)
        await under_way.head()
        assert await under_way.piece()
        assert await gateway.service.stop() is False
        answer = await under_way.rest()
        await under_way.close()
        assert gateway.service.gateway.health.report(0.0) == []
    grammar.check_broken(client, answer.body)
    assert is_shutting_down(answer.body)


def at_once(protocol: str, up: Upstream, *, more: str = "") -> str:
    return one_target(protocol, up, more=more).replace("drain_seconds = 1", "drain_seconds = 0")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_past_the_limit_an_answer_that_has_not_begun_is_a_503(protocol: str, stream: bool) -> None:
    async with Upstream(lambda _: Steps([Hang()])) as up, serving(at_once("chat", up)) as gateway:
        path, body = asking.path(protocol, stream=stream), asking.body(protocol, stream=stream)
        under_way = await begin(gateway.port, path, body)
        await up.received()
        assert await gateway.service.stop() is False
        answer = await under_way.rest()
        await under_way.close()
        await asyncio.wait_for(up.requests[0].gone.wait(), 20)
    assert (answer.status, answer.json["code"]) == (503, "shutting_down")
    grammar.check_error(protocol, 503, answer.body)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/messages/count_tokens"])
async def test_past_the_limit_other_calls_get_a_503_too(path: str) -> None:
    protocol = "messages" if "messages" in path else "chat"
    async with Upstream(lambda _: Steps([Hang()])) as up, serving(at_once(protocol, up)) as gateway:
        body = {"model": "up.m", "input": "x"} if protocol == "chat" else asking.body(protocol, stream=False)
        under_way = await begin(gateway.port, path, body)
        await up.received()
        assert await gateway.service.stop() is False
        answer = await under_way.rest()
        await under_way.close()
    assert (answer.status, answer.json["code"]) == (503, "shutting_down")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_past_the_limit_a_turn_with_server_tools_ends_with_an_error(protocol: str) -> None:
    async with (
        Upstream(lambda _: Sse(frames()[:3], end=Hang())) as up,
        serving(at_once("chat", up)) as gateway,
    ):
        path = asking.path(protocol, stream=True)
        body = asking.body(protocol, '<**stopMessage:"go on",3**> hi', stream=True)
        under_way = await begin(gateway.port, path, body, headers={"x-session-id": "s-1"})
        await under_way.head()
        assert await under_way.piece()
        assert await gateway.service.stop() is False
        answer = await under_way.rest()
        await under_way.close()
    grammar.check_broken(protocol, answer.body)
    assert is_shutting_down(answer.body)


@SIGNALS
async def test_a_second_signal_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    async with (
        Upstream(lambda _: Sse(frames()[:3], end=Hang())) as up,
        serve(tmp_path, config(up, seconds=600)) as command,
    ):
        port = await command.port()
        under_way = await stream(port)
        command.signal(number)
        await refused(port)
        command.signal(number)
        answer = await under_way.rest()
        await under_way.close()
        assert await command.ended() == 0
        await asyncio.wait_for(up.requests[0].gone.wait(), 20)
    assert is_shutting_down(answer.body)
    assert "Traceback" not in command.text


async def _idle(command: Command) -> Call:
    under_way = await begin(await command.port(), "/health/ready", method="GET")
    assert (await under_way.rest()).status == 200
    return under_way


async def test_an_idle_connection_holds_nothing_up(tmp_path: Path) -> None:
    async with Upstream() as up, serve(tmp_path, config(up, seconds=600)) as command:
        under_way = await _idle(command)
        command.signal()
        assert await asyncio.wait_for(under_way.reader.read(), 20) == b""
        await under_way.close()
        assert await command.ended() == 0


async def test_while_it_drains_the_server_is_alive_but_not_ready() -> None:
    release = asyncio.Event()
    async with (
        Upstream(lambda _: Sse(frames(), pace={3: release})) as up,
        serving(config(up, seconds=600)) as gateway,
    ):
        first, second = [await stream(gateway.port) for _ in range(2)]
        for under_way, path in ((first, "/health/ready"), (second, "/health/live")):
            under_way.writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            await under_way.writer.drain()
        await _arrived(gateway.port)
        stopping = asyncio.ensure_future(gateway.service.stop())
        await refused(gateway.port)
        release.set()
        ready, live = [await _second(under_way) for under_way in (first, second)]
        await stopping
    assert (ready.answer.status, ready.answer.json) == (503, {"status": "draining"})
    assert (live.answer.status, live.answer.json) == (200, {"status": "ok"})


async def _arrived(port: int) -> None:
    """Wait for a later request: bytes sent before on other connections are read by then."""
    for _ in range(3):
        assert (await call(port, "/health", method="GET")).status == 200


async def _second(under_way: Call) -> Call:
    """Return the answer to the pipelined request."""
    await under_way.rest()
    again = Call(under_way.reader, under_way.writer)
    await again.rest()
    await again.close()
    return again
