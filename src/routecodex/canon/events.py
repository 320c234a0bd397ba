"""Events of an answer stream, and their grammar.

Token counts of one answer.

What happens while an answer arrives, in the past tense.

Grammar of a stream of events:

    Started ( PartStarted | …Added | PartFinished | UsageReported )* ( Finished | Failed )

Each part has an `index` of its own, growing; it is started once, added to while open and finished once, in
that order. Several parts may be open at a time. `PartStarted.part` is the part with what is known of it at
that moment, mostly empty. `UsageReported` is cumulative: the last one counts. Nothing follows the end.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from routecodex.canon.errors import GatewayError
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall


class Usage(Struct, frozen=True):
    """`input` counts all prompt tokens, cached ones too; `output` all generated ones, thoughts too."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated or other.estimated,
        )


AnswerPart: TypeAlias = Text | ToolCall | Reasoning | Refusal | Opaque


class Started(Struct, frozen=True):
    """The provider began to answer."""

    id: str = ""
    model: str = ""
    created: int | None = None
    extras: dict[str, Json] | None = None


class PartStarted(Struct, frozen=True):
    """A part began; its text, if any, is what it begins with."""

    index: int
    part: AnswerPart


class TextDelta(Struct, frozen=True):
    """Text or Refusal grew; `logprobs` are chat's entries for these tokens."""

    index: int
    text: str
    logprobs: tuple[Json, ...] = ()


class ReasoningDelta(Struct, frozen=True):
    """A thought grew."""

    index: int
    text: str


class SignatureDelta(Struct, frozen=True):
    """A thought or a call got its opaque signature (whole, or one more piece)."""

    index: int
    signature: str


class ArgumentsDelta(Struct, frozen=True):
    """A call's arguments grew."""

    index: int
    text: str


class AnnotationDelta(Struct, frozen=True):
    """A citation or the like was attached to a text."""

    index: int
    annotation: Json


class PartFinished(Struct, frozen=True):
    """A part is complete."""

    index: int


class UsageReported(Struct, frozen=True):
    """The provider counted tokens; the last report counts."""

    usage: Usage


class Finished(Struct, frozen=True):
    """The answer is complete."""

    finish: Finish
    extras: dict[str, Json] | None = None


class Failed(Struct, frozen=True):
    """The answer broke off."""

    error: GatewayError


Event: TypeAlias = (
    Started
    | PartStarted
    | TextDelta
    | ReasoningDelta
    | SignatureDelta
    | ArgumentsDelta
    | AnnotationDelta
    | PartFinished
    | UsageReported
    | Finished
    | Failed
)
