"""A target that cannot be used reaches the official Python SDKs as their own typed exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import anthropic
import openai
import pytest
from google.genai import errors

from tests.clients.gateway import Gateway
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.gateway.instruction_gateway import InstructionHarness, instruction_gateway
from tests.kit import answers

ANYTHING = (openai.APIStatusError, anthropic.APIStatusError, errors.APIError)
_OPENAI: dict[int, type[Exception]] = {
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    503: openai.InternalServerError,
}
RAISED: dict[str, dict[int, type[Exception]]] = {
    "chat": _OPENAI,
    "responses": _OPENAI,
    "messages": {
        403: anthropic.PermissionDeniedError,
        404: anthropic.NotFoundError,
        503: anthropic.InternalServerError,
    },
    "gemini": {403: errors.ClientError, 404: errors.ClientError, 503: errors.ServerError},
}
CASES: dict[str, tuple[int, str, dict[str, str]]] = {
    "<**#glm**><**glm.air**> hi": (
        403,
        "Requested provider glm is disabled",
        {"provider": "glm", "reason": "disabled"},
    ),
    "<**not.found**> hi": (
        404,
        "Requested provider not.found not found in provider registry",
        {"provider": "not.found"},
    ),
    "<**eye.seer**> hi": (
        503,
        "Requested provider eye is not available (health check failed)",
        {"provider": "eye", "reason": "unhealthy"},
    ),
    "<**!spare**> hi": (
        403,
        "No route has a target that the allow list permits (spare); <**clear**> clears the list",
        {"provider": "spare", "reason": "not_allowed"},
    ),
}
sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)


def failed(send: Callable[[], object]) -> Any:
    with pytest.raises(ANYTHING) as caught:
        send()
    return caught.value


def read(error: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the whole body as the SDK keeps it."""
    if isinstance(error, errors.APIError):
        return error.code, cast(dict[str, Any], error.details)
    return error.status_code, error.response.json()


async def send_and_fail(harness: InstructionHarness, sdks: Sdks, sdk_mode: SdkMode, text: str) -> Any:
    """Send one message and return the error that the SDK raises."""
    # An SDK mode needs only the address of a gateway.
    gateway = cast(Gateway, harness.gateway)
    return await asyncio.to_thread(failed, lambda: sdk_mode.start(sdks, gateway, "auto").send(text))


@sdk_modes
async def test_a_target_that_cannot_be_used_is_raised_as_the_sdk_names_it(
    sdks: Sdks, sdk_mode: SdkMode
) -> None:
    async with instruction_gateway(sdk_mode.protocol) as harness:
        harness.replies_by_key["key-eye-1"] = answers.error(
            sdk_mode.protocol, 429, "slow down", retry_after="45"
        )
        limit = await send_and_fail(harness, sdks, sdk_mode, "<**eye.seer**> hi")
        assert read(limit)[0] == 429
        harness.requests.clear()
        for text, (status, message, details) in CASES.items():
            error = await send_and_fail(harness, sdks, sdk_mode, text)
            raised = RAISED[sdk_mode.protocol][status]
            assert (text, issubclass(type(error), raised)) == (text, True)
            found, body = read(error)
            assert (found, body["error"]["message"], body["details"]) == (status, message, details)
            assert body["code"] == "PROVIDER_NOT_AVAILABLE"
            assert message in str(error)
            if status == 503:
                assert 1 <= int(error.response.headers["retry-after"]) <= 45
    assert harness.requests == []
