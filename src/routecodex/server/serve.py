"""A gateway on a socket: start, serve until told to stop, drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import uvloop

from routecodex.canon.errors import ClientError, GatewayError
from routecodex.config import Config
from routecodex.gateway.ask import Record
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.ids import fresh_id
from routecodex.server import logs
from routecodex.server.app import App, error_answer
from routecodex.server.http import HttpRequest, HttpServer, Limits
from routecodex.server.metrics import Metrics
from routecodex.stores.open import open_store

log = logging.getLogger("routecodex.server")

Headers = list[tuple[bytes, bytes]]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotListen(Exception):
    """The address could not be bound; its cause says why."""


def user_dir() -> Path:
    """Where everything of this user lives."""
    return Path(os.environ.get("ROUTECODEX_USER_DIR", "~/.routecodex")).expanduser()


def session_dir(config: Config) -> Path:
    """Where the state of this server lives."""
    given = os.environ.get("ROUTECODEX_SESSION_DIR")
    return Path(given).expanduser() if given else user_dir() / "sessions" / config.server.identity


def limits(config: Config) -> Limits:
    """What a client may cost."""
    server = config.server
    idle = server.client_idle_ms / 1000
    return Limits(
        body_bytes=server.max_body_mb * 1024 * 1024,
        header_bytes=server.max_header_kb * 1024,
        header_seconds=min(idle, 15.0),
        body_seconds=idle,
        write_stall_seconds=idle,
    )


def protocol_error(status: int, message: str, request: HttpRequest | None) -> tuple[Headers, bytes]:
    """What the HTTP layer answers by itself, in the client's own envelope."""
    error: GatewayError = ClientError(message, status=status, code=f"http_{status}")
    _, headers, body = error_answer(error, request, f"req_{fresh_id()}")
    return headers, body


class Service:
    """One process's share of a server."""

    def __init__(self, config: Config, *, worker: str = "0") -> None:
        self._config = config
        as_json = logs.is_json(config.logging.format, sys.stderr)
        self._access = logs.AccessLog(as_json=as_json) if config.logging.level in ("debug", "info") else None
        self._draining = False
        self._gateway = Gateway(
            config, store=open_store(config.store.url, session_dir=session_dir(config)), observe=self._observe
        )
        self._metrics = Metrics(active=lambda: self._http.active, worker=worker)
        app = App(self._gateway, config, metrics=self._metrics, draining=lambda: self._draining)
        self._http = HttpServer(app, limits=limits(config), on_protocol_error=protocol_error)

    def _observe(self, record: Record) -> None:
        self._metrics.observe(record)
        if self._access is not None:
            self._access.add(record)

    async def start(self, *, reuse_port: bool = False) -> tuple[str, int]:
        """Listens; the address that was bound."""
        server = self._config.server
        try:
            return await self._http.listen(server.host, server.port, reuse_port=reuse_port)
        except OSError as exc:
            raise CannotListen from exc

    async def stop(self) -> bool:
        """Lets requests in flight finish, up to the limit; True when all did."""
        finished = await self.drain()
        await self.close()
        return finished

    async def drain(self) -> bool:
        """Accepts nothing more; True when what was in flight finished within the limit."""
        self._draining = True
        return await self._http.drain(self._config.server.drain_seconds)

    async def close(self) -> None:
        """Drops what is left, and lets go of everything."""
        await self._http.close()
        await self._gateway.close()
        if self._access is not None:
            self._access.flush()


async def _serve(
    config: Config,
    *,
    worker: str,
    reuse_port: bool,
    on_ready: Callable[[str, int], None],
    parent: int | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Whoever started us with a signal ignored wants it so: workers leave Ctrl-C to their parent.
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, stop.set)
    service = Service(config, worker=worker)
    host, port = await service.start(reuse_port=reuse_port)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    if parent is not None:
        loop.add_reader(parent, stop.set)
    on_ready(host, port)
    await stop.wait()
    if parent is not None:
        loop.remove_reader(parent)
    log.info("draining: no new requests, up to %s s for those in flight", config.server.drain_seconds)
    draining = asyncio.ensure_future(service.drain())
    for number in heard:
        loop.add_signal_handler(number, draining.cancel)
    await asyncio.wait([draining])
    if draining.cancelled() or not draining.result():
        log.warning("some requests were cut off before they were answered")
    await service.close()


def serve(
    config: Config,
    *,
    worker: str = "0",
    reuse_port: bool = False,
    on_ready: Callable[[str, int], None] = lambda host, port: None,
    parent: int | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or the end of the pipe `parent`, then drains; a second signal ends it."""
    trace = user_dir() / "debug" / "finish-reason.log" if config.logging.finish_trace else None
    as_json = logs.is_json(config.logging.format, sys.stderr)
    logs.set_up(level=config.logging.level, as_json=as_json, finish_trace=trace)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, worker=worker, reuse_port=reuse_port, on_ready=on_ready, parent=parent))
