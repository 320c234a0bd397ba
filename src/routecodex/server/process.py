"""Runs a server in this process: start, serve until a signal, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import uvloop
from msgspec.structs import replace

from routecodex.config import Config
from routecodex.server import descriptors, logs
from routecodex.server.announce import Announcement
from routecodex.server.directories import user_dir
from routecodex.server.orphans import start_reaping
from routecodex.server.reload import ConfigSource, Reloader
from routecodex.server.serve import CannotListen, Service
from routecodex.server.workers import Heartbeat, reserve_port

log = logging.getLogger("routecodex.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLOSE_SECONDS = 1.0
"""Seconds to close the loop when everything in it has ended."""


async def _serve(
    make: Callable[[], Service],
    *,
    reuse_port: bool,
    on_ready: Callable[[str, int], None],
    parent: int | None,
    heartbeat: Heartbeat | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if heartbeat is not None:
        _beat(loop, heartbeat)
    # A signal ignored by the parent stays ignored: workers leave Ctrl-C to their parent.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, stop.set)
    service = make()
    if service.reloader is not None:
        loop.add_signal_handler(signal.SIGHUP, _sighup_handler(service.reloader, stop))
    host, port = await service.start(reuse_port=reuse_port)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    tune_malloc()
    if parent is not None:
        loop.add_reader(parent, stop.set)
    on_ready(host, port)
    start_reaping(loop)
    await stop.wait()
    if parent is not None:
        loop.remove_reader(parent)
    log.info("draining: no new requests, up to %s s for those in flight", service.drain_seconds)
    draining = asyncio.ensure_future(service.drain())
    for number in handled:
        loop.add_signal_handler(number, draining.cancel)
    await asyncio.wait([draining])
    if draining.cancelled() or not draining.result():
        log.warning("some requests were cut off before they were answered")
    await service.close()


def _beat(loop: asyncio.AbstractEventLoop, heartbeat: Heartbeat) -> None:
    heartbeat.send()
    loop.call_later(heartbeat.seconds, _beat, loop, heartbeat)


def _sighup_handler(reloader: Reloader, stop: asyncio.Event) -> Callable[[], None]:
    watched = sys.stderr.isatty()

    def on_sighup() -> None:
        # A closed terminal sends the same signal; a server in the foreground then stops.
        if watched and not sys.stderr.isatty():
            stop.set()
        else:
            reloader.on_sighup()

    return on_sighup


def serve(
    config: Config,
    *,
    worker: str = "0",
    reuse_port: bool = False,
    on_ready: Callable[[str, int], None] = lambda host, port: None,
    parent: int | None = None,
    heartbeat: Heartbeat | None = None,
    home: Path | None = None,
    source: ConfigSource | None = None,
    announced: Announcement | None = None,
    workers: int = 1,
    spread: Callable[[], bool] = lambda: False,
    event_dir: Path | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or the end of the pipe `parent`, then drain; a second signal stops it.

    Port 0 is resolved to a free port first, because the server's id and state depend on it.
    """
    set_up_logs(config)
    descriptors.raise_limit()
    with _with_port(config) as resolved, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        make = functools.partial(
            Service,
            resolved,
            worker=worker,
            home=home,
            source=source,
            announced=announced,
            workers=workers,
            spread=spread,
            event_dir=event_dir,
        )
        shared = reuse_port or resolved is not config
        runner.run(_serve(make, reuse_port=shared, on_ready=on_ready, parent=parent, heartbeat=heartbeat))
        ending = threading.Timer(_CLOSE_SECONDS, _end_process)
        ending.daemon = True
        ending.start()
    ending.cancel()


def _end_process() -> None:
    """End a process that has served, and whose loop cannot be closed.

    libuv resolves names in threads of its own, and waits for them: a resolver may take a minute.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def set_up_logs(config: Config) -> None:
    """Send the log of this process to stderr, as configured."""
    trace = user_dir() / "debug" / "finish-reason.log" if config.logging.finish_trace else None
    as_json = logs.is_json(config.logging.format, sys.stderr)
    logs.set_up(level=config.logging.level, as_json=as_json, finish_trace=trace)


@contextlib.contextmanager
def _with_port(config: Config) -> Iterator[Config]:
    """Yield the configuration with a free port instead of port 0, reserved for the duration."""
    if config.server.port:
        yield config
        return
    try:
        held = reserve_port(config.server.host, 0)
    except OSError as exc:
        raise CannotListen from exc
    with held:
        yield replace(config, server=replace(config.server, port=held.getsockname()[1]))


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these parameters in mallopt(3)."""
_TRIM_BYTES = 32 * 1024 * 1024
_MMAP_BYTES = 8 * 1024 * 1024


def tune_malloc() -> bool:
    """Keep up to 32 MB of freed memory and return only blocks beyond 8 MB; False if not supported.

    By default glibc returns large blocks at once and maps them again, page by page, for the next request: a
    request of 500 KB spent a quarter of its time on that.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _MMAP_BYTES))
