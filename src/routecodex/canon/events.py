"""Events of an answer stream, and their grammar.

    Started ( PartStarted | …Delta | PartFinished | UsageReported )* ( Finished | Failed )

Each part has its own increasing `index`. It is started once, extended by deltas and finished once.
Several parts may be open at a time. `PartStarted.part` holds the fields known at that moment; its text is
mostly empty. `UsageReported` is cumulative: the last one counts. `Finished` or `Failed` is the last event.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from routecodex.canon.errors import GatewayError
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall


class Usage(Struct, frozen=True):
    """Token counts of one answer: `input` is the whole input and `output` the whole output.

    `cache_read` and `cache_write` are parts of the input, `cache_write_1h` is the part of `cache_write` that
    is kept for an hour, `reasoning` is a part of the output. `cost` is the provider's own figure, in 10⁻⁹
    USD; `mode` is the mode of processing in which it answered, such as `flex`. `iterations` are Anthropic's
    counts of each step that it took by itself. A sum has neither mode nor iterations.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False
    iterations: tuple[Json, ...] = ()
    cache_write_1h: int = 0
    cost: int | None = None
    mode: str = ""

    def __add__(self, other: Usage) -> Usage:
        known = self.cost is not None and other.cost is not None
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated or other.estimated,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            cost=(self.cost or 0) + (other.cost or 0) if known else None,
        )


AnswerPart: TypeAlias = Text | ToolCall | Reasoning | Refusal | Opaque


class Started(Struct, frozen=True):
    """The provider started to answer."""

    id: str = ""
    model: str = ""
    created: int | None = None
    extras: dict[str, Json] | None = None


class PartStarted(Struct, frozen=True):
    """A part started; deltas are appended to its text."""

    index: int
    part: AnswerPart


class TextDelta(Struct, frozen=True):
    """More text of a Text or Refusal; `logprobs` are the chat entries of these tokens."""

    index: int
    text: str
    logprobs: tuple[Json, ...] = ()


class ReasoningDelta(Struct, frozen=True):
    """More text of a Reasoning part."""

    index: int
    text: str


class SignatureDelta(Struct, frozen=True):
    """The opaque signature of a part, or one more piece of it."""

    index: int
    signature: str


class ArgumentsDelta(Struct, frozen=True):
    """More of the arguments of a tool call."""

    index: int
    text: str


class AnnotationDelta(Struct, frozen=True):
    """An annotation of a text, such as a citation."""

    index: int
    annotation: Json


class PartFinished(Struct, frozen=True):
    """A part is complete."""

    index: int


class UsageReported(Struct, frozen=True):
    """The provider reported token counts; the last report counts."""

    usage: Usage


class Finished(Struct, frozen=True):
    """The answer is complete."""

    finish: Finish
    extras: dict[str, Json] | None = None


class Failed(Struct, frozen=True):
    """The answer ended with an error."""

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
