"""Client requests in each protocol: paths and the smallest valid bodies."""

from __future__ import annotations

from typing import Any

from routecodex.protocols import grammar
from tests.kit.raw_client import Answer

TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def path(protocol: str, *, stream: bool, model: str = "up.m") -> str:
    """Return the path that a client of this protocol posts to."""
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return {
        "chat": "/v1/chat/completions",
        "responses": "/v1/responses",
        "messages": "/v1/messages",
        "gemini": f"/v1beta/models/{model}:{verb}",
    }[protocol]


def body(
    protocol: str, text: str = "Hello", *, stream: bool, model: str = "up.m", tools: bool = False
) -> dict[str, Any]:
    """Return a request body with one user message."""
    request: dict[str, Any] = _BODIES[protocol](text, model)
    if protocol != "gemini":
        request["stream"] = stream
    if protocol == "chat" and stream:
        request["stream_options"] = {"include_usage": True}
    if tools:
        request["tools"] = _TOOLS[protocol]
    return request


_BODIES: dict[str, Any] = {
    "chat": lambda text, model: {"model": model, "messages": [{"role": "user", "content": text}]},
    "responses": lambda text, model: {"model": model, "input": text},
    "messages": lambda text, model: {
        "model": model,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": text}],
    },
    "gemini": lambda text, model: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
}

_FUNCTION = {"name": TOOL["name"], "description": TOOL["description"], "parameters": TOOL["schema"]}
_TOOLS: dict[str, Any] = {
    "chat": [{"type": "function", "function": _FUNCTION}],
    "responses": [{"type": "function", **_FUNCTION}],
    "messages": [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["schema"]}],
    "gemini": [{"functionDeclarations": [_FUNCTION]}],
}


def check(protocol: str, answer: Answer, *, stream: bool) -> None:
    """Check that the answer is complete and follows the protocol's grammar."""
    assert answer.complete
    assert answer.status == 200, answer.body
    if not stream:
        grammar.check_json(protocol, answer.body)
        return
    match protocol:
        case "chat":
            grammar.check_chat(answer.body, include_usage=True)
        case "responses":
            grammar.check_responses(answer.body)
        case "messages":
            grammar.check_messages(answer.body)
        case _:
            grammar.check_gemini(answer.body)
