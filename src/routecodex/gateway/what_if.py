"""A gateway for another configuration that only plans: it reads the running one's state, no more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from routecodex.config import Config
from routecodex.gateway.gateway import Gateway
from routecodex.stores.monitored import MonitoredStore


@contextlib.asynccontextmanager
async def planning_gateway(running: Gateway, config: Config) -> AsyncIterator[Gateway]:
    """Yield a gateway that plans by `config`, with sessions, health and rules of the running one's store."""
    # A store around the store: callbacks of this gateway end with it.
    store = MonitoredStore(running.store)
    gateway = Gateway(config, store=store, environ=_NO_KEYS, user_dir=_NOWHERE)
    try:
        await gateway.health.read_latest()
        await gateway.clients.refresh()
        yield gateway
    finally:
        await gateway.clients.close()
        await gateway.http.close()


_NO_KEYS: Mapping[str, str] = {}
_NOWHERE = Path("/nonexistent")
