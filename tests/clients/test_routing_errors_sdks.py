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
from tests.clients.python.sdks import Sdks
from tests.clients.python.speakers import SPEAKERS, Speaker
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
speakers = pytest.mark.parametrize(
    "speaker", [pytest.param(speaker, id=name) for name, speaker in SPEAKERS.items()]
)


def failed(send: Callable[[], object]) -> Any:
    with pytest.raises(ANYTHING) as caught:
        send()
    return caught.value


def read(error: Any) -> tuple[int, dict[str, Any]]:
    """The status, and the whole body as the SDK keeps it."""
    if isinstance(error, errors.APIError):
        return error.code, cast(dict[str, Any], error.details)
    return error.status_code, error.response.json()


async def say(harness: InstructionHarness, sdks: Sdks, speaker: Speaker, text: str) -> Any:
    """What the SDK raises for one message."""
    # A speaker needs no more of a gateway than its address.
    gateway = cast(Gateway, harness.gateway)
    return await asyncio.to_thread(failed, lambda: speaker.talk(sdks, gateway, "auto").say(text))


@speakers
async def test_a_target_that_cannot_be_used_is_raised_as_the_sdk_names_it(
    sdks: Sdks, speaker: Speaker
) -> None:
    async with instruction_gateway(speaker.protocol) as harness:
        harness.replies_by_key["key-eye-1"] = answers.error(
            speaker.protocol, 429, "slow down", retry_after="45"
        )
        limit = await say(harness, sdks, speaker, "<**eye.seer**> hi")
        assert read(limit)[0] == 429
        harness.requests.clear()
        for text, (status, message, details) in CASES.items():
            error = await say(harness, sdks, speaker, text)
            raised = RAISED[speaker.protocol][status]
            assert (text, issubclass(type(error), raised)) == (text, True)
            found, body = read(error)
            assert (found, body["error"]["message"], body["details"]) == (status, message, details)
            assert body["code"] == "PROVIDER_NOT_AVAILABLE"
            assert message in str(error)
            if status == 503:
                assert 1 <= int(error.response.headers["retry-after"]) <= 45
    assert harness.requests == []
