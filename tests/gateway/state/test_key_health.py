"""Shared key health: in memory first, through the store to other processes and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.errors import (
    Overloaded,
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamUnknownModel,
)
from routecodex.gateway.records import KeyHealthRow
from routecodex.gateway.state import key_health as subject
from routecodex.gateway.state.key_health import MOST, SPACE, KeyHealth
from routecodex.routing.cooldown import DEFAULT, Cooldown
from routecodex.routing.registry import Selector, Target
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Change, Store, Stored, StoreError

TARGET = Target("glm", "primary", "glm-4.7")
SISTER = Target("glm", "primary", "glm-4.5-air")
OTHER_KEY = Target("glm", "backup", "glm-4.7")


class Clock:
    """Both clocks of a process; they only move when a test sets them."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Watched(MemoryStore):
    """A store that records its operations, and can be down or slow."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 1_000_000.0)
        self.down = False
        self.operations: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()

    async def _record(self, what: str) -> None:
        self.operations.append(what)
        await self.ready.wait()
        if self.down:
            raise StoreError("the disk is full")

    async def get(self, space: str, key: str) -> Stored | None:
        await self._record("get")
        return await super().get(space, key)

    async def keys(self, space: str) -> list[str]:
        await self._record("keys")
        return await super().keys(space)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        await self._record("trim")
        return await super().trim(space, entries=entries, size=size)

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        await self._record("update")
        return await super().update(space, key, change, ttl=ttl)

    async def check(self, space: str) -> None:
        await self._record("check")

    def stamp(self, space: str) -> int:
        self.operations.append("stamp")
        return super().stamp(space)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Watched:
    return Watched()


Start = Callable[[], KeyHealth]


@pytest.fixture
async def start(tmp_path: Path, clock: Clock) -> AsyncIterator[Start]:
    """Start one worker after the other, each with its own store on the same directory."""
    stores: list[FileStore] = []
    workers: list[KeyHealth] = []

    def one_more() -> KeyHealth:
        stores.append(FileStore(tmp_path / "sessions", clock=clock))
        workers.append(new_health(stores[-1], clock))
        return workers[-1]

    yield one_more
    for worker in workers:
        await worker.flush()
    for store in stores:
        await store.close()


def new_health(store: Store, clock: Clock) -> KeyHealth:
    return KeyHealth(store, clock=clock, monotonic=clock)


def limited(seconds: float = 60) -> UpstreamError:
    return UpstreamLimited("slow down", upstream_status=429, retry_after=seconds)


def refused() -> UpstreamError:
    return UpstreamRefusedKey("wrong key", upstream_status=401)


def spent() -> UpstreamError:
    return UpstreamLimited("nothing left", upstream_status=402, code="insufficient_quota")


def broken() -> UpstreamError:
    return UpstreamFailed("it broke", upstream_status=500)


def fail(health: KeyHealth, *, times: int) -> None:
    for _ in range(times):
        health.failed(TARGET, broken())


async def look(health: KeyHealth, clock: Clock) -> None:
    """Refresh health as a request does before it plans, a little later."""
    clock.now += 0.03
    if health.stale():
        await health.refresh()


def left(health: KeyHealth, clock: Clock, target: Target = TARGET) -> float:
    return max(0.0, health.until(target, clock.now) - clock.now)


async def tries(health: KeyHealth, clock: Clock, target: Target = TARGET) -> bool:
    """Return whether a request may be sent to the target now."""
    return health.is_usable(target, clock.now) or await health.probe(target, clock.now)


async def test_healthy_keys_need_no_call_to_the_store(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    health.succeeded(TARGET)
    health.release(TARGET)
    assert health.is_usable(TARGET, clock.now)
    assert health.until(TARGET, clock.now) == 0.0
    assert health.why(TARGET, clock.now) == ""
    await health.flush()
    assert store.operations == []


async def test_a_failure_counts_at_once_and_is_saved_in_the_background(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    health.failed(TARGET, limited())
    assert left(health, clock) == left(health, clock, SISTER) == 60
    assert left(health, clock, OTHER_KEY) == 0
    assert store.operations == []
    await health.flush()
    stored = await store.get(SPACE, "glm.primary")
    assert stored is not None
    assert msgspec.json.decode(stored.value, type=dict[str, Cooldown]) == {
        "": Cooldown(
            reason="limited", noted=clock.now, until=clock.now + 60, strikes=1, error="slow down", status=429
        )
    }


async def test_many_failures_make_few_writes(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    for _ in range(500):
        health.failed(TARGET, limited())
        health.failed(OTHER_KEY, limited())
    await health.flush()
    assert store.operations == ["update", "update"]


async def test_workers_share_cooldowns(start: Start, clock: Clock) -> None:
    one, two = start(), start()
    await one.load()
    await two.load()
    one.failed(TARGET, limited())
    await one.flush()
    assert left(two, clock) == 0
    await look(two, clock)
    assert left(two, clock) == pytest.approx(59.97)
    two.failed(OTHER_KEY, limited(30))
    await two.flush()
    await look(one, clock)
    assert [row.name for row in one.report(clock.now)] == ["glm.backup", "glm.primary"]


async def test_a_success_lifts_the_cooldown_for_all_workers(start: Start, clock: Clock) -> None:
    one, two = start(), start()
    one.failed(TARGET, limited())
    await one.flush()
    await look(two, clock)
    clock.now += 61
    two.succeeded(TARGET)
    await two.flush()
    await look(one, clock)
    one.failed(TARGET, UpstreamLimited("slow down", upstream_status=429))
    assert left(one, clock) == 3


async def test_failures_of_several_workers_add_up(start: Start, clock: Clock) -> None:
    workers = [start(), start(), start()]
    for worker in workers:
        fail(worker, times=1)
    await asyncio.gather(*(worker.flush() for worker in workers))
    for worker in workers:
        await look(worker, clock)
        assert left(worker, clock) == pytest.approx(5, abs=0.1)


async def test_a_cooldown_survives_a_restart(start: Start, clock: Clock) -> None:
    before = start()
    before.failed(TARGET, limited(600))
    before.failed(OTHER_KEY, refused())
    fail(before, times=3)
    await before.flush()
    clock.now += 60
    after = start()
    await after.load()
    assert left(after, clock) == 540
    assert left(after, clock, OTHER_KEY) == 540
    assert after.report(clock.now) == before.report(clock.now)


async def test_an_unused_cooldown_expires_but_a_rejected_key_does_not(start: Start, clock: Clock) -> None:
    before = start()
    before.failed(TARGET, limited())
    before.failed(OTHER_KEY, refused())
    await before.flush()
    clock.now += 7 * 86_400
    after = start()
    await after.load()
    assert [(row.name, row.state, row.seconds) for row in after.report(clock.now)] == [
        ("glm.backup", "refused", 0.0)
    ]


@pytest.mark.parametrize("error", [refused(), limited(1), broken(), spent()], ids=str)
async def test_a_scripted_failure_has_a_short_cooldown(
    store: Watched, clock: Clock, error: UpstreamError
) -> None:
    health = new_health(store, clock)
    health.scripted = frozenset({TARGET.provider})
    for _ in range(5):
        health.failed(TARGET, error)
    assert 0 < left(health, clock) <= 1
    clock.now += 1
    assert await tries(health, clock, TARGET)


async def test_a_half_open_breaker_lets_one_probe_through(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    fail(health, times=3)
    assert not await tries(health, clock, TARGET)
    clock.now += 5
    assert left(health, clock) == 0
    assert await tries(health, clock, TARGET)
    assert left(health, clock) == 1
    assert "probed" in health.why(TARGET, clock.now)
    assert not await tries(health, clock, TARGET)
    assert await tries(health, clock, SISTER)
    fail(health, times=1)
    assert left(health, clock) == 10
    clock.now += 10
    assert await tries(health, clock, TARGET)
    health.succeeded(TARGET)
    assert await tries(health, clock, TARGET)
    assert await tries(health, clock, TARGET)
    await health.flush()


async def test_a_probe_that_ends_without_an_outcome_is_given_to_the_next(
    store: Watched, clock: Clock
) -> None:
    health = new_health(store, clock)
    fail(health, times=3)
    clock.now += 5
    assert await tries(health, clock, TARGET)
    health.release(TARGET)
    assert await tries(health, clock, TARGET)
    health.failed(TARGET, UpstreamRejected("no", upstream_status=400))
    assert await tries(health, clock, TARGET)
    clock.now += 301
    assert await tries(health, clock, TARGET), "a probe without an outcome"
    await health.flush()


async def test_a_refused_key_is_probed_by_one_request_every_ten_minutes(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    health.failed(TARGET, refused())
    clock.now += 599
    assert not await tries(health, clock, SISTER)
    clock.now += 1
    assert await tries(health, clock, TARGET)
    assert not await tries(health, clock, SISTER)
    health.failed(TARGET, refused())
    assert left(health, clock) == 600
    await health.flush()


async def test_an_answer_to_an_earlier_request_does_not_end_the_cooldown(
    store: Watched, clock: Clock
) -> None:
    health = new_health(store, clock)
    health.failed(TARGET, limited())
    health.succeeded(TARGET, began=clock.now - 1)
    assert left(health, clock) == 60
    health.succeeded(TARGET)
    assert left(health, clock) == 0
    await health.flush()
    assert await store.keys(SPACE) == []


async def test_a_success_does_not_end_a_later_cooldown_of_another_worker(
    store: Watched, clock: Clock
) -> None:
    one, two = new_health(store, clock), new_health(store, clock)
    one.failed(TARGET, limited())
    await one.flush()
    await look(two, clock)
    clock.now += 1
    one.failed(TARGET, limited(90))
    await one.flush()
    clock.now -= 0.5
    two.succeeded(TARGET)
    assert left(two, clock) == 0
    await two.flush()
    assert left(one, clock) == left(two, clock) == 90.5


async def test_the_store_is_read_every_20_ms_at_most(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    await health.load()
    store.operations.clear()
    clock.now += 1
    assert [health.stale() for _ in range(100)] == [False] * 100
    assert store.operations == ["stamp"]
    await store.put(SPACE, "glm.primary", b"{}")
    assert not health.stale()
    clock.now += 0.02
    assert health.stale()


async def test_every_request_waits_for_the_read_of_a_change_and_it_is_read_once(
    store: Watched, clock: Clock
) -> None:
    here, there = new_health(store, clock), new_health(store, clock)
    await here.load()
    there.failed(TARGET, limited())
    await there.flush()
    store.operations.clear()
    store.ready.clear()
    clock.now += 0.02
    assert [here.stale() for _ in range(5)] == [True] * 5
    waiting = [asyncio.ensure_future(here.refresh()) for _ in range(5)]
    clock.now += 0.02
    assert here.stale(), "it is still being read"
    store.ready.set()
    await asyncio.gather(*waiting)
    assert store.operations == ["stamp", "stamp", "stamp", "keys", "get"]
    assert left(here, clock) == pytest.approx(59.96)
    assert not here.stale()


async def test_requests_do_not_wait_again_for_a_read_that_is_late(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    await health.load()
    await store.put(SPACE, "glm.primary", b"{}")
    store.ready.clear()
    clock.now += 0.02
    assert health.stale()
    await health.refresh()
    for _ in range(3):
        clock.now += 0.02
        assert not health.stale()
    store.ready.set()
    await health.flush()
    clock.now += 0.02
    assert not health.stale(), "it was read in the end"


class LateAnswers(Watched):
    """A store that reads at once and hands out what it read later."""

    def __init__(self) -> None:
        super().__init__()
        self.handed_out = asyncio.Event()

    async def get(self, space: str, key: str) -> Stored | None:
        found = await super().get(space, key)
        await self.handed_out.wait()
        return found


async def test_a_probe_goes_by_what_was_saved_before_it_was_granted(clock: Clock) -> None:
    """A read that began before the last change does not count."""
    store = LateAnswers()
    here, there = new_health(store, clock), new_health(store, clock)
    fail(here, times=3)
    await here.flush()
    store.handed_out.set()
    await there.load()
    store.handed_out.clear()
    clock.now += 5
    store.operations.clear()
    early = asyncio.ensure_future(there.refresh())
    while "get" not in store.operations:
        await asyncio.sleep(0)
    await store.delete(SPACE, "glm.primary")
    probe = asyncio.ensure_future(there.probe(TARGET, clock.now))
    while "update" not in store.operations:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    store.handed_out.set()
    assert await probe
    assert there.quiet
    await early
    await there.flush()


@pytest.mark.parametrize("how", ["by the next request", "when the store is back"])
async def test_changes_during_a_store_outage_are_saved_later(store: Watched, clock: Clock, how: str) -> None:
    health = new_health(store, clock)
    store.down = True
    await health.load()
    await health.refresh()
    for _ in range(3):
        health.failed(TARGET, limited())
        await health.flush()
    assert left(health, clock) == 60
    store.down = False
    clock.now += 0.02
    if how == "by the next request":
        health.stale()
    else:
        health.save_unsaved()
    await asyncio.sleep(0)
    await health.flush()
    other = new_health(store, clock)
    await other.load()
    assert left(other, clock) == left(health, clock) == pytest.approx(59.98)


async def test_a_slow_store_does_not_delay_requests(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    store.ready.clear()
    await health.refresh()
    health.failed(TARGET, limited())
    assert left(health, clock) == 60
    clock.now += 1
    assert not health.stale()
    store.ready.set()
    await health.flush()
    assert await store.keys(SPACE) == ["glm.primary"]
    assert left(health, clock) == 59


ODD: dict[str, Any] = {
    "another shape": [1, 2],
    "another type": {"": {"reason": "limited", "noted": "now"}},
    "another reason": {"": {"reason": "tired", "noted": 1}},
    "no strikes": {"": {"reason": "limited", "noted": 1, "strikes": 0}},
    "null": None,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
async def test_an_invalid_value_is_ignored_logged_once_and_overwritten(
    store: Watched, clock: Clock, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    await store.put(SPACE, "glm.primary", msgspec.json.encode(value))
    await store.put(SPACE, "nodots", b"{}")
    health = new_health(store, clock)
    await health.load()
    await health.refresh()
    assert health.report(clock.now) == []
    assert ["is ignored" in message for message in caplog.messages] == [True, True]
    health.failed(TARGET, limited())
    await health.flush()
    await health.refresh()
    assert left(health, clock) == 60


async def test_a_time_in_the_store_is_capped(store: Watched, clock: Clock) -> None:
    record = {"": Cooldown(reason="limited", noted=clock.now, until=1e300)}
    await store.put(SPACE, "glm.primary", msgspec.json.encode(record))
    health = new_health(store, clock)
    await health.load()
    assert left(health, clock) == 900


async def test_an_unknown_model_is_remembered_until_the_configuration_changes(
    start: Start, clock: Clock
) -> None:
    one, two = start(), start()
    one.failed(TARGET, UpstreamUnknownModel("no such model", upstream_status=404))
    await one.flush()
    clock.now += 2 * 86_400
    await look(two, clock)
    error = two.unusable_key(TARGET, clock.now)
    assert isinstance(error, UpstreamUnknownModel)
    assert error.details == {"provider": "glm", "key": "primary", "upstream_status": 404}
    await two.reset_refused_keys()
    assert two.unusable_key(TARGET, clock.now) is None


async def test_an_operator_resets_named_keys_for_all_workers(start: Start, clock: Clock) -> None:
    one, two = start(), start()
    one.failed(TARGET, limited())
    fail(one, times=3)
    one.failed(OTHER_KEY, refused())
    await one.flush()
    assert await two.reset(Selector("glm", "primary")) == 2
    await look(one, clock)
    assert [row.name for row in one.report(clock.now)] == ["glm.backup"]
    assert await two.reset(Selector("openai")) == 0
    assert await two.reset() == 1
    await look(one, clock)
    assert one.report(clock.now) == []
    assert left(two, clock) == left(two, clock, OTHER_KEY) == 0


async def test_a_reset_during_a_store_outage_is_refused_and_changes_nothing(
    store: Watched, clock: Clock
) -> None:
    health = new_health(store, clock)
    health.failed(TARGET, limited())
    await health.flush()
    store.down = True
    with pytest.raises(Overloaded) as refusal:
        await health.reset()
    assert (refusal.value.status, refusal.value.code) == (503, "state_not_saved")
    assert left(health, clock) == 60
    store.down = False
    assert await health.reset() == 1
    assert left(health, clock) == 0
    assert await store.keys(SPACE) == []


async def test_a_new_configuration_resets_rejected_keys(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    health.failed(TARGET, refused())
    health.failed(OTHER_KEY, limited())
    await health.reset_refused_keys()
    assert left(health, clock) == 0
    assert left(health, clock, OTHER_KEY) == 60
    assert await store.keys(SPACE) == ["glm.backup"]


async def test_the_report_has_a_row_for_each_unhealthy_key(store: Watched, clock: Clock) -> None:
    health = new_health(store, clock)
    fail(health, times=3)
    clock.now += 10
    health.failed(TARGET, limited())
    health.failed(OTHER_KEY, refused())
    health.failed(Target("openai", "key1", "gpt-5"), broken())
    now = clock.now
    assert health.report(now) == [
        KeyHealthRow(
            name="glm.backup",
            state="refused",
            seconds=600,
            until=now + 600,
            reason="key refused",
            strikes=1,
            error="wrong key",
            status=401,
        ),
        KeyHealthRow(
            name="glm.primary",
            state="cooling",
            seconds=60,
            until=now + 60,
            reason="limited",
            strikes=1,
            error="slow down",
            status=429,
        ),
        KeyHealthRow(
            name="glm.primary.glm-4.7",
            state="half-open",
            seconds=0,
            until=now - 5,
            reason="failing",
            strikes=3,
            error="it broke",
            status=500,
        ),
    ]
    await health.flush()


async def test_memory_is_bounded(store: Watched, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST > 1000
    monkeypatch.setattr(subject, "MOST", 10)
    health = new_health(store, clock)
    store.ready.clear()
    for number in range(50):
        clock.now += 0.001
        health.failed(Target("glm", f"key{number}", "glm-4.7"), limited())
    assert len(health.report(clock.now)) == 10
    assert left(health, clock, Target("glm", "key49", "glm-4.7")) > 0
    store.ready.set()
    await health.flush()
    await health.load()
    assert len(health.report(clock.now)) == 10
    assert len(await store.keys(SPACE)) == 10


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1]),
        st.sampled_from(["limited", "refused", "broken", "succeeded", "look", "reset"]),
        st.sampled_from([TARGET, SISTER, OTHER_KEY]),
        st.floats(-100, 1000),
    ),
    max_size=30,
)
ERRORS = {"limited": limited, "refused": refused, "broken": broken}


@given(STEPS)
def test_two_workers_agree_after_any_sequence_of_events(
    steps: list[tuple[int, str, Target, float]],
) -> None:
    async def run() -> None:
        clock = Clock()
        store = MemoryStore(clock=lambda: 0.0)
        # The wall clock may be set back, the monotonic one never.
        ticks = count(step=1.0).__next__
        workers = [KeyHealth(store, clock=clock, monotonic=ticks) for _ in range(2)]
        for number, what, target, pause in steps:
            clock.now += pause
            worker = workers[number]
            if what in ERRORS:
                worker.failed(target, ERRORS[what]())
            elif what == "succeeded":
                worker.succeeded(target)
                assert worker.until(target, clock.now) == 0.0
            elif what == "reset":
                await worker.reset(Selector(target.provider, target.key))
                assert worker.until(target, clock.now) == 0.0
            else:
                await look(worker, clock)
            assert worker.until(target, clock.now) <= clock.now + DEFAULT.quota_max
        for worker in workers:
            await worker.flush()
        for worker in workers:
            await look(worker, clock)
        assert workers[0].report(clock.now) == workers[1].report(clock.now)

    asyncio.run(run())
