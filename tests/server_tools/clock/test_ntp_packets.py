"""SNTP packets: encoding, decoding and rejection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.server_tools.clock.ntp import (
    BadReply,
    ForeignReply,
    Sample,
    agreed_offset,
    decode_reply,
    encode_query,
)
from tests.server_tools.clock.time_server import answer
from tests.server_tools.clock.world import START

COOKIE = b"cookie!!"
QUESTION = encode_query(COOKIE)
SECONDS = START / 1000


def judge(packet: bytes, *, sent_ms: float = START, elapsed_ms: float = 40) -> Sample:
    return decode_reply(packet, cookie=COOKIE, server="time", sent_ms=sent_ms, elapsed_ms=elapsed_ms)


def test_the_question_tells_nothing_but_the_cookie() -> None:
    assert b"\x23" + bytes(39) + COOKIE == QUESTION


def test_offset_and_delay() -> None:
    found = judge(answer(QUESTION, SECONDS + 5.010, took=0.020))
    assert (round(found.offset_ms, 2), round(found.delay_ms, 2)) == (5000.0, 20.0)


@given(st.integers(-86_000_000, 86_000_000), st.integers(0, 4_000_000_000))
def test_any_offset_in_any_era(offset: int, seconds: int) -> None:
    packet = answer(QUESTION, seconds + 0.02 + offset / 1000)
    found = judge(packet, sent_ms=seconds * 1000)
    assert abs(found.offset_ms - offset) < 0.01


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not a server": ({"mode": 3}, "mode 3 is not that of a server"),
    "kiss of death": (
        {"stratum": 0, "name": b"RATE"},
        "kiss of death 'RATE': the server rejects queries",
    ),
    "no stratum": ({"stratum": 16}, "the server is not synchronized"),
    "alarm": ({"leap": 3}, "the server is not synchronized"),
    "answered before it was asked": ({"took": -0.5}, "the reply was sent before the query"),
    "took longer than asking": ({"took": 0.5}, "the reply was sent before the query"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "reason"), BAD.values(), ids=BAD)
def test_answers_that_cannot_be_used(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadReply) as caught:
        judge(answer(QUESTION, SECONDS, **fields))
    assert (type(caught.value), str(caught.value)) == (BadReply, reason)


@pytest.mark.parametrize("days", [-400, -1.01, 1.01, 400])
def test_an_absurd_offset_is_a_lie(days: float) -> None:
    with pytest.raises(BadReply, match="is more than a day"):
        judge(answer(QUESTION, SECONDS + days * 86_400))


def test_an_answer_without_a_time_is_refused() -> None:
    with pytest.raises(BadReply, match="the reply has no transmit time"):
        judge(answer(QUESTION, SECONDS)[:40] + bytes(8))


@pytest.mark.parametrize("packet", [b"", b"x" * 47, answer(QUESTION, SECONDS, origin=7)])
def test_an_answer_to_something_else_is_a_strangers(packet: bytes) -> None:
    with pytest.raises(ForeignReply):
        judge(packet)


def samples(*offsets: float) -> list[Sample]:
    return [Sample(f"s{n}", offset, 10.0 + n) for n, offset in enumerate(offsets)]


@pytest.mark.parametrize(
    ("offsets", "server"),
    [((5,), "s0"), ((5, 6), "s0"), ((3_600_000, 5, 6), "s1"), ((5, 3_600_000, 6), "s0"), ((5, 200, 9), "s0")],
)
def test_the_quickest_of_those_who_agree_is_believed(offsets: tuple[float, ...], server: str) -> None:
    assert agreed_offset(samples(*offsets)).server == server


@pytest.mark.parametrize("offsets", [(0, 3_600_000), (0, 10_000, 20_000), (0, 0, 9_000, 9_000)])
def test_servers_that_disagree_are_not_believed(offsets: tuple[float, ...]) -> None:
    with pytest.raises(BadReply, match=r"the servers disagree: s0 \+0 ms, s1 "):
        agreed_offset(samples(*offsets))


def test_nobody_cannot_agree() -> None:
    with pytest.raises(BadReply, match="no server answered"):
        agreed_offset([])


@given(st.binary(max_size=80))
def test_any_packet_is_judged(packet: bytes) -> None:
    with pytest.raises(BadReply):
        judge(packet)
