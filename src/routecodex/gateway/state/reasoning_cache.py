"""Reasoning behind tool calls, cached in memory, stored, and restored in later requests.

Some providers (Anthropic, Gemini, OpenAI Responses) require their signed reasoning back with the results of
a tool call, and some client protocols (chat) cannot carry it. It is cached by the id of the call and restored
when the conversation returns to its provider. A signature is never sent to another provider. Ids of calls
are no secrets: with several clients, reasoning is restored for the client alone that it was answered to.

It is stored before the client gets the end of the answer. A process that meets a call for the first time
looks it up in the store once; afterwards it knows whether there is reasoning behind it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.events import Event, PartStarted, ReasoningDelta, SignatureDelta
from routecodex.canon.parts import Part, Reasoning, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.gateway.state.thoughts import AnswerThoughts, ThoughtStore
from routecodex.stores.store import StoreError

_CALLS = 16_384
_BYTES = 16 * 1024 * 1024
_WITHOUT = 16_384
_MOST_READ = 1024
_READ_AT_ONCE = 32

log = logging.getLogger("routecodex.thoughts")


CallKey: TypeAlias = str | tuple[str, str]
"""The id of a call, with the client that it belongs to if there are several."""


class CallReasoning(Struct, frozen=True):
    """The reasoning of a provider before one tool call, and the call's own signature."""

    provider: str
    parts: tuple[Reasoning, ...]
    signature: str | None
    parts_size: int
    expires: float = math.inf
    """Seconds since the epoch."""

    @property
    def size(self) -> int:
        return self.parts_size + len(self.signature or "")


def size_of(parts: Iterable[Reasoning]) -> int:
    """Return the size of reasoning; counted once for all calls of an answer, which share it."""
    return sum(len(part.text) + len(part.signature or "") for part in parts)


