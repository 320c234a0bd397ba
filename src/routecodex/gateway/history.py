"""The Responses API's memory: every answer that may be continued, in the store, bounded, with an expiry."""

from __future__ import annotations

import logging

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest, NotFound, Overloaded
from routecodex.protocols.responses.history import StoredTurn
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

_SPACE = "responses"
_TRIM_EVERY = 64
_MAX_CHAIN = 1000

log = logging.getLogger("routecodex.history")


class Entry(Struct, frozen=True):
    """One answered request: the turn itself, the answer before it, and the provider and key that gave it.

    `native` is True when that provider keeps the conversation itself, under the same id. `chain` is the id of
    the request that began the conversation.
    """

    request: Raw
    response: Raw
    previous: str | None = None
    provider: str = ""
    key: str = ""
    native: bool = False
    chain: str = ""

    @property
    def turn(self) -> StoredTurn:
        return StoredTurn(self.request, self.response)


_decoder = Decoder(Entry)


class History:
    """Answers by id."""

    def __init__(self, store: Store, *, ttl: float, entries: int, size: int) -> None:
        self._store = store
        self._ttl = ttl
        self._entries = entries
        self._size = size
        self._saves = 0

    async def save(self, response_id: str, entry: Entry) -> None:
        """Keeps an answer; a store that is down costs the continuation, not the answer."""
        if self._entries == 0:
            return
        try:
            await self._store.put(_SPACE, response_id, json.encode(entry), ttl=self._ttl)
            self._saves += 1
            if self._saves % _TRIM_EVERY == 0:
                await self._store.trim(_SPACE, entries=self._entries, size=self._size)
        except StoreError as exc:
            log.error("response %s cannot be continued later: %s", response_id, exc)

    async def get(self, response_id: str) -> Entry:
        """One answer, or NotFound."""
        entry = await self.find(response_id)
        if entry is None:
            raise NotFound(f"no response with id {response_id!r} is stored", code="response_not_found")
        return entry

    async def find(self, response_id: str) -> Entry | None:
        """One answer, or None."""
        try:
            stored = await self._store.get(_SPACE, response_id)
        except StoreError as exc:
            raise _unavailable(exc) from exc
        return None if stored is None else json.try_read(stored.value, _decoder)

    async def delete(self, response_id: str) -> bool:
        """Whether there was such an answer."""
        try:
            return await self._store.delete(_SPACE, response_id)
        except StoreError as exc:
            raise _unavailable(exc) from exc

    async def chain(self, response_id: str) -> list[Entry]:
        """The answers that lead to this one, oldest first."""
        entries: list[Entry] = []
        at: str | None = response_id
        while at is not None:
            entry = await self.find(at)
            if entry is None or len(entries) >= _MAX_CHAIN:
                raise BadRequest(
                    f"previous_response_id: {at!r} is not stored (any more)",
                    param="previous_response_id",
                    code="previous_response_not_found",
                )
            entries.append(entry)
            at = entry.previous
        return entries[::-1]


def _unavailable(exc: StoreError) -> Overloaded:
    log.error("the history cannot be read: %s", exc)
    return Overloaded("stored responses cannot be reached now; try again later", code="store_unavailable")
