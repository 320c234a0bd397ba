"""The content of one message for a chat upstream: text, images, files, sounds.

A canonical conversation as chat messages for an upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.chat.decode_request import MESSAGE_EXTRAS, REASONING_FIELDS
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.tool_mapping import flat_call, wrap_input

Item = dict[str, Any]
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "x-m4a": "m4a"}
_NO_PLACE = "chat has no place for them"

TEXT_SEPARATOR = "\n\n"
"""What stands between two messages where chat has room for one."""


def encode_content(parts: list[Part], request: Request, aim: EncodeOptions, notices: Notices) -> Json:
    """Plain text as a string, anything else as parts."""
    own = request.source == "chat"
    if len(parts) == 1 and isinstance(parts[0], Text) and not (own and has_extras(parts[0])):
        return parts[0].text
    if parts and not own and all(isinstance(part, Text) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    return [item for part in parts if (item := _part(part, request, aim, notices)) is not None]


def join_texts(texts: Sequence[Text | Refusal]) -> str:
    """What an assistant said, as one text."""
    if len(texts) == 1 and not _is_apart(texts[0]):
        return texts[0].text
    return "".join([TEXT_SEPARATOR + part.text if _is_apart(part) else part.text for part in texts])


def _is_apart(part: Text | Refusal) -> bool:
    return isinstance(part, Text) and part.apart


def has_extras(text: Text) -> bool:
    """Whether a text of a chat client says more than its words."""
    return bool(text.cache or text.extras)


def _part(part: Part, request: Request, aim: EncodeOptions, notices: Notices) -> Item | None:
    match part:
        case Text() if request.source == "chat" and has_extras(part):
            cache = {"cache_control": part.cache} if part.cache else {}
            return {"type": "text", "text": part.text, **cache, **(part.extras or {})}
        case Text() | Refusal():
            return {"type": "text", "text": part.text} if part.text else None
        case Media():
            shown = _media(part, request, aim, notices)
            own = shown is not None and part.cache and request.source == "chat"
            return {**shown, "cache_control": part.cache} if shown is not None and own else shown
        case Opaque() if part.protocol == "chat":
            return dict(part.value)
        case _:
            notices.dropped("provider-specific parts", _NO_PLACE)
            return None


def _media(media: Media, request: Request, aim: EncodeOptions, notices: Notices) -> Item | None:
    if media.text is not None:
        text = f"<document name={media.name or 'document'!r}>\n{media.text}\n</document>"
        return {"type": "text", "text": text}
    refusal = _media_obstacle(media, request, aim)
    if refusal is not None:
        notices.dropped(*refusal)
        return None
    if media.kind == "image":
        image = {"url": _url(media, "image/png")}
        return {"type": "image_url", "image_url": image | ({"detail": media.detail} if media.detail else {})}
    if media.kind == "video":
        return {"type": "video_url", "video_url": {"url": _url(media, "video/mp4")}}
    if media.kind == "audio":
        kind = (media.media_type or "audio/wav").partition("/")[2]
        sound = {"data": media.data, "format": _AUDIO_FORMATS.get(kind, kind)}
        return {"type": "input_audio", "input_audio": sound}
    if media.data is None:
        return {"type": "file", "file": {"file_id": media.file_id}}
    inline = {"filename": media.name or "document.pdf", "file_data": _url(media, "application/pdf")}
    return {"type": "file", "file": inline}


def _media_obstacle(media: Media, request: Request, aim: EncodeOptions) -> tuple[str, str] | None:
    """What chat, this upstream or this model cannot take, and why."""
    kind = media.kind
    if kind == "image" and not aim.vision:
        return kind, "this model takes no images"
    if media.data is not None:
        return None
    if media.url is not None:
        if kind in ("file", "audio"):
            return f"{kind} by URL", "chat takes files inline"
        if kind == "image" and not aim.dialect.image_urls and not media.url.startswith("data:"):
            return f"{kind} by URL", "this upstream takes images inline"
        return None
    if media.file_id is None:
        return kind, "it holds nothing that chat can send"
    if kind == "file" and request.source in ("chat", "responses"):
        return None
    return f"{kind} by id", "it is stored at another provider"


def _url(media: Media, default: str) -> str:
    if media.data is None:
        return media.url or ""
    return f"data:{media.media_type or default};base64,{media.data}"


_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}
"""Who speaks a text that stands alone; a system text is spoken by whom the dialect wants."""

_INSTEAD_OF_CONTENT = frozenset({"refusal", "audio"})
"""What an assistant message may hold in place of content."""


def encode_messages(request: Request, aim: EncodeOptions, notices: Notices) -> list[dict[str, Any]]:
    """System text first, then the conversation; every result right after its call."""
    role = aim.dialect.system_role
    out: list[dict[str, Any]] = []
    texts = [part for part in request.system if part.text]
    if texts and (aim.dialect.merge_system or request.source != "chat"):
        out.append({"role": role, "content": "\n\n".join([part.text for part in texts])})
    else:
        out.extend(_system_messages(texts, request, aim, notices))
    for message in request.messages:
        out.extend(_message(message, request, aim, notices))
    return _results_after_calls(out, notices)


def _system_messages(
    texts: list[Text], request: Request, aim: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    """The system messages of a chat client as they were."""
    heads: list[dict[str, Json]] = []
    contents: list[list[Part]] = []
    for text in texts:
        extras = dict(text.extras or {})
        head = extras.pop(MESSAGE_EXTRAS, {})
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
        out.append(_with_chat_fields(user, message, request))
    return out


def _with_chat_fields(out: dict[str, Any], message: Message, request: Request) -> dict[str, Any]:
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
        return [_with_chat_fields({"role": role, "content": content}, message, request)] if content else []
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
    out["content"] = _chat_text(sorts, request, aim, notices) if own else _foreign_text(message, sorts)
    if message.name:
        out["name"] = message.name
    calls = [_call(call, request) for call in sorts.get(ToolCall, ())]
    if calls:
        out["tool_calls"] = calls
    if Reasoning in sorts and not (
        own and any((message.extras or {}).get(field) for field in REASONING_FIELDS)
    ):
        _add_reasoning(out, sorts[Reasoning], aim, notices)
    if Opaque in sorts:
        notices.dropped("provider-specific parts", "chat has no place for them")
    if own:
        out.update(_chat_fields(message, out, sorts.get(Refusal, ())))
    if calls or out["content"]:
        return [out]
    if not own and aim.dialect.reasoning_history not in out:
        return []
    if _INSTEAD_OF_CONTENT.isdisjoint(out):
        out["content"] = ""
    return [out]


def _foreign_text(message: Message, sorts: dict[type, list[Any]]) -> str | None:
    """What an assistant of another protocol said; a refusal is a part of it."""
    words = sorts.get(Text)
    if Refusal in sorts:
        words = [part for part in message.parts if isinstance(part, Text | Refusal)]
    return join_texts(words) if words else None


def _chat_text(sorts: dict[type, list[Any]], request: Request, aim: EncodeOptions, notices: Notices) -> Json:
    """What an assistant of chat's own said; a refusal has a field for itself."""
    texts = sorts.get(Text)
    if texts and any(map(has_extras, texts)):
        return encode_content(texts, request, aim, notices)
    return join_texts(texts) if texts else None


def _chat_fields(message: Message, out: dict[str, Any], refusals: Sequence[Refusal]) -> dict[str, Json]:
    """What a chat client said in an assistant message that has no home."""
    refused: dict[str, Json] = {"refusal": "".join([part.text for part in refusals])} if refusals else {}
    said = (message.extras or {}).items()
    return {**refused, **{field: value for field, value in said if value is not None or field not in out}}


def _add_reasoning(
    out: dict[str, Any], thoughts: list[Reasoning], aim: EncodeOptions, notices: Notices
) -> None:
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
