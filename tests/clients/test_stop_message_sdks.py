"""Answers of several rounds, read by the official SDKs."""

from __future__ import annotations

import pytest

from tests.clients.gateway import Gateway
from tests.clients.python.sdks import Sdks
from tests.clients.python.speakers import SPEAKERS, Speaker
from tests.clients.python.talk import ENDS
from tests.kit.answers import PROTOCOLS

speakers = pytest.mark.parametrize(
    "speaker", [pytest.param(speaker, id=name) for name, speaker in SPEAKERS.items()]
)
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
ROUND = (21, 9)


@upstreams
@speakers
def test_three_rounds_are_one_answer(gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str) -> None:
    talk = speaker.talk(sdks, gateway, f"up_{upstream}.model-x")
    reply = talk.say('<**stopMessage:"go on with it",2**>tell me of the sky')
    sky, more = "You said: tell me of the sky", "You said: go on with it"
    assert reply.text == f"{sky}\n\n{more}\n\n{more}"
    assert reply.calls == []
    assert reply.end == ENDS[speaker.protocol]["stop"]
    assert reply.usage == (3 * ROUND[0], 3 * ROUND[1])
    assert len(gateway.heard(upstream)) == 3


@upstreams
@speakers
def test_the_conversation_goes_on_after_it(
    gateway: Gateway, sdks: Sdks, speaker: Speaker, upstream: str
) -> None:
    talk = speaker.talk(sdks, gateway, f"up_{upstream}.model-x")
    talk.say('<**stopMessage:"go on with it",1**>tell me of the sky')
    reply = talk.say("and of the sea?")
    assert reply.text == "You said: and of the sea?"
    assert b"stopMessage" not in gateway.asked(upstream).body
