"""empty_reply_continue: one follow-up to an answer that is empty or was cut off.

An empty answer of which the client has received nothing is requested again (gateway/answer/attempt.py). In a
turn with several rounds the model gets a message to answer, or to continue where its text was cut off.
"""

from __future__ import annotations

from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.request import Message
from routecodex.canon.response import Response
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext

SUFFIX = "empty_followup"
ANSWER = "Your last answer was empty. Go on: answer, or make the tool calls that are needed."
CONTINUE = (
    "Your last answer was cut off by a fault of the connection. Go on exactly where it stopped, in the "
    "middle of the word if need be; repeat nothing of it and say nothing about the interruption."
)

_UNEXPLAINED = ("stop", "error")
"""Finish reasons that do not explain an empty answer."""


class _Used:
    """Whether this turn has had its follow-up."""

    once = False


class EmptyReplyTool(ServerTool):
    """Follows up after the tools with a higher priority, once per turn."""

    name = "empty_reply_continue"
    priority = -100

    async def follow_up(self, turn: TurnContext, response: Response) -> FollowUp | None:
        cut_off = turn.cut_off
        if not (cut_off or is_empty(response)):
            return None
        used = turn.state(self, _Used)
        if used.once:
            turn.note("no second follow-up to an empty or cut-off answer")
            return None
        used.once = True
        has_text = any(isinstance(part, Text) and part.text for part in response.parts)
        turn.note(
            "the answer was cut off: continuing it" if cut_off else "the answer was empty: requesting another"
        )
        text = CONTINUE if has_text else ANSWER
        return FollowUp((Message("user", (Text(text),)),), SUFFIX, with_answer=has_text)


def is_empty(response: Response) -> bool:
    """Return whether an answer has no content (reasoning does not count) and no reason that explains it."""
    return has_no_cause(response.finish) and not any(
        part.text if isinstance(part, Text) else not isinstance(part, Reasoning) for part in response.parts
    )


def has_no_cause(finish: Finish | None) -> bool:
    """Return whether the finish reason leaves an empty answer unexplained (not a limit or a filter)."""
    return finish is None or finish.reason in _UNEXPLAINED


def can_continue(response: Response) -> bool:
    """Return whether a cut-off answer can be continued; a partial tool call cannot."""
    return not any(isinstance(part, ToolCall) for part in response.parts)
