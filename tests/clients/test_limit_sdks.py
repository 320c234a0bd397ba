"""A used limit reaches the official SDKs as their own typed exceptions; a budget is not retried."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest
from google.genai import errors

from tests.clients.gateway import Gateway
from tests.clients.python.conversation import ConversationOptions
from tests.clients.python.sdk_modes import SdkMode
from tests.clients.python.sdks import Sdks
from tests.clients.test_client_key_sdks import refusals, sdk_modes
from tests.clients.test_routing_errors_sdks import failed, read
from tests.gateway.instruction_gateway import instruction_gateway

CLIENTS = '[clients.laptop]\nkey = "key-laptop"\nlimits = ["1 requests/day"]\n'
RAISED: dict[str, type[Exception]] = {
    "chat": openai.RateLimitError,
    "responses": openai.RateLimitError,
    "messages": anthropic.RateLimitError,
    "gemini": errors.ClientError,
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


@sdk_modes
async def test_a_used_budget_is_raised_as_the_sdk_names_it(sdks: Sdks, sdk_mode: SdkMode) -> None:
    async with instruction_gateway(sdk_mode.protocol, more=CLIENTS) as harness:
        gateway = cast(Gateway, harness.gateway)
        talk = sdk_mode.open(sdks, gateway, "auto", key="key-laptop", options=ConversationOptions())
        assert (await asyncio.to_thread(talk.send, "hello")).text == "hello there"
        error: Any = await asyncio.to_thread(failed, partial(talk.send, "hello"))
        assert issubclass(type(error), RAISED[sdk_mode.protocol])
        status, body = read(error)
        assert (status, body["code"], body["details"]["owner"]) == (429, "budget_exceeded", "client:laptop")
        assert len(harness.requests) == 1


async def test_the_node_sdks_raise_their_own_errors_and_try_once() -> None:
    async with instruction_gateway("chat", more=CLIENTS) as harness:
        first = await refusals(harness.gateway.url, "key-laptop")
        rows = await refusals(harness.gateway.url, "key-laptop")
        assert len(harness.requests) == 1
    assert [row["attempts"] for row in first] == [1, 1, 1]
    codes = {"chat": "insufficient_quota", "responses": "insufficient_quota", "messages": None}
    assert [(row["sdk"], row["name"], row["status"], row["code"], row["attempts"]) for row in rows] == [
        (sdk, "RateLimitError", 429, code, 1) for sdk, code in codes.items()
    ]
