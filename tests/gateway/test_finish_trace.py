"""The mapping of finish reasons is traced for every protocol."""

from __future__ import annotations

import logging

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", ["chat", "responses", "messages", "gemini"])
async def test_each_mapping_is_traced_when_switched_on(
    caplog: pytest.LogCaptureFixture, client: str, stream: bool
) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    async with Upstream() as up:
        up.queue(answers.length("messages", "Once upon", stream))
        async with serving(one_target("messages", up)) as gateway:
            answer = await call(
                gateway.port, asking.path(client, stream=stream), asking.body(client, stream=stream)
            )
    reasons = {
        "chat": "length",
        "responses": "max_output_tokens",
        "messages": "max_tokens",
        "gemini": "MAX_TOKENS",
    }
    (line,) = caplog.messages
    assert line == (
        f"request={answer.headers['x-request-id']} upstream=max_tokens inferred=length sent={reasons[client]}"
    )
