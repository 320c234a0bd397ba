"""The files of a file store: their format, and failures."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.stores import file_format
from routecodex.stores.file import BATCH_SIZE, FileStore, SpaceWriter
from routecodex.stores.folder import Folder
from routecodex.stores.store import CallRefused, Conflict, Place, Stored, StoreError
from tests.stores.child import add_one

CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "home" / "sessions"


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[FileStore]:
    opened = FileStore(directory)
    yield opened
    await opened.close()


async def start(command: str, directory: Path) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, CHILD, command, directory, stdout=PIPE)


async def finish(process: Process) -> None:
    assert await process.wait() == 0


def report(command: str, directory: Path, *, prefix: tuple[str, ...] = ()) -> Any:
    ran = subprocess.run(
        [*prefix, sys.executable, CHILD, command, directory], check=True, capture_output=True
    )
    return json.loads(ran.stdout)


@contextmanager
def locked(space: Path) -> Iterator[None]:
    """The space as it is while another process writes."""
    with open(space / ".lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def test_a_file_is_an_envelope_a_person_can_read(store: FileStore, directory: Path) -> None:
    await store.put("clock", "Session/1", b'{"tasks": []}')
    text = (directory / "clock" / "%53ession%2f1.json").read_text()
    assert text == (
        '{\n  "version": 1,\n  "expires": null,\n  "key": "Session/1",\n  "value": {"tasks": []}\n}\n'
    )


async def test_the_expiry_stands_in_the_envelope(directory: Path) -> None:
    store = FileStore(directory, clock=lambda: 1000.5)
    await store.put("clock", "one", b"1", ttl=60)
    content = json.loads((directory / "clock" / "one.json").read_text())
    assert content == {"version": 1, "expires": 1060.5, "key": "one", "value": 1}
    await store.close()


async def test_files_and_directories_are_for_their_owner_alone(store: FileStore, directory: Path) -> None:
    await store.put("clock", "one", b"1")
    paths = [directory.parent, directory, *directory.rglob("*")]
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in paths}
    assert modes == {
        "home": "0o700",
        "sessions": "0o700",
        "clock": "0o700",
        ".lock": "0o600",
        "one.json": "0o600",
    }


async def test_hostile_keys_stay_inside_their_space(store: FileStore, tmp_path: Path) -> None:
    for key in ["../../escaped", "/etc/passwd", "..", "", "\x00", "x" * 10_000]:
        await store.put("clock", key, b"1")
    space = tmp_path / "home" / "sessions" / "clock"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parent for path in files} == {space}
    assert len(files) == 6 + 1


async def test_another_store_on_the_directory_sees_what_was_written(
    store: FileStore, directory: Path
) -> None:
    version = await store.put("clock", "one", b"1")
    other = FileStore(directory)
    assert await other.get("clock", "one") == Stored(b"1", version, None)
    second = await other.put("clock", "one", b"2", expected=version)
    assert await store.get("clock", "one") == Stored(b"2", second, None)
    await other.close()


async def test_the_order_of_writing_holds_when_the_clock_goes_back(directory: Path) -> None:
    times = iter([5000.0, 4000.0, 3000.0, 3000.0])
    store = FileStore(directory, clock=lambda: next(times, 3000.0))
    for key in ["b", "a", "c"]:
        await store.put("clock", key, b"1")
    assert await store.keys("clock") == ["b", "a", "c"]
    await store.close()


WHOLE = b'{"version": 3, "expires": null, "key": "one", "value": {"a": 1}}'
DAMAGED = {
    "empty": b"",
    "cut": WHOLE[:40],
    "zeros": b"\x00" * 100,
    "not an object": b"[]",
    "a field missing": b'{"version": 3, "key": "one", "value": 1}',
    "a field of another type": WHOLE.replace(b"3", b'"3"'),
    "a version that cannot be": WHOLE.replace(b"3", b"0"),
    "not UTF-8": WHOLE.replace(b'"a"', b'"\xff"'),
    "of another key": WHOLE.replace(b"one", b"two"),
    "two in one": WHOLE + WHOLE,
}


def damage(directory: Path, content: bytes, *, key: str = "one") -> Path:
    path = directory / "clock" / file_format.encode_name(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_file_is_set_aside_byte_for_byte_and_named_in_the_log(
    store: FileStore, directory: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = damage(directory, content)
    with caplog.at_level(logging.WARNING, "routecodex.stores"):
        assert await store.get("clock", "one") is None
    assert not path.exists()
    assert path.with_name("one.json.corrupt-1").read_bytes() == content
    assert [str(path) in message for message in caplog.messages] == [True]
    assert await store.keys("clock") == []


async def test_a_whole_file_written_by_hand_is_read(store: FileStore, directory: Path) -> None:
    damage(directory, WHOLE)
    assert await store.get("clock", "one") == Stored(b'{"a": 1}', 3, None)
    assert await store.put("clock", "one", b"2", expected=3) == 4


async def test_every_damaged_file_gets_a_name_of_its_own(store: FileStore, directory: Path) -> None:
    for content in [b"first", b"second", b"third"]:
        damage(directory, content)
        await store.get("clock", "one")
    asides = sorted((directory / "clock").glob("*.corrupt-*"))
    assert [path.read_bytes() for path in asides] == [b"first", b"second", b"third"]


async def test_writers_set_a_damaged_file_aside_before_they_write(store: FileStore, directory: Path) -> None:
    damage(directory, b"first")
    assert await store.put("clock", "one", b"1", expected=0) > 0
    damage(directory, b"second")
    assert await store.update("clock", "one", lambda value: b"null" if value is None else value) == b"null"
    damage(directory, b"third")
    assert await store.delete("clock", "one") is False
    asides = sorted((directory / "clock").glob("*.corrupt-*"))
    assert [path.read_bytes() for path in asides] == [b"first", b"second", b"third"]


async def test_listing_leaves_damaged_files_in_place_and_passes_files_of_others(
    store: FileStore, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put("clock", "whole", b"1")
    damage(directory, b"{", key="broken")
    nameless = damage(directory, b"{", key="x" * 200)
    (directory / "clock" / "ntp-state.json").write_text('{"offset": 3}')
    (directory / "clock" / "notes.txt").write_text("mine")
    (directory / "clock" / file_format.encode_name("folder")).mkdir()
    before = sorted((directory / "clock").iterdir())
    listed = ["broken", "folder", "whole"]
    assert sorted(await store.keys("clock")) == listed
    assert sorted(place.key for place in await store.recent("clock", limit=9)) == listed
    assert sorted((directory / "clock").iterdir()) == before
    assert [str(nameless) in message for message in caplog.messages] == [True], "once, not with every list"
    assert [await store.get("clock", key) for key in ("broken", "folder", "x" * 200)] == [None] * 3
    assert await store.keys("clock") == ["whole"]
    assert await store.trim("clock", entries=0, size=0) == 1
    assert sorted(path.name for path in (directory / "clock").iterdir()) == sorted(
        [
            ".lock",
            "broken.json.corrupt-1",
            "folder.json.corrupt-1",
            "notes.txt",
            "ntp-state.json",
            f"{nameless.name}.corrupt-1",
        ]
    )


async def test_a_damaged_file_that_cannot_be_set_aside_is_absent_all_the_same(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(directory, lock_wait=0.01)
    await store.put("clock", "two", b"1")
    path = damage(directory, b"{")
    with locked(directory / "clock"):
        assert await store.get("clock", "one") is None
        with pytest.raises(StoreError):
            await store.put("clock", "one", b"1")
    assert path.read_bytes() == b"{"
    assert any(str(path) in message for message in caplog.messages)
    await store.close()


async def test_trim_opens_no_file_that_cannot_have_expired(store: FileStore, directory: Path) -> None:
    await store.put("clock", "one", b"1")
    await store.put("clock", "two", b"1", ttl=3600)
    for name in ["one.json", "two.json"]:
        path = directory / "clock" / name
        written = path.stat().st_mtime_ns
        path.write_bytes(b"never looked at")
        os.utime(path, ns=(written, written))
    assert await store.trim("clock", entries=10, size=10_000) == 0
    assert not list((directory / "clock").glob("*.corrupt-*"))


async def test_recent_opens_only_the_files_it_returns(store: FileStore, directory: Path) -> None:
    for key in ["old", "new"]:
        await store.put("clock", key, b"1")
    path = directory / "clock" / "old.json"
    written = path.stat().st_mtime_ns
    path.write_bytes(b"never looked at")
    os.utime(path, ns=(written, written))
    assert [key for _, key in await store.recent("clock", limit=1)] == ["new"]
    assert not list((directory / "clock").glob("*.corrupt-*"))


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
async def test_pages_miss_and_repeat_no_file_of_the_same_time(
    store: FileStore, directory: Path, limit: int
) -> None:
    keys = ["a", "B", "x" * 200, "session:c", "session:C", "-", "é"]
    for number, key in enumerate(keys):
        await store.put("clock", key, b"1")
        path = directory / "clock" / file_format.encode_name(key)
        os.utime(path, ns=(5 + number // 4, 5 + number // 4))
    found: list[Place] = []
    while page := await store.recent("clock", limit=limit, before=found[-1] if found else None):
        assert len(page) <= limit
        found += page
    assert sorted(place.key for place in found) == sorted(keys)
    assert [place.stamp for place in found] == [6, 6, 6, 5, 5, 5, 5]


async def test_a_trim_leaves_a_damaged_file_for_those_who_know_its_value(
    store: FileStore, directory: Path
) -> None:
    path = damage(directory, b"{")
    os.utime(path, ns=(1001, 1001))
    assert await store.trim("clock", entries=10, size=10_000) == 0
    assert path.read_bytes() == b"{"


async def test_what_is_written_while_a_trim_runs_is_kept(store: FileStore, directory: Path) -> None:
    for key in ["a", "b", "c"]:
        await store.put("clock", key, b"1")
    folder = Folder(directory / "clock", clock=time.time, lock_wait=5.0)
    surplus = folder.surplus(entries=1, size=10_000)
    await store.put("clock", "a", b"2")
    assert folder.remove_unchanged(surplus) == 1
    assert await store.keys("clock") == ["c", "a"]


async def test_trim_reads_the_expiry_before_it_deletes_for_it(store: FileStore, directory: Path) -> None:
    await store.put("clock", "forever", b"1")
    await store.put("clock", "long", b"1", ttl=1e6)
    for name in ["forever.json", "long.json"]:
        os.utime(directory / "clock" / name, ns=(1, 1))
    assert await store.trim("clock", entries=10, size=10_000) == 0
    assert sorted(await store.keys("clock")) == ["forever", "long"]


async def test_old_temporary_files_are_swept_and_new_ones_left(store: FileStore, directory: Path) -> None:
    space = directory / "clock"
    space.mkdir(parents=True)
    for name, age in [(".1-1.tmp", 7200), (".1-2.tmp", 60)]:
        (space / name).write_bytes(b"half")
        os.utime(space / name, (time.time() - age, time.time() - age))
    await store.put("clock", "one", b"1")
    assert sorted(path.name for path in space.iterdir()) == [".1-2.tmp", ".lock", "one.json"]
    os.utime(space / ".1-2.tmp", (0, 0))
    await store.trim("clock", entries=10, size=10_000)
    assert sorted(path.name for path in space.iterdir()) == [".lock", "one.json"]


async def test_a_writer_that_waits_holds_up_neither_readers_nor_other_spaces(
    store: FileStore, directory: Path
) -> None:
    await store.put("clock", "one", b"1")
    with locked(directory / "clock"):
        waiting = [asyncio.create_task(store.put("clock", "one", b"2")) for _ in range(10)]
        stored = await store.get("clock", "one")
        assert stored is not None
        assert stored.value == b"1"
        await store.put("sessions", "one", b"1")
        assert not any(task.done() for task in waiting)
    assert len(set(await asyncio.gather(*waiting))) == 10


async def test_a_lock_that_is_never_let_go_is_an_error_in_the_end(directory: Path) -> None:
    store = FileStore(directory, lock_wait=0.01)
    version = await store.put("clock", "one", b"1")
    with locked(directory / "clock"), pytest.raises(StoreError, match="locked"):
        await store.put("clock", "one", b"2")
    assert await store.get("clock", "one") == Stored(b"1", version, None)
    await store.close()


async def test_a_directory_removed_under_a_running_store_is_made_again(
    store: FileStore, directory: Path
) -> None:
    await store.put("clock", "one", b"1")
    subprocess.run(["rm", "-r", directory], check=True)
    assert await store.get("clock", "one") is None
    await store.put("clock", "one", b"2", expected=0)
    assert await store.keys("clock") == ["one"]


async def test_a_cancelled_write_is_whole(store: FileStore, directory: Path) -> None:
    await store.put("clock", "one", b"1")
    with locked(directory / "clock"):
        task = asyncio.create_task(store.put("clock", "one", b"2"))
        await store.get("clock", "one")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await store.close()
    content = json.loads((directory / "clock" / "one.json").read_text())
    assert (content["value"], content["version"]) in [(1, 1), (2, 2)]


async def test_a_closed_store_says_so(store: FileStore) -> None:
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.get("clock", "one")


async def test_a_file_in_the_place_of_the_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file")
    store = FileStore(tmp_path / "sessions")
    with pytest.raises(StoreError, match=r"Not a directory: .*/sessions"):
        await store.put("clock", "one", b"1")
    with pytest.raises(StoreError, match="Not a directory"):
        await store.get("clock", "one")
    await store.close()


async def test_updates_of_two_processes_are_all_counted(store: FileStore, directory: Path) -> None:
    processes = [await start("count", directory) for _ in range(2)]
    for process in processes:
        await finish(process)
    stored = await store.get("clock", "count")
    assert stored is not None
    assert (stored.value, stored.version) == (b"400", 400)


async def test_trim_beside_a_writing_process_keeps_the_newest(store: FileStore, directory: Path) -> None:
    process = await start("spread", directory)
    done = asyncio.create_task(process.wait())
    gone = 0
    while not done.done():
        gone += await store.trim("clock", entries=10, size=1_000_000)
    gone += await store.trim("clock", entries=10, size=1_000_000)
    assert await done == 0
    assert gone == 190
    assert await store.keys("clock") == [f"key-{number}" for number in range(190, 200)]


async def test_a_reader_beside_a_writing_process_only_sees_whole_files(store: FileStore) -> None:
    process = await start("scribble", store.directory)
    assert process.stdout is not None
    for _ in range(3):
        await process.stdout.readline()
    for _ in range(60):
        await whole_number(store, "key-0")
    process.kill()
    await process.communicate()
    assert not list(store.directory.rglob("*.corrupt-*"))


async def kill_at_work(directory: Path) -> int:
    """Kills a writer while it has a temporary file; return the number of its last reported write."""
    process = await start("scribble", directory)
    assert process.stdout is not None
    output = [await process.stdout.readline() for _ in range(4)]
    deadline = time.monotonic() + 10
    while not list((directory / "clock").glob("*.tmp")):
        assert time.monotonic() < deadline, "the writer uses no temporary files"
    process.kill()
    output += (await process.stdout.read()).splitlines()
    await process.wait()
    return int(output[-1])


async def test_a_writer_killed_at_work_leaves_every_file_whole(tmp_path: Path) -> None:
    halves: list[Path] = []
    for attempt in range(20):
        store = FileStore(tmp_path / str(attempt))
        last = await kill_at_work(store.directory)
        numbers = [await whole_number(store, key) for key in await store.keys("clock")]
        assert last <= max(numbers) <= last + 1
        assert not list(store.directory.rglob("*.corrupt-*"))
        assert await store.put("clock", "after", b"1", expected=0) > last
        await store.close()
        halves += store.directory.rglob("*.tmp")
        if len(halves) >= 3:
            break
    assert halves, "no writer was caught in the middle of a write"


async def whole_number(store: FileStore, key: str) -> int:
    """The number of the write a key holds, whose text must be there in full."""
    stored = await store.get("clock", key)
    assert stored is not None
    number, text = msgspec.json.decode(stored.value, type=tuple[int, str])
    assert text == str(number % 10) * (number % 7 * 500_000)
    assert key == f"key-{number % 3}"
    return number


def test_a_full_disk_is_refused_and_changes_nothing(directory: Path) -> None:
    directory.mkdir(parents=True)
    script = 'mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"'
    prefix = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(directory))
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets no user mount a small disk")
    output = report("fill", directory, prefix=prefix)
    assert output.pop("message").startswith("file store: No space left on device: ")
    assert output == {
        "all_kept": True,
        "over_refused": True,
        "small": "1",
        "leftovers": [],
        "deleted": True,
        "again": None,
    }


def test_a_value_past_the_file_size_limit_is_refused_and_changes_nothing(directory: Path) -> None:
    output = report("limited", directory)
    assert output.pop("message").startswith("file store: File too large: ")
    assert output == {"small": "1", "leftovers": []}


async def test_a_directory_of_somebody_else_is_a_clear_error(store: FileStore, directory: Path) -> None:
    version = await store.put("clock", "small", b"1")
    (directory / "clock" / ".lock").chmod(0o400)
    (directory / "clock").chmod(0o500)
    output = report("forbidden", directory)
    (directory / "clock").chmod(0o700)
    assert output["message"].startswith("file store: Permission denied: ")
    assert output["message"].endswith("to the user the gateway runs as")
    assert await store.get("clock", "small") == Stored(b"1", version, None)


async def test_the_stamp_changes_even_when_the_clock_of_the_disk_stands_still(
    store: FileStore, directory: Path
) -> None:
    await store.put("clock", "one", b"1")
    future = time.time_ns() + 3600 * 10**9
    os.utime(directory / "clock", ns=(future, future))
    seen = {store.stamp("clock")}
    for number in range(5):
        await store.put("clock", "one", msgspec.json.encode(number))
        seen.add(store.stamp("clock"))
    assert len(seen) == 6


async def test_another_store_on_the_directory_sees_the_stamp_change(
    store: FileStore, directory: Path
) -> None:
    other = FileStore(directory)
    before = other.stamp("clock")
    await store.put("clock", "one", b"1")
    written = other.stamp("clock")
    await store.delete("clock", "one")
    assert len({before, written, other.stamp("clock")}) == 3
    assert other.stamp("clock") == store.stamp("clock")
    await other.close()


async def test_the_stamp_of_a_directory_nobody_may_look_into_is_no_error(
    store: FileStore, directory: Path
) -> None:
    directory.parent.mkdir(parents=True)
    directory.write_text("not a directory")
    stamps = [store.stamp("clock"), store.stamp("clock"), *(store.stamp_of("clock", "one") for _ in range(2))]
    assert (len(set(stamps)), max(stamps) < 0) == (4, True), "0 would mean that there is no value"


async def test_writes_that_wait_for_each_other_are_told_their_own_outcomes(
    store: FileStore, directory: Path
) -> None:
    def refuse(_: bytes | None) -> bytes:
        raise LookupError("not this one")

    await store.put("clock", "count", b"1")
    with locked(directory / "clock"):
        writes = asyncio.gather(
            store.update("clock", "count", add_one),
            store.put("clock", "count", b"7", expected=1),
            store.update("clock", "count", refuse),
            store.put("clock", "no json", b"{"),
            store.delete("clock", "never there"),
            store.update("clock", "count", add_one),
            store.put("clock", "other", b"2"),
            return_exceptions=True,
        )
        await asyncio.sleep(0)
    outcomes = [type(it) if isinstance(it, Exception) else it for it in await writes]
    assert outcomes == [b"2", Conflict, LookupError, CallRefused, False, b"3", 4]
    assert sorted(await store.keys("clock")) == ["count", "other"]


class Counting(Folder):
    """Counts how often the lock was taken."""

    taken = 0
    nested = 0

    @contextmanager
    def writing(self) -> Iterator[int]:
        self.taken += not self.nested
        self.nested += 1
        with super().writing() as lock:
            yield lock
        self.nested -= 1


@contextmanager
def kept_busy(writer: SpaceWriter) -> Iterator[None]:
    """The thread that writes is busy meanwhile; all that is asked for is done at the end."""
    begun, done = threading.Event(), threading.Event()

    def keep() -> None:
        begun.set()
        done.wait()

    writer.write(keep)
    begun.wait()
    try:
        yield
    finally:
        done.set()
        writer.close()


def put(writer: SpaceWriter, key: str) -> Future[int]:
    return writer.write(partial(writer.folder.put, key, b"1", ttl=None, expected=None))


def test_writes_that_wait_are_done_under_one_lock_in_their_order(directory: Path) -> None:
    folder = Counting(directory / "clock", clock=time.time, lock_wait=10)
    writer = SpaceWriter(folder)
    with kept_busy(writer):
        writes = [put(writer, f"key-{number}") for number in range(BATCH_SIZE + 1)]
    assert [write.result() for write in writes] == list(range(1, BATCH_SIZE + 2))
    assert folder.taken == 2


def test_a_write_that_is_cancelled_while_it_waits_is_not_done(directory: Path) -> None:
    folder = Folder(directory / "clock", clock=time.time, lock_wait=10)
    writer = SpaceWriter(folder)
    with kept_busy(writer):
        writes = [put(writer, key) for key in ("one", "two", "three")]
        assert writes[1].cancel()
    assert (writes[0].result(), writes[2].result(), folder.keys()) == (1, 2, ["one", "three"])


def test_writes_that_wait_are_all_refused_when_the_lock_cannot_be_had(directory: Path) -> None:
    folder = Folder(directory / "clock", clock=time.time, lock_wait=0.05)
    folder.put("one", b"1", ttl=None, expected=None)
    writer = SpaceWriter(folder)
    with locked(directory / "clock"), kept_busy(writer):
        writes = [put(writer, key) for key in ("one", "two")]
    assert ["locked" in str(write.exception()) for write in writes] == [True, True]
    assert folder.keys() == ["one"]
