"""The server in one process: its parts, its start, reloads, drain and stop. `process` runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.internal.clock_service import BARE
from routecodex.gateway.request import RequestRecord
from routecodex.server import announce, descriptors, logs
from routecodex.server.access_log import AccessLog
from routecodex.server.admin import AdminApi, reload_reply
from routecodex.server.admin_access import AdminAccess
from routecodex.server.admin_batch import BatchCalls
from routecodex.server.admin_captures import CaptureCalls
from routecodex.server.admin_config import ConfigCalls
from routecodex.server.admin_forward import Forwarder
from routecodex.server.admin_login import LoginCalls
from routecodex.server.admin_service import AdminService
from routecodex.server.announce import Announcement
from routecodex.server.app import App
from routecodex.server.captures import Captures
from routecodex.server.directories import session_dir, user_dir
from routecodex.server.events.event_service import EventService
from routecodex.server.events.tap import EventTap
from routecodex.server.http import HttpLimits, HttpServer
from routecodex.server.limit_metrics import LimitMetrics
from routecodex.server.login_state import LoginState
from routecodex.server.metrics import Metrics
from routecodex.server.node_registry import NodeRegistry
from routecodex.server.other_servers import OtherServers
from routecodex.server.reload import ConfigSource, Reloader, ReloadResult
from routecodex.server.request_log import RequestLog
from routecodex.server.request_source import RequestSource
from routecodex.server.server_directory import ServerDirectory
from routecodex.server.state_metrics import LedgerMetrics, StateMetrics, StoreCalls
from routecodex.server.state_store import open_configured_store
from routecodex.server.traces import TelemetryMetrics, TraceService
from routecodex.server.usage_service import UsageService
from routecodex.server.worker_peers import Question, WorkerPeers
from routecodex.stores.monitored import MonitoredStore

log = logging.getLogger("routecodex.server")

_DRAIN_WAIT = 1.0
"""Seconds until a worker that is asked whether it still drains says so."""
_PRICE_SECONDS = 0.5
_LATEST_REQUESTS = 1000
_LISTING_WAIT = 2.0
"""Seconds that a reload waits for the models of providers; the command line waits five for the reload."""
_RELOAD_WAIT = 2.0
"""Seconds that a reload waits for the other workers."""


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
        event_dir: Path | None = None,
    ) -> None:
        self._worker = worker
        self._event_dir = event_dir
        self._events: EventService | None = None
        self._forwarder: Forwarder | None = None
        self._tap: EventTap | None = None
        self._config = config
        self._home = home
        self._session_dir = session_dir(config, home)
        self._source = source
        self._announced = announced
        self._written_row: Announcement | None = None
        self._admin_token = ""
        self._workers = workers
        self._requests = self._request_log()
        self._access = AccessLog(as_json=logs.is_json(config.logging.format, sys.stderr), sink=self._requests)
        self._set_visibility(config)
        self._usage = UsageService(lambda: self._config, home)
        self._request_source = self._make_request_source()
        self._draining = False
        self._drained = asyncio.Event()
        calls = StoreCalls()
        self._gateway = Gateway(
            config,
            store=self._open_store(config, calls),
            observe=self._observe,
            user_dir=home or user_dir(),
            ntp_file=self._session_dir / "clock" / "ntp-state.json" if home is not None else None,
        )
        self._captures = self._open_captures(config)
        # The workers share the store, so that one of them asks the providers for their models.
        self._gateway.model_lists.fetches = worker == "0" or self._gateway.store.kind == "memory"
        self._traces = TraceService(config, self._gateway)
        self._metrics = self._open_metrics(calls, worker)
        self._count_limits()
        self._gateway.session_usage = self._usage.of_session
        self._app = self._make_app(config)
        self._app.tracer = self._traces.tracer
        self._http = self._make_http(config)
        self._price_watch: asyncio.Task[None] | None = None
        self._registry = NodeRegistry(self._gateway.store, is_first_worker=worker == "0")
        self.reloader = None if source is None else self._open_reloader(source, spread)

    def _open_reloader(self, source: ConfigSource, spread: Callable[[], bool]) -> Reloader:
        return Reloader(
            source,
            running=self._config,
            adopt=self._adopt,
            reload_others=self._reload_others,
            spread=spread,
            on_result=self._on_reload,
            has_stored_clients=lambda: bool(self._gateway.clients.stored.clients),
        )

    def _make_http(self, config: Config) -> HttpServer:
        http = HttpServer(
            self._app,
            limits=limits(config),
            on_protocol_error=self._app.on_protocol_error,
            check_head=self._app.check_head,
            is_essential=self._app.is_essential,
        )
        http.on_pressure = lambda: self._gateway.http.close_idle()
        return http

    def _make_request_source(self) -> RequestSource:
        return RequestSource(
            gateway=lambda: self._gateway,
            ledger=lambda: self._usage.ledger,
            is_captured=lambda id: self._captures is not None and self._captures.has(id),
            log_tail=self._recent_requests if self._requests is not None else None,
        )

    def _open_metrics(self, calls: StoreCalls, worker: str) -> Metrics:
        metrics = Metrics(active=self._active_requests, worker=worker)
        metrics.add(StateMetrics(calls, gateway=lambda: self._gateway, worker=worker))
        metrics.add(LedgerMetrics(lambda: self._usage.ledger, worker=worker))
        metrics.add(LimitMetrics(lambda: self._gateway, worker=worker))
        metrics.add(TelemetryMetrics(self._traces, worker=worker))
        return metrics

    def _make_app(self, config: Config) -> App:
        return App(
            self._gateway,
            config,
            metrics=self._metrics,
            draining=lambda: self._draining,
            captures=self._captures,
        )

    def _open_store(self, config: Config, calls: StoreCalls) -> MonitoredStore:
        store = open_configured_store(config.store, session_dir=self._session_dir, bare=BARE)
        return MonitoredStore(store, on_call=calls.add)

    def _request_log(self) -> RequestLog | None:
        options = self._config.logging
        if self._home is None or not options.requests:
            return None
        return RequestLog(self._session_dir, max_bytes=options.requests_max_mb * 1024 * 1024)

    def _open_captures(self, config: Config) -> Captures | None:
        """Return where requests are captured; None without a user dir."""
        if self._home is None:
            return None
        return Captures(self._session_dir / "captures", config.capture)

    def _secrets(self, config: Config) -> list[str]:
        """Return every value that captures must not hold: those of the configuration, and the admin token."""
        return [*self._gateway.secrets(config), self._admin_token]

    @property
    def captures(self) -> Captures | None:
        """The captured requests; None without a user dir."""
        return self._captures

    def _count_limits(self) -> None:
        """Give the counters of limits what this process knows."""
        self._gateway.limiter.counters.past_use = self._usage.past_use
        if self._workers > 1:
            self._gateway.share_running_requests()

    def _set_visibility(self, config: Config) -> None:
        self._access.shown = config.logging.level in ("debug", "info")
        self._logs_requests = self._access.shown or self._requests is not None
        self._keeps_details = config.console.detail_days > 0

    def _observe(self, record: RequestRecord) -> None:
        self._metrics.observe(record)
        if record.trace is not None:
            self._traces.add(record)
        # Probes, scrapes and admin calls are logged only when they are refused; a page that closes its event
        # stream is no failure.
        is_logged = record.protocol or (record.status >= 400 and not record.gone)
        if self._tap is not None and is_logged:
            self._tap.add(record)
        ledger = self._usage.ledger
        if ledger is not None and (record.counted or (is_logged and self._keeps_details)):
            ledger.add(record)
        if self._logs_requests and is_logged:
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
        if self._event_dir is not None and self._workers > 1:
            peers = WorkerPeers(self._event_dir, self._worker, self._answer_peer)
            await peers.start()
            self._request_source.peers = peers
        self._registry.start(lambda: self._config, port=port, workers=self._workers)
        if self._events is not None:
            await self._events.start()
        if self.reloader is not None:
            self.reloader.start()
        self._price_watch = asyncio.ensure_future(self._watch_prices())
        if self._captures is not None:
            self._captures.configure(self._config.capture, secrets=self._secrets(self._config))
            self._captures.start()
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
        api = AdminApi(
            row,
            workers=self._workers,
            gateway=lambda: self._gateway,
            active_requests=self._active_requests,
            reload=self._reload_all if self.reloader is not None else None,
            requests=self._request_source,
            usage=self._usage.answer,
            config=ConfigCalls(
                path=self._source.path if self._source is not None else None,
                running=lambda: self._config,
                compare=self.reloader.compare if self.reloader is not None else None,
                has_stored_clients=lambda: bool(self._gateway.clients.stored.clients),
                secrets=(row.token,),
            ),
        )
        self._app.admin = self._admin_service(api, row, port)
        self._admin_token = row.token
        self._events = self._event_service(api, self._app.admin)
        self._app.admin.add("GET", "events", self._events.serve)
        if self._home is not None and self._announced is None:
            announce.write(self._home, row)
            self._written_row = row

    def _active_requests(self) -> int:
        """Return the number of calls under way, without those that only listen."""
        listening = (self._events, self._forwarder)
        return self._http.active - sum(one.streams for one in listening if one is not None)

    def _admin_service(self, api: AdminApi, row: Announcement, port: int) -> AdminService:
        access = AdminAccess(
            row.token,
            host=self._config.server.host,
            port=port,
            console=lambda: self._config.console,
            clients=lambda: self._gateway.clients,
        )
        login = LoginCalls(
            row,
            access=access,
            state=LoginState(self._gateway.store),
            console=lambda: self._config.console,
            clients=lambda: self._gateway.clients,
        )
        calls = CaptureCalls(
            self._captures, is_known=self._knows_request, answer_console=self._app.answer_console
        )
        service = AdminService(api, access=access, login=login, capture_mode=lambda: calls.mode)
        calls.add_to(service)
        BatchCalls(service).add()
        self._open_other_servers(api, service, row)
        return service

    def _open_other_servers(self, api: AdminApi, service: AdminService, row: Announcement) -> None:
        directory = ServerDirectory(row, store=self._gateway.store, home=self._home)
        self._forwarder = Forwarder(
            row.id,
            client=lambda: self._gateway.http,
            uncounted=self._app.uncounted,
            is_valid=service.is_valid,
        )
        others = OtherServers(directory, self._forwarder, here=api.answer)
        service.answer_elsewhere = others.answer
        service.add("GET", "servers", others.show)

    def _event_service(self, api: AdminApi, admin: AdminService) -> EventService:
        def hello() -> dict[str, Any]:
            about = api.about()
            facts = {"server": about["id"], "version": about["version"], "workers": about["workers"]}
            return facts | {"ui": self._app.pages.version}

        return EventService(
            worker=self._worker,
            folder=self._event_dir,
            hello=hello,
            gateway=lambda: self._gateway,
            read=api.read,
            set_tap=self._set_tap,
            uncounted=self._app.uncounted,
            is_valid=admin.is_valid,
        )

    def _set_tap(self, tap: EventTap | None) -> None:
        self._tap = tap

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
            ledger=self._usage.path,
        )

    async def _knows_request(self, id: str) -> bool:
        """Return whether the usage ledger or the request log has a request."""
        if await self._usage.has_request(id):
            return True
        if self._requests is None:
            return False
        return any(row.get("request") == id for row in await self._recent_requests(_LATEST_REQUESTS))

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
        await self._usage.move(config)
        self._traces.configure(config)
        self._config, self._gateway = config, gateway
        self._app.adopt(gateway, config)
        self._app.tracer = self._traces.tracer
        if self._captures is not None:
            self._captures.configure(config.capture, secrets=self._secrets(config))
        self._http.limits = limits(config)
        if gateway.model_lists.fetches:
            gateway.model_lists.refresh()
        await gateway.health.reset_refused_keys()
        await asyncio.to_thread(gateway.prices.keep_current)

    def _on_reload(self, result: ReloadResult) -> None:
        if self._events is not None:
            self._events.publish_config(reload_reply(result))

    def _adopt_lists(self) -> None:
        """Route by the models that providers list now; requests in flight finish with the former ones."""
        self._gateway = self._gateway.reconfigured(self._config)
        self._app.adopt(self._gateway, self._config)

    async def _reload_all(self) -> ReloadResult:
        """Reload in all workers; an operator who looks at the models next sees what providers list now."""
        assert self.reloader is not None
        result = await self.reloader.reload_all()
        if self._events is not None and not result.reloaded:
            self._events.forward_config(reload_reply(result))
        lists = self._gateway.model_lists
        if result.reloaded and not lists.fetches:
            lists.refresh()
        await lists.settle(_LISTING_WAIT)
        return result

    async def _reload_others(self) -> bool:
        """Make the other workers reload; return whether all of them have read the file in time."""
        peers = self._request_source.peers
        if peers is None:
            return False
        answers = await peers.ask({"reload": True}, seconds=_RELOAD_WAIT)
        return len(answers) == self._workers - 1

    async def _answer_peer(self, question: Question) -> Any:
        """Answer another worker: reload, or return what it asks about requests or a drain."""
        if "draining" in question:
            return await self._still_drains()
        if "reload" not in question:
            return await self._request_source.answer_peer(question)
        assert self.reloader is not None
        return (await self.reloader.reload()).reloaded

    async def stop(self) -> bool:
        """Drain, then close; return whether all requests finished."""
        finished = await self.drain()
        await self.close()
        return finished

    async def drain(self) -> bool:
        """Stop accepting; return whether all requests in flight finished within the limit.

        Before, for `drain_notice_ms`, new requests are still accepted while balancers learn of it, and each
        answer closes its connection: a balancer keeps none on which it could send a request too late.
        """
        self._draining = True
        self._http.keeps_connections = False
        self._registry.drain()
        if notice := self._config.server.drain_notice_ms:
            await asyncio.sleep(notice / 1000)
        if self._events is not None:
            self._events.drain()
        if self._forwarder is not None:
            self._forwarder.drain()
        self._gateway.clock_service.release()
        finished = await self._http.drain(self.drain_seconds)
        self._drained.set()
        if self._registry.is_used:
            await self._wait_for_workers()
        return finished

    async def _wait_for_workers(self) -> None:
        """Wait while other workers drain: this one keeps the row of the node, which goes last."""
        peers = self._request_source.peers
        while peers is not None and any(await peers.ask({"draining": True})):
            continue  # each answer is late: there is no need to pause

    async def _still_drains(self) -> bool:
        """Return whether this worker drains, after a while if it does."""
        if not self._draining:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_WAIT):
                await self._drained.wait()
        return not self._drained.is_set()

    @property
    def gateway(self) -> Gateway:
        """The gateway that answers new requests; a reload replaces it."""
        return self._gateway

    @property
    def admin(self) -> AdminService | None:
        """The admin API; None if it is not open."""
        return self._app.admin

    @property
    def is_tapped(self) -> bool:
        """Whether requests are collected for the event stream."""
        return self._tap is not None

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
        if self._events is not None:
            await self._events.close()
        if self._price_watch is not None:
            self._price_watch.cancel()
            await asyncio.gather(self._price_watch, return_exceptions=True)
        await self._registry.close()
        await self._http.close()
        await self._traces.close()
        await self._gateway.close()
        if self._captures is not None:
            await self._captures.close()
        self._access.flush()
        if self._requests is not None:
            await self._requests.close()
        if self._request_source.peers is not None:
            await self._request_source.peers.close()
        await self._usage.close()
        if self._home is not None and self._written_row is not None:
            announce.remove(self._home, self._written_row)
