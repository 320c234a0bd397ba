"""A fault of this machine is not held against a provider: another target answers, or the client may retry."""

from __future__ import annotations

import pytest

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")

NO_ROUTE = "http://255.255.255.255:9"
"""TCP has no route to the broadcast address: the kernel refuses at once, and nothing is sent."""


def unreachable(protocol: str, up: Upstream) -> str:
    return one_target(protocol, up).replace(f"http://127.0.0.1:{up.port}", NO_ROUTE)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_client_may_retry_and_health_does_not_change(protocol: str) -> None:
    async with Upstream() as up, serving(unreachable(protocol, up)) as gateway:
        for _ in range(5):
            body = asking.body(protocol, stream=False)
            answer = await call(gateway.port, asking.path(protocol, stream=False), body)
            grammar.check_error(protocol, answer.status, answer.body)
            assert answer.status == 503
            assert answer.headers["retry-after"] == "5"
            assert "this machine has no route to it" in answer.body.decode()
        assert gateway.service.gateway.health.report(0.0) == []


async def test_another_target_answers() -> None:
    async with Upstream() as up:
        config = (
            unreachable("chat", up).partition("[routing]")[0]
            + provider("spare", "chat", up)
            + '[routing]\ndefault = ["up.m", "spare.m"]\n'
        )
        up.answer_with(lambda _: answers.text("chat", "here", False))
        async with serving(config) as gateway:
            answer = await call(
                gateway.port, "/v1/chat/completions", asking.body("chat", stream=False, model="any")
            )
            assert (answer.status, answer.headers["x-routecodex-target"]) == (200, "spare.primary.m")
