"""A store of readable JSON files: `<directory>/<space>/<encoded key>.json`, safe with several processes.

The event loop never waits for the disk. Reads share a few threads; the writes of a space go through one
thread of its own, in the order they were asked for, so that a writer waiting for another process holds up
nobody else. Writes that wait for that thread are done together: one lock and one sync of the directory serve
them all, and each is told its own outcome after that.
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
from routecodex.stores.store import Change, Stored, StoreError, check_key, check_space

READERS = 4
TOGETHER = 32
LOCK_WAIT = 10.0

T = TypeVar("T")


class Write(Generic[T]):
    """A call that waits for the thread that writes, and what came of it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.future: Future[T] = Future()
        self._call = call
        self._tell: Callable[[], None] | None = None

    def run(self) -> None:
        try:
            self._tell = partial(self.future.set_result, self._call())
        except BaseException as exc:
            self._tell = partial(self.future.set_exception, exc)

    def tell(self, failure: BaseException | None) -> None:
        """Tells what came of it; of one that was not run, why."""
        if self._tell is not None:
            self._tell()
        elif failure is not None:
            self.future.set_exception(failure)


class Lane:
    """A space and the thread that writes to it."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._waiting: deque[Write[Any]] = deque()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"store-write-{folder.path.name}")

    def write(self, call: Callable[[], T]) -> Future[T]:
        """Has the call done behind those that wait already."""
        write = Write(call)
        self._waiting.append(write)
        self._writer.submit(self._work)
        return write.future

    def close(self) -> None:
        """Ends the thread once all that waits is on disk."""
        self._writer.shutdown()

    def _work(self) -> None:
        """Does what waits; it may be that this was done with an earlier call."""
        writes = self._next()
        failure: BaseException | None = None
        try:
            with self.folder.writing() if len(writes) > 1 else nullcontext():
                for write in writes:
                    write.run()
        except BaseException as exc:
            failure = exc
        for write in writes:
            write.tell(failure)

    def _next(self) -> list[Write[Any]]:
        """The calls that were not cancelled; not too many, so that other processes have their turn."""
        writes: list[Write[Any]] = []
        while self._waiting and len(writes) < TOGETHER:
            write = self._waiting.popleft()
            if write.future.set_running_or_notify_cancel():
                writes.append(write)
        return writes


class FileStore:
    """Values as files; a call that is cancelled has either happened in full or not at all.

    In a space that is a key of `bare`, the files are the values alone, without the store's envelope.
    """

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
        self._lanes: dict[str, Lane] = {}
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-read")
        self._closed = False

    async def get(self, space: str, key: str) -> Stored | None:
        lane = self._lane(space, key)
        return await self._read(partial(lane.folder.get, key))

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        lane = self._lane(space, key)
        return await self._write(lane, partial(lane.folder.put, key, value, ttl=ttl, expected=expected))

    async def delete(self, space: str, key: str) -> bool:
        lane = self._lane(space, key)
        return await self._write(lane, partial(lane.folder.delete, key))

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        lane = self._lane(space, key)
        return await self._write(lane, partial(lane.folder.update, key, change, ttl=ttl))

    async def keys(self, space: str) -> list[str]:
        """Every key of the space; this opens every file of it, and sets the damaged ones aside."""
        return await self._read(self._lane(space).folder.keys)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Deletes expired values, then the oldest; opens only files that by their stamp may be expired."""
        lane = self._lane(space)
        return await self._write(lane, partial(lane.folder.trim, entries=entries, size=size))

    def stamp(self, space: str) -> int:
        """When the directory of the space was changed last: one look at it, on the caller's own thread."""
        return self._lane(space).folder.stamp()

    def stamp_of(self, space: str, key: str) -> int:
        """When the file of the key was written, which no two writes of a space have in common."""
        return self._lane(space, key).folder.stamp_of(key)

    async def close(self) -> None:
        """Ends the threads once the writes under way are on disk."""
        self._closed = True
        for end in (self._readers.shutdown, *(lane.close for lane in self._lanes.values())):
            await asyncio.to_thread(end)

    def _lane(self, space: str, key: str = "") -> Lane:
        check_key(key)
        lane = self._lanes.get(space)
        if lane is None:
            check_space(space)
            folder = Folder(
                self.directory / space,
                clock=self._clock,
                lock_wait=self._lock_wait,
                key_of=self._bare.get(space),
            )
            lane = self._lanes[space] = Lane(folder)
        return lane

    async def _read(self, call: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    async def _write(self, lane: Lane, call: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.wrap_future(lane.write(call))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the file store at {self.directory} is closed")
