"""How many tokens a request has: the upstream's own count where it has one, else an estimate that errs high.
"""

from __future__ import annotations

from routecodex.canon.parts import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request, Tool
from routecodex.wire import json

_BYTES_PER_TOKEN = 3
_MESSAGE_TOKENS = 6
_MEDIA_TOKENS = {"image": 1700, "file": 3000, "audio": 2000, "video": 20_000}


def estimate(request: Request) -> int:
    """A count that is rarely below the truth: three bytes a token, a flat price for media."""
    total = sum(_text(part.text) for part in request.system)
    total += sum(_message(message) for message in request.messages)
    total += sum(_tool(tool) for tool in request.tools)
    return total + _MESSAGE_TOKENS


def estimate_body(body: bytes) -> int:
    """A cheap upper guess from the size of a body alone."""
    return len(body) // _BYTES_PER_TOKEN + 1


def _text(text: str | None) -> int:
    return len((text or "").encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN + 1


def _message(message: Message) -> int:
    return _MESSAGE_TOKENS + sum(_part(part) for part in message.parts)


def _part(part: Part) -> int:
    match part:
        case Text() | Refusal() | Reasoning():
            return _text(part.text)
        case ToolCall():
            return _text(part.name) + _text(part.arguments) + _MESSAGE_TOKENS
        case ToolResult():
            return _MESSAGE_TOKENS + sum(_part(inner) for inner in part.parts)
        case Media():
            return _text(part.text) if part.text is not None else _MEDIA_TOKENS[part.kind]
        case Opaque():
            return estimate_body(json.encode(part.value))


def _tool(tool: Tool) -> int:
    described = tool.hosted if tool.kind == "hosted" else tool.parameters
    return (
        _text(tool.name) + _text(tool.description) + estimate_body(json.encode(described)) + _MESSAGE_TOKENS
    )
