"""Instructions found in one message, and the rules by which they may act.

Apart from `instructions`, because classes with keywords cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from routecodex.gateway.context.message_marks import MessageMark
from routecodex.protocols.codec import WireRequest
from routecodex.routing.instructions import Instruction, MalformedInstruction, ShowHelp, ShowStatus

SHOW_INSTRUCTIONS = (ShowStatus, ShowHelp)
"""Instructions that the gateway answers itself and that change nothing."""

Where = Literal["anywhere", "first_line", "own_message", "off"]
"""Places of a message where tags count."""


class ChatInstructions(Struct, frozen=True, kw_only=True):
    """Instructions of the newest user message, and the request without them.

    `mark` identifies that message, `earlier` those with tags before it. `alone`: the message holds nothing
    but instructions and is the last one. `ignored` states why tags of the newest message are not applied.
    """

    stripped: WireRequest
    mark: MessageMark | None = None
    earlier: tuple[MessageMark, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
    alone: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def for_gateway(self) -> bool:
        """Whether the gateway answers the message itself."""
        return self.alone or any(isinstance(one, SHOW_INSTRUCTIONS) for one in self.instructions)


class TextRules(Struct, frozen=True):
    """Rules by which texts of a user message may act: where tags count, which texts are prompts of agents."""

    where: Where = "anywhere"
    is_prompt: Callable[[str], bool] = lambda text: False
