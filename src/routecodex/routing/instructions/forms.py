"""Every form an instruction can take, in words: the help a person gets, and the table of the manual."""

from __future__ import annotations

from typing import NamedTuple


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
