from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.gateway.count_tokens import estimate
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.protocols.codecs import CODECS
from routecodex.routing.tokens import estimate_by_size
from routecodex.wire import json
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.steps import Json
from tests.kit.upstream import Upstream


def request(*parts: Part, **fields: Any) -> Request:
    return Request(model="m", source="chat", messages=(Message("user", parts),), **fields)


EMPTY = estimate(request())
LONG = "The quick brown fox jumps over the lazy dog. " * 100
# English has about four letters a token; an estimate below 900 tokens here would be too low.
LEAST = 900


@pytest.mark.parametrize(
    "part",
    [
        Text(LONG),
        Refusal(LONG),
        Reasoning(LONG),
        ToolCall("a", "f", LONG),
        ToolResult("a", (Text(LONG),)),
        Media("file", text=LONG),
        Opaque("chat", {"text": LONG}),
        Media("image", "image/png", "AAAA"),
        Media("image", url="https://x"),
        Media("file", "application/pdf", "AAAA"),
        Media("audio", "audio/wav", "AAAA"),
        Media("video", url="https://x"),
        ToolResult("a", (Media("image", "image/png", "AAAA"),)),
    ],
    ids=lambda part: type(part).__name__,
)
def test_every_part_is_counted(part: Part) -> None:
    assert estimate(request(part)) - EMPTY > LEAST


def test_system_text_and_tools_are_counted() -> None:
    described = {"type": "object", "description": LONG}
    for fields in (
        {"system": (Text(LONG),)},
        {"tools": (Tool("f", description=LONG),)},
        {"tools": (Tool("f", parameters=described),)},
        {"tools": (Tool("s", "hosted", hosted=described),)},
    ):
        assert estimate(request(**fields)) - EMPTY > LEAST


def test_inline_data_is_not_counted_as_text() -> None:
    small = estimate(request(Media("image", "image/png", "AAAA")))
    assert estimate(request(Media("image", "image/png", "A" * 1_000_000))) == small


def test_signs_that_take_more_tokens_count_more() -> None:
    assert estimate(request(Text("时" * 300))) > estimate(request(Text("a" * 300))) * 2


def test_odd_text_is_counted() -> None:
    assert estimate(request(Text("\ud800" * 300))) - EMPTY >= 300


def test_the_guess_from_the_size_alone_is_no_lower_than_the_text() -> None:
    body = json.encode({"messages": [{"content": LONG}]})
    assert estimate_by_size(body) >= len(LONG) // 3
    assert estimate_by_size(b"") == 1


async def counted(client: str, config: str) -> int:
    """Count a request of this client with the gateway of this configuration."""
    codec = CODECS[client]
    body = json.encode(asking.body(client, LONG, stream=False))
    wire = codec.validate(body, model="up.m", stream=False)
    request = ClientRequest(id="r", codec=codec, wire=wire, headers={}, arrived=0.0, created=0)
    record = RequestRecord(id="r", protocol=client, model="up.m", stream=False, arrived=0.0)
    async with serving(config) as gateway:
        return await gateway.service.gateway.count_tokens(request, record)


COUNTERS: dict[str, tuple[str, dict[str, int]]] = {
    "messages": ("/v1/messages/count_tokens", {"input_tokens": 77}),
    "gemini": ("/v1beta/models/m:countTokens", {"totalTokens": 77}),
}
PROTOCOLS = ("chat", "responses", "messages", "gemini")


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("upstream", COUNTERS)
async def test_an_upstream_with_a_counter_counts(client: str, upstream: str) -> None:
    path, body = COUNTERS[upstream]
    async with Upstream() as up:
        up.queue(Json(200, body))
        assert await counted(client, one_target(upstream, up)) == 77
        assert [seen.path for seen in up.requests] == [path]
        assert LONG.strip().encode() in up.requests[0].body


@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_an_upstream_without_a_counter_gets_no_request(client: str, upstream: str) -> None:
    async with Upstream() as up:
        assert LEAST < await counted(client, one_target(upstream, up)) < 3 * LEAST
        assert up.requests == []


BROKEN = [
    Json(200, {}),
    Json(200, []),
    Json(200, b"<html>"),
    Json(200, {"input_tokens": "many", "totalTokens": None}),
    answers.error("messages", 404),
    answers.error("messages", 500),
    answers.error("messages", 401),
]


@pytest.mark.parametrize("upstream", COUNTERS)
@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
async def test_a_counter_that_does_not_work_is_replaced_by_an_estimate(upstream: str, answer: Json) -> None:
    async with Upstream() as up:
        up.queue(answer)
        assert LEAST < await counted("messages", one_target(upstream, up)) < 3 * LEAST
        assert len(up.requests) == 1


async def test_a_built_in_provider_is_estimated() -> None:
    config = (
        '[server]\nport = 0\n[providers.up]\nprotocol = "demo"\n[providers.up.models.m]\n'
        '[routing]\ndefault = ["up.m"]\n'
    )
    assert LEAST < await counted("chat", config) < 3 * LEAST
