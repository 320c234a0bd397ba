"""Notices changes of health, sessions and routing: by what the store shows, so those of any worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from routecodex.canon.errors import GatewayError
from routecodex.gateway.gateway import Gateway
from routecodex.server.events.frames import LARGEST_FRAME
from routecodex.server.events.hub import EventHub
from routecodex.server.logs import session_name
from routecodex.stores.owned_keys import plain_key
from routecodex.stores.store import Place, StoreError
from routecodex.wire import json

log = logging.getLogger("routecodex.server")

Reader = Callable[[str], Awaitable[dict[str, Any]]]
"""Returns the answer to a GET of the admin API, by its name."""

_SESSION_SPACES: Final = ("sessions", "clock")
_OPERATOR_SPACE: Final = "server"
_MOST_SESSIONS: Final = 200
_SHOWN: Final = ("state", "until", "reason", "error", "status", "disabled_by")
"""Fields of a key whose change is an event; its figures change with every request."""


class StateWatch:
    """Compares the state of a gateway with that of the last check; the first check only remembers it."""

    def __init__(self, gateway: Callable[[], Gateway], read: Reader) -> None:
        self._gateway = gateway
        self._read = read
        self._conditions: object = None
        self._keys: dict[str, dict[str, Any]] | None = None
        self._routing: tuple[int, bytes] | None = None
        self._stamps: dict[str, int] = {}
        self._places: dict[str, frozenset[Place]] = {}

    async def check(self, hub: EventHub) -> None:
        """Publish what has changed; a store that is down is asked again at the next check."""
        for check in (self._check_health, self._check_routing, self._check_sessions):
            try:
                await check(hub)
            except (StoreError, GatewayError) as exc:
                log.debug("a part of the state for the console's events cannot be read: %s", exc)

    async def _check_health(self, hub: EventHub) -> None:
        gateway = self._gateway()
        await gateway.health.read_latest()
        operator = await gateway.operator.load()
        rows = gateway.health.report_by_key(time.time())
        conditions = (operator.disable, [(row.name, row.state, row.until, row.reason) for _, row in rows])
        if conditions == self._conditions:
            return
        self._conditions = conditions
        found = await self._read("providers")
        keys = {key["name"]: key for provider in found["providers"] for key in provider["keys"]}
        before, self._keys = self._keys, keys
        if before is None:
            return
        changed = [row for name, row in keys.items() if _shown(row) != _shown(before.get(name, {}))]
        for part in _parts(changed):
            hub.publish("health", {"keys": part})

    async def _check_routing(self, hub: EventHub) -> None:
        store = self._gateway().store
        stamps = store.stamp(_OPERATOR_SPACE)
        if self._routing is not None and self._routing[0] == stamps:
            return
        value = await self._read("routing")
        text = json.encode(value["routing"])
        before, self._routing = self._routing, (stamps, text)
        if before is None or before[1] == text:
            return
        if len(json.encode(value)) > LARGEST_FRAME - 1024:
            value = {**value, "sessions": [], "left_off": len(value["sessions"])}
        hub.publish("routing", value)

    async def _check_sessions(self, hub: EventHub) -> None:
        changed: set[str] = set()
        for space in _SESSION_SPACES:
            changed |= await self._changed_keys(space)
        names = sorted(session_name(plain_key(key)) for key in changed)[:_MOST_SESSIONS]
        if names:
            hub.publish("sessions", {"changed": names})

    async def _changed_keys(self, space: str) -> set[str]:
        """Return the keys of a space that were written or deleted since the last check."""
        store = self._gateway().store
        stamp = store.stamp(space)
        if self._stamps.get(space) == stamp:
            return set()
        self._stamps[space] = stamp
        found = frozenset(await store.recent(space, limit=_MOST_SESSIONS))
        before = self._places.get(space)
        self._places[space] = found
        if before is None:
            return set()
        present = {place.key for place in found}
        gone = (
            set() if len(found) >= _MOST_SESSIONS else {one.key for one in before if one.key not in present}
        )
        return gone | {place.key for place in found - before}


def _shown(row: dict[str, Any]) -> list[Any]:
    return [row.get(name) for name in _SHOWN]


def _parts(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the rows in parts, each small enough for one frame."""
    parts: list[list[dict[str, Any]]] = []
    size = LARGEST_FRAME
    for row in rows:
        length = len(json.encode(row)) + 1
        size += length
        if size > LARGEST_FRAME - 1024:
            parts.append([])
            size = length
        parts[-1].append(row)
    return parts
