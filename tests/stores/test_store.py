"""The contract of a store: one suite for each implementation."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from routecodex.canon.store_url import parse_redis_url
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.redis.store import RedisStore
from routecodex.stores.store import Conflict, Store, Stored, StoreError
from tests.kit.redis_server import RedisServer, close_all, server_program


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 1_000_000.0
        self.redis: redis.Redis | None = None
        """A server whose values are moved with the clock, because its own clock cannot be."""

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, moment: float) -> None:
        if self.redis is not None:
            move_expiries(self.redis, moment - self._now)
        self._now = moment

    def __call__(self) -> float:
        return self._now

    def left(self, stored: Stored | None) -> float:
        """Return the seconds until a value expires."""
        assert stored is not None
        assert stored.expires is not None
        return stored.expires - (self._now if self.redis is None else time.time())


def move_expiries(client: redis.Redis, seconds: float) -> None:
    """Let all values expire so many seconds earlier."""
    names: Any = client.keys("*:x")
    for name in names:
        rows: Any = client.zrange(name, 0, -1, withscores=True)
        for key, expires in rows:
            moved = int(expires - seconds * 1000)
            value = name[:-1] + b"v:" + key
            client.zadd(name, {key: moved})
            client.hset(value, "x", str(moved))
            client.pexpireat(value, moved)


STORES: dict[str, Callable[[Path, Clock], Store]] = {
    "memory": lambda directory, clock: MemoryStore(clock=clock),
    "file": lambda directory, clock: FileStore(directory, clock=clock),
}
SERVERS = [name for name in ("redis-server", "valkey-server") if name == "redis-server" or shutil.which(name)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RedisServer]]:
    found: dict[str, RedisServer] = {}
    for name in SERVERS:
        program = server_program() if name == "redis-server" else shutil.which(name)
        found[name] = RedisServer(tmp_path_factory.mktemp(name), program=program)
    yield found
    close_all(found.values())


@pytest.fixture(params=[*STORES, *SERVERS])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, servers: dict[str, RedisServer]
) -> AsyncIterator[Store]:
    opened = make_store(request.param, tmp_path, clock, servers)
    yield opened
    await opened.close()
    if clock.redis is not None:
        clock.redis.close()


def make_store(name: str, directory: Path, clock: Clock, servers: dict[str, RedisServer]) -> Store:
    if name in STORES:
        return STORES[name](directory / "sessions", clock)
    clock.redis = servers[name].client()
    clock.redis.flushall()
    return RedisStore(RedisOptions(address=parse_redis_url(servers[name].url), timeout=10.0))


def add_one(value: bytes | None) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value or b"0", type=int) + 1)


async def test_a_missing_key_is_none_and_an_unused_space_is_empty(store: Store) -> None:
    assert await store.get("clock", "nobody") is None
    assert await store.keys("clock") == []
    assert await store.delete("clock", "nobody") is False
    assert await store.trim("clock", entries=0, size=0) == 0


async def test_what_was_put_is_got_byte_for_byte(store: Store) -> None:
    value = '{"b": [1, 2.50,\n null], "a":"\\u00e9 é 时钟"}'.encode()
    version = await store.put("clock", "one", value)
    assert await store.get("clock", "one") == Stored(value, version, None)


async def test_spaces_do_not_see_each_other(store: Store) -> None:
    await store.put("clock", "one", b"1")
    await store.put("sessions", "one", b"2")
    await store.delete("clock", "one")
    assert await store.get("clock", "one") is None
    assert await store.keys("sessions") == ["one"]


async def test_every_put_raises_the_version(store: Store) -> None:
    versions = [await store.put("clock", "one", b"1") for _ in range(3)]
    assert versions == sorted(set(versions))
    assert versions[0] > 0


async def test_a_put_with_the_stored_version_is_taken(store: Store) -> None:
    first = await store.put("clock", "one", b"1", expected=0)
    second = await store.put("clock", "one", b"2", expected=first)
    assert await store.get("clock", "one") == Stored(b"2", second, None)


@pytest.mark.parametrize("expected", [0, 99])
async def test_a_put_with_another_version_is_refused_and_changes_nothing(store: Store, expected: int) -> None:
    version = await store.put("clock", "one", b"1")
    with pytest.raises(Conflict, match="one"):
        await store.put("clock", "one", b"2", expected=expected)
    assert await store.get("clock", "one") == Stored(b"1", version, None)


async def test_a_put_that_expects_a_deleted_value_is_refused(store: Store) -> None:
    version = await store.put("clock", "one", b"1")
    await store.delete("clock", "one")
    with pytest.raises(Conflict):
        await store.put("clock", "one", b"2", expected=version)
    assert await store.get("clock", "one") is None


async def test_a_key_deleted_and_made_again_never_has_an_old_version(store: Store) -> None:
    old = await store.put("clock", "one", b"1")
    await store.delete("clock", "one")
    await store.put("clock", "one", b"2", expected=0)
    with pytest.raises(Conflict):
        await store.put("clock", "one", b"3", expected=old)


async def test_delete_says_whether_there_was_something(store: Store) -> None:
    await store.put("clock", "one", b"1")
    assert await store.delete("clock", "one") is True
    assert await store.delete("clock", "one") is False


async def test_an_expired_value_is_as_if_it_were_not_there(store: Store, clock: Clock) -> None:
    await store.put("clock", "short", b"1", ttl=10)
    await store.put("clock", "long", b"2", ttl=100)
    clock.now += 9.9
    assert await store.keys("clock") == ["short", "long"]
    clock.now += 0.1
    assert await store.get("clock", "short") is None
    assert await store.keys("clock") == ["long"]
    assert await store.delete("clock", "short") is False
    assert clock.left(await store.get("clock", "long")) == pytest.approx(90, abs=1)


async def test_an_expired_key_counts_as_new(store: Store, clock: Clock) -> None:
    old = await store.put("clock", "one", b"1", ttl=10)
    clock.now += 10
    assert await store.put("clock", "one", b"2", expected=0) > old


async def test_a_put_without_ttl_takes_the_expiry_away(store: Store, clock: Clock) -> None:
    await store.put("clock", "one", b"1", ttl=10)
    version = await store.put("clock", "one", b"2")
    clock.now += 1000
    assert await store.get("clock", "one") == Stored(b"2", version, None)


async def test_update_gets_the_value_and_writes_what_it_returns(store: Store) -> None:
    assert await store.update("clock", "count", add_one) == b"1"
    assert await store.update("clock", "count", add_one) == b"2"
    stored = await store.get("clock", "count")
    assert stored is not None
    assert stored.value == b"2"


async def test_update_raises_the_version_and_sets_the_expiry(store: Store, clock: Clock) -> None:
    version = await store.put("clock", "count", b"1")
    await store.update("clock", "count", add_one, ttl=5)
    stored = await store.get("clock", "count")
    assert stored is not None
    assert stored.version > version
    assert clock.left(stored) == pytest.approx(5, abs=1)


async def test_update_of_an_expired_value_starts_from_none(store: Store, clock: Clock) -> None:
    await store.put("clock", "count", b"41", ttl=1)
    clock.now += 1
    assert await store.update("clock", "count", add_one) == b"1"


async def test_update_to_none_deletes(store: Store) -> None:
    await store.put("clock", "one", b"1")
    assert await store.update("clock", "one", lambda value: None) is None
    assert await store.update("clock", "never", lambda value: None) is None
    assert await store.keys("clock") == []


async def test_what_the_change_raises_comes_out_and_nothing_is_changed(store: Store) -> None:
    def refuse(value: bytes | None) -> bytes:
        raise FileNotFoundError(value)

    version = await store.put("clock", "one", b"1")
    with pytest.raises(FileNotFoundError):
        await store.update("clock", "one", refuse)
    assert await store.get("clock", "one") == Stored(b"1", version, None)


async def test_concurrent_updates_are_all_counted(store: Store) -> None:
    await asyncio.gather(*(store.update("clock", "count", add_one) for _ in range(50)))
    stored = await store.get("clock", "count")
    assert stored is not None
    assert stored.value == b"50"


async def test_of_concurrent_puts_expecting_the_same_version_one_is_taken(store: Store) -> None:
    version = await store.put("clock", "one", b"0")
    puts = (store.put("clock", "one", b"1", expected=version) for _ in range(10))
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 9


async def test_keys_come_in_the_order_of_writing(store: Store) -> None:
    for key in ["c", "a", "b", "a"]:
        await store.put("clock", key, b"1")
    await store.update("clock", "c", add_one)
    assert await store.keys("clock") == ["b", "a", "c"]


async def test_all_values_are_read_in_the_order_of_writing(store: Store) -> None:
    for number, key in enumerate(["c", "a", "b", "a", "d"]):
        await store.put("clock", key, str(number).encode())
    await store.delete("clock", "b")
    found = await store.read_all("clock", most=10)
    assert [(key, stored.value) for key, stored in found] == [("c", b"0"), ("a", b"3"), ("d", b"4")]
    assert [key for key, _ in await store.read_all("clock", most=2)] == ["a", "d"]
    assert await store.read_all("empty", most=10) == []
    assert dict(found)["a"] == await store.get("clock", "a")


async def test_the_uptime_is_a_clock_that_only_goes_on(store: Store) -> None:
    await store.get("clock", "one")
    first = store.uptime()
    assert first.start
    await store.put("clock", "one", b"1")
    assert store.uptime().start == first.start
    assert store.uptime().ms >= first.ms


async def test_recent_keys_come_newest_first_and_in_pages(store: Store, clock: Clock) -> None:
    for key in ["c", "a", "b", "a", "d"]:
        await store.put("clock", key, b"1", ttl=10 if key == "b" else None)
    first = await store.recent("clock", limit=2)
    assert [key for _, key in first] == ["d", "a"]
    second = await store.recent("clock", limit=2, before=first[-1])
    assert [key for _, key in second] == ["b", "c"]
    assert await store.recent("clock", limit=2, before=second[-1]) == []
    clock.now += 100
    assert [key for _, key in await store.recent("clock", limit=9)] == ["d", "a", "c"]
    assert await store.recent("clock", limit=0) == []
    assert await store.recent("empty", limit=5) == []


async def test_trim_deletes_what_has_expired(store: Store, clock: Clock) -> None:
    await store.put("clock", "short", b"1", ttl=10)
    await store.put("clock", "long", b"1", ttl=1000)
    await store.put("clock", "forever", b"1")
    clock.now += 100
    assert await store.trim("clock", entries=10, size=10_000) == 1
    clock.now -= 100
    assert await store.keys("clock") == ["long", "forever"]


async def test_trim_deletes_the_oldest_past_the_number_of_entries(store: Store) -> None:
    for number in range(5):
        await store.put("clock", f"key-{number}", b"1")
    await store.put("clock", "key-0", b"2")
    assert await store.trim("clock", entries=2, size=10_000) == 3
    assert await store.keys("clock") == ["key-4", "key-0"]


async def test_trim_deletes_the_oldest_past_the_size(store: Store) -> None:
    for key in ["old", "middle", "new"]:
        await store.put("clock", key, msgspec.json.encode("x" * 10_000))
    assert await store.trim("clock", entries=10, size=25_000) == 1
    assert await store.keys("clock") == ["middle", "new"]
    assert await store.trim("clock", entries=10, size=100) == 2


async def test_trim_leaves_what_is_within_the_limits(store: Store) -> None:
    await store.put("clock", "one", b"1")
    assert await store.trim("clock", entries=1, size=10_000) == 0
    assert await store.keys("clock") == ["one"]


HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "..\\..\\windows",
    "nul\x00byte",
    "nul",
    "line\nbreak",
    "a/b",
    "a%2fb",
    "a:b",
    "a.b",
    "a_b",
    "a-b",
    "-rf",
    "~",
    "%",
    "case",
    "Case",
    "CASE",
    "é",
    "e\u0301",
    "时钟",
    "😀",
    ".lock",
    "ntp-state",
    "x" * 10_000,
    "x" * 9_999 + "y",
    "X" * 10_000,
]


async def test_hostile_keys_neither_collide_nor_change(store: Store) -> None:
    for number, key in enumerate(HOSTILE):
        await store.put("clock", key, msgspec.json.encode(number))
    for number, key in enumerate(HOSTILE):
        stored = await store.get("clock", key)
        assert stored is not None
        assert stored.value == msgspec.json.encode(number), key
    assert await store.keys("clock") == HOSTILE


@pytest.mark.parametrize(
    "value", [b"", b"nonsense", b'1,"key":"x"', b'{"a":', b'"\xff"', b"1 2", b"[" * 100_000]
)
async def test_a_value_that_is_not_json_is_refused_and_changes_nothing(store: Store, value: bytes) -> None:
    version = await store.put("clock", "one", b"1")
    with pytest.raises(StoreError, match="not JSON"):
        await store.put("clock", "one", value)
    with pytest.raises(StoreError, match="not JSON"):
        await store.update("clock", "one", lambda old: value)
    assert await store.get("clock", "one") == Stored(b"1", version, None)


async def test_a_key_that_is_not_unicode_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="Unicode"):
        await store.put("clock", "half \ud83d pair", b"1")
    with pytest.raises(StoreError, match="Unicode"):
        await store.get("clock", "half \ud83d pair")


@pytest.mark.parametrize("space", ["", "..", "a/b", "Clock", ".lock", "x" * 65])
async def test_a_space_that_could_not_be_a_directory_is_refused(store: Store, space: str) -> None:
    with pytest.raises(StoreError, match="is not a valid space"):
        await store.put(space, "one", b"1")


async def changes(store: Store, attempt: Awaitable[object]) -> bool:
    """Whether the stamp of the space is another one after the attempt, and of no other space."""
    before, other = store.stamp("clock"), store.stamp("sessions")
    await attempt
    assert store.stamp("sessions") == other
    return store.stamp("clock") != before


async def test_the_stamp_of_a_space_changes_with_every_write_and_deletion(store: Store) -> None:
    await store.put("sessions", "one", b"1")
    assert await changes(store, store.put("clock", "one", b"1"))
    assert await changes(store, store.put("clock", "one", b"1"))
    assert await changes(store, store.update("clock", "one", add_one))
    assert await changes(store, store.update("clock", "one", lambda value: None))
    await store.put("clock", "two", b"1")
    assert await changes(store, store.delete("clock", "two"))
    await store.put("clock", "three", b"1")
    assert await changes(store, store.trim("clock", entries=0, size=0))


async def test_the_stamp_of_a_space_stays_while_it_is_only_read(store: Store) -> None:
    await store.put("clock", "one", b"1")
    assert not await changes(store, store.get("clock", "one"))
    assert not await changes(store, store.keys("clock"))
    assert not await changes(store, store.delete("clock", "nobody"))


async def test_no_two_writes_in_a_row_leave_the_same_stamp(store: Store) -> None:
    stamps = [store.stamp("clock")]
    for number in range(100):
        await store.put("clock", f"key-{number % 3}", b"1")
        stamps.append(store.stamp("clock"))
    assert all(one != next_one for one, next_one in pairwise(stamps))


async def test_the_stamp_of_a_key_is_its_own(store: Store) -> None:
    assert await store.get("clock", "Ä/one") is None
    assert store.stamp_of("clock", "Ä/one") == 0
    await store.put("clock", "Ä/one", b"1")
    first = store.stamp_of("clock", "Ä/one")
    await store.put("clock", "x" * 10_000, b"1")
    assert store.stamp_of("clock", "Ä/one") == first
    await store.delete("clock", "Ä/one")
    assert store.stamp_of("clock", "Ä/one") == 0
    await store.put("clock", "Ä/one", b"1")
    assert len({0, first, store.stamp_of("clock", "Ä/one"), store.stamp_of("clock", "x" * 10_000)}) == 4


async def test_the_stamp_of_an_unused_space_is_zero(store: Store) -> None:
    assert await store.keys("clock") == []
    assert store.stamp("clock") == 0
    with pytest.raises(StoreError, match="is not a valid space"):
        store.stamp("Clock")
