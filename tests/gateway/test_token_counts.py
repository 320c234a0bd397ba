"""Token counts over a real socket: by the provider's counter where it has one, else estimated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Hang, Json, Steps
from tests.kit.upstream import Upstream

CLIENTS = ("messages", "gemini")
FIELDS = {"messages": "input_tokens", "gemini": "totalTokens"}
COUNTERS = {"messages": "/v1/messages/count_tokens", "gemini": "/v1beta/models/m:countTokens"}


def path(client: str, model: str = "up.m") -> str:
    return {"messages": COUNTERS["messages"], "gemini": f"/v1beta/models/{model}:countTokens"}[client]


def body(client: str, text: str) -> dict[str, Any]:
    request = asking.body(client, text, stream=False)
    request.pop("stream", None)
    request.pop("max_tokens", None)
    return request


async def count(
    text: str, client: str, request: Any = None, *, headers: dict[str, str] | None = None
) -> Answer:
    request = body(client, "how long is this?") if request is None else request
    async with serving(text) as gateway:
        return await call(gateway.port, path(client), request, headers=headers)


@pytest.mark.parametrize("upstream", COUNTERS)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_provider_with_a_counter_counts_and_generates_nothing(client: str, upstream: str) -> None:
    async with Upstream(lambda _: Json(200, {FIELDS[upstream]: 4711, "more": 1})) as up:
        answer = await count(one_target(upstream, up), client)
        assert [request.path for request in up.requests] == [COUNTERS[upstream]]
        assert b"how long is this?" in up.requests[0].body
        assert "secret-up" in str(up.requests[0].headers)
    assert (answer.status, answer.json) == (200, {FIELDS[client]: 4711})


@pytest.mark.parametrize("protocol", COUNTERS)
async def test_a_request_to_a_provider_of_the_same_protocol_is_counted_as_it_came(protocol: str) -> None:
    fields = body(protocol, "hi") | {"xUnknown": [1, {"a": None}]}
    headers = {"anthropic-beta": "some-beta-1", "x-goog-api-client": "sdk/1"}
    async with Upstream(lambda _: Json(200, {FIELDS[protocol]: 3})) as up:
        answer = await count(one_target(protocol, up), protocol, fields, headers=headers)
        request = up.requests[0]
    assert answer.json == {FIELDS[protocol]: 3}
    sent = request.json.get("generateContentRequest", request.json)
    assert sent["xUnknown"] == [1, {"a": None}]
    passed = {"messages": "anthropic-beta", "gemini": "x-goog-api-client"}[protocol]
    assert request.headers[passed] == headers[passed]


async def test_the_name_of_a_counted_model_is_quoted_once() -> None:
    async with Upstream(lambda _: Json(200, {"totalTokens": 3})) as up:
        text = one_target("gemini", up).replace("[routing]", 'id = "tuned models/é"\n[routing]')
        assert (await count(text, "messages")).json == {"input_tokens": 3}
        assert up.requests[0].path == "/v1beta/models/tuned%20models/%C3%A9:countTokens"


SAMPLES: dict[str, tuple[str, int]] = {
    "english": ("The quick brown fox jumps over the lazy dog. " * 60, 10 * 60),
    "one-long-word": ("antidisestablishmentarianism " * 60, 7 * 60),
    "japanese": ("お誕生日おめでとう" * 60, 9 * 60),
    "digits": ("0123456789" * 60, 10 * 60),
    "emoji": ("🙂" * 60, 60),
    "nothing-much": ("a", 1),
}
"""Texts with the most tokens that a usual tokenizer makes of them."""


@pytest.mark.parametrize("upstream", ["chat", "responses"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_without_a_counter_the_estimate_is_not_too_low(client: str, upstream: str) -> None:
    async with Upstream() as up, serving(one_target(upstream, up)) as gateway:
        for name, (text, least) in SAMPLES.items():
            answer = await call(gateway.port, path(client), body(client, text))
            counted = answer.json[FIELDS[client]]
            assert least <= counted <= 3 * least + 20, name
        assert up.requests == []


async def test_everything_in_a_request_counts() -> None:
    bare = body("messages", "hi")
    tools = asking.body("messages", stream=False, tools=True)["tools"]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    richer: list[dict[str, Any]] = [
        {"system": "You are terse. " * 20},
        {"tools": tools},
        {"messages": [*bare["messages"], {"role": "assistant", "content": "and more " * 20}]},
        {"messages": [{"role": "user", "content": [image, {"type": "text", "text": "hi"}]}]},
    ]
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        least = (await call(gateway.port, path("messages"), bare)).json["input_tokens"]
        for more in richer:
            answer = await call(gateway.port, path("messages"), bare | more)
            assert answer.json["input_tokens"] > least + 10, more


BROKEN = [
    answers.error("messages", 404),
    answers.error("messages", 401),
    answers.error("messages", 529),
    Json(200, b"<html>"),
    Json(200, {"unexpected": 1}),
    Json(200, {"input_tokens": None, "totalTokens": "many"}),
]


@pytest.mark.parametrize("upstream", COUNTERS)
async def test_a_counter_that_fails_is_replaced_by_an_estimate(upstream: str) -> None:
    async with Upstream() as up, serving(one_target(upstream, up)) as gateway:
        for broken in BROKEN:
            up.queue(broken)
            answer = await call(gateway.port, path("messages"), body("messages", "how long is this?"))
            assert answer.status == 200
            assert 5 <= answer.json["input_tokens"] <= 60
        assert {request.path for request in up.requests} == {COUNTERS[upstream]}


async def test_a_counter_that_is_silent_is_replaced_by_an_estimate() -> None:
    async with Upstream(lambda _: Steps((Hang(),))) as up:
        more = "timeout = { first_byte_ms = 50, idle_ms = 50 }"
        answer = await count(one_target("messages", up, more=more), "gemini")
    assert answer.status == 200
    assert answer.json["totalTokens"] >= 5


@pytest.mark.parametrize("wrapped", [False, True])
async def test_gemini_may_wrap_the_request_it_wants_counted(wrapped: bool) -> None:
    inner = body("gemini", "how long is this?")
    request = {"generateContentRequest": {"model": "models/x", **inner}} if wrapped else inner
    async with Upstream(lambda _: Json(200, {"input_tokens": 12})) as up:
        answer = await count(one_target("messages", up), "gemini", request)
        assert b"how long is this?" in up.requests[0].body
    assert answer.json == {"totalTokens": 12}


WRONG: dict[str, tuple[str, bytes]] = {
    "no-json": ("messages", b"{"),
    "no-messages": ("messages", b'{"model": "up.m"}'),
    "no-model": ("messages", b'{"messages": [{"role": "user", "content": "x"}]}'),
    "wrong-role": (
        "messages",
        msgspec.json.encode({"model": "m", "messages": [{"role": "x", "content": ""}]}),
    ),
    "no-contents": ("gemini", b"{}"),
    "contents-number": ("gemini", b'{"contents": 7}'),
}


@pytest.mark.parametrize(("client", "wrong"), WRONG.values(), ids=WRONG)
async def test_a_wrong_request_is_a_400_and_not_counted(client: str, wrong: bytes) -> None:
    async with Upstream() as up:
        answer = await count(one_target("messages", up), client, wrong)
        assert up.requests == []
    assert answer.status == 400
    grammar.check_error(client, 400, answer.body)


async def test_a_count_names_its_source_and_reason() -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        body = {"model": "up.m", "messages": [{"role": "user", "content": "<**nobody**> hi"}]}
        refused = await call(gateway.port, "/v1/messages/count_tokens", body)
        body["messages"] = [{"role": "user", "content": "<**up.m**>"}]
        counted = await call(gateway.port, "/v1/messages/count_tokens", body)
    assert [answer.headers["x-routecodex-target"] for answer in (refused, counted)] == [
        "gateway",
        "up.primary.m",
    ]
    assert counted.headers["x-routecodex-reason"] == "this message asks for up.m"