class ReasoningCache:
    """Reasoning behind tool calls, and the owners of signatures; the oldest are dropped first.

    Without `thoughts` nothing is stored, and reasoning lives as long as the process.
    """

    def __init__(
        self,
        owners: SignatureOwners | None = None,
        *,
        thoughts: ThoughtStore | None = None,
        calls: int = _CALLS,
        size: int = _BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.owners: SignatureOwners = owners or SignatureOwners()
        self.thoughts = thoughts
        self._calls: OrderedDict[CallKey, CallReasoning] = OrderedDict()
        self._without: dict[int, None] = {}
        """Hashes of calls without reasoning: clients choose the length of ids."""
        self._bytes = 0
        self._most_calls, self._most_bytes = calls, size
        self._clock = clock

    def keep(self, call_id: str, reasoning: CallReasoning, *, owner: str = "") -> None:
        """Cache the reasoning behind a call of a client."""
        key = _call_key(owner, call_id)
        old = self._calls.pop(key, None)
        self._bytes += reasoning.size - (old.size if old else 0)
        self._calls[key] = reasoning
        while len(self._calls) > self._most_calls or self._bytes > self._most_bytes:
            _, oldest = self._calls.popitem(last=False)
            self._bytes -= oldest.size

    def keep_answer(self, thoughts: AnswerThoughts, *, owner: str = "", expires: float | None = None) -> None:
        """Cache the reasoning of an answer, by default from now on."""
        if expires is None:
            expires = math.inf if self.thoughts is None else self._clock() + self.thoughts.ttl
        size = size_of(thoughts.reasoning)
        for call_id, signature in thoughts.calls.items():
            reasoning = CallReasoning(thoughts.provider, thoughts.reasoning, signature, size, expires)
            self.keep(call_id, reasoning, owner=owner)

    def note_without(self, call_id: str, *, owner: str = "") -> None:
        """Note that there is no reasoning behind a call, so that it is not looked up."""
        if self.thoughts is None:
            return
        self._without[hash(_call_key(owner, call_id))] = None
        if len(self._without) > _WITHOUT:
            del self._without[next(iter(self._without))]

    def unknown_calls(self, request: Request, owner: str = "") -> Sequence[str]:
        """Return the first calls of answers that this process has not met, the newest first."""
        if self.thoughts is None or len(request.messages) < 2:
            return ()
        known, without, found = self._calls, self._without, list[str]()
        for message in reversed(request.messages):
            if message.role != "assistant":
                continue
            for part in message.parts:
                if isinstance(part, ToolCall):
                    key = _call_key(owner, part.id)
                    if key not in known and hash(key) not in without:
                        found.append(part.id)
                    break
        return found[:_MOST_READ]

    async def learn(self, first_calls: Sequence[str], owner: str = "") -> None:
        """Read the reasoning behind calls that other processes answered. Never raises."""
        assert self.thoughts is not None
        stored = [call for call in first_calls if self._may_be_stored(self.thoughts, call, owner)]
        try:
            for at in range(0, len(stored), _READ_AT_ONCE):
                some = stored[at : at + _READ_AT_ONCE]
                await asyncio.gather(*(self._read(self.thoughts, call, owner) for call in some))
        except StoreError as exc:
            log.debug("reasoning behind calls cannot be read: %s", exc)

    def _may_be_stored(self, thoughts: ThoughtStore, first_call: str, owner: str) -> bool:
        if thoughts.may_have(first_call, owner=owner):
            return True
        self.note_without(first_call, owner=owner)
        return False

    async def _read(self, thoughts: ThoughtStore, first_call: str, owner: str) -> None:
        found = await thoughts.find(first_call, owner=owner)
        if found is not None:
            self.keep_answer(found.thoughts, owner=owner, expires=found.expires)
        if found is None or first_call not in found.thoughts.calls:
            self.note_without(first_call, owner=owner)

    def recall(self, request: Request, provider: str, owner: str = "") -> Request:
        """Return the request of a client with this provider's reasoning restored before its own calls."""
        if not self._calls:
            return request
        messages = tuple(self._restored(message, provider, owner) for message in request.messages)
        return request if messages == request.messages else replace(request, messages=messages)

    def _find(self, call_id: str, provider: str, owner: str) -> CallReasoning | None:
        found = self._calls.get(_call_key(owner, call_id))
        if found is None or found.provider != provider or found.expires <= self._clock():
            return None
        return found

    def _restored(self, message: Message, provider: str, owner: str) -> Message:
        if message.role != "assistant":
            return message
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        cached = [found for call in calls if (found := self._find(call.id, provider, owner))]
        if not cached:
            return message
        parts: list[Part] = [self._signed(part, provider, owner) for part in message.parts]
        if not any(isinstance(part, Reasoning) and part.signature for part in parts):
            parts = [*cached[0].parts, *(part for part in parts if not isinstance(part, Reasoning))]
        return replace(message, parts=tuple(parts))

    def _signed(self, part: Part, provider: str, owner: str) -> Part:
        if not isinstance(part, ToolCall) or part.signature is not None:
            return part
        found = self._find(part.id, provider, owner)
        if found is None or found.signature is None:
            return part
        return replace(part, signature=found.signature, origin=provider)


def _call_key(owner: str, call_id: str) -> CallKey:
    return (owner, call_id) if owner else call_id


class ReasoningRecorder:
    """Records the reasoning of one answer from its events; what `is_unsaved` is stored before it ends."""

    __slots__ = (
        *("_cache", "_calls", "_owner", "_provider", "_reasoning", "_signatures", "_texts", "_thoughts"),
        "is_unsaved",
    )

    def __init__(self, cache: ReasoningCache, provider: str, owner: str = "") -> None:
        self._cache = cache
        self._provider = provider
        self._owner = owner
        self._reasoning: dict[int, Reasoning] = {}
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[int, ToolCall] = {}
        self._signatures: dict[int, list[str]] = {}
        self._thoughts: AnswerThoughts | None = None
        self.is_unsaved = False

    def __call__(self, event: Event) -> None:
        handle = _HANDLERS.get(type(event))
        if handle is not None:
            handle(self, event)

    def _start_part(self, event: PartStarted) -> None:
        if isinstance(event.part, Reasoning):
            self._reasoning[event.index] = event.part
            self._texts[event.index] = [event.part.text]
        elif isinstance(event.part, ToolCall):
            self._calls[event.index] = event.part

    def _add_text(self, event: ReasoningDelta) -> None:
        self._texts[event.index].append(event.text)

    def _add_signature(self, event: SignatureDelta) -> None:
        self._signatures.setdefault(event.index, []).append(event.signature)

    def settle(self) -> None:
        """Cache the reasoning of a complete answer, which its client may not be able to carry."""
        if not (self._reasoning or self._calls or self._signatures):
            return
        for pieces in self._signatures.values():
            self._cache.owners.record(self._provider, "".join(pieces))
        begun = [part.signature for part in self._reasoning.values()]
        begun += [part.signature for part in self._calls.values()]
        for known in filter(None, begun):
            self._cache.owners.record(self._provider, known)
        if self._calls:
            self._keep(tuple(self._complete(index) for index in self._reasoning))
        self.is_unsaved = self._thoughts is not None or self._cache.owners.unsaved

    def _keep(self, parts: tuple[Reasoning, ...]) -> None:
        """Cache the reasoning that led to calls."""
        signed = any(part.signature for part in parts)
        calls: dict[str, str | None] = {}
        for index, call in self._calls.items():
            signature = "".join(self._signatures.get(index, ())) or call.signature
            if signed or signature:
                calls[call.id] = signature
            else:
                self._cache.note_without(call.id, owner=self._owner)
        if calls:
            thoughts = AnswerThoughts(self._provider, parts, calls)
            self._cache.keep_answer(thoughts, owner=self._owner)
            self._thoughts = thoughts if self._cache.thoughts is not None else None

    async def save(self) -> None:
        """Store the reasoning of the answer and the owners of its signatures. Never raises."""
        thoughts, self._thoughts = self._thoughts, None
        self.is_unsaved = False
        store, owners = self._cache.thoughts, self._cache.owners
        if owners.unsaved:
            await owners.save()
        if thoughts is not None and store is not None:
            first = next(iter(self._calls.values())).id
            await store.save(first, thoughts, owner=self._owner)

    def _complete(self, index: int) -> Reasoning:
        part = self._reasoning[index]
        signature = "".join(self._signatures.get(index, ())) or part.signature
        text = "".join(self._texts[index])
        return replace(part, text=text, signature=signature, origin=self._provider)


_HANDLERS: dict[type[Event], Callable[[ReasoningRecorder, Any], None]] = {
    PartStarted: ReasoningRecorder._start_part,
    ReasoningDelta: ReasoningRecorder._add_text,
    SignatureDelta: ReasoningRecorder._add_signature,
}
