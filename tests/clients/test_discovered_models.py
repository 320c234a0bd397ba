"""The official SDKs list, look up and use the models that providers name themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.gateway import Running, serving
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

BASES = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}
IDS = [f"{protocol}.{name}" for protocol in PROTOCOLS for name in ("one", "org/two:free")]
NEW = [f"{protocol}.brand-new" for protocol in PROTOCOLS]


def provider(protocol: str) -> Upstream:
    """Return a provider that lists two models, each on a page of its own where there are pages."""

    def answer(request: Request) -> Any:
        if request.method == "POST":
            return answers.text(protocol, "hi", answers.wants_stream(request))
        if protocol == "gemini":
            last = "pageToken=" in request.path
            page = {"models": [{"name": "models/org/two:free" if last else "models/one"}]}
            return Json(200, page if last else {**page, "nextPageToken": "t"})
        if protocol == "messages":
            last = "after_id=one" in request.path
            row = {"type": "model", "id": "org/two:free" if last else "one"}
            return Json(200, {"data": [row], "has_more": not last, "last_id": row["id"]})
        return Json(200, {"object": "list", "data": [{"id": "one"}, {"id": "org/two:free"}]})

    return Upstream(answer)


@asynccontextmanager
async def gateway_of_all() -> AsyncIterator[Running]:
    async with AsyncExitStack() as stack:
        text = "[server]\nport = 0\ndrain_seconds = 1\n"
        for protocol in PROTOCOLS:
            up = await stack.enter_async_context(provider(protocol))
            text += (
                f'[providers.{protocol}]\nprotocol = "{protocol}"\nmodels = "discover"\n'
                f'base_url = "{up.url}{BASES[protocol]}"\nauth = [{{ value = "key-{protocol}" }}]\n'
            )
        gateway = await stack.enter_async_context(serving(f'{text}[routing]\ndefault = ["chat.one"]\n'))
        await gateway.service.gateway.model_lists.settle(20)
        yield gateway


async def test_openai_lists_and_uses_discovered_models() -> None:
    async with (
        gateway_of_all() as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == IDS
        assert (await client.models.retrieve("chat.brand-new")).id == "chat.brand-new"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nobody.one")
        for model in (*IDS, *NEW):
            answer = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hi"}]
            )
            assert answer.choices[0].message.content == "hi"


async def test_anthropic_lists_and_uses_discovered_models() -> None:
    async with (
        gateway_of_all() as gateway,
        anthropic.AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list(limit=1000)] == IDS
        for model in (*IDS, *NEW, "claude-via-chat.one", "claude-via-gemini.brand-new"):
            answer = await client.messages.create(
                model=model, max_tokens=100, messages=[{"role": "user", "content": "hi"}]
            )
            assert [block.text for block in answer.content if block.type == "text"] == ["hi"]


async def test_google_lists_and_uses_discovered_models() -> None:
    async with gateway_of_all() as gateway:
        client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=gateway.url)).aio
        try:
            pager = await client.models.list(config=types.ListModelsConfig(query_base=True))
            assert [model.name async for model in pager] == [f"models/{name}" for name in IDS]
            for model in (*IDS, *NEW):
                answer = await client.models.generate_content(model=model, contents="hi")
                assert answer.text == "hi"
        finally:
            await client.aclose()
