"""Truncated answers never look complete."""

from __future__ import annotations

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.grammar import check_broken_chat
from tests.protocols.chat.samples import DONE, call, choice, chunks, reply, role
from tests.protocols.chat.test_relay import passed

HALF = role() + call(0, "call_1", "shell", "") + call(0, arguments='{"command":"rm -rf /tmp/bui')


@pytest.mark.parametrize("reason", ["network_error", "insufficient_system_resource", "abort", "error"])
@pytest.mark.parametrize("begun", [role() + choice(content="Half a sen"), HALF])
def test_an_answer_that_its_upstream_aborted_ends_with_an_error(begun: bytes, reason: str) -> None:
    out = passed(begun + choice(reason) + DONE)
    check_broken_chat(out)
    assert reason.encode() in out


def test_an_answer_that_is_broken_off_before_it_began_is_for_another_target() -> None:
    relay = Relay(reply())
    with pytest.raises(UpstreamFailed, match="broke the answer off: network_error"):
        relay.feed(role() + choice("network_error") + DONE)


@pytest.mark.parametrize("reason", ["content_filter", "length"])
def test_a_call_that_may_have_been_cut_off_is_not_called_one(reason: str) -> None:
    assert chunks(passed(HALF + choice(reason) + DONE))[-2]["choices"][0]["finish_reason"] == reason


def test_half_a_call_without_a_finish_is_broken_off() -> None:
    check_broken_chat(passed(HALF + DONE))


@pytest.mark.parametrize("rest", [call(0, arguments='ld"}'), b""])
def test_a_whole_call_without_a_finish_is_a_call(rest: bytes) -> None:
    begun = HALF if rest else role() + call(0, "call_1", "now", "")
    assert chunks(passed(begun + rest + DONE))[-2]["choices"][0]["finish_reason"] == "tool_calls"
