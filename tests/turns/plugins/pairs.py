"""Checks for paired calls and results, and short views of tool messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.turns import Conversation, Message


def check_pairs(messages: Sequence[dict[str, Any]]) -> None:
    """Fail unless every answer is followed by exactly one result per call, in order."""
    at = 0
    seen: set[str] = set()
    while at < len(messages):
        message = messages[at]
        at += 1
        assert message["role"] != "tool", f"a result without a call: {message}"
        for call in message.get("tool_calls") or ():
            assert isinstance(call["id"], str)
            assert call["id"], "every call has an id"
            assert call["id"] not in seen, "no two calls have the same"
            seen.add(call["id"])
            assert call["function"]["name"]
            assert at < len(messages), f"no result for {call}"
            assert messages[at]["role"] == "tool"
            assert messages[at]["tool_call_id"] == call["id"]
            assert messages[at]["content"], "a result says something"
            at += 1


def as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.as_dict() for message in messages]


def results(conversation: Conversation) -> list[tuple[str, Any]]:
    """Return state and content of each tool message."""
    return [
        (message.metadata["tool"]["state"], message.content)
        for message in conversation.messages
        if message.role == "tool"
    ]
