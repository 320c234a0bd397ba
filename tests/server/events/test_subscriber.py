"""The queue of one stream: order, topics, comments, lag, end."""

from __future__ import annotations

from routecodex.server.events.frames import COMMENT, LARGEST_FRAME, encode_frame
from routecodex.server.events.subscriber import QUEUE_BYTES, Subscriber

FRAME = b"x" * 10_000


async def test_frames_come_in_order_and_only_those_of_its_topics() -> None:
    subscriber = Subscriber(("stats",), (b"hello",))
    for topic, frame in (("stats", b"1"), ("health", b"2"), ("stats", b"3")):
        subscriber.offer(topic, frame)
    assert await subscriber.next() == b"hello13"


async def test_a_stream_that_is_closed_ends_behind_what_was_queued() -> None:
    subscriber = Subscriber(("stats",), (b"hello",))
    subscriber.close()
    assert [await subscriber.next(), await subscriber.next()] == [b"hello", b""]


async def test_silence_is_filled_with_comments() -> None:
    subscriber = Subscriber(("stats",), comment_seconds=0.01)
    assert [await subscriber.next(), await subscriber.next()] == [COMMENT, COMMENT]


async def test_what_is_sent_at_once_is_bounded() -> None:
    subscriber = Subscriber(("stats",))
    for _ in range(20):
        subscriber.offer("stats", FRAME)
    assert len(await subscriber.next()) <= LARGEST_FRAME


async def test_a_slow_reader_is_told_how_many_frames_it_missed() -> None:
    subscriber = Subscriber(("stats",))
    for _ in range(100):
        subscriber.offer("stats", FRAME)
        assert subscriber.waiting <= QUEUE_BYTES
    kept = QUEUE_BYTES // len(FRAME)
    received = b""
    while len(received) < kept * len(FRAME):
        received += await subscriber.next()
        # Nothing is queued between the frames that were kept and the notice of those that were not.
        subscriber.offer("stats", FRAME)
    chunks = -(-kept // (LARGEST_FRAME // len(FRAME)))
    assert received == FRAME * kept
    assert await subscriber.next() == encode_frame("lag", {"dropped": 100 - kept + chunks - 1}) + FRAME
    subscriber.offer("stats", b"after")
    assert await subscriber.next() == b"after"
