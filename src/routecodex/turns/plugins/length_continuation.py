"""`LengthContinuation`: an answer that was cut off by the token limit goes on.

The model is asked to go on where it stopped, and what it then says is added to the same message: there is one
answer in `messages`, one in the events, one that `send` returns. What the model is told to make it go on
stands in that request only. The parts are joined as they come, nothing in between.

It ends when the answer does, when the cap is reached, or when a part adds nothing. An answer that calls tools
is not continued: its calls, whole or not, are the tool plugin's business.
"""

from __future__ import annotations

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.message import Message

PROMPT = (
    "Your answer was cut off by the length limit. Go on exactly where it stopped, even within a word: "
    "repeat nothing, and add no remark about the interruption."
)


class LengthContinuation:
    """Continues answers that end with finish reason `length`, at most `max_continuations` times a turn."""

    def __init__(self, max_continuations: int = 5, *, prompt: str = PROMPT) -> None:
        if max_continuations < 0:
            raise ValueError(f"max_continuations is {max_continuations!r}; it cannot be negative")
        self._most = max_continuations
        self._prompt = prompt

    def on_before_request(self, turn: ChatTurn) -> None:
        if turn.plugin_data.pop("continue", False):
            turn.request_body["messages"].append({"role": "user", "content": self._prompt})

    def on_after_request(self, turn: ChatTurn) -> None:
        message, data = turn.current_message, turn.plugin_data
        said = _length(message)
        grown = said > data.get("said", {}).get(id(message), 0)
        if not _is_cut_off(message) or not grown or data.get("count", 0) >= self._most:
            return
        data["count"] = data.get("count", 0) + 1
        data["said"] = {id(message): said}
        data["continue"] = True
        turn.extend_message(message)
        turn.append_and_request([])


def _is_cut_off(message: Message) -> bool:
    return message.metadata.get("finish_reason") == "length" and not message.tool_calls


def _length(message: Message) -> int:
    return len(message.content) if isinstance(message.content, str) else 0
