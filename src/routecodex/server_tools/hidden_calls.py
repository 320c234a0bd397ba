"""Calls of ours that the client never saw, with their results: kept, and put back into the history.

When a model calls a server tool and a tool of the client at once, the client is given its own calls alone.
What the upstream said and heard beside them is spliced back when the client returns with its results, so
that every call has its result and the conversation is the one the model had.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.parts import Part, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.stores.store import Store, StoreError

SPACE = "pairs"
TTL = 7 * 24 * 3600.0
MOST_ENTRIES = 20_000
MOST_BYTES = 64 * 1024 * 1024
_TRIM_EVERY = 100

log = logging.getLogger("routecodex.server_tools")


class HiddenCall(Struct, frozen=True, omit_defaults=True):
    """A call of ours and the text it gave; `before` is the client's call that came after it, if one did."""

    id: str
    name: str
    arguments: str
    result: str
    signature: str | None = None
    origin: str | None = None
    before: str = ""


class HiddenCallGroup(Struct, frozen=True):
    """What stood beside the calls of a client in one answer."""

    session: str
    ids: tuple[str, ...]
    pairs: tuple[HiddenCall, ...]


_decoder = msgspec.json.Decoder(HiddenCallGroup)


class HiddenToolCalls:
    """Pairs by the session and the ids of the client's calls that they stood beside."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept = 0

    async def keep(self, session: str | None, pairs: Sequence[HiddenCall], *, beside: Sequence[str]) -> None:
        """Keeps what the client is not shown; a store that is down costs the model this memory alone."""
        value = msgspec.json.encode(HiddenCallGroup(session or "", tuple(beside), tuple(pairs)))
        try:
            for call_id in beside:
                await self._store.put(SPACE, _key(session, call_id), value, ttl=TTL)
            self._kept += 1
            if self._kept % _TRIM_EVERY == 0:
                await self._store.trim(SPACE, entries=MOST_ENTRIES, size=MOST_BYTES)
        except StoreError as exc:
            log.error("calls of server tools cannot be put back later: %s", exc)

    async def restored(self, request: Request, session: str | None) -> Request:
        """The request with our calls and results where the model made and heard them."""
        messages = list(request.messages)
        told = {part.id for message in messages for part in message.parts if isinstance(part, ToolCall)}
        changed = False
        for at, message in enumerate(messages):
            found = await self._found(message, session)
            # A client may tell the calls of one answer in several messages: ours are put back once.
            if found is None or told & {pair.id for pair in found.pairs}:
                continue
            after = _first_result(messages, at, found)
            if after is None:
                continue
            messages[at] = _with_calls(message, found)
            messages[after] = _with_results(messages[after], found)
            told |= {pair.id for pair in found.pairs}
            changed = True
        return replace(request, messages=tuple(messages)) if changed else request

    async def _found(self, message: Message, session: str | None) -> HiddenCallGroup | None:
        if message.role != "assistant":
            return None
        ids = [part.id for part in message.parts if isinstance(part, ToolCall)]
        if not ids:
            return None
        key = _key(session, ids[0])
        if not self._store.stamp_of(SPACE, key):
            return None
        try:
            stored = await self._store.get(SPACE, key)
        except StoreError as exc:
            log.error("calls of server tools cannot be put back: %s", exc)
            return None
        if stored is None:
            return None
        try:
            return _decoder.decode(stored.value)
        except msgspec.DecodeError as exc:
            log.error("calls of server tools cannot be put back, %s/%s: %s", SPACE, key, exc)
            return None


def _key(session: str | None, call_id: str) -> str:
    mark = blake2b(f"{session or ''}\0{call_id}".encode("utf-8", "surrogatepass"), digest_size=16)
    return mark.hexdigest()


def _with_calls(message: Message, found: HiddenCallGroup) -> Message:
    """The calls in the order the model made them: some providers sign only the first."""
    parts: list[Part] = []
    left = list(found.pairs)
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts += [_call(pair) for pair in left if pair.before == part.id]
            left = [pair for pair in left if pair.before != part.id]
        parts.append(part)
    return replace(message, parts=(*parts, *map(_call, left)))


def _call(pair: HiddenCall) -> ToolCall:
    return ToolCall(pair.id, pair.name, pair.arguments, signature=pair.signature, origin=pair.origin)


def _first_result(messages: Sequence[Message], at: int, found: HiddenCallGroup) -> int | None:
    """Where the client's results to the same answer stand."""
    for place in range(at + 1, len(messages)):
        parts = messages[place].parts
        if any(isinstance(part, ToolResult) and part.call_id in found.ids for part in parts):
            return place
        if messages[place].role == "assistant":
            return None
    return None


def _with_results(message: Message, found: HiddenCallGroup) -> Message:
    results: tuple[Part, ...] = tuple(
        ToolResult(pair.id, (Text(pair.result),), name=pair.name) for pair in found.pairs
    )
    return replace(message, parts=(*results, *message.parts))
