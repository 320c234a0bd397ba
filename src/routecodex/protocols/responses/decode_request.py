"""Decodes a Responses request into a canonical one.

Instructions and leading developer items become the system text, the items of one assistant turn one message,
and consecutive tool outputs one `tool` message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from msgspec.structs import replace

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Effort, Message, Output, Request, Role, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.responses.content import (
    DECLARATION,
    ITEM,
    decode_parts,
    extra_fields,
    unseal_content,
)
from routecodex.protocols.responses.schema import DECLARATIONS, NAME, RESULT_SUFFIXES, TOOL_SEARCH
from routecodex.wire import json

LOGPROBS = "message.output_text.logprobs"
EFFORTS = frozenset(get_args(Effort))
_MODES = {"auto": ToolChoice("auto"), "none": ToolChoice("none"), "required": ToolChoice("required")}

_CANON_FIELDS = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_output_tokens",
        "temperature",
        "top_p",
        "top_logprobs",
        "frequency_penalty",
        "presence_penalty",
        "text",
        "reasoning",
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "stream",
    }
)
_MESSAGE_FIELDS = frozenset({"type", "role", "content"})
_CALL_FIELDS = frozenset({"type", "call_id", "name", "namespace", "arguments", "input"})
_OUTPUT_FIELDS = frozenset({"type", "call_id", "output"})
_REASONING_FIELDS = frozenset({"type", "id", "summary", "encrypted_content"})
_TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict", "format"})


def decode_request(request: WireRequest) -> Request:
    """Return the canonical request; the body was validated before."""
    body = json.read_values(request.body)
    reader = _ItemReader()
    reader.items(body.get("input"))
    system = (Text(body["instructions"]),) if body.get("instructions") else ()
    extras = {key: value for key, value in body.items() if key not in _CANON_FIELDS and value is not None}
    thinking = _thinking(body.get("reasoning"), extras)
    output, verbosity = _text_config(body.get("text"), extras)
    choice = _tool_choice(body.get("tool_choice"), extras)
    return Request(
        model=request.model,
        messages=tuple(reader.messages),
        source=NAME,
        system=(*system, *reader.system),
        tools=_declared(body.get("tools") or (), reader.declared),
        tool_choice=choice,
        parallel_tool_calls=body.get("parallel_tool_calls"),
        max_tokens=body.get("max_output_tokens"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        logprobs=True if LOGPROBS in (body.get("include") or ()) else None,
        top_logprobs=body.get("top_logprobs"),
        frequency_penalty=body.get("frequency_penalty"),
        presence_penalty=body.get("presence_penalty"),
        output=output,
        verbosity=verbosity,
        thinking=thinking,
        metadata=body.get("metadata"),
        user=_user(body, extras),
        safety_identifier=body.get("safety_identifier"),
        cache_key=body.get("prompt_cache_key"),
        service_tier=body.get("service_tier"),
        stream=request.stream,
        include_usage=True,
        extras=extras or None,
    )


class _ItemReader:
    """Reads input items into messages; the items of one assistant turn are collected into one message."""

    def __init__(self) -> None:
        self.system: list[Text] = []
        self.messages: list[Message] = []
        self.declared: list[Tool] = []
        self._role: Role | None = None
        self._parts: list[Part] = []
        self._signatures: dict[str, tuple[str | None, str]] = {}

    def items(self, value: Json) -> None:
        if isinstance(value, str):
            self.messages.append(Message("user", (Text(value),)))
            return
        for item in value or ():
            self._item(item)
        self._flush()
        if self._signatures:
            self.messages = [_signed(message, self._signatures) for message in self.messages]

    def _item(self, item: dict[str, Json]) -> None:
        kind = item.get("type") or "message"
        match kind:
            case "message":
                self._message(item)
            case "function_call" | "custom_tool_call":
                self._add("assistant", _call(item, custom=kind == "custom_tool_call"))
            case "function_call_output" | "custom_tool_call_output":
                self._add("tool", _result(item, custom=kind == "custom_tool_call_output"))
            case "reasoning":
                self._reasoning_item(item)
            case "additional_tools":
                self._declaration(item)
            case "agent_message":
                self._agent_message(item)
            case "tool_search_call" if _is_for_client(item):
                self._add("assistant", _search_call(item))
            case "tool_search_output" if _is_for_client(item):
                self._declare(item)
                self._add("tool", _search_result(item))
            case _:
                if kind in DECLARATIONS:
                    self._declare(item)
                role: Role = "tool" if kind.endswith(RESULT_SUFFIXES) else "assistant"
                self._add(role, Opaque(NAME, item))

    def _add(self, role: Role, part: Part) -> None:
        if role != self._role:
            self._flush()
            self._role = role
        self._parts.append(part)

    def _flush(self) -> None:
        if self._role is not None:
            self.messages.append(Message(self._role, tuple(self._parts)))
        self._role, self._parts = None, []

    def _message(self, item: dict[str, Json]) -> None:
        parts: list[Any] = list(decode_parts(item["content"]))
        extras = extra_fields(item, _MESSAGE_FIELDS)
        match item["role"]:
            case "assistant":
                self._assistant(parts, extras)
            case "user":
                self._flush()
                self.messages.append(Message("user", tuple(parts), extras=extras))
            case role:
                self._flush()
                self._instructions(role, parts, extras)

    def _assistant(self, parts: list[Part], extras: dict[str, Json] | None) -> None:
        """Add an assistant's message; the text of a second one in the turn is marked `apart`."""
        second = self._role == "assistant" and any(isinstance(part, Text) for part in self._parts)
        if parts and isinstance(parts[0], Text) and (second or extras):
            parts[0] = replace(_with_item(parts[0], extras or {}), apart=second)
        for part in parts:
            self._add("assistant", part)

    def _instructions(self, role: str, parts: list[Part], extras: dict[str, Json] | None) -> None:
        """Add a developer or system message: system text before any message, later a message in its place."""
        texts = [part for part in parts if isinstance(part, Text)]
        head = {"role": role, **(extras or {})}
        if self.messages or len(texts) < len(parts) or not texts:
            fields = extras if role == "developer" else head
            self.messages.append(Message("system", tuple(parts), extras=fields))
            return
        self.system.append(_with_item(texts[0], head))
        self.system.extend(_with_item(text, None) for text in texts[1:])

    def _declaration(self, item: dict[str, Json]) -> None:
        """Add the tools of an item; the item keeps its place for providers of this protocol."""
        self._flush()
        self._declare(item)
        if self.messages:
            self.messages.append(Message("system", (Opaque(NAME, item),)))
        else:
            # Codex puts it before its developer messages, which are system text.
            self.system.append(_with_item(Text(""), {DECLARATION: item}))

    def _agent_message(self, item: dict[str, Json]) -> None:
        """Add a message between Codex's agents; the item stays for providers of this protocol."""
        self._flush()
        self.messages.append(Message("user", (_with_item(Text(_agent_text(item)), item),)))

    def _declare(self, item: dict[str, Json]) -> None:
        for value in item.get("tools") or ():
            for tool in _tools(value):
                self.declared.append(replace(tool, extras={**(tool.extras or {}), DECLARATION: True}))

    def _reasoning_item(self, item: dict[str, Json]) -> None:
        origin, mark, signature = unseal_content(item.get("encrypted_content"))
        if mark.startswith("call."):
            self._signatures[mark.removeprefix("call.")] = (origin, signature or "")
            return
        self._add("assistant", _reasoning(item, origin=origin, signature=signature, redacted=bool(mark)))


