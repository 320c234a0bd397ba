"""OpenRouter's `reasoning_details` return to it unchanged, whichever protocol its client speaks."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.wire import json
from tests.gateway.test_matrix import decode_answer
from tests.kit import asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream

CLIENTS = ("messages", "responses", "gemini")
THOUGHT = "I need the weather."
CLAUDE = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "claude": [{**CLAUDE, "text": THOUGHT, "signature": "c2ln"}],
    "gpt": [
        {
            "type": "reasoning.encrypted",
            "data": "gAAA",
            "format": "openai-responses-v1",
            "id": "rs_1",
            "index": 0,
        },
        {"type": "reasoning.summary", "summary": "One.", "format": "openai-responses-v1", "index": 1},
        {
            "type": "reasoning.encrypted",
            "data": "gBBB",
            "format": "openai-responses-v1",
            "id": "rs_2",
            "index": 2,
        },
        {"type": "reasoning.summary", "summary": "Two.", "format": "openai-responses-v1", "index": 3},
    ],
    "gemini": [
        {"type": "reasoning.encrypted", "data": "CiQ=", "format": "google-gemini-v1", "id": "t_0", "index": 0}
    ],
}
CALLED = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}


def pieces(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the details as a stream has them: text in pieces, a signature in an entry of its own."""
    if details != SHAPES["claude"]:
        return details
    return [
        {**CLAUDE, "text": "I need "},
        {**CLAUDE, "text": "the weather."},
        {**CLAUDE, "signature": "c2ln"},
    ]


def answer_with(details: list[dict[str, Any]], *, stream: bool) -> Json | Sse:
    head: dict[str, Any] = {"id": "gen-1", "created": 1, "model": "m"}
    if not stream:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None,
            "reasoning_details": details,
            "tool_calls": [CALLED],
        }
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return Json(200, {**head, "object": "chat.completion", "choices": [choice]})
    deltas: list[dict[str, Any]] = [{"reasoning_details": [piece]} for piece in pieces(details)]
    deltas.append({"tool_calls": [{"index": 0, **CALLED}]})
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    chunks = [{**head, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    return Sse([b"data: " + json.encode(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"])


def next_request(protocol: Any, answer: Answer, model: str, *, stream: bool) -> bytes:
    """Return the request with the tool's result that a client sends after this answer."""
    response = decode_answer(protocol, answer, stream=stream)
    (made,) = [part for part in response.parts if isinstance(part, ToolCall)]
    history = (
        Message("user", (Text("Weather?"),)),
        Message("assistant", response.parts),
        Message("tool", (ToolResult(made.id, (Text("rain"),)),)),
    )
    tool = Tool("get_weather", parameters={"type": "object", "properties": {}})
    request = Request(model=model, source=protocol, messages=history, tools=(tool,))
    body = CODECS[protocol].encode_request(request, EncodeOptions(model=model, provider="")).body
    if protocol != "messages" or stream:
        return body
    # The codec opens sealed signatures of a whole messages answer, as it does in requests; a client does not.
    fields = json.decode(body)
    fields["messages"][1]["content"] = answer.json["content"]
    return json.encode(fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("client", CLIENTS)
async def test_details_return_to_their_provider_in_the_same_shape(
    client: str, shape: str, stream: bool
) -> None:
    async with Upstream() as up:
        up.queue(answer_with(SHAPES[shape], stream=stream), answer_with(SHAPES[shape], stream=False))
        async with serving(one_target("chat", up)) as gateway:
            body = asking.body(client, stream=stream, tools=True)
            first = await call(gateway.port, asking.path(client, stream=stream), body)
            asking.check(client, first, stream=stream)
        # Another gateway: nothing of the answer is in its memory.
        async with serving(one_target("chat", up)) as gateway:
            following = next_request(client, first, "up.m", stream=stream)
            second = await call(gateway.port, asking.path(client, stream=False), following)
            assert second.status == 200, second.body
    (said,) = [message for message in up.requests[1].json["messages"] if message["role"] == "assistant"]
    assert said["reasoning_details"] == SHAPES[shape]
    assert [made["function"]["name"] for made in said["tool_calls"]] == ["get_weather"]


@pytest.mark.parametrize("client", CLIENTS)
async def test_details_do_not_go_to_another_provider(client: str) -> None:
    async with Upstream() as up, Upstream() as other:
        up.queue(answer_with(SHAPES["claude"], stream=False))
        other.queue(answer_with([], stream=False))
        config = one_target("chat", up) + provider("other", "chat", other)
        async with serving(config) as gateway:
            body = asking.body(client, stream=False, tools=True)
            first = await call(gateway.port, asking.path(client, stream=False), body)
            following = next_request(client, first, "other.m", stream=False)
            path = asking.path(client, stream=False, model="other.m")
            assert (await call(gateway.port, path, following)).status == 200
    assert b"c2ln" not in other.requests[0].body
