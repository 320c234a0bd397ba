"""A canonical conversation as chat messages for an upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.chat.content import encode_content, is_marked, spoken
from routecodex.protocols.chat.requests import HEAD, THOUGHTS
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.notices import Notices
from routecodex.protocols.tools import flat_call, wrap_input

_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}
"""Who speaks a text that stands alone; a system text is spoken by whom the dialect wants."""

_INSTEAD = frozenset({"refusal", "audio"})
"""What an assistant message may hold in place of content."""


def encode_messages(request: Request, aim: EncodeOptions, notices: Notices) -> list[dict[str, Any]]:
    """System text first, then the conversation; every result right after its call."""
    role = aim.dialect.system_role
    out: list[dict[str, Any]] = []
    texts = [part for part in request.system if part.text]
    if texts and (aim.dialect.merge_system or request.source != "chat"):
        out.append({"role": role, "content": "\n\n".join([part.text for part in texts])})
    else:
        out.extend(_own_system(texts, request, aim, notices))
    for message in request.messages:
        out.extend(_message(message, request, aim, notices))
    return _results_after_calls(out, notices)


def _own_system(
    texts: list[Text], request: Request, aim: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    """The system messages of a chat client as they were."""
    heads: list[dict[str, Json]] = []
    contents: list[list[Part]] = []
    for text in texts:
        extras = dict(text.extras or {})
        head = extras.pop(HEAD, {})
        if head is not None or not contents:
            heads.append(head or {})
            contents.append([])
        contents[-1].append(replace(text, extras=extras or None))
    role = aim.dialect.system_role
    return [
        {"role": role, "content": encode_content(parts, request, aim, notices), **head}
        for head, parts in zip(heads, contents, strict=True)
    ]


def _message(
    message: Message, request: Request, aim: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    text = _only_text(message, request)
    if text:
        return [{"role": _ROLES.get(message.role) or aim.dialect.system_role, "content": text}]
    if message.role == "assistant":
        return _assistant(message, request, aim, notices)
    if message.role == "system":
        return _system(message, request, aim, notices)
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    out = [_result(part, message, request, aim, notices) for part in results]
    shown: list[Part] = [
        inner
        for part in results
        if request.source != "chat" or part.is_error
        for inner in part.parts
        if isinstance(inner, Media)
    ]
    content = encode_content([*shown, *others], request, aim, notices) if shown or others else None
    if content:
        user: dict[str, Any] = {"role": "user", "content": content}
        out.append(_with_own_fields(user, message, request))
    return out


def _with_own_fields(out: dict[str, Any], message: Message, request: Request) -> dict[str, Any]:
    """The message with its name, and with what only chat knows if it came from there."""
    if message.name:
        out["name"] = message.name
    if request.source == "chat":
        out.update(message.extras or {})
    return out


def _system(message: Message, request: Request, aim: EncodeOptions, notices: Notices) -> list[dict[str, Any]]:
    role = aim.dialect.system_role
    if request.source == "chat":
        content = encode_content(list(message.parts), request, aim, notices)
        return [_with_own_fields({"role": role, "content": content}, message, request)] if content else []
    text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
    return [{"role": role, "content": text}] if text else []


def _result(
    result: ToolResult, message: Message, request: Request, aim: EncodeOptions, notices: Notices
) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "tool", "tool_call_id": result.call_id}
    if request.source != "chat" or result.is_error:
        out["content"] = _result_text(result)
        return out
    out["content"] = encode_content(list(result.parts), request, aim, notices) or ""
    if result.name:
        out["name"] = result.name
    return {**out, **(message.extras or {})}


def _only_text(message: Message, request: Request) -> str:
    """The text of a message that is nothing but this text, as most are; empty for any other."""
    if len(message.parts) != 1 or message.name or request.source == "chat":
        return ""
    part = message.parts[0]
    return part.text if isinstance(part, Text) else ""


def _result_text(result: ToolResult) -> str:
    texts = [part.text for part in result.parts if isinstance(part, Text)]
    if any(isinstance(part, Media) for part in result.parts):
        texts.append("(the attachment follows in the next message)")
    text = "\n".join(texts)
    return f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text


def _assistant(
    message: Message, request: Request, aim: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    """The message; none where the turn holds nothing that chat can say: some upstreams refuse empty ones."""
    own = request.source == "chat"
    sorts: dict[type, list[Any]] = {}
    for part in message.parts:
        sorts.setdefault(type(part), []).append(part)
    out: dict[str, Any] = {"role": "assistant"}
    out["content"] = _own_words(sorts, request, aim, notices) if own else _words(message, sorts)
    if message.name:
        out["name"] = message.name
    calls = [_call(call, request) for call in sorts.get(ToolCall, ())]
    if calls:
        out["tool_calls"] = calls
    if Reasoning in sorts and not (own and any((message.extras or {}).get(field) for field in THOUGHTS)):
        _think_back(out, sorts[Reasoning], aim, notices)
    if Opaque in sorts:
        notices.dropped("provider-specific parts", "chat has no place for them")
    if own:
        out.update(_own_fields(message, out, sorts.get(Refusal, ())))
    if calls or out["content"]:
        return [out]
    if not own and aim.dialect.reasoning_history not in out:
        return []
    if _INSTEAD.isdisjoint(out):
        out["content"] = ""
    return [out]


def _words(message: Message, sorts: dict[type, list[Any]]) -> str | None:
    """What an assistant of another protocol said; a refusal is a part of it."""
    words = sorts.get(Text)
    if Refusal in sorts:
        words = [part for part in message.parts if isinstance(part, Text | Refusal)]
    return spoken(words) if words else None


def _own_words(sorts: dict[type, list[Any]], request: Request, aim: EncodeOptions, notices: Notices) -> Json:
    """What an assistant of chat's own said; a refusal has a field for itself."""
    texts = sorts.get(Text)
    if texts and any(map(is_marked, texts)):
        return encode_content(texts, request, aim, notices)
    return spoken(texts) if texts else None


