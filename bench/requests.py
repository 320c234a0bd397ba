"""Request bodies as agents send them: a system prompt, tools, and a history of tool calls and results."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

Body = dict[str, Any]

SIZES = {"1k": 1_000, "100k": 100_000, "500k": 500_000, "2m": 2_000_000}
TOOLS_FROM = 10_000
TOOL_COUNT = 20
RESULT_CHARS = 2_500

VOCABULARY = """reads writes "quoted" value
\tif found is None: return {"ok": 1}  # naïve → fine  path src/app/main.py the test fails because a cursor
points past its line and nobody closed the file before opening another"""
WORDS = VOCABULARY.split(" ")


class Prose:
    """Return text that resembles code and prose, the same in every run."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)

    def __call__(self, chars: int) -> str:
        words: list[str] = []
        length = 0
        while length < chars:
            word = self._random.choice(WORDS)
            words.append(word)
            length += len(word) + 1
        return " ".join(words)[:chars]


def _schema(prose: Prose) -> Body:
    properties = {f"p{i}": {"type": "string", "description": prose(60)} for i in range(5)}
    return {"type": "object", "properties": properties, "required": ["p0"], "additionalProperties": False}


def _length(value: object) -> int:
    return len(msgspec.json.encode(value))


def _history(body: Body, size: int, *, key: str, turn: Callable[[int, int], list[Body]]) -> Body:
    """Add turns under `key` until the body has about `size` bytes."""
    left = size - _length(body)
    number = 0
    while left > 0:
        added = turn(number, max(20, min(RESULT_CHARS, left - 300)))
        body[key] += added
        left -= _length(added)
        number += 1
    return body


