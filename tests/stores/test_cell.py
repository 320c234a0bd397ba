"""Values behind a cache: what is read and written, damage, outages; run over each store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Store, Stored, StoreError
from tests.stores.test_store import STORES, Clock

SPACE = "numbers"


def numbers(*, guarded: bool = False) -> CellFormat[int]:
    return CellFormat(
        space=SPACE,
        empty=lambda key: 0,
        encode=lambda key, number: msgspec.json.encode(number),
        decode=lambda key, raw: msgspec.json.decode(raw, type=int),
        noun="a number",
        outage="numbers cannot be read",
        log=logging.getLogger("test.numbers"),
        guarded=guarded,
    )


NUMBERS = numbers()


class Recorder:
    """A store that records its calls, and fails on demand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.is_down = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        if name in ("stamp", "close"):
            return call
        if name == "stamp_of":
            self.calls.append(name)
            return (lambda *args: -len(self.calls)) if self.is_down else call

        async def recorded(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            if self.is_down:
                raise StoreError("the disk is on fire")
            return await call(*args, **options)

        return recorded


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Recorder]:
    opened = STORES[request.param](tmp_path, clock)
    yield Recorder(opened)
    await opened.close()


Open = Callable[..., Cell[int]]


@pytest.fixture
def open_cell(store: Recorder, clock: Clock) -> Open:
    def make(
        *, cached: int = 10, ttl: float | None = None, recheck: float = 0, guarded: bool = False
    ) -> Cell[int]:
        return Cell(store, numbers(guarded=guarded), cached=cached, ttl=ttl, recheck=recheck, clock=clock)

    return make


@pytest.fixture
def cell(open_cell: Open) -> Cell[int]:
    return open_cell()


def put(number: int) -> Callable[[int], tuple[int, int]]:
    return lambda before: (number, before)


def add_one(number: int) -> tuple[int, int]:
    return number + 1, number + 1


async def stored(store: Recorder, space: str) -> dict[str, bytes]:
    values: dict[str, bytes] = {}
    for key in await store.store.keys(space):
        found = await store.store.get(space, key)
        assert found is not None
        values[key] = found.value
    return values


async def test_an_absent_value_is_empty_without_io(cell: Cell[int], store: Recorder) -> None:
    assert cell.peek("a") == 0
    assert await cell.load("a") == 0
    assert set(store.calls) == {"stamp_of"}


async def test_a_cached_value_needs_no_io(cell: Cell[int], store: Recorder) -> None:
    assert await cell.edit("a", put(7)) == 0
    assert cell.peek("a") is None, "another process may have written since"
    assert await cell.load("a") == 7
    store.calls.clear()
    assert (cell.peek("a"), await cell.load("a")) == (7, 7)
    assert store.calls == ["stamp_of", "stamp_of"]


async def test_a_change_by_another_process_is_seen(open_cell: Open) -> None:
    here, there = open_cell(), open_cell()
    await here.edit("a", put(1))
    assert await here.load("a") == 1
    await there.edit("a", put(2))
    assert here.peek("a") is None
    assert await here.load("a") == 2
    await there.edit("a", put(0))
    assert here.peek("a") is None
    assert (await here.load("a"), here.peek("a")) == (0, 0)


async def test_a_write_between_stamp_and_read_is_not_missed(open_cell: Open) -> None:
    writer, reader = open_cell(), open_cell()
    await writer.edit("a", put(1))
    *found, _ = await asyncio.gather(*(reader.load("a") for _ in range(20)), writer.edit("a", put(2)))
    assert set(found) <= {1, 2}
    assert await reader.load("a") == 2


async def test_a_value_that_appears_while_it_is_read_can_disappear_again(clock: Clock) -> None:
    class Late(MemoryStore):
        async def get(self, space: str, key: str) -> Stored | None:
            await self.put(space, key, b"5")
            return await super().get(space, key)

    store = Late(clock=clock)
    cell = Cell(store, NUMBERS, cached=1, ttl=None, recheck=0.01)
    assert await cell.load("a") == 5
    await store.delete(SPACE, "a")
    assert cell.peek("a") is None


