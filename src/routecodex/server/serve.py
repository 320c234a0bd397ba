"""A gateway on a socket: start, serve until told to stop, drain.

What the process does with memory that a large request has used: it keeps some for the next one.

The C library gives large blocks back to the system at once, and takes them anew with the next request, page
by page: a request of 500 KB spent a quarter of its time on that.
"""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from msgspec.structs import replace

from routecodex.canon.errors import ClientError, GatewayError
from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.internal.clock_service import BARE
from routecodex.gateway.request import RequestRecord, fresh_id
from routecodex.server import announce, logs
from routecodex.server.access import AdminAccess
from routecodex.server.access_log import AccessLog
from routecodex.server.admin import AdminApi
from routecodex.server.announce import Announcement
from routecodex.server.app import App, error_answer
from routecodex.server.http import HttpLimits, HttpRequest, HttpServer
from routecodex.server.metrics import Metrics
from routecodex.server.reload import ConfigSource, Reloader
from routecodex.server.request_log import RequestLog
from routecodex.server.workers import reserve_port
from routecodex.stores import open_store

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""How the C library numbers what can be set."""
_KEPT = 32 * 1024 * 1024
_LARGEST = 8 * 1024 * 1024


def tune_malloc() -> bool:
    """Keeps up to 32 MB that are free, gives blocks beyond 8 MB back; False where that cannot be set."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST))


log = logging.getLogger("routecodex.server")

Headers = list[tuple[bytes, bytes]]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotListen(Exception):
    """The address could not be bound; its cause says why."""


def user_dir() -> Path:
    """Where everything of this user lives."""
    return Path(os.environ.get("ROUTECODEX_USER_DIR") or "~/.routecodex").expanduser()


def session_dir(config: Config, home: Path | None = None) -> Path:
    """Where the state of this server lives; `home` is the user dir when it is another one."""
    given = os.environ.get("ROUTECODEX_SESSION_DIR")
    return Path(given).expanduser() if given else (home or user_dir()) / "sessions" / config.server.identity


