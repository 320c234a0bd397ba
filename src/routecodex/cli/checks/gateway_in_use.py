"""The gateway that checks send requests to: one that runs already, or one for their duration."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import UpstreamError
from routecodex.cli.admin_client import AdminClient, AdminRefused, AnnouncedServer, Unreachable
from routecodex.config import Config
from routecodex.config.model import StoreConfig
from routecodex.providers.http import HttpClient, Origin, Timeouts, origin_of
from routecodex.wire import json

_ANSWER_LIMIT = 32 * 1024 * 1024
_TIMEOUTS = Timeouts(connect=5.0, first_byte=330.0, idle=330.0)
"""Longer than the timeouts of most providers, whose own errors say more."""
KEY_VARIABLE = "ROUTECODEX_KEY"


class ServedReply(Struct, frozen=True, kw_only=True):
    """The reply of the gateway as an agent receives it; `broken` says why it ended early."""

    status: int
    headers: dict[str, str]
    body: bytes
    broken: str = ""


class GatewayInUse:
    """A gateway at an address of this machine; `running` if it was there before."""

    def __init__(self, url: str, *, key: str, running: bool) -> None:
        self.url = url
        self.key = key
        self.running = running
        self._origin: Origin = origin_of(url)
        self._client = HttpClient()

    async def post(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> ServedReply:
        """Post a JSON body; return the whole reply, whatever its status."""
        lines = {"content-type": "application/json", **headers}
        block = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in lines.items())
        try:
            response = await self._client.send(
                self._origin,
                method=b"POST",
                path=path.encode("ascii"),
                headers=block,
                body=json.encode(body),
                timeouts=_TIMEOUTS,
            )
        except UpstreamError as exc:
            return ServedReply(status=0, headers={}, body=b"", broken=exc.message)
        received: list[bytes] = []
        broken = ""
        try:
            while (chunk := await response.chunk()) is not None:
                received.append(chunk)
                if sum(map(len, received)) > _ANSWER_LIMIT:
                    broken = f"the answer is longer than {_ANSWER_LIMIT // 1024**2} MB"
                    break
        except UpstreamError as exc:
            broken = exc.message
        finally:
            response.close()
        names = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        return ServedReply(status=response.status, headers=names, body=b"".join(received), broken=broken)

    async def close(self) -> None:
        """Drop the connections to the gateway."""
        await self._client.close()


def running_server(file: Path, servers: list[AnnouncedServer]) -> AnnouncedServer | None:
    """Return a running server with this configuration file."""
    for server in servers:
        if server.config is None or Path(server.config) != file.absolute():
            continue
        with contextlib.suppress(Unreachable, AdminRefused):
            AdminClient(server).status()
            return server
    return None


def client_key(config: Config, environ: Mapping[str, str]) -> str:
    """Return the key to present to a running gateway; any will do for one that wants none."""
    given = environ.get(KEY_VARIABLE)
    if given:
        return given
    listed = [row.key for row in config.server.client_keys]
    tables = [row.key.value for row in config.clients.values() if row.key is not None and not row.blocked]
    return next((key.reveal() for key in (*listed, *tables) if key), "routecodex")


@contextlib.asynccontextmanager
async def open_gateway(
    config: Config, *, server: AnnouncedServer | None, environ: Mapping[str, str]
) -> AsyncIterator[GatewayInUse]:
    """Yield the running server, or a gateway of this process that is stopped at the end."""
    if server is not None:
        gateway = GatewayInUse(server.url, key=client_key(config, environ), running=True)
        try:
            yield gateway
        finally:
            await gateway.close()
        return
    async with _own_gateway(config) as gateway:
        yield gateway


@contextlib.asynccontextmanager
async def _own_gateway(config: Config) -> AsyncIterator[GatewayInUse]:
    from routecodex.server.serve import Service

    with _without_logs():
        service = Service(for_checks(config))
        host, port = await service.start()
        gateway = GatewayInUse(f"http://{host}:{port}", key="routecodex", running=False)
        try:
            yield gateway
        finally:
            await gateway.close()
            await service.stop()


def for_checks(config: Config) -> Config:
    """Return the configuration of a gateway for checks: loopback, no client keys, nothing stored, no NTP.

    Keys do not go into cooldown, so that one failure does not hide the cause of the next.
    """
    clock = replace(config.server_tools.clock, ntp=replace(config.server_tools.clock.ntp, enabled=False))
    return replace(
        config,
        clients={},
        server_tools=replace(config.server_tools, clock=clock),
        server=replace(
            config.server, host="127.0.0.1", port=0, client_keys=(), admin_token=None, drain_seconds=0
        ),
        store=StoreConfig(url="memory:"),
        logging=replace(config.logging, level="error", requests=False, finish_trace=False),
        routing_options=replace(config.routing_options, health=False, max_wait_ms=0),
    )


@contextlib.contextmanager
def _without_logs() -> Any:
    """Keep the log of the gateway off stderr: the result of the check says what failed."""
    log = logging.getLogger("routecodex")
    before = log.disabled, log.propagate
    silent = logging.NullHandler()
    log.addHandler(silent)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(silent)
        log.disabled, log.propagate = before
