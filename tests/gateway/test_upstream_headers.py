"""Headers of a provider's answer end at the gateway: some of them make clients act.

Rate-limit headers are the exception: tests/gateway/test_provider_limits.py.
"""

from __future__ import annotations

import itertools

import pytest

from routecodex.wire import json
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PAIRS = [pytest.param(*pair, id="-to-".join(pair)) for pair in itertools.product(PROTOCOLS, PROTOCOLS)]
# Codex 0.169: `openai-model` that differs warns of abuse, the others change what it sends next.
HEADERS = {
    "openai-model": "gpt-5-mini",
    "x-models-etag": '"other"',
    "x-codex-turn-state": "sticky",
    "x-request-id": "of-the-provider",
    "set-cookie": "a=b",
}


def check(answer: Answer) -> None:
    assert not answer.headers.keys() & (HEADERS.keys() - {"x-request-id"})
    assert answer.headers["x-request-id"] != HEADERS["x-request-id"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "upstream"), PAIRS)
async def test_headers_of_the_provider_are_not_passed_on(client: str, upstream: str, stream: bool) -> None:
    def answer(request: Request) -> Json | Sse:
        if stream:
            canned = answers.text(upstream, "hi", True)
            assert isinstance(canned, Sse)
            return Sse(canned.frames, headers=HEADERS)
        return Json(200, json.decode(answers.text(upstream, "hi", False).data), HEADERS)

    async with Upstream(answer) as up, serving(one_target(upstream, up)) as gateway:
        received = await call(
            gateway.port, asking.path(client, stream=stream), asking.body(client, stream=stream)
        )
    asking.check(client, received, stream=stream)
    check(received)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_headers_of_a_rejection_are_not_passed_on(protocol: str, stream: bool) -> None:
    rejected = Json(422, {"error": {"message": "no"}}, HEADERS)
    async with Upstream(lambda _: rejected) as up, serving(one_target(protocol, up)) as gateway:
        received = await call(
            gateway.port, asking.path(protocol, stream=stream), asking.body(protocol, stream=stream)
        )
    assert received.status == 422
    check(received)


async def test_headers_of_embeddings_are_not_passed_on() -> None:
    embeddings = Json(200, {"object": "list", "data": [], "model": "m"}, HEADERS)
    async with Upstream(lambda _: embeddings) as up, serving(one_target("chat", up)) as gateway:
        received = await call(gateway.port, "/v1/embeddings", {"model": "up.m", "input": "hi"})
    assert received.status == 200
    check(received)
