"""Locks of keys: changes of one process wait for each other in their order."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.stores.redis.kept_values import KeyLocks


async def test_who_is_cancelled_in_the_moment_of_a_release_leaves_and_the_next_one_follows() -> None:
    locks = KeyLocks()
    await locks.hold("a")
    cancelled, following = (asyncio.ensure_future(locks.hold("a")) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    locks.release("a")
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await following
    locks.release("a")
    await locks.hold("a")
