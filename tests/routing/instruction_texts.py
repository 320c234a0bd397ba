"""One conversation in each of the four protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from routecodex.canon.request import RequestFeatures
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS

PIXEL = "iVBORw0KGgo="
PROTOCOLS = ("chat", "responses", "messages", "gemini")

Step = tuple[Any, ...]
"""("user" | "assistant" | "system", text), ("image", text), ("call", name, arguments), ("result", text)."""


def _chat(step: Step, at: int) -> dict[str, Any]:
    match step:
        case ("image", text):
            parts = [
                {"type": "text", "text": text},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            ]
            return {"role": "user", "content": parts}
        case ("call", name, arguments):
            function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
            return {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            }
        case ("result", text):
            return {"role": "tool", "tool_call_id": "c", "content": text}
        case (role, text):
            return {"role": role, "content": text}
    raise AssertionError(step)


def _responses(step: Step, at: int) -> dict[str, Any]:
    match step:
        case ("image", text):
            parts = [
                {"type": "input_text", "text": text},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
            ]
            return {"type": "message", "role": "user", "content": parts}
        case ("call", name, arguments):
            given = msgspec.json.encode(arguments).decode()
            return {"type": "function_call", "call_id": f"c{at}", "name": name, "arguments": given}
        case ("result", text):
            return {"type": "function_call_output", "call_id": f"c{at - 1}", "output": text}
        case (role, text):
            return {"role": role, "content": text}
    raise AssertionError(step)


def _messages(step: Step, at: int) -> dict[str, Any]:
    match step:
        case ("image", text):
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            return {
                "role": "user",
                "content": [{"type": "text", "text": text}, {"type": "image", "source": source}],
            }
        case ("call", name, arguments):
            return {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": name, "input": arguments}],
            }
        case ("result", text):
            return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text}]}
        case (role, text):
            return {"role": role, "content": text}
    raise AssertionError(step)


def _gemini(step: Step, at: int) -> dict[str, Any]:
    match step:
        case ("image", text):
            return {
                "role": "user",
                "parts": [{"text": text}, {"inlineData": {"mimeType": "image/png", "data": PIXEL}}],
            }
        case ("call", name, arguments):
            return {
                "role": "model",
                "parts": [{"functionCall": {"name": name, "id": "c", "args": arguments}}],
            }
        case ("result", text):
            response = {"id": "c", "name": "t", "response": {"output": text}}
            return {"role": "user", "parts": [{"functionResponse": response}]}
        case (role, text):
            return {"role": "model" if role == "assistant" else "user", "parts": [{"text": text}]}
    raise AssertionError(step)


def _tool(protocol: str, name: str) -> dict[str, Any]:
    tools: dict[str, dict[str, Any]] = {
        "chat": {"type": "function", "function": {"name": name}},
        "responses": {"type": "function", "name": name, "parameters": {}},
        "messages": {"name": name, "input_schema": {}},
        "gemini": {"functionDeclarations": [{"name": name}]},
    }
    return tools[protocol]


def wire_request(
    protocol: str, *steps: Step, tools: Sequence[str | dict[str, Any]] = (), system: str = "", **fields: Any
) -> WireRequest:
    """Return the conversation as a validated request; a tool is a name or a declaration of the protocol."""
    write = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}[protocol]
    messages = [write(step, at) for at, step in enumerate(steps)]
    offered = [_tool(protocol, tool) if isinstance(tool, str) else tool for tool in tools]
    body: dict[str, Any] = {"tools": offered} if offered else {}
    match protocol:
        case "chat":
            before = [{"role": "system", "content": system}] if system else []
            body |= {"model": "m", "messages": before + messages}
        case "responses":
            body |= {"model": "m", "input": messages, "instructions": system}
        case "messages":
            body |= {"model": "m", "max_tokens": 9, "messages": messages, "system": system}
        case _:
            instruction = {"systemInstruction": {"parts": [{"text": system}]}} if system else {}
            body |= {"contents": messages, **instruction}
    named = {"model": "m"} if protocol == "gemini" else {}
    return CODECS[protocol].validate(msgspec.json.encode(body | fields), **named)


def features(protocol: str, *steps: Step, **settings: Any) -> RequestFeatures:
    """Return the features of the conversation."""
    return CODECS[protocol].features(wire_request(protocol, *steps, **settings))


def fingerprint(protocol: str, *steps: Step, **settings: Any) -> bytes:
    """Return the fingerprint of the start of the conversation."""
    return CODECS[protocol].fingerprint(wire_request(protocol, *steps, **settings))
