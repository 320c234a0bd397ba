"""Maps namespaced and custom tools to protocols that lack them.

A namespaced tool gets one flat name (`namespace__name`; a tool of `functions`, Codex's default namespace,
keeps its own). A custom (freeform) tool, such as Codex's `apply_patch`, becomes a function with one string
property `input`. `ToolNames` maps called names back.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from routecodex.canon.parts import Json, Part, ToolCall
from routecodex.canon.request import Message, Request, Tool
from routecodex.wire import json

CUSTOM_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as free text."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Parameters of the function that replaces a custom tool."""

NAME_LIMIT = 64
"""OpenAI API reference, tools: a function name has at most 64 characters."""
DEFAULT_NAMESPACE = "functions"
"""Codex accepts a call of a tool in this namespace without the namespace."""
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
_OPENING = '{"input":"'
_SPACES_BEFORE = frozenset({0, 1, 8, 9})
"""Offsets in the opening at which JSON allows white space: before its brace, key, colon and value."""
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL
)
_WHOLE = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_UNFINISHED = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?$"
)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def flat(name: str, namespace: str | None) -> str:
    """Return a name that every protocol accepts; a changed name ends in a hash, so that none collide.

    So does a name that does not split into the two at its last `__`: `b__c` of `a` would be `c` of `a__b`.
    """
    if not namespace or namespace == DEFAULT_NAMESPACE:
        whole = name
    else:
        whole = f"{namespace}__{name}"
        if whole.rpartition("__")[2] != name:
            return hashed(name, namespace)
    return whole if len(whole) <= NAME_LIMIT and not _ILLEGAL.search(whole) else hashed(name, namespace)


def hashed(name: str, namespace: str | None) -> str:
    """Return a legal name that no other tool has."""
    whole = f"{namespace}__{name}" if namespace else name
    identity = f"{namespace}\0{name}" if namespace else name
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL.sub('_', whole)[: NAME_LIMIT - 9]}_{digest}"


def flat_name(tool: Tool) -> str:
    """Return the name of a tool for protocols without namespaces."""
    return flat(tool.name, tool.namespace)


def flat_call(call: ToolCall) -> str:
    """Return the name of a call in the history for protocols without namespaces."""
    return flat(call.name, call.namespace)


def distinct_names(request: Request) -> Request:
    """Return the request with another name for each namespaced tool whose flat name a plain tool has.

    `read` of the namespace `a` is `a__read`, as a plain tool may be called too (MCP). `ToolNames` finds both.
    """
    # Only Responses has namespaces.
    renamed = _taken_names(request.tools) if request.source == "responses" else {}
    if not renamed:
        return request
    tools = [_renamed_tool(tool, renamed) for tool in request.tools]
    messages = [_renamed_calls(message, renamed) for message in request.messages]
    choice = request.tool_choice
    if choice is not None:
        count = Counter([tool.name for tool in request.tools])
        bare = {name: new for (_, name), new in renamed.items() if count[name] == 1}
        choice = replace(choice, names=tuple([bare.get(name, name) for name in choice.names]))
    return replace(request, tools=tuple(tools), messages=tuple(messages), tool_choice=choice)


def _taken_names(tools: Sequence[Tool]) -> dict[tuple[str, str], str]:
    """Return another name for each (namespace, name) whose flat name a plain tool has."""
    namespaced = [tool for tool in tools if tool.namespace]
    if not namespaced:
        return {}
    plain = {tool.name for tool in tools if not tool.namespace and tool.kind != "hosted"}
    return {
        (tool.namespace, tool.name): hashed(tool.name, tool.namespace)
        for tool in namespaced
        if tool.namespace and flat_name(tool) in plain
    }


def _renamed_tool(tool: Tool, renamed: dict[tuple[str, str], str]) -> Tool:
    name = renamed.get((tool.namespace or "", tool.name))
    return tool if name is None else replace(tool, name=name, namespace=None)


def _renamed_calls(message: Message, renamed: dict[tuple[str, str], str]) -> Message:
    if message.role != "assistant":
        return message
    return replace(message, parts=tuple([_renamed_call(part, renamed) for part in message.parts]))


def _renamed_call(part: Part, renamed: dict[tuple[str, str], str]) -> Part:
    if not isinstance(part, ToolCall):
        return part
    name = renamed.get((part.namespace or "", part.name))
    return part if name is None else replace(part, name=name, namespace=None)


def is_shared_name(name: str, tools: Sequence[Tool]) -> bool:
    """Return whether tools of several namespaces have this name, so that it does not choose one of them."""
    return sum(tool.name == name for tool in tools) > 1


def description_of(tool: Tool) -> str:
    """Return the description of a tool, with the grammar of a custom one: functions have no field for it."""
    text = tool.description or ""
    if tool.kind != "custom" or not isinstance(tool.format, dict):
        return text
    # Chat puts the grammar one level deeper than Responses.
    inner = tool.format.get("grammar")
    grammar = inner if isinstance(inner, dict) else tool.format
    if not isinstance(grammar.get("definition"), str):
        return text
    kind = f"{grammar['syntax']} grammar" if grammar.get("syntax") else "grammar"
    rule = f"The input must follow this {kind}:\n{grammar['definition']}"
    return f"{text}\n\n{rule}" if text else rule


