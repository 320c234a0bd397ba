"""A real gateway on a real socket, in the test's own event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from routecodex.config import loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server.serve import Service
from tests.kit.upstream import Upstream

_BASES = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}


@dataclass(frozen=True)
class Running:
    """A running gateway and the port it listens on."""

    port: int
    service: Service

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def provider(name: str, protocol: str, upstream: Upstream, *, more: str = "") -> str:
    """Return the configuration of a provider with one model `m`, served by the scripted upstream."""
    return (
        f'[providers.{name}]\nprotocol = "{protocol}"\n'
        f'base_url = "http://127.0.0.1:{upstream.port}{_BASES[protocol]}"\n'
        f'auth = [{{ alias = "primary", value = "secret-{name}" }}]\n{more}\n'
        f"[providers.{name}.models.m]\nmax_output_tokens = 4096\n"
    )


@contextlib.asynccontextmanager
async def serving(
    text: str, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> AsyncIterator[Running]:
    """Run a gateway with this configuration; by default state is in memory and only errors are logged.

    The usage ledger is below `home`; without, there is none.
    """
    head = ""
    if "[store]" not in text:
        head += '[store]\nurl = "memory:"\n'
    if "[logging]" not in text:
        head += '[logging]\nlevel = "error"\n'
    config = loads(
        head + text, source="test.toml", environ=environ or {}, presets=PRESETS, dialect_type=Dialect
    )
    service = Service(config, home=home)
    _, port = await service.start()
    try:
        yield Running(port, service)
    finally:
        await service.stop()


NO_HEALTH = "[routing_options]\nhealth = false\nmax_wait_ms = 0\n"
"""Configuration of a gateway that tries a target again and again, whatever failed before."""


def one_target(protocol: str, upstream: Upstream, *, more: str = "", server: str = "") -> str:
    """Return the configuration of a gateway with a single target, `up.m`."""
    return (
        f"[server]\nport = 0\ndrain_seconds = 1\n{server}\n"
        + provider("up", protocol, upstream, more=more)
        + '[routing]\ndefault = ["up.m"]\n'
    )
