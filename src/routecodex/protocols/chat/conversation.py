"""A canonical conversation as chat messages for an upstream."""

from __future__ import annotations

from typing import Any

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import Aim
from routecodex.protocols.notices import Notices
from routecodex.protocols.tools import flat_call, wrap_input


def encode_messages(request: Request, aim: Aim, notices: Notices) -> list[dict[str, Any]]:
    """System text first, then the conversation; every result right after its call."""
    role = aim.dialect.system_role
    out: list[dict[str, Any]] = []
    texts = [part for part in request.system if part.text]
    if texts and (aim.dialect.merge_system or request.source != "chat"):
        out.append({"role": role, "content": "\n\n".join(part.text for part in texts)})
    else:
        out.extend({"role": role, "content": part.text} for part in texts)
    for message in request.messages:
        out.extend(_message(message, request, aim, notices))
    return _results_after_calls(out)


def _message(message: Message, request: Request, aim: Aim, notices: Notices) -> list[dict[str, Any]]:
    if message.role == "assistant":
        return [_assistant(message, request, aim, notices)]
    if message.role == "system":
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
        return [{"role": aim.dialect.system_role, "content": text}] if text else []
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    out = [{"role": "tool", "tool_call_id": part.call_id, "content": _result_text(part)} for part in results]
    shown: list[Part] = [inner for part in results for inner in part.parts if isinstance(inner, Media)]
    content = _content([*shown, *others], request, aim, notices)
    if content:
        user: dict[str, Any] = {"role": "user", "content": content}
        if message.name:
            user["name"] = message.name
        out.append(user)
    return out


def _result_text(result: ToolResult) -> str:
    texts = [part.text for part in result.parts if isinstance(part, Text)]
    if any(isinstance(part, Media) for part in result.parts):
        texts.append("(the attachment follows in the next message)")
    text = "\n".join(texts)
    return f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text


def _assistant(message: Message, request: Request, aim: Aim, notices: Notices) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant"}
    texts = [part.text for part in message.parts if isinstance(part, Text | Refusal)]
    out["content"] = "".join(texts) if texts else None
    if message.name:
        out["name"] = message.name
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    if calls:
        out["tool_calls"] = calls
    _thoughts(out, message, aim, notices)
    if any(isinstance(part, Opaque) for part in message.parts):
        notices.dropped("provider-specific parts", "chat has no place for them")
    if request.source == "chat":
        out.update(message.extras or {})
    if out["content"] is None and not calls:
        out["content"] = ""
    return out


def _thoughts(out: dict[str, Any], message: Message, aim: Aim, notices: Notices) -> None:
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    text = "\n\n".join(part.text for part in thoughts if part.text)
    field = aim.dialect.reasoning_history
    if not thoughts:
        return
    if field == "none" or not text:
        notices.dropped("reasoning", "this upstream takes no thoughts back")
    elif field == "reasoning_details":
        out[field] = [{"type": "reasoning.text", "text": text}]
    else:
        out[field] = text


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = wrap_input(call.arguments) if call.custom else call.arguments or "{}"
    return {"id": call.id, "type": "function", "function": {"name": flat_call(call), "arguments": arguments}}


def _content(parts: list[Part], request: Request, aim: Aim, notices: Notices) -> Json:
    """Plain text as a string, anything else as parts."""
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    if parts and request.source != "chat" and all(isinstance(part, Text) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    return [item for part in parts if (item := _part(part, aim, notices)) is not None]


def _part(part: Part, aim: Aim, notices: Notices) -> dict[str, Any] | None:
    match part:
        case Text() | Refusal():
            return {"type": "text", "text": part.text} if part.text else None
        case Media():
            return _media(part, aim, notices)
        case Opaque() if part.protocol == "chat":
            return dict(part.value)
        case _:
            notices.dropped("provider-specific parts", "chat has no place for them")
            return None


def _media(media: Media, aim: Aim, notices: Notices) -> dict[str, Any] | None:
    url = media.url or f"data:{media.media_type or 'application/octet-stream'};base64,{media.data}"
    if media.kind == "image" and not media.file_id:
        image = {"url": url} if media.detail is None else {"url": url, "detail": media.detail}
        return {"type": "image_url", "image_url": image}
    if media.kind == "audio" and media.data:
        kind = (media.media_type or "audio/wav").partition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": kind}}
    if media.kind == "video" and not media.file_id:
        return {"type": "video_url", "video_url": {"url": url}}
    if media.text is not None:
        return {
            "type": "text",
            "text": f"<document name={media.name or 'document'!r}>\n{media.text}\n</document>",
        }
    if media.data is not None:
        return {"type": "file", "file": {"filename": media.name or "document.pdf", "file_data": url}}
    if media.file_id:
        return {"type": "file", "file": {"file_id": media.file_id}}
    notices.dropped(f"{media.kind} by URL", "chat takes files inline")
    return None


def _results_after_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
    return out
