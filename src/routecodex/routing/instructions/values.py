"""Instructions as values, with targets as they were typed, and the table of all their forms.

`<**help**>` and docs/routing.md show the table.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class InstructionForm(NamedTuple):
    """Forms of one instruction, its effect and its duration."""

    forms: tuple[str, ...]
    effect: str
    lasts: str


_SESSION = "the session"
_AT_ONCE = "–"

INSTRUCTION_FORMS: tuple[InstructionForm, ...] = (
    InstructionForm(
        ("<**p.model**>", "<**p.key.model**>"),
        "Use only this model of provider `p`, or only this key for this model.",
        "this turn",
    ),
    InstructionForm(
        ("<**p.key**>", "<**p.1**>"),
        "Use this key of `p`, by name or by number, with the model of `p` that routing would choose.",
        "this turn",
    ),
    InstructionForm(("<**p**>", "<**!p**>", "<**!p,q**>"), "Allow only these providers.", _SESSION),
    InstructionForm(("<**!p.model**>",), "Stay with this model; the keys of `p` rotate.", _SESSION),
    InstructionForm(
        ("<**!p.key.model**>", "<**!p.key**>", "<**!p.1**>"),
        "Stay with this one key.",
        _SESSION,
    ),
    InstructionForm(
        ("<**#p**>", "<**#p.1**>", "<**#p.key**>", "<**#p.model**>", "<**#p,q.1**>"),
        "Disable these. A new message with `#` replaces the list; several `#` in one message add up.",
        _SESSION,
    ),
    InstructionForm(
        ("<**@p**>", "<**@p.1**>", "<**@p.key**>", "<**@p.model**>", "<**@p,q.1**>"),
        "Enable these again. `@p` enables all of `p`; `@p.1` after `#p` leaves the other keys disabled.",
        _SESSION,
    ),
    InstructionForm(
        ("<**clear**>",),
        "Clear force, sticky, allow list and disable list, those of the sub-agents too.",
        _AT_ONCE,
    ),
    InstructionForm(
        ("<**agents:!p.model**>", "<**agents:!p.key.model**>", "<**agents:!p.1**>"),
        "Let the sub-agents of this session stay with this model or key.",
        _SESSION,
    ),
    InstructionForm(
        ("<**agents:!p**>", "<**agents:!p,q**>"),
        "Allow only these providers to the sub-agents of this session.",
        _SESSION,
    ),
    InstructionForm(
        ("<**agents:#p**>", "<**agents:@p**>"),
        "Disable these for the sub-agents of this session, or enable them again; every form of `#` and `@`.",
        _SESSION,
    ),
    InstructionForm(("<**agents:clear**>",), "Clear the settings of the sub-agents.", _AT_ONCE),
    InstructionForm(
        ('<**stopMessage:"text"**>', '<**stopMessage:"text",3**>'),
        "Send this text to the model whenever it stops, up to 10 times, or as often as the number says. "
        'A quote inside the text is written `\\"`.',
        _SESSION,
    ),
    InstructionForm(
        ("<**stopMessage:<file://stopMessage/x.md>**>", "<**stopMessage:<file://stopMessage/x.md>,3**>"),
        "The same with the text of a file below the user directory, read when the instruction is sent.",
        _SESSION,
    ),
    InstructionForm(("<**stopMessage:clear**>",), "Remove the stop message.", _AT_ONCE),
    InstructionForm(("<**clock:clear**>",), "Delete all clock tasks of the session.", _AT_ONCE),
    InstructionForm(
        ("<**status**>",), "Show the state of this session and the health of the keys.", _AT_ONCE
    ),
    InstructionForm(("<**help**>",), "Show this table.", _AT_ONCE),
)
"""All instructions, for people; `p` and `q` are providers."""


def help_text() -> str:
    """Return the table as markdown."""
    rows = [("Write", "Effect", "Lasts for"), ("---", "---", "---")]
    rows += [
        (", ".join(f"`{form}`" for form in row.forms), row.effect, row.lasts) for row in INSTRUCTION_FORMS
    ]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


class ParsedInstruction(Struct, frozen=True, kw_only=True):
    """An instruction; `span` is its position in the text, with the marks."""

    span: tuple[int, int] = (0, 0)


class ForceTarget(ParsedInstruction, frozen=True):
    """Use this target for this user turn only."""

    target: str


class AllowProviders(ParsedInstruction, frozen=True):
    """Allow only these providers, for the session."""

    providers: tuple[str, ...]


class StickToTarget(ParsedInstruction, frozen=True):
    """Use this target, for the session."""

    target: str


class DisableTarget(ParsedInstruction, frozen=True):
    """Disable these targets."""

    targets: tuple[str, ...]


class EnableTarget(ParsedInstruction, frozen=True):
    """Enable these targets again."""

    targets: tuple[str, ...]


class ClearRouting(ParsedInstruction, frozen=True):
    """Clear force, sticky, allow list and disable list, those of the sub-agents too."""


class SteerAgents(ParsedInstruction, frozen=True):
    """Apply one instruction to the sub-agents of the session only."""

    instruction: AllowProviders | StickToTarget | DisableTarget | EnableTarget | ClearRouting


class SetStopMessage(ParsedInstruction, frozen=True):
    """Send this text to a model that stops, up to `max_repeats` times."""

    text: str
    max_repeats: int = 10


class SetStopMessageFromFile(ParsedInstruction, frozen=True):
    """Send the text of this file to a model that stops; the path is below the user directory."""

    path: str
    max_repeats: int = 10


class ClearStopMessage(ParsedInstruction, frozen=True):
    """Remove the stop message."""


class ClearClock(ParsedInstruction, frozen=True):
    """Delete the clock tasks of the session."""


class ShowStatus(ParsedInstruction, frozen=True):
    """Answer with the state of this session."""


class ShowHelp(ParsedInstruction, frozen=True):
    """Answer with the table of instructions."""


class MalformedInstruction(ParsedInstruction, frozen=True):
    """A tag that is not an instruction: its start, and the mistake."""

    raw: str
    reason: str


Instruction = (
    ForceTarget
    | AllowProviders
    | StickToTarget
    | DisableTarget
    | EnableTarget
    | ClearRouting
    | SteerAgents
    | SetStopMessage
    | SetStopMessageFromFile
    | ClearStopMessage
    | ClearClock
    | ShowStatus
    | ShowHelp
)


INSTRUCTION_KINDS: dict[type[ParsedInstruction], str] = {
    **dict.fromkeys(
        (ForceTarget, AllowProviders, StickToTarget, DisableTarget, EnableTarget, ClearRouting), "routing"
    ),
    SteerAgents: "agents",
    **dict.fromkeys((SetStopMessage, SetStopMessageFromFile, ClearStopMessage), "stop_message"),
    ClearClock: "clock",
    **dict.fromkeys((ShowStatus, ShowHelp), "status"),
}
"""Kind of each instruction, by which clients may be limited."""


class ParseResult(Struct, frozen=True):
    """Instructions of one text, left to right, malformed ones, and the number of quoted tags."""

    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
    quoted: int = 0
