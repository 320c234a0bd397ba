"""Unix sockets between the workers of a server, in a directory that only they can open.

`tap-<worker>.sock`: every worker listens; the hub connects, and gets the worker's reports while it stays.
`hub.sock`: the hub listens; a worker connects for each of its subscribers, and gets the frames.
`hub.lock`: locked by the hub, so that there is one; the system unlocks it when the hub dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import GatewayError, Overloaded
from routecodex.server.events.hub import EventHub
from routecodex.server.events.subscriber import Subscriber
from routecodex.server.events.tap import REPORT_SECONDS, EventTap, WorkerReport
from routecodex.wire import json

_HUB: Final = "hub.sock"
_LOCK: Final = "hub.lock"
_TAPS: Final = "tap-*.sock"
_LENGTH: Final = 4
_LARGEST_REPORT: Final = 8 * 1024 * 1024
_MOST_UNSENT: Final = 1024 * 1024
_PATIENCE: Final = 5.0
_REPORT_WAIT: Final = 1.0

_reports = Decoder(WorkerReport)


class Subscription(Struct, frozen=True):
    """Request of a worker to the hub: frames for one of its subscribers, or to take its reports."""

    topics: tuple[str, ...] = ()
    last_id: str = ""
    joins: bool = False


class Admittance(Struct, frozen=True, omit_defaults=True):
    """The answer of the hub: admitted, or why not."""

    message: str = ""
    code: str = ""


_subscriptions = Decoder(Subscription)
_admittances = Decoder(Admittance)


class HubLock:
    """The lock that makes one worker the hub."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _LOCK
        self._descriptor = -1

    def acquire(self) -> bool:
        """Take the lock; return False if another worker has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


async def listen(path: Path, attend: Callable[..., Awaitable[None]]) -> asyncio.Server:
    """Listen on a socket in place of one that a killed worker left behind."""
    remove(path)
    return await asyncio.start_unix_server(attend, path)


def remove(path: Path) -> None:
    """Remove a socket, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def tap_path(folder: Path, worker: str) -> Path:
    """Return the socket of a worker's reports."""
    return folder / f"tap-{worker}.sock"


def hub_path(folder: Path) -> Path:
    """Return the socket of the hub."""
    return folder / _HUB


async def send_reports(tap: EventTap, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the reports of a worker until the hub closes the connection."""
    gone = asyncio.ensure_future(reader.read(1))
    active = -1
    try:
        while not gone.done():
            report = tap.collect()
            # The first report is sent even if it is empty: it says that no request is missed from now on.
            if not report.is_empty or report.active != active:
                active = report.active
                data = json.encode(report)
                if writer.transport.get_write_buffer_size() <= _MOST_UNSENT:
                    writer.write(len(data).to_bytes(_LENGTH, "big") + data)
            await asyncio.wait([gone], timeout=REPORT_SECONDS)
    except ConnectionError:
        return
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


class ReportReader:
    """The hub's connections to all other workers; a new worker is found within a second."""

    def __init__(self, folder: Path, own: str, hub: EventHub) -> None:
        self._folder = folder
        self._own = tap_path(folder, own).name
        self._hub = hub
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._reporting: dict[str, asyncio.Event] = {}

    def connect(self) -> None:
        """Connect to every worker that is not connected."""
        for path in self._folder.glob(_TAPS):
            reading = self._readers.get(path.name)
            if path.name != self._own and (reading is None or reading.done()):
                self._reporting[path.name] = asyncio.Event()
                self._readers[path.name] = asyncio.ensure_future(self._read(path))

    async def settle(self) -> None:
        """Wait until every worker reports, for a moment: from then on no request is missed."""
        waiting = [event.wait() for event in self._reporting.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_WAIT):
                await asyncio.gather(*waiting)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._readers.values():
            task.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)

    async def _read(self, path: Path) -> None:
        reporting = self._reporting[path.name]
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            reporting.set()
            return
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
                if size > _LARGEST_REPORT:
                    return
                self._hub.take(path.name, _reports.decode(await reader.readexactly(size)))
                reporting.set()
        except (asyncio.IncompleteReadError, OSError, DecodeError):
            return
        finally:
            self._hub.forget(path.name)
            reporting.set()
            writer.close()


async def join_hub(folder: Path) -> None:
    """Have the hub, if there is one, ask this worker for its reports; wait for it a moment."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_REPORT_WAIT):
            reader, writer = await asyncio.open_unix_connection(hub_path(folder))
            try:
                writer.write(json.encode(Subscription(joins=True)) + b"\n")
                await reader.readline()
            finally:
                writer.close()


async def serve_frames(
    hub: EventHub, reports: ReportReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send frames to another worker until it closes the connection, or the hub ends."""
    try:
        asked = _subscriptions.decode(await reader.readline())
    except (DecodeError, ValueError, OSError):
        return
    if asked.joins:
        reports.connect()
        await reports.settle()
        writer.write(json.encode(Admittance()) + b"\n")
        return
    try:
        subscriber = hub.subscribe(asked.topics, asked.last_id)
    except GatewayError as error:
        writer.write(json.encode(Admittance(error.message, error.code or "")) + b"\n")
        return
    writer.write(json.encode(Admittance()) + b"\n")
    gone = asyncio.ensure_future(reader.read(1))
    gone.add_done_callback(lambda _: hub.leave(subscriber))
    try:
        while data := await subscriber.next():
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
    finally:
        hub.leave(subscriber)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)


class LocalFrames:
    """The frames of a hub in this worker."""

    def __init__(self, hub: EventHub, topics: tuple[str, ...], last_id: str) -> None:
        self._hub = hub
        self._subscriber: Subscriber = hub.subscribe(topics, last_id)

    async def next(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        return await self._subscriber.next()

    def close(self) -> None:
        """Leave the hub."""
        self._hub.leave(self._subscriber)


class RemoteFrames:
    """The frames of a hub in another worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, folder: Path, topics: tuple[str, ...], last_id: str) -> RemoteFrames:
        """Connect to the hub and subscribe; OSError if there is none, an error of its own if it refuses."""
        reader, writer = await asyncio.open_unix_connection(hub_path(folder))
        frames = cls(reader, writer)
        try:
            writer.write(json.encode(Subscription(topics, last_id)) + b"\n")
            async with asyncio.timeout(_PATIENCE):
                line = await reader.readline()
            admitted = _admittances.decode(line or b"-")
        except (TimeoutError, DecodeError, ValueError) as exc:
            frames.close()
            raise ConnectionError("the hub did not answer") from exc
        if admitted.message:
            frames.close()
            raise Overloaded(admitted.message, code=admitted.code or None)
        return frames

    async def next(self) -> bytes:
        """Return the next bytes; b"" at the end."""
        try:
            return await self._reader.read(65536)
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Leave the hub."""
        self._writer.close()
