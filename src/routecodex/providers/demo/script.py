"""Writes the answer of the demo model: a request in, the parts of an answer out.

The package docstring lists the `demo:` commands. Tools are called by `demo:tool`, by name in the user's text,
or because `tool_choice` requires it.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import msgspec
from msgspec import Struct

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import AnswerPart
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Request, Tool
from routecodex.protocols.upstream_errors import stream_truncated, upstream_error
from routecodex.providers.demo.prompt import Prompt
from routecodex.providers.demo.schema_fill import Clues, fill_schema

_COMMAND = re.compile(r"(?<![\w:])demo:([a-z]+)[ \t]*([^\n]*)")


class DemoCommand(Struct, frozen=True):
    """One command: its name and the rest of its line, up to the next command."""

    name: str
    rest: str

    def number(self, default: float) -> float:
        """Return the number that follows the command."""
        found = re.match(r"\d+(?:\.\d+)?", self.rest)
        return float(found.group()) if found else default


_FILLER_TEXT = (
    "the gateway takes a request from any client and brings it to any provider, "
    "then carries the answer back word by word, and nobody has to know how far it went."
)

_MAX_QUOTED = 4000
"""Characters of a tool result that are quoted."""

_MAX_ECHOED = 500
"""Characters at each end of a long text that are echoed; all of it would take minutes at the default pace."""
_MAX_WORDS = 20_000


class Script(Struct, frozen=True):
    """Parts and end of an answer; an `error` follows the parts instead of the finish."""

    parts: tuple[AnswerPart, ...] = ()
    finish: Finish = Finish("stop")
    error: UpstreamError | None = None


def write_script(request: Request, prompt: Prompt) -> Script:
    """Write the answer to the request."""
    commands = [] if prompt.results else parse_commands(prompt.text)
    script = _script(request, prompt, commands)
    thinking = any(command.name == "think" for command in commands) or _thinking_enabled(request)
    if not thinking or script.error is not None or not script.parts:
        return script
    return msgspec.structs.replace(script, parts=(_reasoning(request, prompt), *script.parts))


def initial_delay(prompt: Prompt) -> float:
    """Return the seconds of delay that `demo:slow` sets."""
    commands = [] if prompt.results else parse_commands(prompt.text)
    return sum(command.number(5) for command in commands if command.name == "slow")


def _script(request: Request, prompt: Prompt, commands: list[DemoCommand]) -> Script:
    if prompt.results:
        return _text_script(_quote(prompt) if request.output is None else _structured(request, prompt))
    for command in commands:
        if command.name == "tool":
            calls = _commanded_calls(request, prompt, [c for c in commands if c.name == "tool"])
            return Script(tuple(calls), Finish("tool_calls"))
        write_command = _COMMAND_SCRIPTS.get(command.name)
        if write_command is not None:
            return write_command(command)
    calls = _requested_calls(request, prompt)
    if calls:
        return Script((Text("I will use a tool for that."), *calls), Finish("tool_calls"))
    return _text_script(
        _structured(request, prompt) if request.output is not None else _echo(request, prompt)
    )


def _text_script(text: str) -> Script:
    return Script((Text(text),))


def _fail(command: DemoCommand) -> Script:
    status = int(command.number(500))
    headers = {"retry-after": "1"} if status in (429, 503, 529) else {}
    message = f"the demo model was told to fail with {status}"
    return Script(error=upstream_error(status, message, provider="demo", headers=headers))


_COMMAND_SCRIPTS: dict[str, Callable[[DemoCommand], Script]] = {
    "stop": lambda _: _text_script("Stopped, as you asked."),
    "length": lambda _: Script(
        (Text("This answer is cut off by the token limit before it"),), Finish("length")
    ),
    "empty": lambda _: Script(),
    "refuse": lambda _: Script((Refusal("I will not help with that."),), Finish("refusal")),
    "filter": lambda _: Script((Text("This answer was"),), Finish("content_filter")),
    "long": lambda command: _text_script(
        " ".join(islice(cycle(_FILLER_TEXT.split()), int(min(command.number(500), _MAX_WORDS))))
    ),
    "say": lambda command: _text_script(command.rest),
    "error": _fail,
    "cutoff": lambda _: Script(
        (Text("This answer breaks off in the mid"),), error=stream_truncated("the demo model")
    ),
}


COMMANDS = frozenset({*_COMMAND_SCRIPTS, "tool", "think", "slow"})
"""Names of all commands."""


def _thinking_enabled(request: Request) -> bool:
    thinking = request.thinking
    return thinking is not None and thinking.enabled and thinking.effort != "none"


def _reasoning(request: Request, prompt: Prompt) -> Reasoning:
    visible = request.thinking is None or request.thinking.visible
    subject = (
        "I have the results of the tools"
        if prompt.results
        else f"The user wrote {len(prompt.text)} characters"
    )
    text = f"{subject}. I look at what I was given and decide how to answer." if visible else ""
    signature = base64.b64encode(f"demo:{digest(request, prompt)}".encode()).decode()
    return Reasoning(text, signature=signature)


def _echo(request: Request, prompt: Prompt) -> str:
    nouns = {"message": prompt.messages, "tool": prompt.tools, "image": prompt.images}
    counts = [f"{count} {noun}" if count == 1 else f"{count} {noun}s" for noun, count in nouns.items()]
    system = " and a system prompt" if request.system else ""
    text = prompt.text
    if len(text) > 2 * _MAX_ECHOED:
        text = f"{text[:_MAX_ECHOED]} … {text[-_MAX_ECHOED:]}"
    echo = f'You said: "{text}".' if text else "You said nothing in words."
    return f"{echo} I am the demo model {request.model}, and I saw {', '.join(counts)}{system}."


def _quote(prompt: Prompt) -> str:
    lines = [
        f"{name} {'failed with' if failed else 'answered'}: {text[:_MAX_QUOTED]}"
        for name, text, failed in prompt.results
    ]
    return "\n".join([*lines, "That is all I needed."])


def _structured(request: Request, prompt: Prompt) -> str:
    output = request.output
    assert output is not None
    if output.kind == "json_object" or not isinstance(output.schema, dict):
        value = {
            "text": prompt.text,
            "messages": prompt.messages,
            "tools": prompt.tools,
            "images": prompt.images,
        }
        value |= {"results": [text for _, text, _ in prompt.results]} if prompt.results else {}
    else:
        value = fill_schema(output.schema, Clues(_quote(prompt) if prompt.results else prompt.text))
    return msgspec.json.encode(value).decode()


def parse_commands(text: str) -> list[DemoCommand]:
    """Find all commands in the text, in order."""
    lines = re.sub(r"[ \t]+(?=demo:[a-z])", "\n", text)
    return [DemoCommand(name, rest.strip()) for name, rest in _COMMAND.findall(lines)]


def _parse_tool_command(command: DemoCommand) -> tuple[str, dict[str, Any] | None]:
    """Return (name, arguments) of a `demo:tool` command; None for arguments without a JSON object."""
    name, _, rest = command.rest.partition(" ")
    start = rest.find("{")
    end = rest.rfind("}") if start >= 0 else -1
    while end > start:
        value = _decode_object(rest[start : end + 1])
        if value is not None:
            return name, value
        end = rest.rfind("}", 0, end)
    return name, None


def _decode_object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


_TOOL_REQUEST = re.compile(r"\b(?:use|call|run|invoke|try)\b[^.?!\n]{0,80}\btools?\b", re.IGNORECASE)

_TOOL_FORBIDDEN = re.compile(
    r"(?:(?:\b(?:not|never|without)|n['’]t)(?:\s+\w+){0,2}\s+"
    r"(?:us(?:e|ing)|call(?:ing)?|run(?:ning)?|invok(?:e|ing)|try(?:ing)?)\b"
    r"|\b(?:use|call|run|invoke|try)\s+no\b)[^.?!,;\n]*\Z",
    re.IGNORECASE,
)
"""Text before the name of a tool that must not be called."""


def digest(request: Request, prompt: Prompt) -> str:
    """Return hex digits that differ between the turns of a conversation and stay the same for one turn."""
    subject = f"{request.model}\n{prompt.messages}\n{prompt.text}\n{prompt.results}"
    return hashlib.blake2s(subject.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _requested_calls(request: Request, prompt: Prompt) -> list[ToolCall]:
    """Return the calls that the user's text or `tool_choice` requests."""
    clues = Clues(_without_names(prompt.text, request.tools))
    suffix = digest(request, prompt)
    chosen = _chosen(request, prompt.text)
    if request.parallel_tool_calls is False:
        chosen = chosen[:1]
    return [_call(tool, _arguments(tool, clues), f"call_{suffix}{n:02x}") for n, tool in enumerate(chosen)]


