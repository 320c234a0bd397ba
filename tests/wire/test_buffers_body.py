from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.wire.buffers import BodyBuffer


@given(st.lists(st.tuples(st.binary(), st.booleans())))
def test_what_was_put_there_or_read_there_is_what_comes_out(pieces: list[tuple[bytes, bool]]) -> None:
    buffer = BodyBuffer(sum(len(piece) for piece, _ in pieces))
    for piece, is_read in pieces:
        if is_read:
            buffer.rest()[: len(piece)] = piece
            buffer.filled += len(piece)
        else:
            buffer.put(piece)
    assert len(buffer.rest()) == 0
    whole = buffer.whole()
    assert (type(whole), whole) == (bytes, b"".join(piece for piece, _ in pieces))


def test_it_comes_out_whole_while_somebody_still_holds_the_rest() -> None:
    buffer = BodyBuffer(3)
    held = buffer.rest()
    held[:] = b"abc"
    buffer.filled = 3
    assert (buffer.whole(), bytes(held)) == (b"abc", b"abc")


def test_more_than_there_is_room_for_is_refused() -> None:
    buffer = BodyBuffer(3)
    buffer.put(b"ab")
    with pytest.raises(ValueError, match="memoryview"):
        buffer.put(b"cd")


def test_nothing_can_be_put_there_once_it_is_out() -> None:
    buffer = BodyBuffer(3)
    assert buffer.whole() == bytes(3)
    with pytest.raises(ValueError, match="released"):
        buffer.put(b"a")
