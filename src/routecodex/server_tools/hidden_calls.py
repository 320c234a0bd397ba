"""Calls of server tools that the client never saw, stored and put back into the history.

When a model calls a server tool and a tool of the client at once, the client gets its own calls only. The
calls and results of the server tool are inserted again when the client returns with its results, so that the
upstream sees every call with its result, in the order the model made them.
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
from routecodex.stores.background_trim import BackgroundTrim
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.store import Store, StoreError

SPACE = "pairs"
_CACHED = 256
TTL = 7 * 24 * 3600.0
MAX_ENTRIES = 20_000
MAX_BYTES = 64 * 1024 * 1024
_TRIM_EVERY = 100
_MOST_KEYS = 64
"""Client calls of an answer by which its group is found; all of them would each store all of them."""

log = logging.getLogger("routecodex.server_tools")


class HiddenCall(Struct, frozen=True, omit_defaults=True):
    """A call of a server tool and its result; `before` is the id of the client's call that followed it."""

    id: str
    name: str
    arguments: str
    result: str
    signature: str | None = None
    origin: str | None = None
    before: str = ""


class HiddenCallGroup(Struct, frozen=True):
    """The hidden calls of one answer; `ids` are those of the client's calls in it."""

    session: str
    ids: tuple[str, ...]
    pairs: tuple[HiddenCall, ...]


_NO_CALLS = HiddenCallGroup("", (), ())
_decoder = msgspec.json.Decoder(HiddenCallGroup)
FORMAT = CellFormat(
    space=SPACE,
    empty=lambda key: _NO_CALLS,
    encode=lambda key, group: msgspec.json.encode(group),
    decode=lambda key, raw: _decoder.decode(raw),
    noun="a group of server tool calls",
    outage="calls of server tools cannot be put back",
    log=log,
)


class HiddenToolCalls:
    """Hidden calls by their session and the ids of the client's calls in the same answer.

    Without a session they are kept by these ids alone; with several clients, below their `owner`.
    """

    def __init__(self, store: Store) -> None:
        self._cell = Cell(store, FORMAT, cached=_CACHED, ttl=TTL)
        self._trim = BackgroundTrim(
            store, SPACE, entries=MAX_ENTRIES, size=MAX_BYTES, every=_TRIM_EVERY, log=log
        )

    async def keep(
        self, session: str | None, calls: Sequence[HiddenCall], *, beside: Sequence[str], owner: str = ""
    ) -> None:
        """Save calls that the client does not see; while the store is down the model forgets them."""
        group = HiddenCallGroup(session or "", tuple(beside), tuple(calls))
        try:
            for call_id in beside[:_MOST_KEYS]:
                await self._cell.edit(_key(session, call_id, owner), lambda _: (group, None))
            self._trim.wrote()
        except StoreError as exc:
            log.debug("calls of server tools cannot be put back later: %s", exc)

    async def restored(self, request: Request, session: str | None, *, owner: str = "") -> Request:
        """Return the request with the hidden calls and their results inserted."""
        messages = list(request.messages)
        known = {part.id for message in messages for part in message.parts if isinstance(part, ToolCall)}
        changed = False
        for at, message in enumerate(messages):
            group = await self._group(message, session, owner)
            ids = {call.id for call in group.pairs}
            # A client may send the calls of one answer in several messages: insert the hidden ones once.
            results_at = _first_result(messages, at, group) if ids and not ids & known else None
            if results_at is None:
                continue
            messages[at] = _with_calls(message, group)
            messages[results_at] = _with_results(messages[results_at], group)
            known |= ids
            changed = True
        return replace(request, messages=tuple(messages)) if changed else request

    async def _group(self, message: Message, session: str | None, owner: str) -> HiddenCallGroup:
        ids = [part.id for part in message.parts if isinstance(part, ToolCall)]
        if message.role != "assistant" or not ids:
            return _NO_CALLS
        key = _key(session, ids[0], owner)
        return self._cell.peek(key) or await self._cell.load(key)


def _key(session: str | None, call_id: str, owner: str) -> str:
    """Return the key of a group; the owner is a key of the hash, so that no id can stand for it."""
    secret = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=32).digest() if owner else b""
    text = f"{session or ''}\0{call_id}".encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16, key=secret).hexdigest()


def _with_calls(message: Message, group: HiddenCallGroup) -> Message:
    """Insert the calls in the order the model made them: some providers sign only the first."""
    parts: list[Part] = []
    before: dict[str, list[HiddenCall]] = {}
    for call in group.pairs:
        before.setdefault(call.before, []).append(call)
    for part in message.parts:
        if isinstance(part, ToolCall):
            parts += map(_call, before.pop(part.id, ()))
        parts.append(part)
    left = (call for call in group.pairs if call.before in before)
    return replace(message, parts=(*parts, *map(_call, left)))


def _call(call: HiddenCall) -> ToolCall:
    return ToolCall(call.id, call.name, call.arguments, signature=call.signature, origin=call.origin)


def _first_result(messages: Sequence[Message], at: int, group: HiddenCallGroup) -> int | None:
    """Return the index of the message with the client's first results to the same answer."""
    ids = frozenset(group.ids)
    for place in range(at + 1, len(messages)):
        parts = messages[place].parts
        if any(isinstance(part, ToolResult) and part.call_id in ids for part in parts):
            return place
        if messages[place].role == "assistant":
            return None
    return None


def _with_results(message: Message, group: HiddenCallGroup) -> Message:
    results: tuple[Part, ...] = tuple(
        ToolResult(call.id, (Text(call.result),), name=call.name) for call in group.pairs
    )
    return replace(message, parts=(*results, *message.parts))
