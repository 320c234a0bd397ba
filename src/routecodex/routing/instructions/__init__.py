"""Instructions to the gateway in a user message: `<**…**>`.

values    ForceTarget, AllowProviders, StickToTarget, …; INSTRUCTION_FORMS and `help_text()` describe them
tags      finds tags outside code and texts of agents; `strip`, `is_blank`, `is_machine_made`
parse     `parse(text)`: instructions and malformed ones of one text, at most MOST_INSTRUCTIONS
"""

from __future__ import annotations

from routecodex.routing.instructions.parse import MOST_INSTRUCTIONS, parse
from routecodex.routing.instructions.tags import count_tags, is_blank, is_machine_made, strip
from routecodex.routing.instructions.values import (
    INSTRUCTION_FORMS,
    INSTRUCTION_KINDS,
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
    SteerAgents,
    StickToTarget,
    help_text,
)

__all__ = [
    "INSTRUCTION_FORMS",
    "INSTRUCTION_KINDS",
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
    "SteerAgents",
    "StickToTarget",
    "count_tags",
    "help_text",
    "is_blank",
    "is_machine_made",
    "parse",
    "strip",
]
