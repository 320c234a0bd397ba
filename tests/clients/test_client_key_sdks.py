"""A refused client key reaches the official SDKs as their own typed exceptions, and is not retried."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import anthropic
import msgspec
import openai
import pytest
from google.genai import errors

from tests.clients.gateway import Gateway
from tests.clients.node_sdks import NODE, SCRIPTS
from tests.clients.python.conversation import ConversationOptions
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.clients.test_routing_errors_sdks import failed, read
from tests.gateway.instruction_gateway import OPERATOR, InstructionHarness, instruction_gateway
from tests.kit.raw_client import call

CLIENTS = """
[clients.good]
key = "key-good"
[clients.blocked]
key = "key-blocked"
blocked = true
[clients.old]
key = "key-old"
expires = "2020-01-01T00:00:00Z"
[clients.narrow]
key = "key-narrow"
allow = { models = ["nothing"] }
"""
CASES = {
    "key-wrong": (401, "invalid_api_key"),
    "key-old": (401, "key_expired"),
    "key-blocked": (403, "key_blocked"),
    "key-narrow": (403, "not_allowed"),
}
_OPENAI = {401: openai.AuthenticationError, 403: openai.PermissionDeniedError}
RAISED: dict[str, dict[int, type[Exception]]] = {
    "chat": {**_OPENAI},
    "responses": {**_OPENAI},
    "messages": {401: anthropic.AuthenticationError, 403: anthropic.PermissionDeniedError},
    "gemini": {401: errors.ClientError, 403: errors.ClientError},
}
sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)


async def revoked_key(harness: InstructionHarness) -> str:
    port = harness.gateway.port
    made = await call(port, "/admin/clients", {"name": "gone"}, headers=OPERATOR)
    await call(port, "/admin/clients/gone/revoke", {}, headers=OPERATOR)
    return str(made.json["key"])


@sdk_modes
async def test_a_refused_key_is_raised_as_the_sdk_names_it(sdks: Sdks, sdk_mode: SdkMode) -> None:
    async with instruction_gateway(sdk_mode.protocol, more=CLIENTS) as harness:
        gateway = cast(Gateway, harness.gateway)
        cases = {**CASES, await revoked_key(harness): (401, "key_revoked")}
        for key, (status, code) in cases.items():
            talk = sdk_mode.open(sdks, gateway, "auto", key=key, options=ConversationOptions())
            error: Any = await asyncio.to_thread(failed, partial(talk.send, "hello"))
            assert (code, issubclass(type(error), RAISED[sdk_mode.protocol][status])) == (code, True)
            found, body = read(error)
            assert (found, body["code"]) == (status, code)
        assert harness.requests == []
        talk = sdk_mode.open(sdks, gateway, "auto", key="key-good", options=ConversationOptions())
        assert (await asyncio.to_thread(talk.send, "hello")).text == "hello there"


async def refusals(url: str, *keys: str) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(SCRIPTS / "refusals.mjs"), url, *keys, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return [msgspec.json.decode(line) for line in output.splitlines()]


NAMES = {401: "AuthenticationError", 403: "PermissionDeniedError"}


async def test_the_node_sdks_raise_their_own_errors_and_try_once() -> None:
    async with instruction_gateway("chat", more=CLIENTS) as harness:
        cases = {**CASES, await revoked_key(harness): (401, "key_revoked")}
        rows = await refusals(harness.gateway.url, *cases)
        assert harness.requests == []
    assert len(rows) == 3 * len(cases)
    for row in rows:
        status, code = cases[row["key"]]
        inner = None if row["sdk"] == "messages" else "invalid_api_key" if status == 401 else code
        assert (row["name"], row["status"], row["code"], row["attempts"]) == (NAMES[status], status, inner, 1)
