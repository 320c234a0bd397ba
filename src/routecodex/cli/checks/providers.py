"""Checks that providers can be reached."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping

from routecodex.canon.errors import ConfigError, LocalFault, UpstreamError, UpstreamTimeout
from routecodex.cli.checks.result import CheckResult, failed, passed, skipped, warned
from routecodex.cli.checks.shape_runs import leaves_machine
from routecodex.config import Config
from routecodex.config.providers import ProviderConfig
from routecodex.providers.http import Origin, TlsOptions, origin_of
from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.dial import dial
from routecodex.wire.buffers import WriteBatcher

OFFLINE = "is not on this machine, and --offline is set"
_HEADER_BYTES = 65536


async def check_providers(
    config: Config, environ: Mapping[str, str], *, offline: bool
) -> AsyncIterator[CheckResult]:
    """Yield whether each provider can be connected to, in the order of the file."""
    checks = [
        asyncio.ensure_future(_check_provider(name, row, environ, offline=offline))
        for name, row in config.providers.items()
    ]
    try:
        for one in checks:
            yield await one
    finally:
        for one in checks:
            one.cancel()
        await asyncio.gather(*checks, return_exceptions=True)


async def _check_provider(
    name: str, row: ProviderConfig, environ: Mapping[str, str], *, offline: bool
) -> CheckResult:
    check_id = f"provider.{name}"
    if row.protocol == "demo":
        return passed(check_id, "is built in")
    if offline and leaves_machine(row):
        return skipped(check_id, f"{name} {OFFLINE}")
    try:
        origin = origin_of(
            row.base_url, tls=TlsOptions(verify=row.tls.verify, ca_file=row.tls.ca_file), environ=environ
        )
        await _connect(origin, row.timeout.connect_ms / 1000)
    except ConfigError as exc:
        return failed(check_id, exc.message, "correct this setting or variable")
    except UpstreamError as exc:
        return failed(check_id, exc.message, _connection_fix(name, row, exc))
    if origin.tls is not None and not row.tls.verify:
        message = f"{_reached(origin)}, but its certificate is not checked"
        return warned(check_id, message, f"remove tls.verify = false under [providers.{name}]")
    return passed(check_id, _reached(origin))


def _reached(origin: Origin) -> str:
    how = "TLS" if origin.tls is not None else "TCP without TLS"
    proxy = f", through the proxy {origin.proxy.host}:{origin.proxy.port}" if origin.proxy is not None else ""
    return f"{origin.host}:{origin.port} can be reached over {how}{proxy}"


async def _connect(origin: Origin, seconds: float) -> None:
    connection = UpstreamConnection(
        origin, max_header_bytes=_HEADER_BYTES, on_lost=lambda _lost: None, batcher=WriteBatcher()
    )
    await dial(connection, seconds=seconds)
    connection.abort()


def _connection_fix(name: str, row: ProviderConfig, exc: UpstreamError) -> str:
    cause = exc.__cause__
    table = f"[providers.{name}]"
    if isinstance(exc, LocalFault):
        return "check the network of this machine"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"if a company's proxy signs its certificates, set tls.ca_file under {table} to its CA; else "
            "check the clock and base_url"
        )
    if isinstance(cause, ssl.SSLError):
        return f"check base_url under {table}: the port may not speak TLS (http instead of https)"
    if isinstance(cause, socket.gaierror):
        return f"check the host in base_url under {table}, and name resolution on this machine"
    if isinstance(exc, UpstreamTimeout):
        return f"check the network and proxy variables, or raise timeout.connect_ms under {table}"
    if not leaves_machine(row):
        return f"start the server at {row.base_url}, or correct base_url under {table}"
    return f"check base_url under {table}, the network and proxy variables"
