from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.providers.http.response import inflater_for


def packed(body: bytes, wbits: int) -> bytes:
    squeeze = zlib.compressobj(wbits=wbits)
    return squeeze.compress(body) + squeeze.flush()


@given(
    body=st.binary(max_size=3000),
    kind=st.sampled_from([(b"gzip", 31), (b"deflate", 15), (b"deflate", -15)]),
    size=st.integers(1, 50),
)
def test_any_cutting_of_the_input_gives_the_same_output(
    body: bytes, kind: tuple[bytes, int], size: int
) -> None:
    encoding, wbits = kind
    inflater = inflater_for(encoding)
    assert inflater is not None
    data = packed(body, wbits)
    output = b"".join(inflater.decode(data[i : i + size]) for i in range(0, len(data), size))
    assert (output, inflater.finished, inflater.pending) == (body, True, False)


def test_output_comes_in_bounded_pieces_without_more_input() -> None:
    inflater = inflater_for(b"gzip")
    assert inflater is not None
    sizes = [len(inflater.decode(packed(bytes(3 << 20), 31)))]
    while inflater.pending:
        sizes.append(len(inflater.decode(b"")))
    assert (max(sizes), sum(sizes), inflater.finished) == (1 << 20, 3 << 20, True)


def test_padding_after_the_end_is_ignored() -> None:
    inflater = inflater_for(b"gzip")
    assert inflater is not None
    assert inflater.decode(packed(b"hello", 31) + b"\0" * 100) == b"hello"
    assert (inflater.decode(b""), inflater.pending, inflater.finished) == (b"", False, True)


@pytest.mark.parametrize("encoding", [None, b"identity", b"br", b"gzip, br"])
def test_what_cannot_be_undone_is_left_alone(encoding: bytes | None) -> None:
    assert inflater_for(encoding) is None
