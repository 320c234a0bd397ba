"""What a person tells the gateway inside a message: `<**…**>`.

values    Force, Allow, Sticky, Disable, …: the instructions, each with the span it came from
tags      `strip(text)`, `is_blank(text)`: where the marks are, and the text without them
regions   `is_machine_made(text)`: code and the envelopes of agents, in which nobody speaks to the gateway
parse     `parse(text)`: one text in, instructions and malformed ones out; MOST, how many there may be
forms     TABLE, `help_text()`: every form in words
"""

from __future__ import annotations

from routecodex.routing.instructions.parse import MOST_INSTRUCTIONS, parse
from routecodex.routing.instructions.tags import ENVELOPES, is_blank, is_machine_made, strip
from routecodex.routing.instructions.values import (
    INSTRUCTION_FORMS,
    AllowProviders,
    ClearClock,
    ClearRouting,
    ClearStopMessage,
    DisableTarget,
    EnableTarget,
    ForceTarget,
    Instruction,
    InstructionForm,
    MalformedInstruction,
    ParseResult,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    StickToTarget,
    help_text,
)

__all__ = [
    "ENVELOPES",
    "INSTRUCTION_FORMS",
    "MOST_INSTRUCTIONS",
    "AllowProviders",
    "ClearClock",
    "ClearRouting",
    "ClearStopMessage",
    "DisableTarget",
    "EnableTarget",
    "ForceTarget",
    "Instruction",
    "InstructionForm",
    "MalformedInstruction",
    "ParseResult",
    "SetStopMessage",
    "SetStopMessageFromFile",
    "ShowHelp",
    "ShowStatus",
    "StickToTarget",
    "help_text",
    "is_blank",
    "is_machine_made",
    "parse",
    "strip",
]
