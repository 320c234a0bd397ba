"""The calls of the admin API on providers.

| Path                    | GET                                              | POST                          |
|-------------------------|--------------------------------------------------|-------------------------------|
| `/admin/providers`      | keys with state, figures of the last hour, quota |                               |
| `/admin/providers/test` |                                                  | sends one request to a target |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from routecodex.accounting.ledger_keys import KeyFigures, KeyName, key_figures
from routecodex.accounting.timestamps import iso_millis
from routecodex.canon.errors import BadRequest, ProviderNotAvailable
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.internal.trial_request import try_target
from routecodex.gateway.records import KeyHealthRow
from routecodex.routing.registry import Provider, Registry, Selector, Target
from routecodex.routing.state import ServerState
from routecodex.server.http import HttpRequest
from routecodex.server.request_source import RequestSource
from routecodex.wire import json

Quotas = dict[str, list[dict[str, Any]]]
_HOUR = 3600.0
_STATES = {"cooling": "cooling", "open": "open", "half-open": "half_open", "refused": "out"}
SEVERITY = ("half_open", "limited", "cooling", "open", "out")
"""States of a key, the worst last."""


class TargetChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target to test: a provider, a key, or one of its models."""

    target: str


_choices = Decoder(TargetChoice)


class KeyStates:
    """The state of every key: what an operator disabled, and what its health says."""

    def __init__(
        self, registry: Registry, operator: ServerState, health: list[tuple[Selector, KeyHealthRow]]
    ) -> None:
        found = (registry.resolve(name, prefer="key") for name in operator.disable)
        self._disabled = [selector for selector in found if selector is not None]
        self._health = health

    def is_disabled(self, target: Target | Selector) -> bool:
        """Return whether an operator disabled a key or a target."""
        return any(selector.covers(target) for selector in self._disabled)

    def of(self, target: Target | Selector) -> tuple[str, KeyHealthRow | None]:
        """Return the state of a key or a target, and its cooldown; the worst one of a key's models."""
        own = [row for selector, row in self._health if _concerns(selector, target)]
        row = max(own, key=lambda row: SEVERITY.index(_state(row)), default=None)
        if self.is_disabled(target):
            return "disabled", row
        return ("ok" if row is None else _state(row)), row


def _state(row: KeyHealthRow) -> str:
    """Return the state of a key; one that rests before its provider refuses it is at its limit."""
    rests = row.state == "cooling" and row.reason == "limited" and row.status is None
    return "limited" if rests else _STATES[row.state]


def _concerns(selector: Selector, target: Target | Selector) -> bool:
    """Return whether a cooldown concerns a target, or for a key any of its models."""
    if isinstance(target, Target):
        return selector.covers(target)
    return target.covers(selector)


async def key_states(gateway: Gateway) -> KeyStates:
    """Return the states of all keys, as all workers know them now."""
    await gateway.health.read_latest()
    operator = await gateway.operator.load()
    return KeyStates(gateway.registry, operator, gateway.health.report_by_key(time.time()))


async def show_providers(
    gateway: Callable[[], Gateway], source: RequestSource, _request: HttpRequest
) -> dict[str, Any]:
    """Return all providers with their models and keys."""
    states = await key_states(gateway())
    figures: dict[KeyName, KeyFigures] = {}
    if source.has_ledger:
        figures = await source.read(partial(key_figures, since=time.time() - _HOUR))
    quotas = await source.quotas()
    rows = [_provider(one, states, figures, quotas) for one in gateway().registry.providers.values()]
    return {"providers": rows}


def _provider(
    provider: Provider, states: KeyStates, figures: dict[KeyName, KeyFigures], quotas: Quotas
) -> dict[str, Any]:
    keys = [
        _key(Selector(provider.name, key), states, figures.get((provider.name, key), KeyFigures()))
        | {"quota": [_quota(row) for row in quotas.get(f"{provider.name}.{key}", ())]}
        for key in provider.keys
    ]
    return {
        "name": provider.name,
        "protocol": provider.protocol,
        "models": list(provider.models),
        "keys": keys,
    }


def _key(key: Selector, states: KeyStates, figures: KeyFigures) -> dict[str, Any]:
    state, row = states.of(key)
    return {
        "name": str(key),
        "state": state,
        "until": iso_millis(int(row.until * 1000)) if row is not None and row.seconds > 0 else None,
        "reason": None if row is None else row.reason,
        "error": None if row is None else row.error or None,
        "status": None if row is None else row.status,
        "disabled_by": "operator" if states.is_disabled(key) else None,
        "requests": figures.requests,
        "errors": figures.errors,
        "first_byte_p50": figures.first_byte_p50,
        "cost": figures.cost if figures.cost is not None or figures.requests else 0.0,
    }


def _quota(row: dict[str, Any]) -> dict[str, Any]:
    """Return a limit as it is now: after its reset all of it is left."""
    resets_at = row["resets_at"]
    if resets_at is None or resets_at > time.time():
        return {**row, "resets_at": None if resets_at is None else iso_millis(int(resets_at * 1000))}
    return {**row, "remaining": row["limit"], "resets_at": None}


async def run_test(gateway: Callable[[], Gateway], request: HttpRequest) -> dict[str, Any]:
    """Send one small request to the target that a call names."""
    name = json.read(request.body or b"{}", _choices).target
    current = gateway()
    result = await try_target(current.services, _target(current.registry, name))
    found: dict[str, Any] = msgspec.to_builtins(result)
    return found


def _target(registry: Registry, name: str) -> Target:
    """Return the target of a name; of a key that of its first model."""
    selector = registry.resolve(name, prefer="key")
    if selector is None:
        raise ProviderNotAvailable.unknown(name, registry.near(name))
    target = next(iter(registry.covered(selector)), None)
    if target is None:
        raise BadRequest(
            f"target: {name[:80]!r} has no model in the configuration; name one, as in {name[:80]}.MODEL",
            param="target",
        )
    return target
