"""Gateways behind nginx are restarted one after the other, under load."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.cli.process import until
from tests.deploy import checks
from tests.deploy.test_nginx import balancer
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream

pytestmark = pytest.mark.skipif(checks.find("nginx") is None, reason="nginx is not installed")

CLIENTS = 8
ENOUGH = 200


class Node:
    """A gateway that can be restarted on its port."""

    def __init__(self, up: Upstream) -> None:
        self.port = free_port()
        self._up = up
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> Running:
        text = one_target("chat", self._up).replace("port = 0", f"port = {self.port}")
        return await self._stack.enter_async_context(serving(text))

    async def stop(self) -> None:
        await self._stack.aclose()


async def test_a_rolling_restart_behind_nginx_loses_no_request(tmp_path: Path) -> None:
    statuses: Counter[int] = Counter()

    async def ask(port: int) -> None:
        while True:
            answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=False))
            statuses[answer.status] += 1

    async with Upstream(lambda _: answers.text("chat", "Hi", False)) as up:
        nodes = [Node(up) for _ in range(3)]
        for node in nodes:
            await node.start()
        async with balancer(tmp_path, [node.port for node in nodes]) as port:
            clients = [asyncio.ensure_future(ask(port)) for _ in range(CLIENTS)]
            for node in nodes[:2]:
                await many_more(statuses)
                await node.stop()
                await node.start()
            await many_more(statuses)
            for client in clients:
                client.cancel()
            ends = await asyncio.gather(*clients, return_exceptions=True)
        for node in nodes:
            await node.stop()
    assert {type(end) for end in ends} == {asyncio.CancelledError}
    assert set(statuses) == {200}


async def many_more(statuses: Counter[int]) -> None:
    """Wait until many more requests have ended."""
    enough = statuses.total() + ENOUGH
    await until(lambda: statuses.total() >= enough, "requests are answered")
