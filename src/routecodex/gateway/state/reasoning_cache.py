"""The thoughts behind tool calls, bounded and in memory, and who made which signature.

Some providers want their signed thoughts back with the results of a tool call, and some clients' protocols
have no place for them. What a client cannot carry is kept here by the id of the call and put back when the
conversation returns to the provider that made it. A signature is never sent to any other provider.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.events import Event, PartStarted, ReasoningDelta, SignatureDelta
from routecodex.canon.parts import Part, Reasoning, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.gateway.state.signature_owners import SignatureOwners

_CALLS = 16_384
_BYTES = 64 * 1024 * 1024


class CallReasoning(Struct, frozen=True):
    """What a provider thought before one tool call, and the call's own signature."""

    provider: str
    parts: tuple[Reasoning, ...]
    signature: str | None

    @property
    def size(self) -> int:
        return sum(len(part.text) + len(part.signature or "") for part in self.parts) + len(
            self.signature or ""
        )


class ReasoningCache:
    """Makers of signatures and thoughts behind calls; the oldest are forgotten first."""

    def __init__(
        self, makers: SignatureOwners | None = None, *, calls: int = _CALLS, size: int = _BYTES
    ) -> None:
        self.makers: SignatureOwners = makers or SignatureOwners()
        self._calls: OrderedDict[str, CallReasoning] = OrderedDict()
        self._bytes = 0
        self._most_calls, self._most_bytes = calls, size

    def keep(self, call_id: str, thoughts: CallReasoning) -> None:
        """Remembers the thoughts behind a call."""
        old = self._calls.pop(call_id, None)
        self._bytes += thoughts.size - (old.size if old else 0)
        self._calls[call_id] = thoughts
        while len(self._calls) > self._most_calls or self._bytes > self._most_bytes:
            _, gone = self._calls.popitem(last=False)
            self._bytes -= gone.size

    def recall(self, request: Request, provider: str) -> Request:
        """The request with what this provider thought put back behind its own calls."""
        if not self._calls:
            return request
        messages = tuple(self._restored(message, provider) for message in request.messages)
        return request if messages == request.messages else replace(request, messages=messages)

    def _restored(self, message: Message, provider: str) -> Message:
        if message.role != "assistant":
            return message
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        kept = [found for call in calls if (found := self._calls.get(call.id)) and found.provider == provider]
        if not kept:
            return message
        parts: list[Part] = [self._signed(part, provider) for part in message.parts]
        if not any(isinstance(part, Reasoning) and part.signature for part in parts):
            parts = [*kept[0].parts, *(part for part in parts if not isinstance(part, Reasoning))]
        return replace(message, parts=tuple(parts))

    def _signed(self, part: Part, provider: str) -> Part:
        if not isinstance(part, ToolCall) or part.signature is not None:
            return part
        found = self._calls.get(part.id)
        if found is None or found.provider != provider or found.signature is None:
            return part
        return replace(part, signature=found.signature, origin=provider)


class ReasoningRecorder:
    """Follows one answer's events and gives its thoughts to the memory."""

    __slots__ = ("_calls", "_memory", "_provider", "_signatures", "_texts", "_thoughts")

    def __init__(self, memory: ReasoningCache, provider: str) -> None:
        self._memory = memory
        self._provider = provider
        self._thoughts: dict[int, Reasoning] = {}
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[int, ToolCall] = {}
        self._signatures: dict[int, list[str]] = {}

    def __call__(self, event: Event) -> None:
        step = _STEPS.get(type(event))
        if step is not None:
            step(self, event)

    def _begin(self, event: PartStarted) -> None:
        if isinstance(event.part, Reasoning):
            self._thoughts[event.index] = event.part
            self._texts[event.index] = [event.part.text]
        elif isinstance(event.part, ToolCall):
            self._calls[event.index] = event.part

    def _think(self, event: ReasoningDelta) -> None:
        self._texts[event.index].append(event.text)

    def _sign(self, event: SignatureDelta) -> None:
        self._signatures.setdefault(event.index, []).append(event.signature)

    def settle(self) -> None:
        """The answer is complete: what a client may not be able to carry is kept."""
        if not (self._thoughts or self._calls or self._signatures):
            return
        for pieces in self._signatures.values():
            self._memory.makers.made(self._provider, "".join(pieces))
        begun = [part.signature for part in self._thoughts.values()]
        begun += [part.signature for part in self._calls.values()]
        for known in filter(None, begun):
            self._memory.makers.made(self._provider, known)
        thoughts = tuple(self._whole(index) for index in self._thoughts)
        signed = any(thought.signature for thought in thoughts)
        for index, call in self._calls.items():
            signature = "".join(self._signatures.get(index, ())) or call.signature
            if signed or signature:
                self._memory.keep(call.id, CallReasoning(self._provider, thoughts, signature))

    def _whole(self, index: int) -> Reasoning:
        thought = self._thoughts[index]
        signature = "".join(self._signatures.get(index, ())) or thought.signature
        text = "".join(self._texts[index])
        return replace(thought, text=text, signature=signature, origin=self._provider)


_STEPS: dict[type[Event], Callable[[ReasoningRecorder, Any], None]] = {
    PartStarted: ReasoningRecorder._begin,
    ReasoningDelta: ReasoningRecorder._think,
    SignatureDelta: ReasoningRecorder._sign,
}
