"""The requests of the past: a line of JSON each, in files that never grow past their bounds.

`requests.jsonl` is the newest; past its size it becomes `requests.1.jsonl`, that one `requests.2.jsonl`, and
what was there goes. All workers append to the same file, whole lines in one write; a lock file sees to it
that only one of them sets it aside. All writing happens in a thread: no request waits for the disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from routecodex.wire import json

log = logging.getLogger("routecodex.server")

_KEPT = 2
_PENDING = 20_000
_BLOCK = 65536
_LONGEST = 1024 * 1024


class RequestLog:
    """The files below one directory; a disk that is full costs lines, never a request."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._path = directory / "requests.jsonl"
        self._max = max_bytes
        self._lines: list[bytes] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="request-log")
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._torn = False
        self._lost = 0

    def keep(self, lines: Sequence[bytes]) -> None:
        """Takes lines to be written; with too many waiting for a slow disk, drops them."""
        room = _PENDING - len(self._lines)
        self._lines.extend(lines[:room] if room < len(lines) else lines)
        self._lost += max(0, len(lines) - room)
        if self._writing is None:
            self._write_next()

    def _write_next(self) -> None:
        lines, self._lines = self._lines, []
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._thread, self._write, lines)
        self._writing.add_done_callback(self._written)

    def _written(self, _done: asyncio.Future[None]) -> None:
        self._writing = None
        if self._lost:
            log.warning("%d lines of the request log were lost: the disk is too slow", self._lost)
            self._lost = 0
        if self._lines:
            self._write_next()

    async def settle(self) -> None:
        """Waits until everything taken is written."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
            # The callback that goes on with the rest has its turn before we look again.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Writes what is left and ends the thread."""
        await self.settle()
        await asyncio.to_thread(self._thread.shutdown)

    async def tail(self, limit: int) -> list[dict[str, Any]]:
        """The newest requests of all workers, newest last."""
        await self.settle()
        return await asyncio.to_thread(tail, self._directory, limit)

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._append(b"\n".join((*lines, b"")))
        except OSError as exc:
            if not self._failing:
                log.warning("the request log cannot be written, requests go on without it: %s", exc)
            self._failing = True
            return
        if self._failing:
            log.info("the request log is written again")
        self._failing = False

    def _append(self, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._is_full(len(data)):
            self._set_aside(len(data))
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A line that a full disk cut off must not swallow the next one.
            data = b"\n" + data if self._torn else data
            self._torn = True
            wrote = os.write(file, data)
            if wrote < len(data):
                os.write(file, data[wrote:])
            self._torn = False
        finally:
            os.close(file)

    def _is_full(self, more: int) -> bool:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        return size > 0 and size + more > self._max

    def _set_aside(self, more: int) -> None:
        with _locked(self._directory / "requests.lock"):
            # Another worker may have done it while we waited for the lock.
            if self._is_full(more):
                for older, file in pairwise(reversed(_files(self._directory))):
                    with suppress(FileNotFoundError):
                        os.replace(file, older)


def _files(directory: Path) -> list[Path]:
    """The files of the log, newest first."""
    return [directory / "requests.jsonl", *(directory / f"requests.{n}.jsonl" for n in range(1, _KEPT + 1))]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def tail(directory: Path, limit: int) -> list[dict[str, Any]]:
    """The newest rows of the files, newest last; reads no more of them than it takes."""
    with ExitStack() as stack:
        # Opened together: one that is set aside while we read must not be read twice.
        files = [stack.enter_context(file) for file in map(_opened, _files(directory)) if file is not None]
        found = (row for file in files for row in map(_row, _lines_from_the_end(file)) if row is not None)
        return list(islice(found, limit))[::-1]


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except OSError:
        return None


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.decode(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _lines_from_the_end(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, last first; what stands after the last end of a line may be half of one."""
    at = file.seek(0, os.SEEK_END)
    rest = b""
    while at > 0 and len(rest) < _LONGEST:
        size = min(_BLOCK, at)
        at = file.seek(at - size)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from filter(None, reversed(lines))
    if rest and at == 0:
        yield rest
