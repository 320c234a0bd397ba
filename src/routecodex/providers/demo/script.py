"""What the demo model says: a request in, the parts of an answer out.

`demo:` commands in a user's text; the list is in the package's docstring.

Which tools the demo model calls, and with what.
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
        """The number that follows the command."""
        found = re.match(r"\d+(?:\.\d+)?", self.rest)
        return float(found.group()) if found else default


def parse(text: str) -> list[DemoCommand]:
    """All commands in the text, in order."""
    lines = re.sub(r"[ \t]+(?=demo:[a-z])", "\n", text)
    return [DemoCommand(name, rest.strip()) for name, rest in _COMMAND.findall(lines)]


def tool_call(command: DemoCommand) -> tuple[str, dict[str, Any] | None]:
    """(name, arguments) of a `demo:tool`; None when it has no JSON object."""
    name, _, rest = command.rest.partition(" ")
    start = rest.find("{")
    end = rest.rfind("}") if start >= 0 else -1
    while end > start:
        value = _object(rest[start : end + 1])
        if value is not None:
            return name, value
        end = rest.rfind("}", 0, end)
    return name, None


def _object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


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


def commanded_calls(request: Request, seen: Prompt, given: list[DemoCommand]) -> list[ToolCall]:
    """The calls that `demo:tool` commands spell out; the tool need not be on offer."""
    mark = digest(request, seen)
    offered = {tool.name: tool for tool in request.tools}
    calls = []
    for number, command in enumerate(given):
        name, value = tool_call(command)
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


_STORY = (
    "the gateway takes a request from any client and brings it to any provider, "
    "then carries the answer back word by word, and nobody has to know how far it went."
)

_QUOTED = 4000
"""Characters of a tool result that are repeated."""

_ECHOED = 500
"""Characters at each end of a long text that are echoed: all of it would take minutes at that pace."""
_LONGEST = 20_000


class Script(Struct, frozen=True):
    """An answer before it is cut into events; an `error` comes after its parts, instead of the finish."""

    parts: tuple[AnswerPart, ...] = ()
    finish: Finish = Finish("stop")
    error: UpstreamError | None = None


def write(request: Request, seen: Prompt) -> Script:
    """The answer to the request."""
    given = [] if seen.results else parse(seen.text)
    script = _script(request, seen, given)
    thinks = any(command.name == "think" for command in given) or _wants_thought(request)
    if not thinks or script.error is not None or not script.parts:
        return script
    return msgspec.structs.replace(script, parts=(_thought(request, seen), *script.parts))


def silence(seen: Prompt) -> float:
    """Seconds of silence that `demo:slow` asks for."""
    given = [] if seen.results else parse(seen.text)
    return sum(command.number(5) for command in given if command.name == "slow")


def _script(request: Request, seen: Prompt, given: list[DemoCommand]) -> Script:
    if seen.results:
        return _say(_quote(seen) if request.output is None else _structured(request, seen))
    for command in given:
        if command.name == "tool":
            calls = commanded_calls(request, seen, [c for c in given if c.name == "tool"])
            return Script(tuple(calls), Finish("tool_calls"))
        act = _ACTS.get(command.name)
        if act is not None:
            return act(command)
    calls = asked_calls(request, seen)
    if calls:
        return Script((Text("I will use a tool for that."), *calls), Finish("tool_calls"))
    return _say(_structured(request, seen) if request.output is not None else _echo(request, seen))


def _say(words: str) -> Script:
    return Script((Text(words),))


def _fail(command: DemoCommand) -> Script:
    status = int(command.number(500))
    headers = {"retry-after": "1"} if status in (429, 503, 529) else {}
    message = f"the demo model was told to fail with {status}"
    return Script(error=upstream_error(status, message, provider="demo", headers=headers))


_ACTS: dict[str, Callable[[DemoCommand], Script]] = {
    "stop": lambda _: _say("Stopped, as you asked."),
    "length": lambda _: Script(
        (Text("This answer is cut off by the token limit before it"),), Finish("length")
    ),
    "empty": lambda _: Script(),
    "refuse": lambda _: Script((Refusal("I will not help with that."),), Finish("refusal")),
    "filter": lambda _: Script((Text("This answer was"),), Finish("content_filter")),
    "long": lambda command: _say(
        " ".join(islice(cycle(_STORY.split()), int(min(command.number(500), _LONGEST))))
    ),
    "say": lambda command: _say(command.rest),
    "error": _fail,
    "cutoff": lambda _: Script(
        (Text("This answer breaks off in the mid"),), error=stream_truncated("the demo model")
    ),
}


COMMANDS = frozenset({*_ACTS, "tool", "think", "slow"})
"""All that `demo:` can be followed by."""


def _wants_thought(request: Request) -> bool:
    thinking = request.thinking
    return thinking is not None and thinking.enabled and thinking.effort != "none"


def _thought(request: Request, seen: Prompt) -> Reasoning:
    visible = request.thinking is None or request.thinking.visible
    what = (
        "I have the results of the tools" if seen.results else f"The user wrote {len(seen.text)} characters"
    )
    text = f"{what}. I look at what I was given and decide how to answer." if visible else ""
    mark = base64.b64encode(f"demo:{digest(request, seen)}".encode()).decode()
    return Reasoning(text, signature=mark)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _echo(request: Request, seen: Prompt) -> str:
    counts = [_many(seen.messages, "message"), _many(seen.tools, "tool"), _many(seen.images, "image")]
    system = " and a system prompt" if request.system else ""
    text = seen.text
    if len(text) > 2 * _ECHOED:
        text = f"{text[:_ECHOED]} … {text[-_ECHOED:]}"
    said = f'You said: "{text}".' if text else "You said nothing in words."
    return f"{said} I am the demo model {request.model}, and I saw {', '.join(counts)}{system}."


def _quote(seen: Prompt) -> str:
    lines = [
        f"{name} {'failed with' if failed else 'answered'}: {text[:_QUOTED]}"
        for name, text, failed in seen.results
    ]
    return "\n".join([*lines, "That is all I needed."])


def _structured(request: Request, seen: Prompt) -> str:
    output = request.output
    assert output is not None
    if output.kind == "json_object" or not isinstance(output.schema, dict):
        value = {"text": seen.text, "messages": seen.messages, "tools": seen.tools, "images": seen.images}
        value |= {"results": [text for _, text, _ in seen.results]} if seen.results else {}
    else:
        value = fill_schema(output.schema, Clues(_quote(seen) if seen.results else seen.text))
    return msgspec.json.encode(value).decode()
