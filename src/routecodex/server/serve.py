"""One server process: start, serve until a signal, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from msgspec.structs import replace

from routecodex.accounting.figures import Figures, figures_of
from routecodex.accounting.ledger import Ledger, LedgerOptions
from routecodex.accounting.ledger_file import UnreadableLedger, ledger_path
from routecodex.accounting.usage_report import UsageQuestion, read_usage, report, zone_of
from routecodex.canon.errors import ClientError
from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.internal.clock_service import BARE
from routecodex.gateway.request import RequestRecord
from routecodex.server import announce, descriptors, logs
from routecodex.server.access import AdminAccess
from routecodex.server.access_log import AccessLog
from routecodex.server.admin import AdminApi
from routecodex.server.announce import Announcement
from routecodex.server.app import App
from routecodex.server.directories import session_dir, user_dir
from routecodex.server.http import HttpLimits, HttpServer
from routecodex.server.ledger_rows import ledger_batch
from routecodex.server.logs import session_name
from routecodex.server.metrics import Metrics
from routecodex.server.reload import ConfigSource, Reloader, ReloadResult
from routecodex.server.request_log import RequestLog
from routecodex.server.state_metrics import LedgerMetrics, StateMetrics, StoreCalls
from routecodex.server.workers import Heartbeat, reserve_port
from routecodex.stores import open_store
from routecodex.stores.monitored import MonitoredStore

log = logging.getLogger("routecodex.server")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PRICE_SECONDS = 0.5
_LISTING_WAIT = 2.0
"""Seconds that a reload waits for the models of providers; the command line waits five for the reload."""


class CannotListen(Exception):
    """The address could not be bound; see its cause."""


def limits(config: Config) -> HttpLimits:
    """Return the HTTP limits of a configuration."""
    server = config.server
    idle = server.client_idle_ms / 1000
    files = descriptors.limit()
    return HttpLimits(
        body_bytes=server.max_body_mb * 1024 * 1024,
        header_bytes=server.max_header_kb * 1024,
        header_seconds=min(idle, 15.0),
        body_seconds=idle,
        body_total_seconds=float(server.max_body_seconds),
        write_stall_seconds=idle,
        open_at_once=descriptors.requests_allowed(files),
        descriptors=files - descriptors.reserve(files) // 2,
    )


class Service:
    """The server in one process.

    With `home`, the user dir, it writes the request log and opens the admin API; it announces itself there,
    unless it is one of several workers, whose parent passes `announced`. With `source` it reloads its
    configuration when the file changes; `spread` makes the other workers do the same.
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
        self._session_dir = session_dir(config, home)
        self._source = source
        self._announced = announced
        self._written_row: Announcement | None = None
        self._workers = workers
        self._requests = self._request_log()
        self._access = AccessLog(as_json=logs.is_json(config.logging.format, sys.stderr), sink=self._requests)
        self._set_visibility(config)
        self._ledger = self._open_ledger(config)
        self._draining = False
        calls = StoreCalls()
        self._gateway = Gateway(
            config,
            store=MonitoredStore(
                open_store(config.store.url, session_dir=self._session_dir, bare=BARE), on_call=calls.add
            ),
            observe=self._observe,
            user_dir=home or user_dir(),
            ntp_file=self._session_dir / "clock" / "ntp-state.json" if home is not None else None,
        )
        # The workers share the store, so that one of them asks the providers for their models.
        self._gateway.model_lists.fetches = worker == "0" or self._gateway.store.kind == "memory"
        self._metrics = Metrics(active=lambda: self._http.active, worker=worker)
        self._metrics.add(StateMetrics(calls, gateway=lambda: self._gateway, worker=worker))
        self._metrics.add(LedgerMetrics(lambda: self._ledger, worker=worker))
        self._gateway.session_usage = self._session_usage
        self._app = App(self._gateway, config, metrics=self._metrics, draining=lambda: self._draining)
        self._http = HttpServer(
            self._app,
            limits=limits(config),
            on_protocol_error=self._app.on_protocol_error,
            check_head=self._app.check_head,
            is_essential=self._app.is_essential,
        )
        self._http.on_pressure = lambda: self._gateway.http.close_idle()
        self._price_watch: asyncio.Task[None] | None = None
        self.reloader: Reloader | None = None
        if source is not None:
            self.reloader = Reloader(
                source,
                running=config,
                adopt=self._adopt,
                spread=spread,
                has_stored_clients=lambda: bool(self._gateway.clients.stored.clients),
            )

    def _request_log(self) -> RequestLog | None:
        options = self._config.logging
        if self._home is None or not options.requests:
            return None
        return RequestLog(self._session_dir, max_bytes=options.requests_max_mb * 1024 * 1024)

    def _open_ledger(self, config: Config) -> Ledger[RequestRecord] | None:
        options = self._ledger_options(config)
        if options is None:
            return None
        return Ledger(options, functools.partial(ledger_batch, server=options.server))

    def _ledger_options(self, config: Config) -> LedgerOptions | None:
        """Return where usage is kept; None without a user dir and a file of its own."""
        if self._home is None and not config.usage.file:
            return None
        path = ledger_path(config, self._home or user_dir())
        if path is None:
            return None
        usage = config.usage
        return LedgerOptions(
            path=path,
            server=config.server.identity,
            timezone=usage.timezone,
            keep_days=usage.keep_days,
            max_mb=usage.max_mb,
        )

    async def _usage(self, question: UsageQuestion) -> dict[str, Any]:
        """Answer a question about usage, with the requests that ended a moment ago."""
        assert self._ledger is not None
        await self._ledger.flush()
        zone = zone_of(self._config.usage.timezone)
        return await asyncio.to_thread(read_usage, self._ledger.options.path, question, zone)

    async def _session_usage(self, session: str, client: str) -> Figures | None:
        """Return the usage of a session, or of a client today; None if it is not known."""
        if self._ledger is None:
            return None
        filters = {"session": session_name(session) or None, "client": client or None}
        since = "1970-01-01" if session else None
        question = UsageQuestion(filters=filters, since=since, now=time.time())
        try:
            return figures_of((await self._usage(question))["total"])
        except FileNotFoundError:
            return Figures()
        except UnreadableLedger:
            return None

    def _set_visibility(self, config: Config) -> None:
        self._access.shown = config.logging.level in ("debug", "info")
        self._logs_requests = self._access.shown or self._requests is not None

    def _observe(self, record: RequestRecord) -> None:
        self._metrics.observe(record)
        if record.counted and self._ledger is not None:
            self._ledger.add(record)
        # Probes, scrapes and admin calls are logged only when they are refused.
        if self._logs_requests and (record.protocol or record.status >= 400):
            self._access.add(record)

    async def start(self, *, reuse_port: bool = False) -> tuple[str, int]:
        """Start to listen; return the bound address."""
        lists = self._gateway.model_lists
        lists.on_change = self._adopt_lists
        await self._gateway.open()
        if self.reloader is not None:
            await self.reloader.catch_up()
        server = self._config.server
        try:
            host, port = await self._http.listen(server.host, server.port, reuse_port=reuse_port)
        except OSError as exc:
            raise CannotListen from exc
        self._open_admin(port)
        if self.reloader is not None:
            self.reloader.start()
        self._price_watch = asyncio.ensure_future(self._watch_prices())
        lists.start()
        return host, port

    async def _watch_prices(self) -> None:
        """Keep the prices of the gateway in use current: imported ones count within a second."""
        while True:
            prices = self._gateway.prices
            if prices.is_stale:
                await asyncio.to_thread(prices.keep_current)
                if prices.file_error:
                    log.warning("the prices of the package are used: %s", prices.file_error)
            await asyncio.sleep(_PRICE_SECONDS)

    def _open_admin(self, port: int) -> None:
        """Open the admin API and announce the server."""
        row = self._announced or self._description(port)
        if row is None:
            return
        self._app.admin = AdminApi(
            row,
            access=AdminAccess(row.token, host=self._config.server.host),
            workers=self._workers,
            gateway=lambda: self._gateway,
            active_requests=lambda: self._http.active,
            reload=self._reload_all if self.reloader is not None else None,
            recent_requests=self._recent_requests if self._requests is not None else None,
            usage=self._admin_usage,
        )
        if self._home is not None and self._announced is None:
            announce.write(self._home, row)
            self._written_row = row

    def _description(self, port: int) -> Announcement | None:
        configured = self._config.server.admin_token
        if self._home is not None:
            token = announce.admin_token(self._config, self._home)
        elif configured is not None:
            token = configured.reveal()
        else:
            return None
        file = self._source.path if self._source is not None else None
        return announce.describe(
            self._config,
            token=token,
            port=port,
            file=file,
            session_dir=self._session_dir,
            ledger=self._ledger.options.path if self._ledger is not None else None,
        )

    async def _admin_usage(self, question: UsageQuestion) -> dict[str, Any]:
        if self._ledger is None:
            raise ClientError("there is no usage ledger; set usage.enabled", status=409, code="no_ledger")
        try:
            return await self._usage(question)
        except FileNotFoundError:
            return report(question, [], zone_of(self._config.usage.timezone))
        except UnreadableLedger as exc:
            raise ClientError(str(exc), status=409, code="ledger_unreadable") from exc

    async def _recent_requests(self, limit: int) -> list[dict[str, Any]]:
        assert self._requests is not None
        self._access.flush()
        return await self._requests.tail(limit)

    async def _adopt(self, config: Config) -> None:
        """Apply a new configuration; requests in flight finish with the old one."""
        gateway = self._gateway.reconfigured(config)
        if config.logging.level != self._config.logging.level:
            logs.set_level(config.logging.level)
        self._set_visibility(config)
        await self._move_ledger(config)
        self._config, self._gateway = config, gateway
        self._app.adopt(gateway, config)
        self._http.limits = limits(config)
        if gateway.model_lists.fetches:
            gateway.model_lists.refresh()
        await gateway.health.reset_refused_keys()
        await asyncio.to_thread(gateway.prices.keep_current)

    async def _move_ledger(self, config: Config) -> None:
        options = self._ledger_options(config)
        if self._ledger is not None and options is not None:
            self._ledger.configure(options)
            return
        before, self._ledger = self._ledger, self._open_ledger(config)
        if before is not None:
            await before.close()

    def _adopt_lists(self) -> None:
        """Route by the models that providers list now; requests in flight finish with the former ones."""
        self._gateway = self._gateway.reconfigured(self._config)
        self._app.adopt(self._gateway, self._config)

    async def _reload_all(self) -> ReloadResult:
        """Reload in all workers; an operator who looks at the models next sees what providers list now."""
        assert self.reloader is not None
        result = await self.reloader.reload_all()
        lists = self._gateway.model_lists
        if result.reloaded and not lists.fetches:
            lists.refresh()
        await lists.settle(_LISTING_WAIT)
        return result

    async def stop(self) -> bool:
        """Drain, then close; return whether all requests finished."""
        finished = await self.drain()
        await self.close()
        return finished

    async def drain(self) -> bool:
        """Stop accepting; return whether all requests in flight finished within the limit."""
        self._draining = True
        self._gateway.clock_service.release()
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
        """Seconds that requests in flight may take to finish."""
        return self._config.server.drain_seconds

    async def close(self) -> None:
        """Drop open connections and release all resources."""
        if self.reloader is not None:
            await self.reloader.close()
        if self._price_watch is not None:
            self._price_watch.cancel()
            await asyncio.gather(self._price_watch, return_exceptions=True)
        await self._http.close()
        await self._gateway.close()
        self._access.flush()
        if self._requests is not None:
            await self._requests.close()
        if self._ledger is not None:
            await self._ledger.close()
        if self._home is not None and self._written_row is not None:
            announce.remove(self._home, self._written_row)


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
        )
        shared = reuse_port or resolved is not config
        runner.run(_serve(make, reuse_port=shared, on_ready=on_ready, parent=parent, heartbeat=heartbeat))


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
