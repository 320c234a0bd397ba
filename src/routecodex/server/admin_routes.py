"""`GET /admin/routes`: routes with their pools and targets, rules of the classifier, aliases of models."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from routecodex.accounting.ledger_shares import Shares, target_shares
from routecodex.gateway import build
from routecodex.gateway.gateway import Gateway
from routecodex.routing import classify
from routecodex.routing.registry import Pool, Registry, Target
from routecodex.server.admin_providers import KeyStates, key_states
from routecodex.server.http import HttpRequest
from routecodex.server.request_source import RequestSource

_HOUR = 3600.0


async def show_routes(
    gateway: Callable[[], Gateway], source: RequestSource, _request: HttpRequest
) -> dict[str, Any]:
    """Return the routing table with the state of its targets, and their shares of the last hour."""
    current = gateway()
    states = await key_states(current)
    shares: Shares = {}
    if source.has_ledger:
        shares = await source.read(partial(target_shares, since=time.time() - _HOUR))
    registry = current.registry
    return {
        "routes": [
            {"name": name, "pools": [_pool(registry, name, pool, states, shares) for pool in pools]}
            for name, pools in registry.routes.items()
        ],
        "classifier": [
            {"route": rule.route, "rule": rule.reason}
            for rule in classify.rules(build.classifier_options(current.config))
        ],
        "models": [{"pattern": pattern, "to": to} for pattern, to in registry.aliases.items()],
    }


def _pool(registry: Registry, route: str, pool: Pool, states: KeyStates, shares: Shares) -> dict[str, Any]:
    targets = {target: name for name in pool.targets for target in registry.targets_of(name)}
    has_traffic = any(at == route for at, _ in shares)
    return {
        "id": pool.id,
        "mode": pool.mode,
        "backup": pool.backup,
        "targets": [
            {
                "target": str(target),
                "weight": _weight(pool, name, target),
                "share": shares.get((route, str(target)), 0.0) if has_traffic else None,
                "state": states.of(target)[0],
            }
            for target, name in targets.items()
        ],
    }


def _weight(pool: Pool, name: str, target: Target) -> float | None:
    """Return the weight of a target; None in a pool without weights."""
    if not pool.weights:
        return None
    return pool.weights.get(name, pool.weights.get(f"{target.provider}.{target.model}", 1.0))
