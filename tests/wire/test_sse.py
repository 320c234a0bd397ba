from __future__ import annotations

from collections.abc import Iterator

import pytest

from routecodex.wire.frame import Frame
from routecodex.wire.sse import KEEP_ALIVE, Frames, FrameTooLarge, frame, frame_at, parse

PLAIN = (
    b'data: {"a":"gr\xc3\xbc\xc3\x9fe"}\n\n'
    b": hello\n\n"
    b"event: ping\n\n"
    b": a comment\nevent: delta\n: another\ndata:{}\n\n"
    b"\n\n"
    b'data: {"b":\ndata: 1}\nid: 7\nretry: 10\n\n'
    b"data: [DONE]\n\n"
)
FRAMES = [
    (b"", '{"a":"grüße"}'.encode()),
    (b"delta", b"{}"),
    (b"", b'{"b":\n1}'),
    (b"", b"[DONE]"),
]
ENDINGS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}
MARKS = {"no mark": b"", "a byte order mark": b"\xef\xbb\xbf"}


def parsed(pieces: Iterator[bytes] | list[bytes]) -> list[tuple[bytes, bytes]]:
    frames = Frames()
    out = [found for piece in pieces for found in frames.feed(piece)]
    return [(found.event, found.data) for found in [*out, *frames.close()]]


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest) -> bytes:
    return ENDINGS[request.param]


@pytest.fixture(params=MARKS)
def stream(request: pytest.FixtureRequest, ending: bytes) -> bytes:
    return MARKS[request.param] + PLAIN.replace(b"\n", ending)


def test_frames_come_out_of_one_piece(stream: bytes) -> None:
    assert parsed([stream]) == FRAMES


def test_frames_come_out_of_every_split_in_two(stream: bytes) -> None:
    for cut in range(len(stream) + 1):
        assert parsed([stream[:cut], stream[cut:]]) == FRAMES, cut


def test_frames_come_out_byte_by_byte(stream: bytes) -> None:
    assert parsed(stream[at : at + 1] for at in range(len(stream))) == FRAMES


def test_a_mark_in_the_middle_is_content() -> None:
    assert parsed([b"data: a\n\n", b"\xef\xbb\xbfdata: b\n\n"]) == [(b"", b"a")]


def test_raw_bytes_have_lf_line_ends_and_a_blank_line() -> None:
    (found,) = Frames().feed(b"event: x\r\ndata: 1\r\n\r\n")
    assert found == Frame(b"x", b"1", b"event: x\ndata: 1\n\n")


def test_runs_of_frames_are_cut_in_one_piece() -> None:
    frames = Frames()
    assert frames.cut(b"data: 1\n\nda") == b"data: 1\n\n"
    assert frames.pending
    assert frames.cut(b"ta: 2\n") == b""
    assert frames.cut(b"\n: note\n\ndata: 3\n\n") == b"data: 2\n\n: note\n\ndata: 3\n\n"
    assert not frames.pending


def test_a_blank_line_is_found_where_two_pieces_meet() -> None:
    frames = Frames()
    assert [
        frames.cut(piece) for piece in (b"data: 1\n", b"\ndata: 2\n", b"", b"\n\n\n", b"\n", b"x\n\n")
    ] == [
        b"",
        b"data: 1\n\n",
        b"",
        b"data: 2\n\n\n\n",
        b"",
        b"\nx\n\n",
    ]


@pytest.mark.timeout(20)
def test_a_large_frame_is_searched_as_it_comes() -> None:
    """In many small pieces: minutes where each of them has all that came before searched again."""
    frames, piece = Frames(), b"y" * 500
    assert {frames.cut(piece) for _ in range(60_000)} == {b""}
    assert frames.cut(b"\n\ndata") == piece * 60_000 + b"\n\n"
    assert frames.cut(b": 1\n\n") == b"data: 1\n\n"


@pytest.mark.parametrize("last", [b"data: [DONE]", b"data: [DONE]\n", b'data: {"a":1}\n', b"data: [DONE]\r"])
def test_a_last_frame_without_blank_line_counts_if_it_is_whole(last: bytes) -> None:
    frames = Frames()
    assert frames.feed(last) == []
    assert frames.pending
    assert [found.data for found in frames.close()] == [last[6:].strip()]
    assert frames.close() == []


@pytest.mark.parametrize("last", [b"data: {", b'data: {"a":"b', b"data: [DON", b"event: x", b"da", b": note"])
def test_half_a_frame_is_dropped(last: bytes) -> None:
    frames = Frames()
    assert frames.feed(last) == []
    assert frames.close() == []


@pytest.mark.parametrize("block", [b"data", b"data:", b"data: ", b"event: ping\ndata:\ndata: "])
def test_a_frame_without_data_is_no_frame(block: bytes) -> None:
    assert parse(block) is None
    assert Frames().feed(block + b"\n\n") == []


def test_only_one_space_after_the_colon_is_not_data() -> None:
    assert parse(b"data:  x ") == Frame(b"", b" x ", b"data:  x \n\n")
    assert parse(b"event: a\ndata: {}\ndata: []") == Frame(
        b"a", b"{}\n[]", b"event: a\ndata: {}\ndata: []\n\n"
    )
    assert parse(b"event: a\nid: 1\ndata: {}") == Frame(b"a", b"{}", b"event: a\nid: 1\ndata: {}\n\n")
    assert parse(b"event: a\ndata: ") is None
    assert parse(b"data:x:y") == Frame(b"", b"x:y", b"data:x:y\n\n")


def test_a_frame_past_the_limit_is_refused() -> None:
    frames = Frames(limit=20)
    assert [found.data for found in frames.feed(b"data: " + b"a" * 30 + b"\n\n")] == [b"a" * 30]
    assert frames.feed(b"data: " + b"a" * 14) == []
    with pytest.raises(FrameTooLarge, match="20 bytes"):
        frames.feed(b"a")


@pytest.mark.parametrize(
    ("run", "at", "found"),
    [
        (b"data: a\n\ndata: b\n\n", 0, (b"a", b"data: a\n\n", 9)),
        (b"data: a\n\ndata: b\n\n", 9, (b"b", b"data: b\n\n", 18)),
        (b"data:a\n\n", 0, (b"a", b"data:a\n\n", 8)),
        (b"event: x\ndata: a\n\n", 0, (b"a", b"event: x\ndata: a\n\n", 18)),
        (b"data: a\ndata: b\n\n", 0, (b"a\nb", b"data: a\ndata: b\n\n", 17)),
        (b"data: \n\ndata: b\n\n", 0, (b"", b"", 8)),
        (b": note\n\ndata: b\n\n", 0, (b"", b"", 8)),
        (b"data: a\n\n\ndata: b\n\n", 9, (b"b", b"data: b\n\n", 19)),
        (b"data: a\n\n\n", 9, (b"", b"", 10)),
    ],
)
def test_frames_of_a_run_are_found_where_they_begin(
    run: bytes, at: int, found: tuple[bytes, bytes, int]
) -> None:
    assert frame_at(run, at) == found


def test_what_is_written_is_read_back() -> None:
    assert parse(frame(b"{}")[:-2]) == Frame(b"", b"{}", b"data: {}\n\n")
    assert parse(frame(b"{}", b"ping")[:-2]) == Frame(b"ping", b"{}", b"event: ping\ndata: {}\n\n")
    assert Frames().feed(KEEP_ALIVE) == []
