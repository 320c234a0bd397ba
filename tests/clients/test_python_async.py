"""The asynchronous clients of the Python SDKs, many requests at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.clients.gateway import Gateway
from tests.kit.answers import PROTOCOLS

MODELS = [f"up_{protocol}.model-x" for protocol in PROTOCOLS]


class OpenAI:
    """Chat completions, streamed."""

    def __init__(self, url: str) -> None:
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)

    async def send(self, model: str, text: str) -> str:
        answer = ""
        stream: Any = await self.client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], stream=True
        )
        async for chunk in stream:
            answer += "".join(choice.delta.content or "" for choice in chunk.choices)
        return answer

    async def close(self) -> None:
        await self.client.close()


class Anthropic:
    """Messages, through the stream helper."""

    def __init__(self, url: str) -> None:
        self.client = anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)

    async def send(self, model: str, text: str) -> str:
        request = self.client.messages.stream(
            model=model, max_tokens=100, messages=[{"role": "user", "content": text}]
        )
        async with request as stream:
            return await stream.get_final_text()

    async def close(self) -> None:
        await self.client.close()


class Google:
    """generateContent, streamed."""

    def __init__(self, url: str) -> None:
        self.client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=url)).aio

    async def send(self, model: str, text: str) -> str:
        answer = ""
        async for chunk in await self.client.models.generate_content_stream(model=model, contents=text):
            answer += chunk.text or ""
        return answer

    async def close(self) -> None:
        await self.client.aclose()


@asynccontextmanager
async def opened(kind: type[OpenAI | Anthropic | Google], url: str) -> AsyncIterator[Any]:
    client = kind(url)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("kind", [OpenAI, Anthropic, Google])
async def test_forty_streams_at_once_get_their_own_answers(
    gateway: Gateway, kind: type[OpenAI | Anthropic | Google]
) -> None:
    async with opened(kind, gateway.url) as client:
        requests = [(model, f"number {number}") for number in range(10) for model in MODELS]
        answers = await asyncio.gather(*(client.send(model, text) for model, text in requests))
    assert answers == [f"You said: {text}" for _, text in requests]
