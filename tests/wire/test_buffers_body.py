from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.wire.buffers import BodyBuffer


@given(st.lists(st.tuples(st.binary(), st.booleans())))
def test_what_was_put_there_or_read_there_is_what_comes_out(pieces: list[tuple[bytes, bool]]) -> None:
    room = BodyBuffer(sum(len(piece) for piece, _ in pieces))
    for piece, is_read in pieces:
        if is_read:
            room.rest()[: len(piece)] = piece
            room.filled += len(piece)
        else:
            room.put(piece)
    assert len(room.rest()) == 0
    whole = room.whole()
    assert (type(whole), whole) == (bytes, b"".join(piece for piece, _ in pieces))


def test_it_comes_out_whole_while_somebody_still_holds_the_rest() -> None:
    room = BodyBuffer(3)
    held = room.rest()
    held[:] = b"abc"
    room.filled = 3
    assert (room.whole(), bytes(held)) == (b"abc", b"abc")


def test_more_than_there_is_room_for_is_refused() -> None:
    room = BodyBuffer(3)
    room.put(b"ab")
    with pytest.raises(ValueError, match="memoryview"):
        room.put(b"cd")


def test_nothing_can_be_put_there_once_it_is_out() -> None:
    room = BodyBuffer(3)
    assert room.whole() == bytes(3)
    with pytest.raises(ValueError, match="released"):
        room.put(b"a")