def _own_fields(message: Message, out: dict[str, Any], refusals: Sequence[Refusal]) -> dict[str, Json]:
    """What a chat client said in an assistant message that has no home."""
    refused: dict[str, Json] = {"refusal": "".join([part.text for part in refusals])} if refusals else {}
    said = (message.extras or {}).items()
    return {**refused, **{field: value for field, value in said if value is not None or field not in out}}


def _think_back(out: dict[str, Any], thoughts: list[Reasoning], aim: EncodeOptions, notices: Notices) -> None:
    text = "\n\n".join(part.text for part in thoughts if part.text)
    field = aim.dialect.reasoning_history
    if field == "none" or not text:
        notices.dropped("reasoning", "this upstream takes no thoughts back")
    elif field == "reasoning_details":
        out[field] = [{"type": "reasoning.text", "text": text}]
    else:
        out[field] = text


def _call(call: ToolCall, request: Request) -> dict[str, Any]:
    if call.custom and request.source == "chat":
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    arguments = wrap_input(call.arguments) if call.custom else call.arguments or "{}"
    function = {"name": flat_call(call), "arguments": arguments}
    extras = call.extras if request.source == "chat" else None
    return {"id": call.id, "type": "function", "function": function, **(extras or {})}


def _results_after_calls(messages: list[dict[str, Any]], notices: Notices) -> list[dict[str, Any]]:
    """Tool messages stand right after the assistant message that called them, as upstreams demand."""
    results: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        if message["role"] == "tool":
            results.setdefault(message["tool_call_id"], []).append(message)
    if not results:
        return messages
    out: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            continue
        out.append(message)
        called = [call["id"] for call in message.get("tool_calls", ())]
        out.extend(results[call_id].pop(0) for call_id in called if results.get(call_id))
    if any(results.values()):
        notices.dropped("tool results without a call", "chat refuses them")
    return out
