"""What a person can tell the gateway inside a message, as values; targets stand as they were typed."""

from __future__ import annotations

from msgspec import Struct


class ParsedInstruction(Struct, frozen=True, kw_only=True):
    """Something between the marks; `span` is where it stood in the text, marks included."""

    span: tuple[int, int] = (0, 0)


class ForceTarget(ParsedInstruction, frozen=True):
    """This target, for this turn of the person only."""

    target: str


class AllowProviders(ParsedInstruction, frozen=True):
    """Only these providers, until told otherwise."""

    providers: tuple[str, ...]


class StickToTarget(ParsedInstruction, frozen=True):
    """This target, until told otherwise."""

    target: str


class DisableTarget(ParsedInstruction, frozen=True):
    """None of these."""

    targets: tuple[str, ...]


class EnableTarget(ParsedInstruction, frozen=True):
    """These again."""

    targets: tuple[str, ...]


class ClearRouting(ParsedInstruction, frozen=True):
    """Nothing forced, sticky, allowed or disabled any more."""


class SetStopMessage(ParsedInstruction, frozen=True):
    """Say this to a model that stops, so many times."""

    text: str
    max_repeats: int = 10


class SetStopMessageFromFile(ParsedInstruction, frozen=True):
    """Say what this file holds to a model that stops; the path is below the user dir."""

    path: str
    max_repeats: int = 10


class ClearStopMessage(ParsedInstruction, frozen=True):
    """Say nothing to a model that stops."""


class ClearClock(ParsedInstruction, frozen=True):
    """Forget the session's clock tasks."""


class ShowStatus(ParsedInstruction, frozen=True):
    """Tell what is set for this session."""


class ShowHelp(ParsedInstruction, frozen=True):
    """Tell what can be written between the marks."""


class MalformedInstruction(ParsedInstruction, frozen=True):
    """Marks around something that is no instruction: how it began, and what is wrong with it."""

    raw: str
    reason: str


Instruction = (
    ForceTarget
    | AllowProviders
    | StickToTarget
    | DisableTarget
    | EnableTarget
    | ClearRouting
    | SetStopMessage
    | SetStopMessageFromFile
    | ClearStopMessage
    | ClearClock
    | ShowStatus
    | ShowHelp
)


class ParseResult(Struct, frozen=True):
    """All that one text tells the gateway, from left to right."""

    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
