"""`LengthContinuation`: continues an answer that the token limit cut off.

The model gets a prompt to continue, and the continuation is added to the same message: `messages`, the events
and `send` have one answer. The prompt is sent in that request only and is not kept. The parts are joined
without a separator.

It stops when the answer is complete, when the cap is reached, or when a part adds no text. An answer with
tool calls is not continued: complete or not, they belong to the tool plugin.
"""

from __future__ import annotations

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.message import Message

PROMPT = (
    "Your answer was cut off by the length limit. Go on exactly where it stopped, even within a word: "
    "repeat nothing, and add no remark about the interruption."
)


class LengthContinuation:
    """Continues answers with finish reason `length`, at most `max_continuations` times per turn."""

    def __init__(self, max_continuations: int = 5, *, prompt: str = PROMPT) -> None:
        if max_continuations < 0:
            raise ValueError(f"max_continuations is {max_continuations!r}; it must not be negative")
        self._max_continuations = max_continuations
        self._prompt = prompt

    def on_before_request(self, turn: ChatTurn) -> None:
        if turn.plugin_data.pop("continue", False):
            turn.request_body["messages"].append({"role": "user", "content": self._prompt})

    def on_after_request(self, turn: ChatTurn) -> None:
        message, data = turn.current_message, turn.plugin_data
        length = _length(message)
        grown = length > data.get("length", {}).get(id(message), 0)
        if not _is_cut_off(message) or not grown or data.get("count", 0) >= self._max_continuations:
            return
        data["count"] = data.get("count", 0) + 1
        data["length"] = {id(message): length}
        data["continue"] = True
        turn.extend_message(message)
        turn.append_and_request([])


def _is_cut_off(message: Message) -> bool:
    return message.metadata.get("finish_reason") == "length" and not message.tool_calls


def _length(message: Message) -> int:
    return len(message.content) if isinstance(message.content, str) else 0
