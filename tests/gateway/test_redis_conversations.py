"""Conversations that go on at another node: reasoning, hidden calls and descriptions of images are there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.clock_gateway import command, config
from tests.gateway.continuation_gateway import GatewayHarness
from tests.gateway.test_thoughts import THOUGHT, first_turn, script, second_turn
from tests.gateway.test_vision_auto import DESCRIPTION, HISTORY, describe_image, send
from tests.gateway.test_vision_auto import config as vision_config
from tests.kit import answers, asking
from tests.kit.answers import Call
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LOOK = Call("clock", command("list"), "call_clock")
WEATHER = Call("get_weather", {"city": "Oslo"}, "call_weather")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis")
    yield running
    running.kill()


def node(server: RedisServer, text: str, number: int) -> contextlib.AbstractAsyncContextManager[Running]:
    """Run a node with this configuration; one that is started later has heard of no change."""
    store = f'[store]\nurl = "{server.url}"\ntimeout_ms = 2000\n'
    return serving(text.replace("[server]\n", f'[server]\nid = "gw-{number}"\n') + store)


@streaming
@pytest.mark.parametrize("provider", ["messages", "gemini", "responses"])
async def test_another_node_gives_the_provider_its_reasoning_back_and_reads_it_once(
    tmp_path: Path, server: RedisServer, provider: str, stream: bool
) -> None:
    async with Upstream() as up:
        harness, text = GatewayHarness("chat", provider, tmp_path / "files", up), one_target(provider, up)
        script(harness)
        first = first_turn(stream=stream)
        async with node(server, text, 1) as running:
            harness.port = running.port
            answer = await harness.send(body=first, stream=stream, headers={})
            second = second_turn(first, answer, stream=stream)
            async with node(server, text, 2) as other:
                harness.port = other.port
                with server.monitored() as commands:
                    for _ in range(2):
                        assert (await harness.send(body=second, stream=stream, headers={})).status == 200
        assert [THOUGHT.signature.encode() in request.body for request in up.requests] == [False, True, True]
    assert sum(one.startswith("EVALSHA") and "thoughts" in one for one in commands) == 1


async def test_calls_that_the_client_does_not_see_are_put_back_by_another_node(server: RedisServer) -> None:
    def reply(request: Request) -> UpstreamAnswer:
        if b"snow" in request.body:
            return answers.text("chat", "cold", False)
        return answers.tool_calls("chat", LOOK, WEATHER, stream=False)

    async with Upstream(reply) as up:
        text, body = one_target("chat", up) + config(), asking.body("chat", stream=False, tools=True)
        async with node(server, text, 1) as running:
            first = await call(running.port, "/v1/chat/completions", body)
            message = first.json["choices"][0]["message"]
            assert [made["id"] for made in message["tool_calls"]] == [WEATHER.id]
            result = {"role": "tool", "tool_call_id": WEATHER.id, "content": "snow"}
            body["messages"] += [message, result]
            async with node(server, text, 2) as other:
                for _ in range(2):
                    assert (await call(other.port, "/v1/chat/completions", body)).status == 200
        for request in up.requests[1:]:
            messages = request.json["messages"]
            made = [row["id"] for row in messages[1]["tool_calls"]]
            given = {row["tool_call_id"] for row in messages if row["role"] == "tool"}
            assert (made, given) == ([LOOK.id, WEATHER.id], {LOOK.id, WEATHER.id})


async def test_an_image_is_described_once_for_all_nodes(server: RedisServer) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "ok", False)) as model,
        Upstream(describe_image) as eye,
        node(server, vision_config("chat", model, eye), 1) as running,
    ):
        assert (await send(running, "chat", *HISTORY)).status == 200
        async with node(server, vision_config("chat", model, eye), 2) as other:
            for gateway in (other, running):
                assert (await send(gateway, "chat", *HISTORY)).status == 200
    assert len(eye.requests) == 1
    assert [DESCRIPTION in request.body.decode() for request in model.requests] == [True] * 3
