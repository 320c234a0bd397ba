"""empty_reply_continue: an answer that is empty, or was cut off, gets one more chance.

An empty answer of which the client has seen nothing is requested again (gateway/answer/attempt.py). In a turn
of several rounds the model is asked to answer after all, or to continue where its text was cut off.
"""

from __future__ import annotations

from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.request import Message
from routecodex.canon.response import Response
from routecodex.server_tools.framework import FollowUp, ServerTool, TurnContext

SUFFIX = "empty_followup"
ANSWER = "Your last answer was empty. Go on: answer, or make the tool calls that are needed."
GO_ON = (
    "Your last answer was cut off by a fault of the connection. Go on exactly where it stopped, in the "
    "middle of the word if need be; repeat nothing of it and say nothing about the interruption."
)

_WITHOUT_CAUSE = ("stop", "error")
"""Ends that do not explain why nothing was said."""


class EmptyReplyTool(ServerTool):
    """Asked after every tool that has something of its own to say, and once in a turn."""

    name = "empty_reply_continue"
    priority = -100

    async def follow_up(self, situation: TurnContext, response: Response) -> FollowUp | None:
        cut_off = situation.data.get("cut_off", False)
        if not (cut_off or is_empty(response)):
            return None
        if situation.data.get(self.name):
            situation.note("no second follow-up to an answer that is empty or cut off")
            return None
        situation.data[self.name] = True
        has_text = any(isinstance(part, Text) and part.text for part in response.parts)
        situation.note(
            "the answer was cut off: going on" if cut_off else "the answer was empty: asking again"
        )
        words = GO_ON if has_text else ANSWER
        return FollowUp((Message("user", (Text(words),)),), SUFFIX, with_answer=has_text)


def is_empty(response: Response) -> bool:
    """Whether an answer ended without a word and without a cause; thoughts alone are no answer."""
    return has_no_cause(response.finish) and not any(
        part.text if isinstance(part, Text) else not isinstance(part, Reasoning) for part in response.parts
    )


def has_no_cause(finish: Finish | None) -> bool:
    """Whether an end leaves open why nothing was said: neither a limit nor a filter."""
    return finish is None or finish.reason in _WITHOUT_CAUSE


def can_continue(response: Response) -> bool:
    """Whether an answer that was cut off can be continued: half a call cannot."""
    return not any(isinstance(part, ToolCall) for part in response.parts)
