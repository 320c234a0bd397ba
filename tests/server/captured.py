"""A gateway with a user dir that captures requests, and what it wrote there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from routecodex.config import loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.server.serve import Service
from tests.kit import asking
from tests.kit.gateway import Running, provider
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

TOKEN = "operator-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
ALL = 'mode = "all"'


def config(*providers: str, capture: str = ALL, server: str = "", more: str = "") -> str:
    """Return a configuration with these providers in the order of priority."""
    names = [row.partition("]")[0].removeprefix("[providers.") for row in providers]
    targets = ", ".join(f'"{name}.m"' for name in names)
    return (
        f'[server]\nport = 0\nid = "main"\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n{server}\n'
        f'[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n[capture]\n{capture}\n{more}\n'
        + "".join(providers)
        + f'[routing]\ndefault = [{{ id = "all", mode = "priority", targets = [{targets}] }}]\n'
    )


def one(protocol: str, up: Upstream, *, capture: str = ALL, server: str = "", more: str = "") -> str:
    """Return a configuration with the single target `up.m`."""
    return config(provider("up", protocol, up), capture=capture, server=server, more=more)


@contextlib.asynccontextmanager
async def capturing(home: Path, text: str) -> AsyncIterator[Running]:
    """Run a gateway with this configuration and user dir."""
    service = Service(loads(text, environ={}, presets=PRESETS, dialect_type=Dialect), home=home)
    _, port = await service.start()
    try:
        yield Running(port, service)
    finally:
        await service.stop()


async def ask(
    running: Running,
    protocol: str,
    text: str = "Hello",
    *,
    stream: bool = False,
    model: str = "up.m",
    **headers: str,
) -> Answer:
    """Send a request as a client."""
    return await call(
        running.port,
        asking.path(protocol, stream=stream, model=model),
        asking.body(protocol, text, stream=stream, model=model),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


async def admin(running: Running, path: str, body: object = None) -> Answer:
    """Call the admin API: a POST with a body, else a GET."""
    method = "GET" if body is None else "POST"
    return await call(running.port, f"/admin/{path}", body, method=method, headers=BEARER)


async def capture_of(running: Running, answer: Answer) -> Any:
    """Return the capture of an answered request."""
    found = await admin(running, f"requests/{answer.headers['x-request-id']}/capture")
    assert found.status == 200, found.body
    return found.json


async def is_captured(running: Running, answer: Answer) -> bool:
    """Return whether an answered request was captured."""
    captures = running.service.captures
    assert captures is not None
    await captures.settle()
    return captures.has(answer.headers["x-request-id"])


def files(home: Path) -> list[Path]:
    """Return the files of all captures."""
    return sorted((home / "sessions" / "main" / "captures").glob("*/*"))
