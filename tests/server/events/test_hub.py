"""Tap and hub: rows and figures of all workers in bounded frames, whatever the load."""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import Any

import msgspec
import pytest

from routecodex.canon.errors import Overloaded
from routecodex.canon.events import Usage
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.server.events.frames import LARGEST_FRAME, RING_BYTES, TOPICS
from routecodex.server.events.hub import MOST_SUBSCRIBERS, EventHub
from routecodex.server.events.subscriber import Subscriber
from routecodex.server.events.tap import MOST_ROWS, EventTap, WorkerReport

ACTIVE: dict[RequestRecord, ClientRequest] = {}


def hello() -> dict[str, Any]:
    return {"server": "main", "version": "1", "ui": "2", "workers": 1}


def record(
    id: str = "req_1", *, status: int = 200, session: str = "session:s1", model: str = "m"
) -> RequestRecord:
    made = RequestRecord(id=id, protocol="chat", model=model, stream=True, arrived=time.monotonic() - 1)
    made.status, made.session = status, session
    made.first_byte = made.arrived + 0.25
    made.finished = made.arrived + 1
    made.usage = Usage(input=10, output=3)
    return made


async def events(subscriber: Subscriber) -> list[tuple[str, Any]]:
    """Return the events that wait in a queue."""
    subscriber.close()
    text = b""
    while data := await subscriber.next():
        text += data
    frames = [frame.decode().split("\n") for frame in text.split(b"\n\n") if frame]
    fields = [dict(line.split(": ", 1) for line in frame) for frame in frames]
    return [(one["event"], msgspec.json.decode(one["data"])) for one in fields]


async def test_rows_and_figures_of_two_workers_are_one_frame_each() -> None:
    hub = EventHub(hello)
    subscriber = hub.subscribe(TOPICS)
    for worker, status in (("0", 200), ("1", 500)):
        tap = EventTap(lambda: ACTIVE)
        tap.add(record(f"req_{worker}", status=status, session=f"session:s{worker}"))
        hub.take(worker, tap.collect())
    hub.flush_rows()
    hub.flush_second()
    (first, facts), (_, rows), (_, stats), (_, sessions) = await events(subscriber)
    assert (first, facts["server"], facts["resumed"]) == ("hello", "main", False)
    assert [row["request"] for row in rows["finished"]] == ["req_0", "req_1"]
    assert (rows["started"], rows["skipped"]) == ([], {"started": 0, "finished": 0})
    del stats["at"]
    assert stats == {
        "active": 0,
        "requests": 2,
        "errors": 1,
        "input_tokens": 20,
        "output_tokens": 6,
        "cost": 0.0,
        "first_byte_p50": 0.25,
        "first_byte_p95": 0.25,
    }
    assert sessions == {"changed": ["s0", "s1"]}


async def test_a_worker_that_is_gone_has_nothing_under_way() -> None:
    hub = EventHub(hello)
    subscriber = hub.subscribe(("stats",))
    hub.take("0", WorkerReport(active=2))
    hub.take("1", WorkerReport(active=3))
    hub.flush_second()
    hub.forget("1")
    hub.flush_second()
    hub.take("0", WorkerReport(active=0))
    hub.flush_second()
    hub.flush_second()
    assert [data["active"] for event, data in await events(subscriber) if event == "stats"] == [5, 2, 0]


async def test_rows_past_the_limit_are_counted() -> None:
    hub = EventHub(hello)
    subscriber = hub.subscribe(("requests",))
    for worker in ("0", "1"):
        tap = EventTap(lambda: ACTIVE)
        for n in range(130):
            tap.add(record(f"req_{worker}_{n}"))
        hub.take(worker, tap.collect())
    hub.flush_rows()
    (_, rows) = (await events(subscriber))[-1]
    assert len(rows["finished"]) == MOST_ROWS == 100
    assert rows["skipped"] == {"started": 0, "finished": 160}


async def test_a_frame_is_never_larger_than_its_limit() -> None:
    hub = EventHub(hello)
    subscriber = hub.subscribe(("requests",))
    tap = EventTap(lambda: ACTIVE)
    for n in range(80):
        long = record(f"req_{n}")
        long.notices = ("x" * 3000,)
        tap.add(long)
    huge = record("req_huge")
    huge.notices = ("x" * 200_000,)
    tap.add(huge)
    hub.take("0", tap.collect())
    hub.flush_rows()
    waiting = subscriber.waiting
    (_, rows) = (await events(subscriber))[-1]
    assert waiting <= LARGEST_FRAME + 400
    assert 0 < len(rows["finished"]) < 80
    assert len(rows["finished"]) + rows["skipped"]["finished"] == 81


async def test_the_number_of_subscribers_is_bounded() -> None:
    hub = EventHub(hello)
    streams = [hub.subscribe(TOPICS) for _ in range(MOST_SUBSCRIBERS)]
    assert MOST_SUBSCRIBERS == 20
    with pytest.raises(Overloaded) as refused:
        hub.subscribe(TOPICS)
    assert refused.value.code == "too_many_subscribers"
    hub.leave(streams[0])
    assert hub.subscribe(TOPICS) is not None


async def test_what_was_missed_comes_behind_hello() -> None:
    hub = EventHub(hello)
    hub.publish("config", {"n": 1})
    hub.publish("stats", {"n": 2})
    hub.publish("config", {"n": 3})
    resumed = hub.subscribe(("config",), f"{hub.boot}.1")
    (_, facts), *missed = await events(resumed)
    assert (facts["resumed"], facts["boot"]) == (True, hub.boot)
    assert missed == [("config", {"n": 3})]
    (_, facts), *missed = await events(hub.subscribe(("config",), "ffff.1"))
    assert (facts["resumed"], missed) == (False, [])


async def test_a_hundred_thousand_requests_do_not_grow_the_memory() -> None:
    hub = EventHub(hello)
    slow = hub.subscribe(TOPICS)
    tap = EventTap(lambda: ACTIVE)
    one = record()

    def pass_requests(count: int) -> None:
        for n in range(count):
            tap.add(one)
            if n % 500 == 0:
                hub.take("0", tap.collect())
                hub.flush_rows()
            if n % 2000 == 0:
                hub.flush_second()

    pass_requests(100_000)
    assert hub.ring_bytes <= RING_BYTES
    gc.collect()
    tracemalloc.start()
    try:
        pass_requests(100_000)
        gc.collect()
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Only what the hub has allocated, or C code for this test: other threads of the process allocate too.
    here = taken.filter_traces([tracemalloc.Filter(True, name) for name in ("*/routecodex/*", __file__)])
    assert RING_BYTES // 2 < sum(one.size for one in here.traces) < RING_BYTES + 1_000_000
    assert slow.waiting <= 512 * 1024
    (_, lag) = (await events(slow))[-1]
    assert lag["dropped"] > 100