def _agent_text(item: dict[str, Json]) -> str:
    """Return a message between agents (Codex 0.169) with its author and recipient.

    Codex asks the model to encrypt the text of some messages. OpenAI's models do, with Fernet (`gAAAA…`); the
    text of any other model is in `encrypted_content` as it was written.
    """
    content = item.get("content") or ()
    parts = [part.get("text") or part.get("encrypted_content") for part in content if isinstance(part, dict)]
    texts = ["(encrypted)" if text.startswith("gAAAA") else text for text in parts if isinstance(text, str)]
    head = f"[message from agent {item.get('author')} to agent {item.get('recipient')}]\n"
    return head + (content if isinstance(content, str) else "".join(texts))


def _with_item(text: Text, item: dict[str, Json] | None) -> Text:
    return replace(text, extras={**(text.extras or {}), ITEM: item})


def _signed(message: Message, signatures: dict[str, tuple[str | None, str]]) -> Message:
    if message.role != "assistant":
        return message
    return replace(message, parts=tuple(_with_signature(part, signatures) for part in message.parts))


def _with_signature(part: Part, signatures: dict[str, tuple[str | None, str]]) -> Part:
    if isinstance(part, ToolCall) and part.id in signatures:
        origin, signature = signatures[part.id]
        return replace(part, signature=signature, origin=origin)
    return part


def _call(item: dict[str, Json], *, custom: bool) -> ToolCall:
    return ToolCall(
        item["call_id"],
        item["name"],
        item["input" if custom else "arguments"],
        custom=custom,
        namespace=item.get("namespace"),
        extras=extra_fields(item, _CALL_FIELDS),
    )


def _result(item: dict[str, Json], *, custom: bool) -> ToolResult:
    parts = tuple(part for part in decode_parts(item["output"]) if isinstance(part, Text | Media | Opaque))
    extras = extra_fields(item, _OUTPUT_FIELDS)
    return ToolResult(item["call_id"], parts, custom=custom, extras=extras)


