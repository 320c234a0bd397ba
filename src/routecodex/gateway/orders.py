"""What an operator has set for all conversations of this server, kept in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.json import Decoder

from routecodex.canon.errors import Overloaded
from routecodex.routing.state import ServerState
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "server"
_KEY = "routing"

log = logging.getLogger("routecodex.orders")
_decoder = Decoder(ServerState)


class Orders:
    """The operator's word; what another process changes is seen at the next look."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = ServerState()
        self._stamp = -1

    def peek(self) -> ServerState | None:
        """The state, if nobody has changed it since it was read."""
        return self._state if self._store.stamp_of(_SPACE, _KEY) == self._stamp else None

    async def load(self) -> ServerState:
        """The state as it stands; the last known one while the store is down."""
        try:
            stamp = self._store.stamp_of(_SPACE, _KEY)
            if stamp == self._stamp:
                return self._state
            stored = await self._store.get(_SPACE, _KEY)
            self._state = ServerState() if stored is None else _decoder.decode(stored.value)
            self._stamp = stamp
        except (StoreError, msgspec.DecodeError) as exc:
            log.error("the operator's routing state cannot be read: %s", exc)
        return self._state

    async def change(self, fn: Callable[[ServerState], ServerState]) -> ServerState:
        """Changes the state for good, before this returns."""

        def change(old: bytes | None) -> bytes | None:
            state = ServerState() if old is None else _decoder.decode(old)
            changed = fn(state)
            return None if changed == ServerState() else json.encode(changed)

        try:
            await self._store.update(_SPACE, _KEY, change)
        except StoreError as exc:
            raise Overloaded(
                f"the routing state could not be saved, nothing was changed: {exc}", code="state_not_saved"
            ) from exc
        return await self.load()
