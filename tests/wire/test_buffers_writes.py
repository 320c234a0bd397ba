"""Writes that leave together, and none of them late."""

from __future__ import annotations

import asyncio
from functools import partial

from routecodex.wire.buffers import WriteBatcher


async def test_what_is_due_in_one_turn_leaves_after_the_work_of_that_turn() -> None:
    loop, outbox, seen = asyncio.get_running_loop(), WriteBatcher(), list[str]()

    def work(name: str) -> None:
        seen.append(f"work {name}")
        outbox.add(partial(seen.append, f"write {name}"), loop)

    for name in "abc":
        loop.call_soon(work, name)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["work a", "work b", "work c", "write a", "write b", "write c"]


async def test_no_more_than_a_few_wait_for_each_other() -> None:
    outbox, seen = WriteBatcher(), list[int]()
    for number in range(18):
        outbox.add(partial(seen.append, number), asyncio.get_running_loop())
    assert seen == list(range(16))
    await asyncio.sleep(0)
    assert seen == list(range(18))


async def test_a_write_that_brings_another_one_about_does_not_lose_it() -> None:
    loop, outbox, seen = asyncio.get_running_loop(), WriteBatcher(), list[str]()

    def first() -> None:
        seen.append("first")
        outbox.add(partial(seen.append, "second"), loop)

    outbox.add(first, loop)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["first", "second"]
