"""Which tools the demo model calls, and with what."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from routecodex.canon.parts import ToolCall
from routecodex.canon.request import Request, Tool
from routecodex.providers.demo import commands
from routecodex.providers.demo.fill import Clues, fill_schema
from routecodex.providers.demo.seen import Prompt

_ASKS = re.compile(r"\b(?:use|call|run|invoke|try)\b[^.?!\n]{0,80}\btools?\b", re.IGNORECASE)

_FORBIDS = re.compile(
    r"(?:(?:\b(?:not|never|without)|n['’]t)(?:\s+\w+){0,2}\s+"
    r"(?:us(?:e|ing)|call(?:ing)?|run(?:ning)?|invok(?:e|ing)|try(?:ing)?)\b"
    r"|\b(?:use|call|run|invoke|try)\s+no\b)[^.?!,;\n]*\Z",
    re.IGNORECASE,
)
"""What stands before a tool that is not to be called."""


def digest(request: Request, seen: Prompt) -> str:
    """Hex that differs between the turns of a conversation and is the same for the same turn."""
    what = f"{request.model}\n{seen.messages}\n{seen.text}\n{seen.results}"
    return hashlib.blake2s(what.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def asked_calls(request: Request, seen: Prompt) -> list[ToolCall]:
    """The calls the user's text or `tool_choice` asks for."""
    clues = Clues(_without_names(seen.text, request.tools))
    mark = digest(request, seen)
    chosen = _chosen(request, seen.text)
    if request.parallel_tool_calls is False:
        chosen = chosen[:1]
    return [_call(tool, _arguments(tool, clues), f"call_{mark}{n:02x}") for n, tool in enumerate(chosen)]


def commanded_calls(request: Request, seen: Prompt, given: list[commands.DemoCommand]) -> list[ToolCall]:
    """The calls that `demo:tool` commands spell out; the tool need not be on offer."""
    mark = digest(request, seen)
    offered = {tool.name: tool for tool in request.tools}
    calls = []
    for number, command in enumerate(given):
        name, value = commands.tool_call(command)
        tool = offered.get(name, Tool(name))
        arguments = _arguments(tool, Clues(seen.text)) if value is None else _written(tool, value)
        calls.append(_call(tool, arguments, f"call_{mark}{number:02x}"))
    return calls


def _chosen(request: Request, text: str) -> list[Tool]:
    choice = request.tool_choice
    offered = [tool for tool in request.tools if tool.kind != "hosted"]
    if choice is not None and choice.mode == "none":
        return []
    if choice is not None and choice.names:
        offered = [tool for tool in offered if tool.name in choice.names]
    found = [(_named(tool.name, text), number) for number, tool in enumerate(offered) if tool.name]
    places = sorted(
        (match.start(), number)
        for match, number in found
        if match is not None and not _FORBIDS.search(text, 0, match.start())
    )
    named = [offered[number] for _, number in places]
    forced = choice is not None and choice.mode in ("required", "tool")
    if named or not (forced or _asks(text)):
        return named
    return offered[:1]


def _asks(text: str) -> bool:
    return any(not _FORBIDS.search(text, 0, found.end()) for found in _ASKS.finditer(text))


def _named(name: str, text: str) -> re.Match[str] | None:
    """Where the text names the tool, in quotes or not; `get_weather` may also be written Get Weather."""
    found = re.search(rf"[\"'`]?(?<![\w-]){re.escape(name)}(?![\w-])[\"'`]?", text)
    words = [word for word in re.split(r"[_-]+", name) if word]
    if found is not None or len(words) < 2:
        return found
    loose = r"[\s_-]+".join(map(re.escape, words))
    return re.search(rf"\b{loose}\b", text, re.IGNORECASE)


def _without_names(text: str, tools: tuple[Tool, ...]) -> str:
    """What is left to take arguments from."""
    for tool in tools:
        while tool.name and (found := _named(tool.name, text)) is not None:
            text = f"{text[: found.start()]} {text[found.end() :]}"
    return text


def _arguments(tool: Tool, clues: Clues) -> str:
    if tool.kind == "custom":
        return clues.word(clues.text)
    schema = tool.parameters if isinstance(tool.parameters, dict) else {"type": "object"}
    return _written(tool, fill_schema({"type": "object"} | schema, clues))


def _written(tool: Tool, value: dict[str, Any]) -> str:
    if tool.kind == "custom":
        return str(value.get("input", ""))
    return msgspec.json.encode(value).decode()


def _call(tool: Tool, arguments: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, tool.name, arguments, custom=tool.kind == "custom", namespace=tool.namespace)