def _chat(size: int, stream: bool) -> Body:
    prose = Prose()
    body: Body = {"model": "gpt-mock", "stream": stream, "temperature": 0.7, "max_tokens": 1024}
    body["messages"] = [{"role": "system", "content": prose(min(size // 4, 12_000))}]
    if size < TOOLS_FROM:
        body["messages"].append({"role": "user", "content": prose(max(20, size - _length(body) - 40))})
        return body
    body["tools"] = [
        {
            "type": "function",
            "function": {"name": f"tool_{i}", "description": prose(300), "parameters": _schema(prose)},
        }
        for i in range(TOOL_COUNT)
    ]
    body["messages"].append({"role": "user", "content": "Please fix the failing test."})

    def turn(number: int, chars: int) -> list[Body]:
        name, arguments = f"tool_{number % TOOL_COUNT}", {"p0": f"src/mod_{number}.py", "p1": prose(40)}
        function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        call = {"id": f"call_{number:08d}", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": prose(chars)},
        ]

    return _history(body, size, key="messages", turn=turn)


def _messages(size: int, stream: bool) -> Body:
    prose = Prose()
    body: Body = {"model": "claude-mock", "stream": stream, "max_tokens": 1024}
    body["system"] = [{"type": "text", "text": prose(min(size // 4, 12_000))}]
    if size < TOOLS_FROM:
        text = prose(max(20, size - _length(body) - 80))
        body["messages"] = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        return body
    body["tools"] = [
        {"name": f"tool_{i}", "description": prose(300), "input_schema": _schema(prose)}
        for i in range(TOOL_COUNT)
    ]
    body["messages"] = [{"role": "user", "content": "Please fix the failing test."}]

    def turn(number: int, chars: int) -> list[Body]:
        name, arguments = f"tool_{number % TOOL_COUNT}", {"p0": f"src/mod_{number}.py", "p1": prose(40)}
        call = {"type": "tool_use", "id": f"toolu_{number:08d}", "name": name, "input": arguments}
        text = [{"type": "text", "text": prose(chars)}]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        return [
            {"role": "assistant", "content": [{"type": "text", "text": prose(60)}, call]},
            {"role": "user", "content": [result]},
        ]

    return _history(body, size, key="messages", turn=turn)


def _responses(size: int, stream: bool) -> Body:
    prose = Prose()
    body: Body = {"model": "gpt-mock", "stream": stream, "max_output_tokens": 1024}
    body["instructions"] = prose(min(size // 4, 12_000))
    if size < TOOLS_FROM:
        text = prose(max(20, size - _length(body) - 80))
        body["input"] = [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
        return body
    body["tools"] = [
        {"type": "function", "name": f"tool_{i}", "description": prose(300), "parameters": _schema(prose)}
        for i in range(TOOL_COUNT)
    ]
    body["input"] = [{"role": "user", "content": "Please fix the failing test."}]

    def turn(number: int, chars: int) -> list[Body]:
        name, arguments = f"tool_{number % TOOL_COUNT}", {"p0": f"src/mod_{number}.py", "p1": prose(40)}
        call_id = f"call_{number:08d}"
        encoded = msgspec.json.encode(arguments).decode()
        return [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": encoded},
            {"type": "function_call_output", "call_id": call_id, "output": prose(chars)},
        ]

    return _history(body, size, key="input", turn=turn)


def _gemini(size: int, stream: bool) -> Body:
    """Return a gemini body; its path decides whether it streams."""
    prose = Prose()
    body: Body = {"generationConfig": {"temperature": 0.7, "maxOutputTokens": 1024}}
    body["systemInstruction"] = {"parts": [{"text": prose(min(size // 4, 12_000))}]}
    if size < TOOLS_FROM:
        text = prose(max(20, size - _length(body) - 60))
        body["contents"] = [{"role": "user", "parts": [{"text": text}]}]
        return body
    declared = [
        {"name": f"tool_{i}", "description": prose(300), "parametersJsonSchema": _schema(prose)}
        for i in range(TOOL_COUNT)
    ]
    body["tools"] = [{"functionDeclarations": declared}]
    body["contents"] = [{"role": "user", "parts": [{"text": "Please fix the failing test."}]}]

    def turn(number: int, chars: int) -> list[Body]:
        name, arguments = f"tool_{number % TOOL_COUNT}", {"p0": f"src/mod_{number}.py", "p1": prose(40)}
        call_id = f"call_{number:08d}"
        call = {"id": call_id, "name": name, "args": arguments}
        result = {"id": call_id, "name": name, "response": {"output": prose(chars)}}
        return [
            {"role": "model", "parts": [{"functionCall": call}]},
            {"role": "user", "parts": [{"functionResponse": result}]},
        ]

    return _history(body, size, key="contents", turn=turn)


BODIES: dict[str, Callable[[int, bool], Body]] = {
    "chat": _chat,
    "messages": _messages,
    "responses": _responses,
    "gemini": _gemini,
}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
CLIENT_KEY = "sk-bench-0000000000000000"
CLIENT_HEADERS = {
    "Host": "127.0.0.1",
    "Content-Type": "application/json",
    "Accept": "*/*",
    "User-Agent": "bench/1",
    "Authorization": f"Bearer {CLIENT_KEY}",
    "x-api-key": CLIENT_KEY,
    "anthropic-version": "2023-06-01",
}


def body(protocol: str, size: str, *, stream: bool, model: str | None = None, last_words: str = "") -> bytes:
    """Return the JSON body of a request of about `size` bytes; a chat may end with `last_words`."""
    content = BODIES[protocol](SIZES[size], stream)
    if model is not None:
        content["model"] = model
    if last_words:
        content["messages"].append({"role": "user", "content": last_words})
    return msgspec.json.encode(content)


def raw(path: str, content: bytes, headers: dict[str, str]) -> bytes:
    """Return a complete HTTP/1.1 request."""
    merged = CLIENT_HEADERS | headers | {"Content-Length": str(len(content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in merged.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def write(target: Path, content: bytes) -> Path:
    """Write a request file for the load generator."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target