def _commanded_calls(request: Request, prompt: Prompt, commands: list[DemoCommand]) -> list[ToolCall]:
    """Return the calls of `demo:tool` commands; the request need not offer the tool."""
    suffix = digest(request, prompt)
    offered = {tool.name: tool for tool in request.tools}
    calls = []
    for number, command in enumerate(commands):
        name, value = _parse_tool_command(command)
        tool = offered.get(name, Tool(name))
        arguments = _arguments(tool, Clues(prompt.text)) if value is None else _encode_arguments(tool, value)
        calls.append(_call(tool, arguments, f"call_{suffix}{number:02x}"))
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
        if match is not None and not _TOOL_FORBIDDEN.search(text, 0, match.start())
    )
    named = [offered[number] for _, number in places]
    forced = choice is not None and choice.mode in ("required", "tool")
    if named or not (forced or _requests_tool(text)):
        return named
    return offered[:1]


def _requests_tool(text: str) -> bool:
    return any(not _TOOL_FORBIDDEN.search(text, 0, found.end()) for found in _TOOL_REQUEST.finditer(text))


def _named(name: str, text: str) -> re.Match[str] | None:
    """Find the tool's name in the text, in quotes or not; `get_weather` may also be written Get Weather."""
    found = re.search(rf"[\"'`]?(?<![\w-]){re.escape(name)}(?![\w-])[\"'`]?", text)
    parts = [word for word in re.split(r"[_-]+", name) if word]
    if found is not None or len(parts) < 2:
        return found
    loose = r"[\s_-]+".join(map(re.escape, parts))
    return re.search(rf"\b{loose}\b", text, re.IGNORECASE)


def _without_names(text: str, tools: tuple[Tool, ...]) -> str:
    """Remove tool names; the rest is for the arguments."""
    for tool in tools:
        while tool.name and (found := _named(tool.name, text)) is not None:
            text = f"{text[: found.start()]} {text[found.end() :]}"
    return text


def _arguments(tool: Tool, clues: Clues) -> str:
    if tool.kind == "custom":
        return clues.word(clues.text)
    schema = tool.parameters if isinstance(tool.parameters, dict) else {"type": "object"}
    return _encode_arguments(tool, fill_schema({"type": "object"} | schema, clues))


def _encode_arguments(tool: Tool, value: dict[str, Any]) -> str:
    if tool.kind == "custom":
        return str(value.get("input", ""))
    return msgspec.json.encode(value).decode()


def _call(tool: Tool, arguments: str, call_id: str) -> ToolCall:
    return ToolCall(call_id, tool.name, arguments, custom=tool.kind == "custom", namespace=tool.namespace)
