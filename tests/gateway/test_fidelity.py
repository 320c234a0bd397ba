"""Same protocol on both sides: fields that the gateway does not change arrive byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from routecodex.canon.parts import Reasoning
from routecodex.canon.response import Response
from tests.gateway.test_matrix import decode_answer
from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")

ODD_BODIES = {
    "chat": b'{"messages" : [ {"role":"user","content":"h\\u00e9 \xe4\xb8\x96","x_new":1.50} ],'
    b'  "model":"up.m","logit_bias":{"50256":-100},'
    b'"future_field":{"deep":[1e2,0.10,"\\ud83d\\ude00"]}, "stream": true }',
    "responses": b'{"input" : [ {"type":"message","role":"user","content":"hi","x":1.50} ], "model": "up.m",'
    b'"future_field":{"deep":[1e2,0.10]},"stream":true, "store":false }',
    "messages": b'{"max_tokens": 10, "system":[{"type":"text","text":"s",'
    b'"cache_control":{"type":"ephemeral","ttl":"1h"}}],'
    b'"messages" : [ {"role":"user","content":[{"type":"text","text":"hi","x_new":1.50}]} ],  "model":"up.m",'
    b'"future_field":{"deep":[1e2,0.10]}, "stream": true }',
    "gemini": b'{"contents" : [ {"role":"user","parts":[{"text":"hi"}]} ],'
    b' "futureField":{"deep":[1e2,0.10]} }',
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_passes_byte_for_byte_but_for_its_model_and_usage(protocol: str) -> None:
    body = ODD_BODIES[protocol]
    async with Upstream() as up:
        up.queue(answers.text(protocol, "fine", True))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await call(gateway.port, asking.path(protocol, stream=True), body)
        assert answer.status == 200, answer.body
        sent = body.replace(b'"up.m"', b'"m"')
        if protocol == "chat":
            sent = sent[:-1] + b',"stream_options":{"include_usage":true}}'
        assert up.requests[0].body == sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_passes_byte_for_byte(protocol: str) -> None:
    canned = answers.thinking(protocol, "Hm, let me see.", "Here you are.", True)
    assert isinstance(canned, Sse)
    async with Upstream() as up:
        up.queue(canned)
        async with serving(one_target(protocol, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(protocol, stream=True), asking.body(protocol, stream=True)
            )
    assert answer.body == b"".join(canned.frames).replace(b"\r\n", b"\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_whole_answer_passes_byte_for_byte(protocol: str) -> None:
    canned = answers.text(protocol, "Here you are.", False)
    assert isinstance(canned, Json)
    raw = msgspec.json.encode({**canned.body, "future_field": {"deep": [0.5]}}).replace(b'":', b'" : ')
    async with Upstream() as up:
        up.queue(Json(200, raw))
        async with serving(one_target(protocol, up)) as gateway:
            answer = await call(
                gateway.port, asking.path(protocol, stream=False), asking.body(protocol, stream=False)
            )
    assert answer.body == raw


async def test_beta_headers_reach_an_upstream_of_the_same_protocol_and_secrets_do_not() -> None:
    async with Upstream() as up:
        up.queue(answers.text("messages", "fine", False))
        async with serving(one_target("messages", up)) as gateway:
            headers = {
                "anthropic-version": "2024-01-01",
                "anthropic-beta": "context-1m-2025-08-07,interleaved-thinking",
                "authorization": "Bearer client-secret",
                "x-api-key": "client-secret",
                "cookie": "client-secret",
            }
            await call(
                gateway.port,
                "/v1/messages?beta=true&key=client-secret",
                asking.body("messages", stream=False),
                headers=headers,
            )
        sent = up.requests[0]
        assert sent.path == "/v1/messages?beta=true"
        assert sent.headers["anthropic-beta"] == "context-1m-2025-08-07,interleaved-thinking"
        assert sent.headers["anthropic-version"] == "2024-01-01"
        assert sent.headers["x-api-key"] == "secret-up"
        assert "client-secret" not in repr(sent.headers)


TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
}


def traced(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("trace")}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_trace_context_reaches_providers_of_every_protocol(protocol: str, stream: bool) -> None:
    other = TRACE | {"traceparent": TRACE["traceparent"].replace("b7ad", "c8be")}
    async with Upstream() as up:
        up.answer_with(lambda _: answers.text(protocol, "fine", stream))
        async with serving(one_target(protocol, up)) as gateway:
            for client in ("messages", "chat"):
                body, path = asking.body(client, stream=stream), asking.path(client, stream=stream)
                for headers in (TRACE, {}, other, {"tracestate": "congo=1"}):
                    assert (await call(gateway.port, path, body, headers=headers)).status == 200
    assert [traced(request.headers) for request in up.requests] == [TRACE, {}, other, {}] * 2


@pytest.mark.parametrize(("protocol", "client"), [("messages", "messages"), ("messages", "gemini")])
async def test_the_trace_context_goes_with_token_counts(protocol: str, client: str) -> None:
    paths = {"messages": "/v1/messages/count_tokens", "gemini": "/v1beta/models/up.m:countTokens"}
    async with Upstream() as up:
        up.queue(Json(200, {"input_tokens": 7}))
        async with serving(one_target(protocol, up)) as gateway:
            body = asking.body(client, stream=False)
            assert (await call(gateway.port, paths[client], body, headers=TRACE)).status == 200
    assert traced(up.requests[0].headers) == TRACE


async def test_the_trace_context_goes_with_descriptions_of_images() -> None:
    async with Upstream() as up, Upstream() as eye:
        up.queue(answers.text("chat", "red", False))
        eye.queue(answers.text("chat", "A red square.", False))
        config = one_target("chat", up) + "\n" + provider("eye", "chat", eye)
        config = config.replace("max_output_tokens = 4096\n", "max_output_tokens = 4096\nvision = false\n", 1)
        config = config.replace('default = ["up.m"]', 'default = ["up.m"]\nvision = ["eye.m"]')
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        body = {"model": "up.m", "messages": [{"role": "user", "content": [image]}]}
        async with serving(config) as gateway:
            assert (await call(gateway.port, "/v1/chat/completions", body, headers=TRACE)).status == 200
    assert [traced(request.headers) for request in (*eye.requests, *up.requests)] == [TRACE, TRACE]


@pytest.mark.parametrize("by_route", [False, True])
async def test_the_trace_context_goes_with_searches(by_route: bool) -> None:
    async with Upstream() as up, Upstream() as search:
        called = answers.Call("web_search", {"query": "x"}, "c1")
        up.queue(answers.tool_calls("chat", called, stream=False), answers.text("chat", "found", False))
        search.queue(answers.text("messages", "It is so.", False) if by_route else Json(200, {"results": []}))
        config = "[server_tools.web_search]\nenabled = true\n"
        if not by_route:
            config += f'[server_tools.web_search.http]\nurl = "http://127.0.0.1:{search.port}/?q={{query}}"\n'
        config += one_target("chat", up)
        if by_route:
            config = config.replace('default = ["up.m"]', 'default = ["up.m"]\nweb_search = ["finder.m"]')
            config += provider("finder", "messages", search)
        body = asking.body("chat", stream=False) | {"web_search_options": {}}
        async with serving(config) as gateway:
            assert (await call(gateway.port, "/v1/chat/completions", body, headers=TRACE)).status == 200
    assert [traced(request.headers) for request in (*up.requests, *search.requests)] == [TRACE] * 3


async def test_the_trace_context_goes_with_embeddings() -> None:
    async with Upstream() as up:
        up.queue(Json(200, {"data": []}))
        async with serving(one_target("chat", up)) as gateway:
            body = {"model": "up.m", "input": "x"}
            assert (await call(gateway.port, "/v1/embeddings", body, headers=TRACE)).status == 200
    assert traced(up.requests[0].headers) == TRACE


async def test_fields_without_equivalent_are_named_in_the_notice() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "fine", False))
        async with serving(one_target("chat", up)) as gateway:
            body = {**asking.body("messages", stream=False), "top_k": 7, "future_field": 1}
            answer = await call(gateway.port, "/v1/messages", body)
        assert "top_k" not in up.requests[0].json
    notice = answer.headers["x-routecodex-notice"]
    assert "dropped top_k" in notice
    assert "dropped future_field" in notice


def conversation(block: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": "second.m",
        "max_tokens": 5000,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [block, {"type": "text", "text": "Hello"}]},
            {"role": "user", "content": "Again"},
        ],
    }


def two_providers(first: Upstream, second: Upstream, protocol: str) -> str:
    return (
        "[server]\nport = 0\n"
        + provider("first", protocol, first)
        + provider("second", "messages", second)
        + '[routing]\ndefault = ["first.m"]\n'
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["messages", "gemini", "responses"])
async def test_a_signature_is_only_sent_to_the_provider_that_issued_it(protocol: str, stream: bool) -> None:
    async with Upstream() as first, Upstream() as second:
        first.queue(answers.thinking(protocol, "Secret thought.", "Hello", stream))
        second.queue(answers.text("messages", "fine", False))
        async with serving(two_providers(first, second, protocol)) as gateway:
            answer = await call(
                gateway.port, "/v1/messages", asking.body("messages", stream=stream, model="first.m")
            )
            signature = answer.body.partition(
                b'"signature_delta","signature":"' if stream else b'"signature":"'
            )[2]
            signature = signature.partition(b'"')[0]
            assert signature
            block = {"type": "thinking", "thinking": "Secret thought.", "signature": signature.decode()}
            await call(gateway.port, "/v1/messages", conversation(block))
        assert signature not in second.requests[0].body
        assert b"signature" not in second.requests[0].body
        assert b"Hello" in second.requests[0].body


async def test_a_signature_goes_back_to_its_owner_byte_for_byte() -> None:
    async with Upstream() as first, Upstream() as second:
        second.queue(
            answers.thinking("messages", "Mine.", "Hello", False), answers.text("messages", "fine", False)
        )
        async with serving(two_providers(first, second, "chat")) as gateway:
            answer = await call(
                gateway.port, "/v1/messages", asking.body("messages", stream=False, model="second.m")
            )
            block = answer.json["content"][0]
            assert block["type"] == "thinking"
            await call(gateway.port, "/v1/messages", conversation(block))
        assert second.requests[1].json["messages"][1]["content"][0] == block


@pytest.mark.parametrize("stream", [False, True])
async def test_signatures_reach_the_provider_for_a_client_that_cannot_carry_them(stream: bool) -> None:
    """A chat client cannot carry Anthropic's thinking block; the tool loop works all the same."""
    pieces = (
        answers.ReasoningPiece("I need the weather.", "c2ln"),
        answers.Call("get_weather", {"city": "Bern"}, "toolu_1"),
    )
    async with Upstream() as up:
        up.queue(
            answers.compose("messages", *pieces, stream=stream), answers.text("messages", "Rain.", False)
        )
        async with serving(one_target("messages", up)) as gateway:
            body = asking.body("chat", "Weather?", stream=stream, tools=True)
            await call(gateway.port, "/v1/chat/completions", body)
            tool_call = {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Bern"}'},
            }
            body["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [tool_call]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"},
            ]
            body["stream"] = False
            del body["tools"]
            await call(
                gateway.port,
                "/v1/chat/completions",
                {**body, "tools": asking.body("chat", stream=False, tools=True)["tools"]},
            )
        sent = up.requests[1].json["messages"][1]["content"]
        assert sent[0] == {"type": "thinking", "thinking": "I need the weather.", "signature": "c2ln"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ["messages", "responses", "gemini"])
