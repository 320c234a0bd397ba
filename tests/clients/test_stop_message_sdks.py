"""Answers of several rounds, read by the official SDKs."""

from __future__ import annotations

import pytest

from tests.clients.gateway import Gateway
from tests.clients.python.conversation import FINISH_REASONS
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.clients.python.sdks import Sdks
from tests.kit.answers import PROTOCOLS

sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
ROUND = (21, 9)


@upstreams
@sdk_modes
def test_three_rounds_are_one_answer(gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str) -> None:
    conversation = sdk_mode.start(sdks, gateway, f"up_{upstream}.model-x")
    reply = conversation.send('<**stopMessage:"go on with it",2**>tell me of the sky')
    sky, more = "You said: tell me of the sky", "You said: go on with it"
    assert reply.text == f"{sky}\n\n{more}\n\n{more}"
    assert reply.calls == []
    assert reply.end == FINISH_REASONS[sdk_mode.protocol]["stop"]
    assert reply.usage == (ROUND[0], 3 * ROUND[1])
    assert len(gateway.requests(upstream)) == 3


@upstreams
@sdk_modes
def test_the_conversation_continues_after_several_rounds(
    gateway: Gateway, sdks: Sdks, sdk_mode: SdkMode, upstream: str
) -> None:
    conversation = sdk_mode.start(sdks, gateway, f"up_{upstream}.model-x")
    conversation.send('<**stopMessage:"go on with it",1**>tell me of the sky')
    reply = conversation.send("and of the sea?")
    assert reply.text == "You said: and of the sea?"
    assert b"stopMessage" not in gateway.last_request(upstream).body
