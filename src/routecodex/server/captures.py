"""Captured requests on disk: one file each, in folders by time, shared by all workers of a server.

A request that may be captured is recorded in memory (`gateway/capture.py`). When it has ended, a thread
removes the secrets and writes the file, so that no request waits for the disk; a full one loses captures,
never a request. Files are deleted by age and, the oldest first, by their total size; a lock file ensures that
only one worker looks for them at a time. The id of a request has its time in it, so that every worker finds
its file.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from routecodex.config import CaptureConfig, CaptureMode
from routecodex.gateway.capture import HELD, CaptureBudget, RequestCapture
from routecodex.server.capture_document import document_of
from routecodex.wire import json

log = logging.getLogger("routecodex.server")

MEMORY = 64 * 1024 * 1024
"""Bytes of captures that wait to be written, or whose requests are under way, in one worker."""
_ID = re.compile(r"req_[0-9a-f]{24}\Z")
_FOLDER = slice(4, 9)
"""Digits of an id that name its folder: it spans 68 minutes."""
_SCAN_SHARE = 64
"""A worker looks for files to delete when it has written this part of `max_mb`."""
_SPARE = 16
"""Part of `max_mb` that is made free, so that several workers together stay below it."""
_SWEEP_SECONDS = 300.0
_LATE_SECONDS = 5.0
_LATE_POLL = 0.05
_LATE_POLLS = 10
_HASHES = 1 << 32


class StoredFile(NamedTuple):
    """A captured request on disk."""

    written: float
    size: int
    path: str


class Captures:
    """The captures of one server, as one worker writes and reads them."""

    def __init__(self, directory: Path, options: CaptureConfig, *, secrets: Sequence[str] = ()) -> None:
        self._directory = directory
        self._options = options
        self._secrets = tuple(secrets)
        self._budget = CaptureBudget(MEMORY)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="captures")
        self._writing: set[asyncio.Future[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._written = 0
        self._failing = False
        self._dropping = False
        self._closed = False

    @property
    def mode(self) -> CaptureMode:
        """Which requests are captured now."""
        return self._options.mode

    def start(self) -> None:
        """Delete old captures from now on, whether new ones are made or not."""
        self._sweeping = asyncio.ensure_future(self._sweep())

    def configure(self, options: CaptureConfig, *, secrets: Sequence[str]) -> None:
        """Use other settings from now on; captures that they no longer keep are deleted."""
        changed = options != self._options
        self._options, self._secrets = options, tuple(secrets)
        if changed:
            self._run(self._trim)

    async def close(self) -> None:
        """Write what is left and end the thread."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        self._closed = True
        await self.settle()
        await asyncio.to_thread(self._thread.shutdown)

    def begin(
        self,
        id: str,
        *,
        method: str,
        path: bytes,
        headers: dict[str, str],
        body: bytes,
        client: str,
        owner: str,
    ) -> RequestCapture | None:
        """Return the capture of a request that begins; None if it is not captured."""
        options = self._options
        if not options.is_on or (options.mode == "sample" and not is_sampled(id, options.sample)):
            return None
        held = HELD + sum(map(len, headers.values()))
        if not self._budget.take(held):
            self._note_dropped()
            return None
        self._dropping = False
        return RequestCapture(
            id,
            held=held,
            method=method,
            path=path,
            headers=headers,
            body=body,
            client_name=client,
            owner=owner,
            max_body=options.max_body_kb * 1024,
            budget=self._budget,
            secrets=self._secrets,
            only_failed=options.mode == "errors",
        )

    def _note_dropped(self) -> None:
        if not self._dropping:
            log.warning("requests are not captured: too many captures wait to be written")
        self._dropping = True

    def finish(self, capture: RequestCapture) -> None:
        """Keep the capture of a request that has ended, or drop it if it is one of a mode without it."""
        if self._closed or (capture.only_failed and not capture.failed):
            self._budget.release(capture.taken)
            return
        done = self._run(self._write, capture)
        done.add_done_callback(lambda _done: self._budget.release(capture.taken))

    async def settle(self) -> None:
        """Wait until all captures of this worker are written."""
        while self._writing:
            await asyncio.wait(self._writing)

    def has(self, id: str) -> bool:
        """Return whether a request was captured and is still kept."""
        return self._kept(id) is not None

    async def read(self, id: str) -> dict[str, Any] | None:
        """Return a captured request; None if it was not captured, or is no longer kept."""
        if self._writing:
            # Only those of this moment: under load there are always others.
            await asyncio.wait(set(self._writing))
        path = self._kept(id)
        for _ in range(_LATE_POLLS if _is_recent(id) and self._options.is_on else 0):
            if path is not None:
                break
            # Another worker may be about to write it.
            await asyncio.sleep(_LATE_POLL)
            path = self._kept(id)
        return None if path is None else await asyncio.to_thread(_load, path)

    def _kept(self, id: str) -> Path | None:
        if not _ID.match(id):
            return None
        path = self._path(id)
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:
            return None
        return path if age <= self._options.keep_hours * 3600 else None

    def _path(self, id: str) -> Path:
        return self._directory / id[_FOLDER] / f"{id}.json"

    def _run(self, work: Any, *arguments: Any) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().run_in_executor(
            self._thread, work, *arguments
        )
        self._writing.add(done)
        done.add_done_callback(self._writing.discard)
        return done

    def _write(self, capture: RequestCapture) -> None:
        try:
            data = json.encode(document_of(capture))
            self._write_file(self._path(capture.id), data)
        except OSError as exc:
            if not self._failing:
                log.warning("captures cannot be written, requests continue without them: %s", exc)
            self._failing = True
            return
        except Exception as exc:
            # The message may quote the request.
            log.error("request %s could not be captured: %s", capture.id, type(exc).__name__)
            return
        if self._failing:
            log.info("captures can be written again")
        self._failing = False
        self._written += len(data)
        if self._written >= self._options.max_mb * 1024 * 1024 // _SCAN_SHARE:
            self._trim()

    def _write_file(self, path: Path, data: bytes) -> None:
        new = path.with_suffix(".new")
        try:
            file = self._create(new)
        except FileNotFoundError:
            # Another worker has just deleted the empty folder.
            file = self._create(new)
        try:
            with open(file, "wb") as out:
                out.write(data)
            new.rename(path)
        except OSError:
            with suppress(OSError):
                new.unlink()
            raise

    def _create(self, path: Path) -> int:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    async def _sweep(self) -> None:
        while True:
            await asyncio.wait([self._run(self._trim)])
            await asyncio.sleep(max(1.0, min(_SWEEP_SECONDS, self._options.keep_hours * 3600)))

    def _trim(self) -> None:
        """Delete captures that are too old, then the oldest until the rest fits."""
        self._written = 0
        if not self._directory.is_dir():
            return
        with suppress(OSError), _locked(self._directory / "lock") as alone:
            if alone:
                options = self._options
                delete_old(
                    self._directory,
                    before=time.time() - options.keep_hours * 3600,
                    limit=options.max_mb * 1024 * 1024,
                )


