"""A relayed chat stream after its finish reason: nothing but its end follows."""

from __future__ import annotations

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.grammar import check_chat
from tests.protocols.chat.samples import COUNTS, choice, frame, reply, role
from tests.protocols.chat.test_relay import passed

GONE = UpstreamFailed("the connection broke")
JUNK = [
    b"data: JUNK\n\n",
    frame(error={"message": "JUNK", "type": "x"}),
    choice(content="JUNK"),
    choice(content="JUNK") + choice(content="JUNK"),
    choice(reasoning_content="JUNK"),
    frame(choices=[{"index": 0, "delta": {"content": "JUNK"}, "finish_reason": None}], usage=COUNTS),
]


@pytest.mark.parametrize("late", JUNK, ids=range(len(JUNK)))
def test_text_and_junk_after_the_finish_do_not_pass(late: bytes) -> None:
    stream = role() + choice(content="Hi") + choice(content="!") + choice("stop")
    for step in (1, 1 << 30):
        out = passed(stream + late, step=step)
        assert out.startswith(stream)
        assert b"JUNK" not in out
        check_chat(out, include_usage=True)


def test_a_break_after_the_finish_leaves_the_answer_complete() -> None:
    relay = Relay(reply())
    out = relay.feed(role() + choice(content="Hi") + choice("stop")) + relay.fail(GONE)
    check_chat(out, include_usage=True)
    assert (relay.ended, relay.outcome.error) == (True, None)


def test_a_finish_in_every_chunk_does_not_prove_the_end() -> None:
    relay = Relay(reply())
    stream = role() + choice("stop", content="Hi") + choice("stop", content="!")
    assert relay.feed(stream) == stream
    assert b'"error"' in relay.fail(GONE)
    assert relay.outcome.error is GONE
