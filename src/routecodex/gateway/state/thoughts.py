"""Signed reasoning behind tool calls in the store: one value for each answer, by the id of its first call.

Every worker and node can continue the conversation, also after a restart. Only the first call of an answer is
a key: clients send all calls of an answer back, in the order in which they got them. With several clients,
values are stored below their owner.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.canon.parts import Reasoning
from routecodex.stores.background_trim import BackgroundTrim
from routecodex.stores.owned_keys import owned_key
from routecodex.stores.store import Store, StoreError
from routecodex.wire import json

SPACE = "thoughts"
TTL = 24 * 3600.0
MAX_ENTRIES = 100_000
MAX_BYTES = 64 * 1024 * 1024
_TRIM_EVERY = 64

log = logging.getLogger("routecodex.thoughts")


class AnswerThoughts(Struct, frozen=True):
    """The reasoning of a provider in one answer, and the signatures of its calls by their ids."""

    provider: str
    reasoning: tuple[Reasoning, ...]
    calls: Mapping[str, str | None]


class FoundThoughts(Struct, frozen=True):
    """Stored thoughts, and when they expire, in seconds since the epoch."""

    thoughts: AnswerThoughts
    expires: float


_decoder = Decoder(AnswerThoughts)


class ThoughtStore:
    """The reasoning of answers by the first call of each; the oldest is deleted first."""

    def __init__(
        self, store: Store, *, ttl: float = TTL, entries: int = MAX_ENTRIES, size: int = MAX_BYTES
    ) -> None:
        self.ttl = ttl
        self._store = store
        self._trim = BackgroundTrim(store, SPACE, entries=entries, size=size, every=_TRIM_EVERY, log=log)

    async def save(self, first_call: str, thoughts: AnswerThoughts, *, owner: str) -> None:
        """Store the reasoning of an answer; in an outage this process alone has it. Never raises."""
        try:
            value = json.encode(thoughts)
            await self._store.put(SPACE, owned_key(owner, first_call), value, ttl=self.ttl)
        except (StoreError, UnicodeEncodeError) as exc:
            log.debug("reasoning behind call %.80r is not stored: %s", first_call, exc)
            return
        self._trim.wrote()

    def may_have(self, first_call: str, *, owner: str) -> bool:
        """Return whether an answer may be stored, as far as is known without IO."""
        return self._store.stamp_of(SPACE, owned_key(owner, first_call)) != 0

    async def find(self, first_call: str, *, owner: str) -> FoundThoughts | None:
        """Return the reasoning of an answer; None if there is none; StoreError while that cannot be told."""
        stored = await self._store.get(SPACE, owned_key(owner, first_call))
        if stored is None:
            return None
        thoughts = json.try_read(stored.value, _decoder)
        if thoughts is None:
            log.warning("%s/%.80r is not the reasoning of an answer; it is ignored", SPACE, first_call)
            return None
        return FoundThoughts(thoughts, float("inf") if stored.expires is None else stored.expires)

    async def settle(self) -> None:
        """Wait for the trim that is running."""
        await self._trim.settle()
