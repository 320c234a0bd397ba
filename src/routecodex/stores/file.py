"""A store of readable JSON files: `<directory>/<space>/<encoded key>.json`, safe with several processes.

The event loop never waits for the disk. Reads share a few threads. The writes of a space run in one thread
per space, in the order of the calls, so that a writer waiting for another process does not delay other
spaces. Queued writes run as a batch under one lock and one sync of the directory; then each call gets its
outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from routecodex.stores.file_format import KeyOf
from routecodex.stores.folder import Folder
from routecodex.stores.store import (
    CallRefused,
    Change,
    OnAvailability,
    Place,
    Stored,
    check_key,
    check_space,
    is_space,
)
from routecodex.stores.uptime import SystemUptime, uptime

READ_THREADS = 4
BATCH_SIZE = 32
LOCK_WAIT = 10.0
TRIM_BATCH = 100
"""Files that a trim deletes at once, while writers wait."""

T = TypeVar("T")


class Write(Generic[T]):
    """A queued call and its outcome."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._call = call
        self._resolve: Callable[[], None] | None = None

    def run(self) -> None:
        try:
            self._resolve = partial(self.future.set_result, self._call())
        except BaseException as exc:
            self._resolve = partial(self.future.set_exception, exc)

    def resolve(self, failure: BaseException | None) -> None:
        """Resolve the future with the outcome; with `failure` if the call did not run."""
        if self._resolve is not None:
            self._resolve()
        elif failure is not None:
            self.future.set_exception(failure)


class SpaceWriter:
    """A space and the thread that writes to it."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._queue: deque[Write[Any]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"store-write-{folder.path.name}")

    def write(self, call: Callable[[], T]) -> Future[T]:
        """Queue the call."""
        write = Write(call)
        self._queue.append(write)
        self._thread.submit(self._write_batch)
        return write.future

    def close(self) -> None:
        """End the thread after all queued writes."""
        self._thread.shutdown()

    def _write_batch(self) -> None:
        """Run a batch of queued writes; it is empty if an earlier batch included them."""
        writes = self._next_batch()
        failure: BaseException | None = None
        try:
            with self.folder.writing() if len(writes) > 1 else nullcontext():
                for write in writes:
                    write.run()
        except BaseException as exc:
            failure = exc
        for write in writes:
            write.resolve(failure)

    def _next_batch(self) -> list[Write[Any]]:
        """Take the next batch without cancelled calls, limited so that other processes get the lock too."""
        writes: list[Write[Any]] = []
        while self._queue and len(writes) < BATCH_SIZE:
            write = self._queue.popleft()
            if write.future.set_running_or_notify_cancel():
                writes.append(write)
        return writes


class FileStore:
    """Values as files; a cancelled call happens completely or not at all.

    In a space that is a key of `bare`, a file is the value alone, without the store's envelope.
    """

    kind = "file"
    missed = 0
    settle_seconds = 0.0
    reads_by_updates = False
    bounds_calls = False
    groups = None
    processes = None

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        lock_wait: float = LOCK_WAIT,
        bare: Mapping[str, KeyOf] | None = None,
    ) -> None:
        self.directory = directory
        self._bare = bare or {}
        self._clock = clock
        self._lock_wait = lock_wait
        self._writers: dict[str, SpaceWriter] = {}
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="store-read")
        self._closed = False

    async def get(self, space: str, key: str) -> Stored | None:
        writer = self._writer_of(space, key)
        return await self._read(partial(writer.folder.get, key))

    async def get_intact(self, space: str, key: str) -> Stored | None:
        writer = self._writer_of(space, key)
        return await self._read(partial(writer.folder.get_intact, key))

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        writer = self._writer_of(space, key)
        return await self._write(writer, partial(writer.folder.put, key, value, ttl=ttl, expected=expected))

    async def delete(self, space: str, key: str) -> bool:
        writer = self._writer_of(space, key)
        return await self._write(writer, partial(writer.folder.delete, key))

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        writer = self._writer_of(space, key)
        return await self._write(writer, partial(writer.folder.update, key, change, ttl=ttl))

    async def read_all(self, space: str, *, most: int) -> list[tuple[str, Stored]]:
        """Return all values; a damaged file is set aside."""
        found = [(key, await self.get(space, key)) for key in (await self.keys(space))[-most:]]
        return [(key, stored) for key, stored in found if stored is not None]

    async def keys(self, space: str) -> list[str]:
        """Return every key of the space; opens every file, and leaves damaged ones where they are."""
        return await self._read(self._writer_of(space).folder.keys)

    async def recent(self, space: str, *, limit: int, before: Place | None = None) -> list[Place]:
        """Return keys with the modification times of their files; opens only files that are returned."""
        writer = self._writer_of(space, "" if before is None else before.key)
        return await self._read(partial(writer.folder.recent, limit=limit, before=before))

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Delete expired values, then the oldest; opens only files that may have expired by their stamp.

        The files are listed beside other calls; writers wait only while a few of them are deleted.
        """
        writer = self._writer_of(space)
        surplus = await self._read(partial(writer.folder.surplus, entries=entries, size=size))
        removed = 0
        for start in range(0, len(surplus), TRIM_BATCH):
            batch = surplus[start : start + TRIM_BATCH]
            removed += await self._write(writer, partial(writer.folder.remove_unchanged, batch))
        return removed

    def stamp(self, space: str) -> int:
        """Return the modification time of the space's directory: one `stat` on the caller's thread."""
        return self._writer_of(space).folder.stamp()

    def stamp_of(self, space: str, key: str) -> int:
        """Return the modification time of the key's file, unique among the writes of a space."""
        return self._writer_of(space, key).folder.stamp_of(key)

    def uptime(self) -> SystemUptime:
        return uptime()

    def was_back_within(self, seconds: float) -> bool:
        return False

    def judge(self, listener: OnAvailability) -> bool:
        return False

    async def spaces(self) -> list[str]:
        return await self._read(self._space_names)

    def _space_names(self) -> list[str]:
        try:
            folders = [entry.name for entry in self.directory.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return []
        return list(filter(is_space, folders))

    async def describe(self) -> dict[str, Any]:
        return {"persistence": "files", "warnings": []}

    async def check(self, space: str) -> None:
        """Write a temporary file in the space and delete it again."""
        writer = self._writer_of(space)
        await self._write(writer, writer.folder.check)

    async def close(self) -> None:
        """End the threads after all queued writes."""
        self._closed = True
        for end in (self._readers.shutdown, *(writer.close for writer in self._writers.values())):
            await asyncio.to_thread(end)

    def _writer_of(self, space: str, key: str = "") -> SpaceWriter:
        check_key(key)
        writer = self._writers.get(space)
        if writer is None:
            check_space(space)
            folder = Folder(
                self.directory / space,
                clock=self._clock,
                lock_wait=self._lock_wait,
                key_of=self._bare.get(space),
            )
            writer = self._writers[space] = SpaceWriter(folder)
        return writer

    async def _read(self, call: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def _write(self, writer: SpaceWriter, call: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.wrap_future(writer.write(call))

    def _check_open(self) -> None:
        if self._closed:
            raise CallRefused(f"the file store at {self.directory} is closed")