async def test_edits_at_the_same_time_lose_nothing(open_cell: Open) -> None:
    cells = [open_cell(), open_cell()]
    results = await asyncio.gather(*(cells[n % 2].edit("a", add_one) for n in range(40)))
    assert sorted(results) == list(range(1, 41))
    assert await cells[0].load("a") == 40


async def test_an_edit_that_changes_nothing_writes_nothing(cell: Cell[int], store: Recorder) -> None:
    await cell.edit("a", put(3))
    stamp = store.store.stamp_of(SPACE, "a")
    assert await cell.edit("a", put(3)) == 3
    assert await cell.edit("b", put(0)) == 0
    assert store.store.stamp_of(SPACE, "a") == stamp
    assert await stored(store, SPACE) == {"a": b"3"}


async def test_an_empty_value_is_deleted(cell: Cell[int], store: Recorder) -> None:
    await cell.edit("a", put(3))
    await store.put(SPACE, "b", b"0")
    for key in "ab":
        await cell.edit(key, put(0))
    assert await stored(store, SPACE) == {}


async def test_an_exception_of_the_change_is_raised_and_nothing_changes(cell: Cell[int]) -> None:
    await cell.edit("a", put(3))
    with pytest.raises(ZeroDivisionError):
        await cell.edit("a", lambda number: (1 // 0, number))
    assert await cell.load("a") == 3


@pytest.mark.parametrize("use", ["load", "read", "edit"])
async def test_a_corrupt_value_is_set_aside_once(
    cell: Cell[int], store: Recorder, caplog: pytest.LogCaptureFixture, use: str
) -> None:
    await store.put(SPACE, "a", b'"x"')
    if use == "edit":
        assert await cell.edit("a", add_one) == 1
    else:
        assert [await getattr(cell, use)("a") for _ in range(3)] == [0, 0, 0]
    assert await stored(store, SPACE) == ({"a": b"1"} if use == "edit" else {})
    ((name, kept),) = (await stored(store, f"{SPACE}.corrupt")).items()
    assert (name[:2], kept) == ("a#", b'"x"')
    assert caplog.messages == ["numbers/'a' is not a number; set aside in numbers.corrupt"]


async def test_every_corrupt_value_of_a_key_is_kept(cell: Cell[int], store: Recorder) -> None:
    for raw in (b"[1]", b"[2]", b"[1]"):
        await store.put(SPACE, "a", raw)
        assert await cell.load("a") == 0
    assert sorted((await stored(store, f"{SPACE}.corrupt")).values()) == [b"[1]", b"[2]"]


@pytest.mark.parametrize("recheck", [0, 0.001])
async def test_an_outage_keeps_the_last_known_value(
    open_cell: Open, store: Recorder, caplog: pytest.LogCaptureFixture, recheck: float
) -> None:
    cell = open_cell(recheck=recheck)
    await cell.edit("edited", put(1))
    await cell.edit("loaded", put(2))
    assert await cell.load("loaded") == 2
    for unknown in ("new", "newer"):
        store.is_down = True
        await asyncio.sleep(2 * recheck)
        for _ in range(3):
            assert [await cell.load(key) for key in ("edited", "loaded", unknown)] == [1, 2, 0]
            assert [await cell.find(key) for key in ("edited", "loaded", unknown)] == [1, 2, None]
            with pytest.raises(StoreError):
                await cell.edit("loaded", add_one)
            with pytest.raises(StoreError):
                await cell.read("loaded")
        store.is_down = False
        assert [await cell.load(key) for key in ("edited", "loaded", unknown)] == [1, 2, 0]
    assert caplog.messages == [], "the store itself says that it is down"


WRITTEN_BACK = "numbers/'a' was damaged: the last known value stays and was written back"


@pytest.mark.parametrize("use", ["load", "read", "edit"])
async def test_the_last_known_value_takes_the_place_of_a_corrupt_one(
    open_cell: Open, store: Recorder, caplog: pytest.LogCaptureFixture, use: str
) -> None:
    cell, other = open_cell(guarded=True), open_cell(guarded=True)
    await cell.edit("a", put(7))
    await store.put(SPACE, "a", b'"x"')
    assert [await other.load("a") for _ in range(3)] == [0, 0, 0]
    assert await stored(store, SPACE) == {"a": b'"x"'}, "the other one does not know what it was"
    if use == "edit":
        assert await cell.edit("a", add_one) == 8
    else:
        assert [await getattr(cell, use)("a") for _ in range(2)] == [7, 7]
    value = 8 if use == "edit" else 7
    assert await other.load("a") == value
    assert await stored(store, SPACE) == {"a": b"%d" % value}
    assert list((await stored(store, f"{SPACE}.corrupt")).values()) == [b'"x"']
    assert caplog.messages == [
        "numbers/'a' is damaged and not used: it is not a number",
        "numbers/'a' is not a number; set aside in numbers.corrupt",
        WRITTEN_BACK,
    ]


@pytest.mark.parametrize("guarded", [False, True])
async def test_the_last_known_value_takes_the_place_of_a_damaged_file(
    tmp_path: Path, guarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path)
    cell = Cell(store, numbers(guarded=guarded), cached=10, ttl=None)
    other = Cell(store, numbers(guarded=guarded), cached=10, ttl=None)
    await cell.edit("a", put(7))
    file = tmp_path / SPACE / "a.json"
    file.write_bytes(b"{")
    if guarded:
        assert await other.load("a") == 0
    assert await cell.load("a") == 7
    assert await other.load("a") == 7
    assert file.with_name("a.json.corrupt-1").read_bytes() == b"{"
    assert caplog.messages[-1] == WRITTEN_BACK
    await store.close()


async def test_a_damaged_file_that_nobody_knows_is_replaced_by_the_next_edit(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    cell = Cell(store, numbers(guarded=True), cached=10, ttl=None)
    file = tmp_path / SPACE / "a.json"
    file.parent.mkdir()
    file.write_bytes(b"{")
    assert [await cell.load("a") for _ in range(2)] == [0, 0]
    assert file.read_bytes() == b"{"
    assert await cell.edit("a", put(3)) == 0
    assert await cell.load("a") == 3
    assert file.with_name("a.json.corrupt-1").read_bytes() == b"{"
    await store.close()


async def test_values_expire_after_their_last_write(open_cell: Open, clock: Clock) -> None:
    cell = open_cell(ttl=60)
    await cell.edit("a", put(1))
    clock.now += 59
    await cell.edit("a", put(2))
    clock.now += 59
    assert (await cell.load("a"), cell.peek("a")) == (2, 2)
    clock.now += 1
    assert cell.peek("a") is None
    assert await cell.load("a") == 0


async def test_the_least_recently_used_value_leaves_the_cache_first(open_cell: Open) -> None:
    cell = open_cell(cached=2)
    for key in "abc":
        await cell.edit(key, put(1))
    for key in "abac":
        await cell.load(key)
    assert [cell.peek(key) for key in "abc"] == [1, None, 1]


async def test_only_so_many_bytes_are_kept_in_memory(store: Recorder) -> None:
    cell = Cell(store, NUMBERS, cached=10, cached_bytes=6, ttl=None)
    for key, number in (("a", 11), ("b", 22), ("a", 333), ("c", 444)):
        await cell.edit(key, put(number))
        await cell.load(key)
    store.calls.clear()
    assert [await cell.load(key) for key in ("a", "c", "b")] == [333, 444, 22]
    assert [name for name in store.calls if name != "stamp_of"] == ["get_intact"]


async def test_a_stamp_is_compared_only_once_per_recheck(open_cell: Open, store: Recorder) -> None:
    here, there = open_cell(recheck=0.05), open_cell()
    assert here.peek("a") is None, "absent or down: only a read can tell"
    assert (await here.load("a"), here.peek("a")) == (0, 0)
    store.calls.clear()
    assert [here.peek("a") for _ in range(100)] == [0] * 100
    assert len(store.calls) < 100
    await there.edit("a", put(1))
    await asyncio.sleep(0.06)
    assert here.peek("a") is None
    assert await here.load("a") == 1
    assert await here.edit("a", put(2)) == 1
    assert here.peek("a") is None, "its own change is seen at once"


async def test_values_outlive_the_store(tmp_path: Path) -> None:
    first = FileStore(tmp_path)
    await Cell(first, NUMBERS, cached=1, ttl=None).edit("a", put(4))
    await first.close()
    second = FileStore(tmp_path)
    assert await Cell(second, NUMBERS, cached=1, ttl=None).load("a") == 4
    await second.close()
