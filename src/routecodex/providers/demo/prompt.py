"""Reads the parts of a request that the demo model reacts to: the user's text, tool results, counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request

# Claude Code puts notes for the model into the user's message; the user did not write them.
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
# The clock tool adds the time as a user message.
_TIME = re.compile(r"\[Time/Date\]: utc=`[^`]*` local=`[^`]*` tz=`[^`]*` nowMs=`\d+` ntpOffsetMs=`-?\d+`")
_IMAGE_TOKENS = 256


class Prompt(Struct, frozen=True):
    """A summary of a request; `results` are (tool name, text, failed) if it ends with tool results."""

    text: str
    results: tuple[tuple[str, str, bool], ...]
    messages: int
    tools: int
    images: int
    tokens: int


def read_prompt(request: Request) -> Prompt:
    """Summarise the request."""
    return Prompt(
        text=_user_text(request.messages),
        results=tuple(_results(request.messages)),
        messages=len(request.messages),
        tools=len(request.tools),
        images=sum(_is_image(part) for part in _all_parts(request.messages)),
        tokens=_tokens(request),
    )


def count_tokens(text: str) -> int:
    """Estimate the tokens of a text."""
    return (len(text) + 3) // 4


def joined_text(parts: tuple[Part, ...]) -> str:
    """Join the text parts."""
    return " ".join(part.text for part in parts if isinstance(part, Text))


def _user_text(messages: tuple[Message, ...]) -> str:
    for message in reversed(messages):
        if message.role == "user" and not _has_results(message) and not _is_time_message(message):
            return _REMINDER.sub("", joined_text(message.parts)).strip()
    return ""


def _is_time_message(message: Message) -> bool:
    return _TIME.fullmatch(joined_text(message.parts).strip()) is not None


def _has_results(message: Message) -> bool:
    return message.role == "tool" or any(isinstance(part, ToolResult) for part in message.parts)


def _results(messages: tuple[Message, ...]) -> Iterator[tuple[str, str, bool]]:
    """Yield the tool results at the end of the conversation, oldest first."""
    last = len(messages)
    while last and (messages[last - 1].role == "system" or _has_results(messages[last - 1])):
        last -= 1
    names = {part.id: part.name for part in _all_parts(messages) if isinstance(part, ToolCall)}
    for part in _all_parts(messages[last:]):
        if isinstance(part, ToolResult):
            name = part.name or names.get(part.call_id) or "tool"
            yield name, joined_text(part.parts) or "(nothing)", part.is_error


def _all_parts(messages: tuple[Message, ...]) -> Iterator[Part]:
    for message in messages:
        for part in message.parts:
            yield part
            if isinstance(part, ToolResult):
                yield from part.parts


def _is_image(part: Part) -> bool:
    return isinstance(part, Media) and part.kind == "image"


def _tokens(request: Request) -> int:
    total = sum(count_tokens(text.text) for text in request.system) + 4 * len(request.messages)
    total += sum(_part_tokens(part) for part in _all_parts(request.messages))
    return total + sum(
        count_tokens(msgspec.json.encode(tool.parameters).decode()) + count_tokens(tool.name)
        for tool in request.tools
    )


def _part_tokens(part: Part) -> int:
    match part:
        case Media():
            return _IMAGE_TOKENS
        case ToolCall():
            return count_tokens(part.name) + count_tokens(part.arguments)
        case ToolResult() | Opaque() | Reasoning():
            return 2
        case _:
            return count_tokens(part.text)
