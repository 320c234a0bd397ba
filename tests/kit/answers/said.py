"""What a scripted model says, before it is put on any wire."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

CREATED = 1_795_000_000
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Words:
    """Visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Thinking, with the opaque signature its maker wants back."""

    text: str
    signature: str = "c2lnbmVkLWJ5LXRoZS1tb2RlbA=="


@dataclass(frozen=True, slots=True)
class No:
    """A refusal."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; a `custom` one takes free text, else a dict (a string stands as written)."""

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


Piece: TypeAlias = Words | Thought | No | Call


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens: `input` with cached ones, `output` with thoughts."""

    input: int = 21
    output: int = 9
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Said:
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

    def place(self, piece: Piece) -> int:
        """Where the piece stands; two calls may be equal, so it is found by identity."""
        return next(index for index, known in enumerate(self.pieces) if known is piece)

    def call_id(self, call: Call, prefix: str) -> str:
        """The call's own id, or one as the provider would make it."""
        if call.id is not None:
            return call.id
        return made_id(prefix, self.number * 100 + self.place(call), size=24)


def made_id(prefix: str, number: int, *, size: int = 32) -> str:
    """An id as providers make them: unique, and of their length."""
    return f"{prefix}{number:0{size}x}"


def morsels(text: str, size: int = 6) -> Iterator[str]:
    """The text in pieces as a model sends them."""
    return (text[start : start + size] for start in range(0, len(text), size))


def dump(value: Any) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(value)


def frame(value: dict[str, Any], *, event: str = "") -> bytes:
    """One SSE frame."""
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + dump(value) + b"\n\n"