ToolIdentity = tuple[str, str | None, bool]
"""Name, namespace, and whether the tool is a custom one."""


class ToolNames:
    """Maps the name a model called to (name, namespace, custom) of the client's tool.

    Most answers call no tool: the names are read with the first call.
    """

    __slots__ = ("_known", "_tools")

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._known: dict[str, ToolIdentity] | None = None

    def resolve(self, name: str) -> ToolIdentity:
        """Return (name, namespace, custom); an unknown name stays as it is."""
        if self._known is None:
            self._known = _identities(self._tools)
        return self._known.get(name) or (name, None, False)


def _identities(tools: Sequence[Tool]) -> dict[str, ToolIdentity]:
    offered = [tool for tool in tools if tool.kind != "hosted"]
    taken = _taken_names(offered)
    known = {
        taken.get((tool.namespace or "", tool.name)) or flat_name(tool): _identity(tool) for tool in offered
    }
    bare: dict[str, list[Tool]] = {}
    for tool in offered:
        bare.setdefault(tool.name, []).append(tool)
    # Some models leave out the namespace; a name that only one tool has is that tool.
    for name, tools_of_name in bare.items():
        if len(tools_of_name) == 1:
            known.setdefault(name, _identity(tools_of_name[0]))
    return known


def _identity(tool: Tool) -> ToolIdentity:
    return tool.name, tool.namespace, tool.kind == "custom"


def wrap_input(text: str) -> str:
    """Return free text as arguments of the function that replaces a custom tool."""
    return json.encode({"input": text}).decode()


def unwrap_input(arguments: str) -> str:
    """Return the free text in arguments of the function that replaces a custom tool."""
    unwrapper = InputUnwrapper()
    return unwrapper.feed(arguments) + unwrapper.close()


class InputUnwrapper:
    """Turns fragments of `{"input": "…"}` into fragments of free text; `close` returns the rest."""

    __slots__ = ("_ended", "_held", "_matched", "_outside")

    def __init__(self) -> None:
        self._held = ""
        """The beginning of an escape."""
        self._matched = 0
        """Characters of the opening that have arrived; -1 if the arguments begin in another way."""
        self._outside: list[str] = []
        """All fragments until the opening is complete."""
        self._ended = False

    def feed(self, fragment: str) -> str:
        if self._ended:
            return ""
        if self._matched == len(_OPENING):
            return self._take(self._held + fragment)
        self._outside.append(fragment)
        end = self._match(fragment) if self._matched >= 0 else -1
        return self._take(fragment[end:]) if end >= 0 else ""

    def _match(self, fragment: str) -> int:
        """Match a fragment with the opening; return where the text begins, -1 if not in this fragment."""
        for at, char in enumerate(fragment):
            if char.isspace() and self._matched in _SPACES_BEFORE:
                continue
            if char != _OPENING[self._matched]:
                self._matched = -1
                return -1
            self._matched += 1
            if self._matched == len(_OPENING):
                return at + 1
        return -1

    def close(self) -> str:
        outside, self._outside = self._outside, []
        if self._ended or self._matched == len(_OPENING):
            return ""
        self._ended = True
        return _free_text("".join(outside))

    @property
    def whole(self) -> bool:
        """Whether the text is complete: its closing quote has arrived."""
        return self._ended

    def _take(self, held: str) -> str:
        whole = _WHOLE.match(held)
        end = whole.end() if whole else 0
        if held[end : end + 1] == '"':
            self._ended = True
            return _unescape(held[:end])
        unfinished = _UNFINISHED.search(held)
        # An escaped backslash at the end is complete: only an odd run of backslashes begins an escape.
        if unfinished and not _begins_escape(held, unfinished.start()):
            unfinished = None
        cut = unfinished.start() if unfinished else len(held)
        self._held = held[cut:]
        return _unescape(held[:cut])


def _begins_escape(text: str, at: int) -> bool:
    run = 0
    while at - run - 1 >= 0 and text[at - run - 1] == "\\":
        run += 1
    return run % 2 == 0


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescaped_char, text) if "\\" in text else text


def _unescaped_char(match: re.Match[str]) -> str:
    high, low, single, plain = match.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
    if single:
        code = int(single, 16)
        return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)
    return _PLAIN_ESCAPES.get(plain, plain)


def _free_text(arguments: str) -> str:
    """Return the text of arguments that are not `{"input": "…"}`: their only string, else all of them."""
    try:
        value = json.decode(arguments)
    except ValueError:
        return arguments
    if isinstance(value, dict):
        value = value["input"] if "input" in value else _only_value(value, arguments)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.encode(value).decode()


def _only_value(value: dict[str, Json], arguments: str) -> Json:
    if not value:
        return ""
    only = next(iter(value.values()))
    return only if len(value) == 1 and isinstance(only, str) else arguments
