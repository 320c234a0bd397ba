"""The log of past requests: one line of JSON each, in files of bounded size.

`requests.jsonl` is the newest; past its size it becomes `requests.1.jsonl`, that one `requests.2.jsonl`, and
the oldest is deleted. All workers append to the same file, whole lines in one write; a lock file ensures that
only one of them rotates. A thread writes, so that no request waits for the disk.
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

_ROTATED = 2
_MAX_PENDING = 20_000
_MAX_PENDING_BYTES = 8 * 1024 * 1024
_BLOCK = 65536
_MAX_LINE = 1024 * 1024


class RequestLog:
    """The files in one directory; a full disk loses lines, never a request."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._directory = directory
        self._path = directory / "requests.jsonl"
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="request-log")
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._line_cut = False
        self._dropped = 0

    def append(self, lines: Sequence[bytes]) -> None:
        """Queue lines to be written; drop them if too many wait for a slow disk."""
        size = sum(map(len, lines))
        free = _MAX_PENDING - len(self._lines) if self._bytes + size <= _MAX_PENDING_BYTES else 0
        self._bytes += size if free else 0
        self._lines.extend(lines[:free] if free < len(lines) else lines)
        self._dropped += max(0, len(lines) - free)
        if self._writing is None:
            self._write_next()

    def _write_next(self) -> None:
        lines, self._lines, self._bytes = self._lines, [], 0
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._thread, self._write, lines)
        self._writing.add_done_callback(self._written)

    def _written(self, _done: asyncio.Future[None]) -> None:
        self._writing = None
        if self._dropped:
            log.warning("dropped %d lines of the request log: the disk is too slow", self._dropped)
            self._dropped = 0
        if self._lines:
            self._write_next()

    async def settle(self) -> None:
        """Wait until all queued lines are written."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
            # Let the callback start the next write before the check.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Write queued lines and end the thread."""
        await self.settle()
        await asyncio.to_thread(self._thread.shutdown)

    async def tail(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest requests of all workers, newest last."""
        await self.settle()
        return await asyncio.to_thread(tail, self._directory, limit)

    def _write(self, lines: list[bytes]) -> None:
        try:
            self._append_to_file(b"\n".join((*lines, b"")))
        except OSError as exc:
            if not self._failing:
                log.warning("the request log cannot be written, requests continue without it: %s", exc)
            self._failing = True
            return
        if self._failing:
            log.info("the request log can be written again")
        self._failing = False

    def _append_to_file(self, data: bytes) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._is_full(len(data)):
            self._rotate(len(data))
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A line cut off by a full disk must not merge with the next one.
            data = b"\n" + data if self._line_cut else data
            self._line_cut = True
            written = os.write(file, data)
            if written < len(data):
                os.write(file, data[written:])
            self._line_cut = False
        finally:
            os.close(file)

    def _is_full(self, more: int) -> bool:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return False
        return size > 0 and size + more > self._max_bytes

    def _rotate(self, more: int) -> None:
        with _locked(self._directory / "requests.lock"):
            # Another worker may have rotated while this one waited for the lock.
            if self._is_full(more):
                for older, file in pairwise(reversed(_files(self._directory))):
                    with suppress(FileNotFoundError):
                        os.replace(file, older)


def _files(directory: Path) -> list[Path]:
    """Return the files of the log, newest first."""
    return [
        directory / "requests.jsonl",
        *(directory / f"requests.{n}.jsonl" for n in range(1, _ROTATED + 1)),
    ]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def tail(directory: Path, limit: int) -> list[dict[str, Any]]:
    """Return the newest rows of the files, newest last; reads only as much as needed."""
    with ExitStack() as stack:
        # Opened together: a file that is rotated meanwhile must not be read twice.
        files = [stack.enter_context(file) for file in map(_open, _files(directory)) if file is not None]
        found = (row for file in files for row in map(_row, _lines_from_the_end(file)) if row is not None)
        return list(islice(found, limit))[::-1]


def _open(path: Path) -> BinaryIO | None:
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
    """Yield the lines of a file, last first; a line without an end may be incomplete."""
    at = file.seek(0, os.SEEK_END)
    rest = b""
    while at > 0 and len(rest) < _MAX_LINE:
        size = min(_BLOCK, at)
        at = file.seek(at - size)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from filter(None, reversed(lines))
    if rest and at == 0:
        yield rest
