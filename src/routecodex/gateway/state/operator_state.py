"""Routing state that an operator set for all sessions of this server, kept in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec.json import Decoder

from routecodex.canon.errors import Overloaded
from routecodex.routing.state import NO_SERVER_STATE, ServerState
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "server"
_KEY = "routing"
_RECHECK = 0.01

_decoder = Decoder(ServerState)


def _empty(_key: str) -> ServerState:
    return NO_SERVER_STATE


def _encode(_key: str, state: ServerState) -> bytes:
    return json.encode(state)


def _decode(_key: str, raw: bytes) -> ServerState:
    return _decoder.decode(raw)


_FORMAT: CellFormat[ServerState] = CellFormat(
    space=_SPACE,
    empty=_empty,
    encode=_encode,
    decode=_decode,
    noun="the routing state of an operator",
    outage="the operator's routing state cannot be read, the last known stays",
    log=logging.getLogger("routecodex.orders"),
    guarded=True,
)


class OperatorState:
    """The routing state set by an operator; a change by another process is seen within `_RECHECK` seconds."""

    def __init__(self, store: Store) -> None:
        self._cell: Cell[ServerState] = Cell(store, _FORMAT, cached=1, ttl=None, recheck=_RECHECK)

    def peek(self) -> ServerState | None:
        """Return the state if it is known without IO; None means that it has to be loaded."""
        return self._cell.peek(_KEY)

    async def load(self) -> ServerState:
        """Return the state; the last known one while the store is down."""
        return await self._cell.load(_KEY)

    async def change(self, edit: Callable[[ServerState], ServerState]) -> ServerState:
        """Change the state; when this returns, the change is stored and every process sees it."""

        def change(before: ServerState) -> tuple[ServerState, None]:
            return edit(before), None

        try:
            await self._cell.edit(_KEY, change)
        except StoreError as exc:
            raise Overloaded(
                f"the routing state could not be saved, nothing was changed: {exc}", code="state_not_saved"
            ) from exc
        state = await self.load()
        await asyncio.sleep(2 * _RECHECK)
        return state