def _is_for_client(item: dict[str, Json]) -> bool:
    """Whether a search for tools is run by the client; without a call id the provider runs it."""
    return isinstance(item.get("call_id"), str)


def _search_call(item: dict[str, Json]) -> ToolCall:
    """Return a search for tools as a call; the item stays for providers of this protocol."""
    arguments = json.encode(item.get("arguments") or {}).decode()
    return ToolCall(item["call_id"], TOOL_SEARCH, arguments, extras={ITEM: item})


def _search_result(item: dict[str, Json]) -> ToolResult:
    found = json.encode(item.get("tools") or []).decode()
    return ToolResult(item["call_id"], (Text(found),), extras={ITEM: item})


def _reasoning(
    item: dict[str, Json], *, origin: str | None, signature: str | None, redacted: bool
) -> Reasoning:
    """Return reasoning; several summaries, and content beside a summary, are kept in `extras`."""
    summary, content = item.get("summary") or [], item.get("content") or []
    texts = [part.get("text") or "" for part in (summary or content)]
    extras = extra_fields(item, _REASONING_FIELDS) or {}
    if len(summary) > 1:
        extras["summary"] = summary
    return Reasoning(
        "\n\n".join(texts),
        signature=signature,
        redacted=redacted,
        id=item.get("id"),
        origin=origin,
        extras=extras or None,
    )


def _declared(values: Iterable[dict[str, Json]], in_items: list[Tool]) -> tuple[Tool, ...]:
    """Return all tools; of two with one name the later wins, at the place of the first."""
    tools = [tool for value in values for tool in _tools(value)]
    if not in_items:
        return tuple(tools)
    return tuple({(tool.namespace, tool.name): tool for tool in (*tools, *in_items)}.values())


def _tools(value: dict[str, Json]) -> list[Tool]:
    match value["type"]:
        case "namespace":
            inner = [tool for item in value.get("tools") or () for tool in _tools(item)]
            fields = {"namespace": value["name"], "namespace_description": value.get("description")}
            return [replace(tool, **fields) for tool in inner]
        case "function" | "custom" as kind:
            return [
                Tool(
                    value["name"],
                    kind=kind,
                    description=value.get("description"),
                    parameters=value.get("parameters"),
                    strict=value.get("strict"),
                    format=value.get("format"),
                    extras=extra_fields(value, _TOOL_FIELDS),
                )
            ]
        case "tool_search" if value.get("execution") == "client":
            fields = {name: value.get(name) for name in ("description", "parameters")}
            return [Tool(TOOL_SEARCH, extras={ITEM: value}, **fields)]
        case hosted:
            return [Tool(value.get("name") or hosted, kind="hosted", hosted=value)]


def _tool_choice(value: Json, extras: dict[str, Json]) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _MODES[value]
    kind = value.get("type")
    if kind == "allowed_tools":
        names = (tool.get("name") or tool.get("type") for tool in value.get("tools") or ())
        allowed = tuple(name for name in names if isinstance(name, str))
        return ToolChoice("required" if value.get("mode") == "required" else "auto", allowed)
    if kind in ("function", "custom") and isinstance(value.get("name"), str):
        return ToolChoice("tool", (value["name"],))
    if isinstance(kind, str) and set(value) == {"type"}:
        return ToolChoice("tool", (kind,))
    extras["tool_choice"] = value
    return None


def _thinking(value: Json, extras: dict[str, Json]) -> Thinking | None:
    if not value:
        return None
    # `generate_summary` is the deprecated name of `summary` (OpenAI API reference).
    effort, summary = value.get("effort"), value.get("summary") or value.get("generate_summary")
    others = extra_fields(value, {"effort", "summary"}) or {}
    if effort is not None and effort not in EFFORTS:
        others["effort"], effort = effort, None
    if others:
        extras["reasoning"] = others
    return Thinking(enabled=effort != "none", effort=effort, visible=summary is not None, summary=summary)


def _text_config(value: Json, extras: dict[str, Json]) -> tuple[Output | None, str | None]:
    if not value:
        return None, None
    verbosity, form = value.get("verbosity"), value.get("format") or {}
    others = extra_fields(value, {"format", "verbosity"}) or {}
    output = None
    match form.get("type"):
        case "json_object":
            output = Output("json_object")
        case "json_schema":
            fields = {key: form.get(key) for key in ("name", "schema", "strict", "description")}
            output = Output("json_schema", **fields)
        case None | "text":
            pass
        case _:
            others["format"] = form
    if others:
        extras["text"] = others
    return output, verbosity


def _user(body: dict[str, Any], extras: dict[str, Json]) -> str | None:
    # `safety_identifier` replaces `user` (OpenAI API reference); clients send either or both.
    user: str | None = body.get("user")
    safety: str | None = body.get("safety_identifier")
    if user is not None and safety is not None:
        extras["safety_identifier"] = safety
    return user if user is not None else safety
