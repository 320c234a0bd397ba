"""Frames and the ring: ids, resuming, bounds."""

from __future__ import annotations

from routecodex.server.events.frames import TOPICS, EventRing, encode_frame


def test_a_frame_is_an_event_with_one_line_of_data() -> None:
    assert (
        encode_frame("stats", {"text": "a\nb"}, "b1.7")
        == b'id: b1.7\nevent: stats\ndata: {"text":"a\\nb"}\n\n'
    )
    assert encode_frame("lag", {"dropped": 1}) == b'event: lag\ndata: {"dropped":1}\n\n'


def test_frames_behind_an_id_are_those_of_the_chosen_topics() -> None:
    ring = EventRing()
    frames = [ring.add(topic, {"n": n}) for n, topic in enumerate(("stats", "health", "stats"))]
    boot = ring.boot
    assert ring.last_id == f"{boot}.3"
    assert ring.since(f"{boot}.0", TOPICS) == frames
    assert ring.since(f"{boot}.1", ("stats",)) == [frames[2]]
    assert ring.since(f"{boot}.3", TOPICS) == []


def test_ids_that_are_not_ours_are_not_resumed() -> None:
    ring = EventRing()
    ring.add("stats", {})
    boot = ring.boot
    for wrong in (
        "",
        "x",
        boot,
        f"{boot}.",
        f"{boot}.2",
        f"{boot}.-1",
        f"{boot}.1x",
        "ffff.0",
        f"{boot}.1\n",
    ):
        assert ring.since(wrong, TOPICS) is None, wrong
    assert EventRing().boot != boot


def test_the_ring_keeps_what_fits_and_knows_what_is_gone() -> None:
    ring = EventRing(max_bytes=1000)
    for n in range(100):
        ring.add("stats", {"n": n, "text": "x" * 50})
        assert ring.size <= 1000
    boot = ring.boot
    assert ring.since(f"{boot}.0", TOPICS) is None
    found = ring.since(f"{boot}.95", TOPICS)
    assert found is not None
    assert len(found) == 5
