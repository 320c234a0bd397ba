"""The shape of what chat upstreams send, chunks and whole completions; fields in the order they come in.

A field that comes where it is looked for first is found sooner. Nothing here can refer back to what holds it,
so the garbage collector need not know of it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from routecodex.wire.json import ABSENT


class FunctionDelta(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class CustomDelta(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class WireToolCallDelta(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None

    @property
    def name(self) -> str | None:
        """The tool's name, which the first piece of a call has."""
        called = self.function or self.custom
        return called.name if called is not None else None

    @property
    def text(self) -> str | None:
        """The arguments of a function, or the input of a custom tool, as far as this piece tells them."""
        if self.custom is not None:
            return self.custom.input
        return self.function.arguments if self.function is not None else None


class WireDelta(Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[WireToolCallDelta] | None = None
    function_call: FunctionDelta | None = None
    annotations: list[Any] | None = None
    audio: Raw = ABSENT
    images: Raw = ABSENT
    reasoning_details: Raw = ABSENT


class WireAudioDelta(Struct, gc=False):
    transcript: str | None = None


class Logprobs(Struct, gc=False):
    content: list[Any] | None = None


class WireChoice(Struct, gc=False):
    index: int = 0
    delta: WireDelta | None = None
    message: WireDelta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class CachedDetails(Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class ReasoningDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class WireUsage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: CachedDetails | None = None
    completion_tokens_details: ReasoningDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class StreamChunk(Struct, gc=False):
    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Raw = ABSENT


class Counted(Struct, gc=False):
    """What a chunk counts, as it came."""

    usage: Raw = ABSENT
