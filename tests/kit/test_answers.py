"""The official SDKs understand the canned answers, and the smart model completes a tool loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from anthropic import AsyncAnthropic
from google import genai
from openai import AsyncOpenAI

from routecodex.protocols.grammar import check_json, check_stream
from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.smart_requests import REQUESTS
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream


def request(protocol: str, body: dict[str, Any], *, stream: bool) -> Request:
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    path = f"/v1beta/models/m:{verb}" if protocol == "gemini" else "/v1/x"
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    data = body if protocol == "gemini" else body | more
    return Request("POST", path, {}, msgspec.json.encode(data), 1)


def checked(protocol: str, answer: Json | Sse) -> bytes:
    if isinstance(answer, Json):
        check_json(protocol, answer.data)
    else:
        check_stream(protocol, answer.data, **({"include_usage": True} if protocol == "chat" else {}))
    return answer.data


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_smart_model_calls_a_tool_then_quotes_its_result(protocol: str, stream: bool) -> None:
    model = answers.smart(protocol)
    question, after, plain = REQUESTS[protocol]
    call = checked(protocol, model(request(protocol, question, stream=stream)))
    assert b"look" in call
    final = checked(protocol, model(request(protocol, after, stream=False)))
    assert b"The tool says: a blue sky" in final
    checked(protocol, model(request(protocol, after, stream=stream)))
    text = checked(protocol, model(request(protocol, plain, stream=False)))
    assert b"You said: hello" in text


async def test_openai_chat_understands_the_stream() -> None:
    async with Upstream() as up, AsyncOpenAI(api_key="k", base_url=up.url, max_retries=0) as client:
        up.queue(answers.tool_call("chat", "look", {"at": "sky"}, "call_1", True))
        async with client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "x"}]
        ) as events:
            final = await events.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert calls is not None
        assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
            ("call_1", "look", '{"at":"sky"}')
        ]
        assert final.usage is not None


async def test_openai_responses_understands_the_stream() -> None:
    async with Upstream() as up, AsyncOpenAI(api_key="k", base_url=up.url, max_retries=0) as client:
        up.queue(answers.thinking("responses", "Hm.", "Hello there", True))
        async with client.responses.stream(model="m", input="x") as events:
            final = await events.get_final_response()
        assert final.output_text == "Hello there"
        assert [item.type for item in final.output] == ["reasoning", "message"]


async def test_anthropic_understands_the_stream() -> None:
    async with Upstream() as up, AsyncAnthropic(api_key="k", base_url=up.url, max_retries=0) as client:
        up.queue(answers.thinking("messages", "Hm.", "Hello there", True))
        async with client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        ) as events:
            final = await events.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 40)


async def test_google_understands_the_stream() -> None:
    async with Upstream() as up:
        up.queue(answers.thinking("gemini", "Hm.", "Hello there, friend", True))
        client = genai.Client(api_key="k", http_options={"base_url": up.url})
        chunks = [c async for c in await client.aio.models.generate_content_stream(model="m", contents="x")]
        await client.aio.aclose()
        client.close()
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]  # type: ignore[index,union-attr]  # all set
        assert "".join(part.text or "" for part in parts if not part.thought) == "Hello there, friend"
        assert up.requests[0].path.endswith("/models/m:streamGenerateContent?alt=sse")
