"""What an operator has set for all conversations of this server, kept in the store."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from hashlib import blake2b

import msgspec
from msgspec.json import Decoder

from routecodex.canon.errors import Overloaded
from routecodex.routing.state import NO_SERVER_STATE, ServerState
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "server"
_CORRUPT_SPACE = "server.corrupt"
_KEY = "routing"
_LOOK_EVERY = 0.01

log = logging.getLogger("routecodex.orders")
_decoder = Decoder(ServerState)


class OperatorState:
    """The operator's word; what another process changes is seen within a moment.

    Whoever changes it waits for that moment, so that a change holds everywhere when it is confirmed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = NO_SERVER_STATE
        self._stamp = -1
        self._look_at = -math.inf
        self._unreadable = False

    def peek(self) -> ServerState | None:
        """The state, if nobody has changed it since it was read; looks at the store now and then only."""
        now = time.monotonic()
        if now < self._look_at:
            return self._state
        if self._store.stamp_of(_SPACE, _KEY) != self._stamp:
            return None
        self._look_at = now + _LOOK_EVERY
        return self._state

    async def load(self) -> ServerState:
        """The state as it stands; the last known one while the store is down."""
        try:
            stamp = self._store.stamp_of(_SPACE, _KEY)
            if stamp == self._stamp:
                return self._state
            stored = await self._store.get(_SPACE, _KEY)
            self._state = NO_SERVER_STATE if stored is None else await self._opened(stored.value)
            self._stamp = stamp
            self._unreadable = False
        except StoreError as exc:
            self._tell_unreadable(exc)
        return self._state

    async def change(self, fn: Callable[[ServerState], ServerState]) -> ServerState:
        """Changes the state for good, before this returns."""

        def change(old: bytes | None) -> bytes | None:
            changed = fn(_decoded(old) or NO_SERVER_STATE)
            return None if changed == NO_SERVER_STATE else json.encode(changed)

        try:
            await self._store.update(_SPACE, _KEY, change)
        except StoreError as exc:
            raise Overloaded(
                f"the routing state could not be saved, nothing was changed: {exc}", code="state_not_saved"
            ) from exc
        state = await self.load()
        await asyncio.sleep(2 * _LOOK_EVERY)
        return state

    async def _opened(self, raw: bytes) -> ServerState:
        """The state in a stored value; one that is none is copied to where it can be looked at."""
        state = _decoded(raw)
        if state is None:
            name = f"{_KEY}#{blake2b(raw, digest_size=8).hexdigest()}"
            await self._store.put(_CORRUPT_SPACE, name, raw)
            log.error("%s/%s holds no routing state; set aside in %s", _SPACE, _KEY, _CORRUPT_SPACE)
        return state or NO_SERVER_STATE

    def _tell_unreadable(self, exc: StoreError) -> None:
        """Once for each time the store goes down: every request meets it."""
        if not self._unreadable:
            log.error("the operator's routing state cannot be read, the last known stays: %s", exc)
        self._unreadable = True


def _decoded(raw: bytes | None) -> ServerState | None:
    try:
        return None if raw is None else _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
