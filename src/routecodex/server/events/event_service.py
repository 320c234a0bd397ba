"""The event stream in one worker: opened for the first subscriber, closed after the last."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from routecodex.canon.errors import BadRequest, Overloaded
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.server.admin_access import Caller
from routecodex.server.admin_service import AdminCall
from routecodex.server.error_replies import NO_STORE
from routecodex.server.events import fan_in
from routecodex.server.events.fan_in import HubLock, LocalFrames, RemoteFrames, ReportReader
from routecodex.server.events.frames import RETRY, TOPICS, encode_frame
from routecodex.server.events.hub import EventHub, Hello
from routecodex.server.events.state_watch import Reader, StateWatch
from routecodex.server.events.tap import REPORT_SECONDS, EventTap
from routecodex.server.http import Reply
from routecodex.wire import json

log = logging.getLogger("routecodex.server")

LINGER_SECONDS: Final = 10.0
"""A hub stays this long without subscribers, so that one that lost its connection can resume."""
_TICKS_IN_SECOND: Final = round(1 / REPORT_SECONDS)
_HUB_WAIT: Final = 5.0
_RETRY_SECONDS: Final = 0.05
_CHECK_SECONDS: Final = 15.0
_BYE_SECONDS = 1.0
_STUCK_SECONDS: Final = 1.0
_PROBLEM_BYTES: Final = 56 * 1024
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    NO_STORE,
    # nginx would keep the frames back.
    (b"x-accel-buffering", b"no"),
]
BYE: Final = encode_frame("bye", {"reason": "drain"})
"""The last frame before a shutdown."""

Frames = LocalFrames | RemoteFrames


class EventService:
    """Streams of events of one worker; with `folder` it shares the hub with the other workers there.

    `set_tap` installs the tap that gets every request that ends, or None. `uncounted` makes a call that only
    listens take no place of a request. `is_valid` returns whether a caller may still be served.
    """

    def __init__(
        self,
        *,
        worker: str,
        folder: Path | None,
        hello: Hello,
        gateway: Callable[[], Gateway],
        read: Reader,
        set_tap: Callable[[EventTap | None], None],
        uncounted: Callable[[], contextlib.AbstractContextManager[None]],
        is_valid: Callable[[Caller], Awaitable[bool]],
    ) -> None:
        self._worker = worker
        self._folder = folder
        self._hello = hello
        self._gateway = gateway
        self._read = read
        self._set_tap = set_tap
        self._uncounted = uncounted
        self._is_valid = is_valid
        self._lock = HubLock(folder) if folder is not None else None
        self._opening = asyncio.Lock()
        self._hub: EventHub | None = None
        self._tap: EventTap | None = None
        self._running: asyncio.Task[None] | None = None
        self._tap_server: asyncio.Server | None = None
        self._attending: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()
        self.streams = 0
        """Streams that are open."""

    async def start(self) -> None:
        """Listen for a hub in another worker."""
        if self._folder is not None:
            path = fan_in.tap_path(self._folder, self._worker)
            self._tap_server = await fan_in.listen(path, self._attend_hub)
            await fan_in.join_hub(self._folder)

    def drain(self) -> None:
        """End all streams with `bye`."""
        self._draining.set()

    async def close(self) -> None:
        """Close everything."""
        self.drain()
        if self._tap_server is not None:
            self._tap_server.close()
        tasks = [*self._attending, *([self._running] if self._running is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def publish_config(self, value: dict[str, Any]) -> None:
        """Send the result of a reload; every worker reloads, and that of the hub counts."""
        if self._hub is not None:
            self._hub.publish("config", _bounded(value))

    def forward_config(self, value: dict[str, Any]) -> None:
        """Pass on the result of a reload that only this worker made: its file was rejected."""
        if self._hub is None and self._tap is not None:
            self._tap.add_config(_bounded(value))

    async def serve(self, call: AdminCall) -> None:
        """Answer `GET /admin/events` until the client leaves, its login ends or the server stops."""
        topics = _topics(call.request.query_param("topics"))
        last_id = call.request.query_param("last_event_id") or call.request.headers.get("last-event-id") or ""
        if self._draining.is_set():
            raise Overloaded("the gateway is shutting down", code="shutting_down")
        frames = await self._open(topics, last_id[:100])
        self.streams += 1
        try:
            call.reply.start(200, [*_HEADERS, (b"x-request-id", call.id.encode())])
            with self._uncounted():
                await self._pump(call, frames)
        finally:
            self.streams -= 1
            frames.close()

    async def _pump(self, call: AdminCall, frames: Frames) -> None:
        """Write frames as they come."""
        reply = call.reply
        stopping = asyncio.ensure_future(self._draining.wait())
        check_at = time.monotonic() + _CHECK_SECONDS
        data = RETRY
        following: asyncio.Future[bytes] | None = None
        try:
            while data:
                if not await write_or_stop(reply, data, stopping):
                    return
                if time.monotonic() >= check_at:
                    check_at = time.monotonic() + _CHECK_SECONDS
                    if not await self._is_valid(call.caller):
                        await reply.end()
                        return
                following = asyncio.ensure_future(frames.next())
                await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    await reply.end(BYE)
                    return
                data = following.result()
            # The worker of the hub may be the first of all to stop.
            await asyncio.wait([stopping], timeout=_BYE_SECONDS)
            await reply.end(BYE if stopping.done() else b"")
        finally:
            stopping.cancel()
            if following is not None:
                following.cancel()

    async def _open(self, topics: tuple[str, ...], last_id: str) -> Frames:
        """Subscribe at the hub: in this worker, or in the one that has the lock."""
        deadline = time.monotonic() + _HUB_WAIT
        while True:
            async with self._opening:
                if self._hub is None and (self._lock is None or self._lock.acquire()):
                    await self._start_hub()
                if self._hub is not None:
                    return LocalFrames(self._hub, topics, last_id)
            assert self._folder is not None
            # The worker with the lock may just be starting or closing its hub.
            with contextlib.suppress(OSError):
                return await RemoteFrames.open(self._folder, topics, last_id)
            if time.monotonic() >= deadline:
                raise Overloaded("the event stream cannot be opened now; try again", code="no_event_hub")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _start_hub(self) -> None:
        """Become the hub; from the moment it is there no request of any worker is missed."""
        hub = EventHub(self._hello)
        tap = self._install_tap()
        reports = None if self._folder is None else ReportReader(self._folder, self._worker, hub)
        try:
            if reports is not None:
                reports.connect()
                await reports.settle()
        except BaseException:
            # The subscriber left meanwhile.
            await self._end_hub(hub, tap, reports)
            raise
        self._hub = hub
        self._running = asyncio.ensure_future(self._run_hub(hub, tap, reports))

    async def _run_hub(self, hub: EventHub, tap: EventTap, reports: ReportReader | None) -> None:
        """Be the hub until nobody has subscribed for a while."""
        server = None
        try:
            if self._folder is not None and reports is not None:
                attend = functools.partial(self._attend_worker, hub, reports)
                server = await fan_in.listen(fan_in.hub_path(self._folder), attend)
            await self._tick(hub, tap, reports)
        except Exception:
            log.exception("the event stream of the console failed; it can be opened again")
        finally:
            self._hub = None
            if server is not None and self._folder is not None:
                server.close()
                fan_in.remove(fan_in.hub_path(self._folder))
            await self._end_hub(hub, tap, reports)

    async def _end_hub(self, hub: EventHub, tap: EventTap, reports: ReportReader | None) -> None:
        self._remove_tap(tap)
        hub.close()
        try:
            if reports is not None:
                await reports.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    async def _tick(self, hub: EventHub, tap: EventTap, reports: ReportReader | None) -> None:
        watch = StateWatch(self._gateway, self._read)
        left_at, ticks = time.monotonic(), 0
        while hub.subscribers or time.monotonic() - left_at < LINGER_SECONDS:
            if hub.subscribers:
                left_at = time.monotonic()
            if ticks % _TICKS_IN_SECOND == 0:
                hub.flush_second()
                await watch.check(hub)
                if reports is not None:
                    reports.connect()
            await asyncio.sleep(REPORT_SECONDS)
            ticks += 1
            hub.take(self._worker, tap.collect())
            hub.flush_rows()

    def _install_tap(self) -> EventTap:
        self._tap = EventTap(self._active)
        self._set_tap(self._tap)
        return self._tap

    def _remove_tap(self, tap: EventTap) -> None:
        """Remove a tap, unless another has taken its place."""
        if self._tap is tap:
            self._tap = None
            self._set_tap(None)

    def _active(self) -> Mapping[RequestRecord, ClientRequest]:
        return self._gateway().active

    async def _attend_hub(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Report to a hub in another worker while it is connected."""
        await self._attend(self._report(reader, writer), writer)

    async def _report(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._hub is not None:
            return
        tap = self._install_tap()
        try:
            await fan_in.send_reports(tap, reader, writer)
        finally:
            self._remove_tap(tap)

    async def _attend_worker(
        self, hub: EventHub, reports: ReportReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send frames to a subscriber of another worker."""
        await self._attend(fan_in.serve_frames(hub, reports, reader, writer), writer)

    async def _attend(self, work: Awaitable[None], writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(work)
        self._attending.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._attending.discard(task)
            task.cancel()
            writer.close()


async def write_or_stop(reply: Reply, data: bytes, stopping: asyncio.Future[Any]) -> bool:
    """Write, waiting for a slow client; return False if it holds up the end of the server."""
    if reply.write_nowait(data):
        return True
    writing = asyncio.ensure_future(reply.drain())
    try:
        await asyncio.wait([writing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            await asyncio.wait([writing], timeout=_STUCK_SECONDS)
        if not writing.done():
            reply.abort()
            return False
        writing.result()
        return True
    finally:
        writing.cancel()


def _bounded(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a reload with as many problems as fit into a frame, and how many do not."""
    kept: list[dict[str, Any]] = []
    size = 0
    for problem in result["problems"]:
        size += len(json.encode(problem)) + 1
        if size > _PROBLEM_BYTES:
            return {**result, "problems": kept, "left_off": len(result["problems"]) - len(kept)}
        kept.append(problem)
    return result


def _topics(text: str | None) -> tuple[str, ...]:
    """Return the topics that a call names; all without a name."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    unknown = next((name for name in names if name not in TOPICS), None)
    if unknown is not None:
        raise BadRequest(
            f"topics: {unknown[:80]!r} is not one of {', '.join(TOPICS)}",
            param="topics",
            code="unknown_topic",
        )
    return tuple(names) or TOPICS