def limits(config: Config) -> HttpLimits:
    """What a client may cost."""
    server = config.server
    idle = server.client_idle_ms / 1000
    return HttpLimits(
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
    """One process's share of a server.

    With `home`, the user dir, it keeps a log of its requests and lets itself be operated: it announces itself
    there unless `announced` says who it is already, one of several `workers`. With `source` it follows the
    file its configuration came from; `spread` asks the other workers to do so at once.
    """

    def __init__(
        self,
        config: Config,
        *,
        worker: str = "0",
        home: Path | None = None,
        source: ConfigSource | None = None,
        announced: Announcement | None = None,
        workers: int = 1,
        spread: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._home = home
        self._folder = session_dir(config, home)
        self._source = source
        self._announced = announced
        self._on_file: Announcement | None = None
        self._workers = workers
        self._requests = self._request_log()
        self._access = AccessLog(
            as_json=logs.is_json(config.logging.format, sys.stderr), keeper=self._requests
        )
        self._choose_lines(config)
        self._draining = False
        self._gateway = Gateway(
            config,
            store=open_store(config.store.url, session_dir=self._folder, bare=BARE),
            observe=self._observe,
            user_dir=home or user_dir(),
            ntp_file=self._folder / "clock" / "ntp-state.json" if home is not None else None,
        )
        self._metrics = Metrics(active=lambda: self._http.active, worker=worker)
        self._app = App(self._gateway, config, metrics=self._metrics, draining=lambda: self._draining)
        self._http = HttpServer(self._app, limits=limits(config), on_protocol_error=protocol_error)
        self.reloader: Reloader | None = None
        if source is not None:
            self.reloader = Reloader(source, running=config, adopt=self._adopt, spread=spread)

    def _request_log(self) -> RequestLog | None:
        wanted = self._config.logging
        if self._home is None or not wanted.requests:
            return None
        return RequestLog(self._folder, max_bytes=wanted.requests_max_mb * 1024 * 1024)

    def _choose_lines(self, config: Config) -> None:
        self._access.shown = config.logging.level in ("debug", "info")
        self._tells = self._access.shown or self._requests is not None

    def _observe(self, record: RequestRecord) -> None:
        self._metrics.observe(record)
        if self._tells:
            self._access.add(record)

    async def start(self, *, reuse_port: bool = False) -> tuple[str, int]:
        """Listens; the address that was bound."""
        await self._gateway.open()
        if self.reloader is not None:
            await self.reloader.catch_up()
        server = self._config.server
        try:
            host, port = await self._http.listen(server.host, server.port, reuse_port=reuse_port)
        except OSError as exc:
            raise CannotListen from exc
        self._let_operate(port)
        if self.reloader is not None:
            self.reloader.start()
        return host, port

    def _let_operate(self, port: int) -> None:
        """Opens the admin API, and says where it is."""
        row = self._announced or self._description(port)
        if row is None:
            return
        self._app.admin = AdminApi(
            row,
            door=AdminAccess(row.token, host=self._config.server.host),
            workers=self._workers,
            gateway=lambda: self._gateway,
            active=lambda: self._http.active,
            reload=self.reloader.reload_all if self.reloader is not None else None,
            recent=self._recent if self._requests is not None else None,
        )
        if self._home is not None and self._announced is None:
            announce.write(self._home, row)
            self._on_file = row

    def _description(self, port: int) -> Announcement | None:
        given = self._config.server.admin_token
        if self._home is not None:
            token = announce.admin_token(self._config, self._home)
        elif given is not None:
            token = given.reveal()
        else:
            return None
        file = self._source.path if self._source is not None else None
        return announce.describe(self._config, token=token, port=port, file=file, session_dir=self._folder)

    async def _recent(self, limit: int) -> list[dict[str, Any]]:
        assert self._requests is not None
        self._access.flush()
        return await self._requests.tail(limit)

    async def _adopt(self, config: Config) -> None:
        """Puts a new configuration to use; requests under way finish by the one they began with."""
        gateway = self._gateway.reconfigured(config)
        if config.logging.level != self._config.logging.level:
            logs.set_level(config.logging.level)
        self._choose_lines(config)
        self._config, self._gateway = config, gateway
        self._app.adopt(gateway, config)
        self._http.limits = limits(config)
        await gateway.health.forgive_refused()

    async def stop(self) -> bool:
        """Lets requests in flight finish, up to the limit; True when all did."""
        finished = await self.drain()
        await self.close()
        return finished

    async def drain(self) -> bool:
        """Accepts nothing more; True when what was in flight finished within the limit."""
        self._draining = True
        self._gateway.clockwork.release()
        return await self._http.drain(self.drain_seconds)

    @property
    def gateway(self) -> Gateway:
        """The gateway that answers new requests; a reload replaces it."""
        return self._gateway

    @property
    def connections(self) -> int:
        """Number of client connections that are open or whose request is still being handled."""
        return self._http.connections

    @property
    def drain_seconds(self) -> int:
        """How long requests in flight may take to finish."""
        return self._config.server.drain_seconds

    async def close(self) -> None:
        """Drops what is left, and lets go of everything."""
        if self.reloader is not None:
            await self.reloader.close()
        await self._http.close()
        await self._gateway.close()
        self._access.flush()
        if self._requests is not None:
            await self._requests.close()
        if self._home is not None and self._on_file is not None:
            announce.remove(self._home, self._on_file)


async def _serve(
    make: Callable[[], Service],
    *,
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
    service = make()
    if service.reloader is not None:
        loop.add_signal_handler(signal.SIGHUP, _on_hang_up(service.reloader, stop))
    host, port = await service.start(reuse_port=reuse_port)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    tune_malloc()
    if parent is not None:
        loop.add_reader(parent, stop.set)
    on_ready(host, port)
    await stop.wait()
    if parent is not None:
        loop.remove_reader(parent)
    log.info("draining: no new requests, up to %s s for those in flight", service.drain_seconds)
    draining = asyncio.ensure_future(service.drain())
    for number in heard:
        loop.add_signal_handler(number, draining.cancel)
    await asyncio.wait([draining])
    if draining.cancelled() or not draining.result():
        log.warning("some requests were cut off before they were answered")
    await service.close()


def _on_hang_up(reloader: Reloader, stop: asyncio.Event) -> Callable[[], None]:
    watched = sys.stderr.isatty()

    def hang_up() -> None:
        # The same signal tells that the terminal was closed, and whoever watched us there is gone.
        if watched and not sys.stderr.isatty():
            stop.set()
        else:
            reloader.hang_up()

    return hang_up


def serve(
    config: Config,
    *,
    worker: str = "0",
    reuse_port: bool = False,
    on_ready: Callable[[str, int], None] = lambda host, port: None,
    parent: int | None = None,
    home: Path | None = None,
    source: ConfigSource | None = None,
    announced: Announcement | None = None,
    workers: int = 1,
    spread: Callable[[], bool] = lambda: False,
) -> None:
    """Serves until SIGTERM, SIGINT or the end of the pipe `parent`, then drains; a second signal ends it.

    Where any free port will do, it is settled first: the server is known by it, and so is its state.
    """
    trace = user_dir() / "debug" / "finish-reason.log" if config.logging.finish_trace else None
    as_json = logs.is_json(config.logging.format, sys.stderr)
    logs.set_up(level=config.logging.level, as_json=as_json, finish_trace=trace)
    with _settled(config) as settled, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        make = functools.partial(
            Service,
            settled,
            worker=worker,
            home=home,
            source=source,
            announced=announced,
            workers=workers,
            spread=spread,
        )
        shared = reuse_port or settled is not config
        runner.run(_serve(make, reuse_port=shared, on_ready=on_ready, parent=parent))


@contextlib.contextmanager
def _settled(config: Config) -> Iterator[Config]:
    """The configuration with a port that is nobody else's, held as long as this lasts."""
    if config.server.port:
        yield config
        return
    try:
        held = reserve_port(config.server.host, 0)
    except OSError as exc:
        raise CannotListen from exc
    with held:
        yield replace(config, server=replace(config.server, port=held.getsockname()[1]))