def is_sampled(id: str, share: float) -> bool:
    """Return whether a request is in a sample; every worker decides the same."""
    return zlib.crc32(id.encode()) < share * _HASHES


def delete_old(directory: Path, *, before: float, limit: int) -> None:
    """Delete the captures from before a time and, if the rest takes more than `limit` bytes, the oldest."""
    files = sorted(_files(directory), reverse=True)
    total = sum(file.size for file in files if file.written >= before)
    room = limit if total <= limit else limit - limit // _SPARE
    kept = 0
    for file in files:
        kept += file.size
        if file.written < before or kept > room:
            with suppress(OSError):
                os.unlink(file.path)
    for folder in _folders(directory):
        # Only an empty one can be removed; the current one is made again when it is needed.
        with suppress(OSError):
            os.rmdir(folder)


def _files(directory: Path) -> Iterator[StoredFile]:
    for folder in _folders(directory):
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield StoredFile(status.st_mtime, max(status.st_size, status.st_blocks * 512), entry.path)


def _folders(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock of a file; yield False if another worker has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(file)


def _is_recent(id: str) -> bool:
    return bool(_ID.match(id)) and time.time() - int(id[4:12], 16) < _LATE_SECONDS


def _load(path: Path) -> dict[str, Any] | None:
    try:
        found = json.decode(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
