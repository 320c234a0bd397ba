"""The recordings of a capture: bounded, exact about what is missing, and independent of how bytes came."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import UpstreamFailed
from routecodex.gateway.capture import (
    CaptureBudget,
    Recording,
    RequestCapture,
    current_capture,
    enter_capture,
    leave_capture,
    noting,
)
from routecodex.gateway.request import RequestRecord

ID = "req_" + "1" * 24


def capture(budget: CaptureBudget | None = None, *, max_body: int = 1024) -> RequestCapture:
    return RequestCapture(
        ID,
        method="POST",
        path=b"/v1/messages",
        headers={},
        body=b"{}",
        client_name="",
        owner="",
        max_body=max_body,
        budget=budget or CaptureBudget(1 << 20),
    )


def kept(recording: Recording) -> tuple[bytes, bytes, int]:
    first = b"".join(data for _, data in recording.first)
    last = b"".join(data for _, data in recording.last)
    return first, last, recording.missing


@given(st.binary(max_size=200), st.lists(st.integers(1, 60), max_size=40), st.integers(1, 150))
def test_what_is_kept_does_not_depend_on_the_pieces(data: bytes, sizes: list[int], limit: int) -> None:
    whole, parts = Recording(limit, CaptureBudget(1 << 20)), Recording(limit, CaptureBudget(1 << 20))
    if data:
        whole.add(0.0, data)
    left = data
    for size in [*sizes, len(data)]:
        piece, left = left[:size], left[size:]
        if piece:
            parts.add(0.0, piece)
    assert kept(parts) == kept(whole)
    first, last, missing = kept(parts)
    assert len(first) + len(last) + missing == len(data)
    assert data.startswith(first)
    assert data.endswith(last)
    assert missing == max(0, len(data) - limit)


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=30), st.integers(0, 3000))
def test_the_budget_is_never_exceeded_and_given_back_whole(pieces: list[bytes], size: int) -> None:
    budget = CaptureBudget(size)
    recording = Recording(1000, budget)
    for piece in pieces:
        recording.add(0.0, piece)
    first, last, missing = kept(recording)
    assert len(first) + len(last) + missing == sum(map(len, pieces))
    assert recording.taken <= size
    budget.release(recording.taken)
    assert budget.take(size)
    assert not budget.take(1)


def test_calls_past_the_most_are_counted() -> None:
    found = capture()
    made = [found.call(path=b"/", headers=b"", body=b"{}") for _ in range(40)]
    assert len([one for one in made if one is not None]) == len(found.calls) == 32
    assert found.calls_missing == 8


async def test_tasks_of_a_request_belong_to_its_capture_until_it_ends() -> None:
    found = capture()
    token = enter_capture(found)
    going = asyncio.Event()

    async def late() -> tuple[bool, bool]:
        early = current_capture() is found
        await going.wait()
        return early, current_capture() is None

    task = asyncio.create_task(late())
    await asyncio.sleep(0)
    leave_capture(found, token)
    going.set()
    assert await task == (True, True)
    assert current_capture() is None


def test_only_the_record_of_the_request_itself_makes_it_a_failed_one() -> None:
    found, seen = capture(), list[RequestRecord]()
    observe = noting(seen.append)

    def record(id: str) -> RequestRecord:
        made = RequestRecord(id=id, protocol="chat", model="m", stream=True, arrived=0.0)
        made.status, made.error = 200, UpstreamFailed("broke off")
        return made

    own, other = record(ID), record(f"{ID}:vision")
    token = enter_capture(found)
    observe(other)
    assert not found.failed
    observe(own)
    leave_capture(found, token)
    assert found.failed
    assert seen == [other, own]
