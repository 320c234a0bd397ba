"""A store of readable JSON files: `<directory>/<space>/<encoded key>.json`, safe with several processes.

The event loop never waits for the disk. Reads share a few threads; the writes of a space go through one
thread of its own, in the order they were asked for, so that a writer waiting for another process holds up
nobody else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from routecodex.stores.envelope import KeyOf
from routecodex.stores.folder import Folder
from routecodex.stores.store import Change, Stored, StoreError, check_key, check_space

READERS = 4
LOCK_WAIT = 10.0

T = TypeVar("T")


class Lane(NamedTuple):
    """A space and the thread that writes to it."""

    folder: Folder
    writer: ThreadPoolExecutor


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
        return await self._run(self._readers, partial(lane.folder.get, key))

    async def put(
        self, space: str, key: str, value: bytes, *, ttl: float | None = None, expected: int | None = None
    ) -> int:
        lane = self._lane(space, key)
        return await self._run(lane.writer, partial(lane.folder.put, key, value, ttl=ttl, expected=expected))

    async def delete(self, space: str, key: str) -> bool:
        lane = self._lane(space, key)
        return await self._run(lane.writer, partial(lane.folder.delete, key))

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        lane = self._lane(space, key)
        return await self._run(lane.writer, partial(lane.folder.update, key, change, ttl=ttl))

    async def keys(self, space: str) -> list[str]:
        """Every key of the space; this opens every file of it, and sets the damaged ones aside."""
        return await self._run(self._readers, self._lane(space).folder.keys)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        """Deletes expired values, then the oldest; opens only files that by their stamp may be expired."""
        lane = self._lane(space)
        return await self._run(lane.writer, partial(lane.folder.trim, entries=entries, size=size))

    def stamp(self, space: str) -> int:
        """When the directory of the space was changed last: one look at it, on the caller's own thread."""
        return self._lane(space).folder.stamp()

    def stamp_of(self, space: str, key: str) -> int:
        """When the file of the key was written, which no two writes of a space have in common."""
        return self._lane(space, key).folder.stamp_of(key)

    async def close(self) -> None:
        """Ends the threads once the writes under way are on disk."""
        self._closed = True
        for pool in (self._readers, *(lane.writer for lane in self._lanes.values())):
            await asyncio.to_thread(pool.shutdown)

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
            lane = Lane(folder, ThreadPoolExecutor(1, thread_name_prefix=f"store-write-{space}"))
            self._lanes[space] = lane
        return lane

    async def _run(self, pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError(f"the file store at {self.directory} is closed")
        return await asyncio.get_running_loop().run_in_executor(pool, call)
