"""What a person can tell the gateway inside a message, as values; targets stand as they were typed.

Every form an instruction can take, in words: the help a person gets, and the table of the manual.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class InstructionForm(NamedTuple):
    """Ways to write one instruction, what it does, and how long that lasts."""

    forms: tuple[str, ...]
    effect: str
    lasts: str


_SESSION = "the session"
_AT_ONCE = "–"

INSTRUCTION_FORMS: tuple[InstructionForm, ...] = (
    InstructionForm(
        ("<**p.model**>", "<**p.key.model**>"),
        "Use this model of provider `p`, or this key for this model, and nothing else.",
        "this turn",
    ),
    InstructionForm(
        ("<**p.key**>", "<**p.1**>"),
        "Use this key of `p`, by name or by number, with the model of `p` that routing would choose.",
        "this turn",
    ),
    InstructionForm(("<**p**>", "<**!p**>", "<**!p,q**>"), "Allow these providers only.", _SESSION),
    InstructionForm(("<**!p.model**>",), "Stay with this model; all keys of `p` take their turns.", _SESSION),
    InstructionForm(
        ("<**!p.key.model**>", "<**!p.key**>", "<**!p.1**>"),
        "Stay with this one key.",
        _SESSION,
    ),
    InstructionForm(
        ("<**#p**>", "<**#p.1**>", "<**#p.key**>", "<**#p.model**>", "<**#p,q.1**>"),
        "Never use these. A new message with `#` replaces what was disabled before; "
        "several in one message add up.",
        _SESSION,
    ),
    InstructionForm(
        ("<**@p**>", "<**@p.1**>", "<**@p.key**>", "<**@p.model**>", "<**@p,q.1**>"),
        "Use these again. `@p` lifts all that was disabled of `p`; "
        "`@p.1` after `#p` leaves the other keys disabled.",
        _SESSION,
    ),
    InstructionForm(("<**clear**>",), "Forget what was forced, sticky, allowed and disabled.", _AT_ONCE),
    InstructionForm(
        ('<**stopMessage:"text"**>', '<**stopMessage:"text",3**>'),
        "Say this text to the model whenever it stops, up to 10 times, or as often as the number says. "
        'A quote inside the text is written `\\"`.',
        _SESSION,
    ),
    InstructionForm(
        ("<**stopMessage:<file://stopMessage/x.md>**>", "<**stopMessage:<file://stopMessage/x.md>,3**>"),
        "The same with the text of a file below the user dir, read when this is written.",
        _SESSION,
    ),
    InstructionForm(("<**stopMessage:clear**>",), "Say nothing any more when the model stops.", _AT_ONCE),
    InstructionForm(("<**clock:clear**>",), "Forget all clock tasks of the session.", _AT_ONCE),
    InstructionForm(("<**status**>",), "Show what is set for this session, and how the keys are.", _AT_ONCE),
    InstructionForm(("<**help**>",), "Show this table.", _AT_ONCE),
)
"""What can be written, for people; `p` and `q` are providers."""


def help_text() -> str:
    """The table as markdown."""
    rows = [("Write", "Effect", "Lasts for"), ("---", "---", "---")]
    rows += [
        (", ".join(f"`{form}`" for form in row.forms), row.effect, row.lasts) for row in INSTRUCTION_FORMS
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


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
