"""Reasoning behind tool calls, cached in memory and restored in later requests.

Some providers (Anthropic, Gemini, OpenAI Responses) require their signed reasoning back with the results of
a tool call, and some client protocols (chat) cannot carry it. It is cached by the id of the call and restored
when the conversation returns to its provider. A signature is never sent to another provider. Ids of calls
are no secrets: with several clients, reasoning is restored for the client alone that it was answered to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.events import Event, PartStarted, ReasoningDelta, SignatureDelta
from routecodex.canon.parts import Part, Reasoning, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.gateway.state.signature_owners import SignatureOwners

_CALLS = 16_384
_BYTES = 64 * 1024 * 1024


CallKey: TypeAlias = str | tuple[str, str]
"""The id of a call, with the client that it belongs to if there are several."""


class CallReasoning(Struct, frozen=True):
    """The reasoning of a provider before one tool call, and the call's own signature."""

    provider: str
    parts: tuple[Reasoning, ...]
    signature: str | None
    parts_size: int

    @property
    def size(self) -> int:
        return self.parts_size + len(self.signature or "")


def size_of(parts: Iterable[Reasoning]) -> int:
    """Return the size of reasoning; counted once for all calls of an answer, which share it."""
    return sum(len(part.text) + len(part.signature or "") for part in parts)


class ReasoningCache:
    """Reasoning behind tool calls, and the owners of signatures; the oldest are dropped first."""

    def __init__(
        self, owners: SignatureOwners | None = None, *, calls: int = _CALLS, size: int = _BYTES
    ) -> None:
        self.owners: SignatureOwners = owners or SignatureOwners()
        self._calls: OrderedDict[CallKey, CallReasoning] = OrderedDict()
        self._bytes = 0
        self._most_calls, self._most_bytes = calls, size

    def keep(self, call_id: str, reasoning: CallReasoning, *, owner: str = "") -> None:
        """Cache the reasoning behind a call of a client."""
        key = _call_key(owner, call_id)
        old = self._calls.pop(key, None)
        self._bytes += reasoning.size - (old.size if old else 0)
        self._calls[key] = reasoning
        while len(self._calls) > self._most_calls or self._bytes > self._most_bytes:
            _, oldest = self._calls.popitem(last=False)
            self._bytes -= oldest.size

    def recall(self, request: Request, provider: str, owner: str = "") -> Request:
        """Return the request of a client with this provider's reasoning restored before its own calls."""
        if not self._calls:
            return request
        messages = tuple(self._restored(message, provider, owner) for message in request.messages)
        return request if messages == request.messages else replace(request, messages=messages)

    def _restored(self, message: Message, provider: str, owner: str) -> Message:
        if message.role != "assistant":
            return message
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        cached = [
            found
            for call in calls
            if (found := self._calls.get(_call_key(owner, call.id))) and found.provider == provider
        ]
        if not cached:
            return message
        parts: list[Part] = [self._signed(part, provider, owner) for part in message.parts]
        if not any(isinstance(part, Reasoning) and part.signature for part in parts):
            parts = [*cached[0].parts, *(part for part in parts if not isinstance(part, Reasoning))]
        return replace(message, parts=tuple(parts))

    def _signed(self, part: Part, provider: str, owner: str) -> Part:
        if not isinstance(part, ToolCall) or part.signature is not None:
            return part
        found = self._calls.get(_call_key(owner, part.id))
        if found is None or found.provider != provider or found.signature is None:
            return part
        return replace(part, signature=found.signature, origin=provider)


def _call_key(owner: str, call_id: str) -> CallKey:
    return (owner, call_id) if owner else call_id


class ReasoningRecorder:
    """Records the reasoning of one answer from its events."""

    __slots__ = ("_cache", "_calls", "_owner", "_provider", "_reasoning", "_signatures", "_texts")

    def __init__(self, cache: ReasoningCache, provider: str, owner: str = "") -> None:
        self._cache = cache
        self._provider = provider
        self._owner = owner
        self._reasoning: dict[int, Reasoning] = {}
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[int, ToolCall] = {}
        self._signatures: dict[int, list[str]] = {}

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
        parts = tuple(self._complete(index) for index in self._reasoning)
        signed, size = any(part.signature for part in parts), size_of(parts)
        for index, call in self._calls.items():
            signature = "".join(self._signatures.get(index, ())) or call.signature
            if signed or signature:
                reasoning = CallReasoning(self._provider, parts, signature, size)
                self._cache.keep(call.id, reasoning, owner=self._owner)

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
