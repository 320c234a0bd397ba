"""Signatures stay with the provider that made them, whichever node sees them next."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.answers.model_answer import ReasoningPiece
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.redis_server import RedisServer
from tests.kit.upstream import Upstream
from tests.stores.redis.nodes import eventually

SIGNATURE = ReasoningPiece("").signature
CLOCK = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\nhold_max_ms = 0\n"
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis")
    yield running
    running.thaw()
    running.kill()


@contextlib.asynccontextmanager
async def two_nodes(
    server: RedisServer, owner: Upstream, other: Upstream, more: str = ""
) -> AsyncIterator[list[Running]]:
    config = (
        f'[server]\nport = 0\n[store]\nurl = "{server.url}"\ntimeout_ms = 10_000\n'
        + provider("owner", "messages", owner)
        + provider("other", "messages", other)
        + '[routing]\ndefault = ["owner.m"]\n'
        + more
    )
    async with serving(config) as one, serving(config) as two:
        yield [one, two]


async def ask(node: Running, upstream: Upstream, protocol: str = "messages", *, stream: bool) -> Answer:
    upstream.queue(answers.thinking("messages", "Hm.", "Yes.", stream))
    path = asking.path(protocol, stream=stream, model="owner.m")
    answer = await call(node.port, path, asking.body(protocol, stream=stream, model="owner.m"))
    asking.check(protocol, answer, stream=stream)
    return answer


async def continue_elsewhere(node: Running) -> Answer:
    """Ask another provider to continue an answer with a signature."""
    block = {"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}
    messages: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "And now?"},
    ]
    return await call(node.port, "/v1/messages", {"model": "other.m", "max_tokens": 9, "messages": messages})


@streaming
async def test_a_signature_is_kept_from_another_provider_on_another_node(
    server: RedisServer, stream: bool
) -> None:
    async with Upstream() as owner, Upstream() as other, two_nodes(server, owner, other) as (one, two):
        store = two.service.gateway.store
        before = store.stamp("makers")
        assert SIGNATURE.encode() in (await ask(one, owner, stream=stream)).body
        # Nodes hear of a change within 100 ms.
        await eventually(lambda: store.stamp("makers") != before)
        other.queue(answers.text("messages", "Well.", False))
        answer = await continue_elsewhere(two)
        assert answer.status == 200
        assert "dropped reasoning" in answer.headers["x-routecodex-notice"]
        assert SIGNATURE.encode() not in other.requests[0].body


async def test_a_request_waits_for_the_owners_of_its_signatures_as_long_as_a_call_may_take(
    server: RedisServer,
) -> None:
    async with Upstream() as owner, Upstream() as other, two_nodes(server, owner, other) as (one, two):
        store = two.service.gateway.store
        before = store.stamp("makers")
        await ask(one, owner, stream=False)
        await eventually(lambda: store.stamp("makers") != before)
        other.queue(answers.text("messages", "Well.", False))
        with server.frozen():
            asked = asyncio.ensure_future(continue_elsewhere(two))
            await asyncio.wait({asked}, timeout=1.0)
            assert not other.requests
        assert "dropped reasoning" in (await asked).headers["x-routecodex-notice"]
        assert SIGNATURE.encode() not in other.requests[0].body


@streaming
@pytest.mark.parametrize("more", ["", CLOCK], ids=["plain", "server tools"])
@pytest.mark.parametrize("protocol", ["messages", "responses"])
async def test_owners_are_stored_before_the_last_byte_of_the_answer(
    server: RedisServer, protocol: str, more: str, stream: bool
) -> None:
    async with Upstream() as owner, Upstream() as other, two_nodes(server, owner, other, more) as (one, _):
        await ask(one, owner, protocol, stream=stream)
        with server.client() as client:
            assert client.keys("routecodex:{makers.0}:v:*")


async def test_an_outage_costs_no_answer(server: RedisServer) -> None:
    async with Upstream() as owner, Upstream() as other, two_nodes(server, owner, other) as (one, _):
        server.kill()
        for stream in (False, True):
            assert (await ask(one, owner, stream=stream)).status == 200
        server.start()
