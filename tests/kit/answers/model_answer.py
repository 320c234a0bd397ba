"""One answer of a scripted model, before it is encoded for a protocol."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

CREATED = 1_795_000_000
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Reasoning, with the opaque signature that its provider wants back."""

    text: str
    signature: str = "c2lnbmVkLWJ5LXRoZS1tb2RlbA=="


@dataclass(frozen=True, slots=True)
class RefusalPiece:
    """A refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` of a `custom` call are free text, of others a dict or JSON text as written."""

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None
    custom: bool = False

    @property
    def text(self) -> str:
        if isinstance(self.arguments, str):
            return self.arguments
        return msgspec.json.encode(self.arguments).decode()

    @property
    def object(self) -> dict[str, Any]:
        if isinstance(self.arguments, dict):
            return self.arguments
        return {"input": self.arguments} if self.custom else dict(msgspec.json.decode(self.arguments))


Piece: TypeAlias = TextPiece | ReasoningPiece | RefusalPiece | Call


@dataclass(frozen=True, slots=True)
class Counts:
    """Token counts; `input` includes cached tokens, `output` includes reasoning."""

    input: int = 21
    output: int = 9
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """One answer of the model; `include_usage` matters on chat streams only."""

    pieces: tuple[Piece, ...]
    end: Literal["stop", "length", "refusal"] = "stop"
    counts: Counts = field(default_factory=Counts)
    model: str = ""
    include_usage: bool = True
    number: int = field(default_factory=lambda: next(_numbers))

    @property
    def calls(self) -> list[Call]:
        return [piece for piece in self.pieces if isinstance(piece, Call)]

    def index_of(self, piece: Piece) -> int:
        """Return the index of the piece, by identity because two calls may be equal."""
        return next(index for index, known in enumerate(self.pieces) if known is piece)

    def call_id(self, call: Call, prefix: str) -> str:
        """Return the call's own id, or one as the provider would generate it."""
        if call.id is not None:
            return call.id
        return provider_id(prefix, self.number * 100 + self.index_of(call), size=24)


def provider_id(prefix: str, number: int, *, size: int = 32) -> str:
    """Return an id as providers generate them: unique, and of the same length."""
    return f"{prefix}{number:0{size}x}"


def split_text(text: str, size: int = 6) -> Iterator[str]:
    """Split a text into deltas of `size` characters, as a model sends them."""
    return (text[start : start + size] for start in range(0, len(text), size))


def dump(value: Any) -> bytes:
    """Encode as compact JSON."""
    return msgspec.json.encode(value)


def frame(value: dict[str, Any], *, event: str = "") -> bytes:
    """Return one SSE frame."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + dump(value) + b"\n\n"
