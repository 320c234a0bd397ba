"""Odd response heads are read in the same way by llhttp alone and where plain ones bypass it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routecodex import IS_COMPILED
from tests.fuzz import mutate
from tests.fuzz.processes import split
from tests.fuzz.readings import read_response
from tests.fuzz.request_targets import HEADS
from tests.reference.installed import WAYS, using
from tests.wire.test_plain_heads import ANSWERS

BODIES = (
    b"",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n",
    b"0\r\n\r\nmore",
)
ODD_LINES = (
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked, gzip\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\r\n",
    b"transfer-encoding: \tchunked \r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 6\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Keep-Alive: timeout=1\r\n",
)
STATUS = b"HTTP/1.1 200 OK\r\n"


def readings(data: bytes, at: list[int]) -> list[Any]:
    """Return how each way reads the response; the build has one only."""
    read = []
    for way in WAYS:
        with using(way):
            read.append(read_response(split(data, at)))
    return read


def assert_equal(data: bytes, at: list[int]) -> None:
    first, *others = readings(data, at)
    assert others == [first] * len(others)


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_two_odd_lines_are_read_in_one_way(body: bytes) -> None:
    for one in ODD_LINES:
        for other in (b"", *ODD_LINES):
            head = STATUS + one + other + b"\r\n"
            for at in ([], [len(head)], [len(STATUS)], [len(head) + 3]):
                assert_equal(head + body, at)


@pytest.mark.parametrize("name", ANSWERS)
def test_every_head_that_plain_heads_knows_is_read_in_one_way(name: str) -> None:
    head = ANSWERS[name][0]
    for body in BODIES:
        for at in ([], [len(head)], [1], [len(head) + 3]):
            assert_equal(head + body, at)


@given(st.sampled_from(HEADS["response"]), st.integers(0, 2**32))
@example(HEADS["response"][2], 0)
def test_a_changed_head_is_read_in_one_way(head: bytes, seed: int) -> None:
    random = Random(seed)
    data = mutate.data(head, random)
    assert_equal(data, mutate.splits(len(data), random))


@pytest.mark.skipif(IS_COMPILED, reason="the build has one way; tests/fuzz compares it with the sources")
def test_both_ways_are_compared() -> None:
    assert WAYS == ("sources", "references")


@pytest.mark.parametrize("codings", [(b"chunked", b"gzip"), (b"gzip", b"chunked"), (b"chunked", b"chunked")])
def test_several_lines_of_codings_are_refused(codings: tuple[bytes, bytes]) -> None:
    lines = b"".join(b"Transfer-Encoding: %b\r\n" % coding for coding in codings)
    for reading in readings(STATUS + lines + b"\r\n" + BODIES[2], []):
        assert (reading[2:4], "several Transfer-Encoding headers" in reading[4]) == (["", False], True)