async def test_signatures_survive_a_gateway_behind_the_gateway(protocol: str, stream: bool) -> None:
    """The inner gateway seals the signature of its provider; the outer one returns it unchanged."""
    block = {"type": "thinking", "thinking": "Mine.", "signature": "c2ln"}
    async with Upstream() as provider_upstream:
        provider_upstream.queue(
            answers.compose(
                "messages", answers.ReasoningPiece("Mine.", "c2ln"), answers.TextPiece("Hello"), stream=stream
            ),
            answers.text("messages", "fine", False),
        )
        async with serving(one_target("messages", provider_upstream)) as inner:
            base = "/v1" if protocol == "responses" else ""
            outer_text = (
                f'[server]\nport = 0\n[providers.up]\nprotocol = "{protocol}"\n'
                f'base_url = "{inner.url}{base}"\nauth = [{{ value = "k" }}]\n'
                '[providers.up.models.m]\nid = "up.m"\n[routing]\ndefault = ["up.m"]\n'
            )
            async with serving(outer_text) as outer:
                first = await call(
                    outer.port, asking.path(protocol, stream=stream), asking.body(protocol, stream=stream)
                )
                history = _answered(protocol, decode_answer(protocol, first, stream=stream))
                second = await call(outer.port, asking.path(protocol, stream=False), history)
                assert second.status == 200, second.body
        assert block in provider_upstream.requests[1].json["messages"][1]["content"]


def _answered(protocol: str, response: Response) -> dict[str, Any]:
    """Return the request that a client sends after this answer."""
    body = asking.body(protocol, stream=False)
    block = next(part for part in response.parts if isinstance(part, Reasoning))
    sealed = block.signature
    if protocol == "messages":
        canned = [
            {"type": "thinking", "thinking": block.text, "signature": sealed},
            {"type": "text", "text": "Hello"},
        ]
        body["messages"] += [{"role": "assistant", "content": canned}, {"role": "user", "content": "Again"}]
    elif protocol == "responses":
        summary = [{"type": "summary_text", "text": block.text}]
        body["input"] = [
            {"role": "user", "content": "Hello"},
            {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": sealed},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Again"},
        ]
    else:
        parts = [{"text": block.text, "thought": True, "thoughtSignature": sealed}, {"text": "Hello"}]
        body["contents"] += [
            {"role": "model", "parts": parts},
            {"role": "user", "parts": [{"text": "Again"}]},
        ]
    return body
