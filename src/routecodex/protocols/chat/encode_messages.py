"""Encodes a canonical conversation as chat messages for an upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.chat.decode_request import MESSAGE_EXTRAS, REASONING_FIELDS
from routecodex.protocols.chat.reasoning_details import entries_of
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.tool_mapping import flat_call, wrap_input

Item = dict[str, Any]
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "x-m4a": "m4a"}
_NO_PLACE = "chat has no place for them"

TEXT_SEPARATOR = "\n\n"
"""Separates two texts that chat sends as one."""

_ROLES = {"user": "user", "tool": "user", "assistant": "assistant"}
"""Roles of a message that is one text; the dialect names the role of system texts."""

_INSTEAD_OF_CONTENT = frozenset({"refusal", "audio"})
"""Fields that an assistant message may have in place of content."""


def encode_messages(request: Request, options: EncodeOptions, notices: Notices) -> list[dict[str, Any]]:
    """Encode the system text, then the conversation; every result right after its call."""
    role = options.dialect.system_role
    out: list[dict[str, Any]] = []
    texts = [part for part in request.system if part.text]
    if texts and (options.dialect.merge_system or request.source != "chat"):
        out.append({"role": role, "content": TEXT_SEPARATOR.join([part.text for part in texts])})
    else:
        out.extend(_system_messages(texts, request, options, notices))
    for message in request.messages:
        out.extend(_message(message, request, options, notices))
    ordered = _results_after_calls(out, notices)
    return _merge_system(ordered, role) if options.dialect.merge_system else ordered


def _merge_system(messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    """Merge the leading system messages into one; later ones become user text at their place.

    Chat templates that vLLM and LM Studio apply raise an error for any system message but the first.
    """
    count = next((at for at, message in enumerate(messages) if message["role"] != role), len(messages))
    texts = [joined_text(message.get("content")) for message in messages]
    leading = messages[:count]
    if count > 1 and None not in texts[:count]:
        leading = [{**messages[0], "content": TEXT_SEPARATOR.join(filter(None, texts[:count]))}]
    later = [
        {"role": "user", "content": system_as_user_text(text)}
        if message["role"] == role and text is not None
        else message
        for message, text in zip(messages[count:], texts[count:], strict=True)
    ]
    return [*leading, *later]


def system_as_user_text(text: str) -> str:
    """Return a system text for an upstream that takes none at this place."""
    return f"<system>\n{text}\n</system>"


def joined_text(content: Json) -> str | None:
    """Return the texts of a content as one; None if it has other parts."""
    if not isinstance(content, list):
        return content or ""
    if any(part.get("type") != "text" for part in content):
        return None
    return TEXT_SEPARATOR.join(part["text"] for part in content if part["text"])


def _system_messages(
    texts: list[Text], request: Request, options: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    """Rebuild the system messages of a chat client."""
    outer: list[dict[str, Json]] = []
    contents: list[list[Part]] = []
    for text in texts:
        extras = dict(text.extras or {})
        fields = extras.pop(MESSAGE_EXTRAS, {})
        if fields is not None or not contents:
            outer.append(fields or {})
            contents.append([])
        contents[-1].append(replace(text, extras=extras or None))
    role = options.dialect.system_role
    return [
        {"role": role, "content": encode_content(parts, request, options, notices), **fields}
        for fields, parts in zip(outer, contents, strict=True)
    ]


def _message(
    message: Message, request: Request, options: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    text = _only_text(message, request)
    if text:
        return [{"role": _ROLES.get(message.role) or options.dialect.system_role, "content": text}]
    if message.role == "assistant":
        return _assistant(message, request, options, notices)
    if message.role == "system":
        return _system(message, request, options, notices)
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    out = [_result(part, message, request, options, notices) for part in results]
    media: list[Part] = [
        inner
        for part in results
        if request.source != "chat" or part.is_error
        for inner in part.parts
        if isinstance(inner, Media)
    ]
    content = encode_content([*media, *others], request, options, notices) if media or others else None
    if content:
        user: dict[str, Any] = {"role": "user", "content": content}
        out.append(_with_chat_fields(user, message, request))
    return out


def _only_text(message: Message, request: Request) -> str:
    """Return the text of a message that is one text, as most are; empty for any other."""
    if len(message.parts) != 1 or message.name or request.source == "chat":
        return ""
    part = message.parts[0]
    return part.text if isinstance(part, Text) else ""


def _system(
    message: Message, request: Request, options: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    role = options.dialect.system_role
    if request.source == "chat":
        content = encode_content(list(message.parts), request, options, notices)
        return [_with_chat_fields({"role": role, "content": content}, message, request)] if content else []
    text = TEXT_SEPARATOR.join(part.text for part in message.parts if isinstance(part, Text))
    return [{"role": role, "content": text}] if text else []


def _with_chat_fields(out: dict[str, Any], message: Message, request: Request) -> dict[str, Any]:
    """Add the name, and the extras of a chat client's message."""
    if message.name:
        out["name"] = message.name
    if request.source == "chat":
        out.update(message.extras or {})
    return out


def _result(
    result: ToolResult, message: Message, request: Request, options: EncodeOptions, notices: Notices
) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "tool", "tool_call_id": result.call_id}
    if request.source != "chat" or result.is_error:
        out["content"] = _result_text(result, notices)
        return out
    out["content"] = encode_content(list(result.parts), request, options, notices) or ""
    if result.name:
        out["name"] = result.name
    return {**out, **(message.extras or {})}


def _result_text(result: ToolResult, notices: Notices) -> str:
    texts = [part.text for part in result.parts if isinstance(part, Text)]
    if any(isinstance(part, Opaque) for part in result.parts):
        notices.dropped("provider-specific parts", _NO_PLACE)
    if any(isinstance(part, Media) for part in result.parts):
        texts.append("(the attachment follows in the next message)")
    text = "\n".join(texts)
    return f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text


def _assistant(
    message: Message, request: Request, options: EncodeOptions, notices: Notices
) -> list[dict[str, Any]]:
    """Encode the message; none if no part of it can be sent: some upstreams reject empty messages."""
    from_chat = request.source == "chat"
    parts_by_type: dict[type, list[Any]] = {}
    for part in message.parts:
        parts_by_type.setdefault(type(part), []).append(part)
    out: dict[str, Any] = {"role": "assistant"}
    out["content"] = (
        _chat_text(parts_by_type, request, options, notices)
        if from_chat
        else _foreign_text(message, parts_by_type)
    )
    if message.name:
        out["name"] = message.name
    calls = [_call(call, request) for call in parts_by_type.get(ToolCall, ())]
    if calls:
        out["tool_calls"] = calls
    if Reasoning in parts_by_type and not (
        from_chat and any((message.extras or {}).get(field) for field in REASONING_FIELDS)
    ):
        _add_reasoning(out, parts_by_type[Reasoning], options, notices)
    if Opaque in parts_by_type:
        notices.dropped("provider-specific parts", _NO_PLACE)
    for media in parts_by_type.get(Media, ()):
        notices.dropped(media.kind, "an assistant message of chat cannot have it")
    if from_chat:
        out.update(_chat_fields(message, out, parts_by_type.get(Refusal, ())))
    if calls or out["content"]:
        return [out]
    if not from_chat and options.dialect.reasoning_history not in out:
        return []
    if _INSTEAD_OF_CONTENT.isdisjoint(out):
        out["content"] = ""
    return [out]


def _foreign_text(message: Message, parts_by_type: dict[type, list[Any]]) -> str | None:
    """Return the text of an assistant message of another protocol, refusals included."""
    texts = parts_by_type.get(Text)
    if Refusal in parts_by_type:
        texts = [part for part in message.parts if isinstance(part, Text | Refusal)]
    return join_texts(texts) if texts else None


def _chat_text(
    parts_by_type: dict[type, list[Any]], request: Request, options: EncodeOptions, notices: Notices
) -> Json:
    """Return the content of a chat client's assistant message; a refusal has its from_chat field."""
    texts = parts_by_type.get(Text)
    if texts and any(map(has_extras, texts)):
        return encode_content(texts, request, options, notices)
    return join_texts(texts) if texts else None


def _chat_fields(message: Message, out: dict[str, Any], refusals: Sequence[Refusal]) -> dict[str, Json]:
    """Return the refusal and the extras of a chat client's assistant message."""
    refused: dict[str, Json] = {"refusal": "".join([part.text for part in refusals])} if refusals else {}
    extras = (message.extras or {}).items()
    return {**refused, **{field: value for field, value in extras if value is not None or field not in out}}


def _add_reasoning(
    out: dict[str, Any], reasoning: list[Reasoning], options: EncodeOptions, notices: Notices
) -> None:
    made_here = [part for part in reasoning if part.origin == options.provider]
    details = [entry for part in made_here for entry in entries_of(part)]
    if details:
        out["reasoning_details"] = details
        return
    text = TEXT_SEPARATOR.join(part.text for part in reasoning if part.text)
    field = options.dialect.reasoning_history
    if field == "none" or not text:
        notices.dropped("reasoning", "this upstream does not accept reasoning in requests")
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
    """Move tool messages right after the assistant message with their call.

    OpenAI and others reject any other order ("must be a response to a preceding message with 'tool_calls'").
    """
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
        call_ids = [call["id"] for call in message.get("tool_calls", ())]
        out.extend(results[call_id].pop(0) for call_id in call_ids if results.get(call_id))
    if any(results.values()):
        notices.dropped("tool results without a call", "chat rejects them")
    return out


def encode_content(parts: list[Part], request: Request, options: EncodeOptions, notices: Notices) -> Json:
    """Encode plain text as a string, anything else as parts."""
    from_chat = request.source == "chat"
    if len(parts) == 1 and isinstance(parts[0], Text) and not (from_chat and has_extras(parts[0])):
        return parts[0].text
    if parts and not from_chat and all(isinstance(part, Text) for part in parts):
        return TEXT_SEPARATOR.join(part.text for part in parts if isinstance(part, Text))
    return [item for part in parts if (item := _part(part, request, options, notices)) is not None]


def _part(part: Part, request: Request, options: EncodeOptions, notices: Notices) -> Item | None:
    match part:
        case Text() if request.source == "chat" and has_extras(part):
            cache = {"cache_control": part.cache} if part.cache else {}
            return {"type": "text", "text": part.text, **cache, **(part.extras or {})}
        case Text() | Refusal():
            return {"type": "text", "text": part.text} if part.text else None
        case Media():
            media = _media(part, request, options, notices)
            if media is not None and part.cache and request.source == "chat":
                media["cache_control"] = part.cache
            return media
        case Opaque() if part.protocol == "chat":
            return dict(part.value)
        case _:
            notices.dropped("provider-specific parts", _NO_PLACE)
            return None


def _media(media: Media, request: Request, options: EncodeOptions, notices: Notices) -> Item | None:
    if media.text is not None:
        text = f"<document name={media.name or 'document'!r}>\n{media.text}\n</document>"
        return {"type": "text", "text": text}
    obstacle = _media_obstacle(media, request, options)
    if obstacle is not None:
        notices.dropped(*obstacle)
        return None
    if media.kind == "image":
        image = {"url": _url(media, "image/png")}
        return {"type": "image_url", "image_url": image | ({"detail": media.detail} if media.detail else {})}
    if media.kind == "video":
        return {"type": "video_url", "video_url": {"url": _url(media, "video/mp4")}}
    if media.kind == "audio":
        kind = (media.media_type or "audio/wav").partition("/")[2]
        audio = {"data": media.data, "format": _AUDIO_FORMATS.get(kind, kind)}
        return {"type": "input_audio", "input_audio": audio}
    if media.data is None and media.url is None:
        return {"type": "file", "file": {"file_id": media.file_id}}
    inline = {"filename": media.name or "document.pdf", "file_data": _url(media, "application/pdf")}
    return {"type": "file", "file": inline}


def _media_obstacle(media: Media, request: Request, options: EncodeOptions) -> tuple[str, str] | None:
    """Return the name of media that cannot be sent, and the reason; None if they can."""
    kind = media.kind
    if kind == "image" and not options.vision:
        return kind, "this model does not accept images"
    if media.data is not None:
        return None
    if media.url is not None:
        if kind == "audio" or (kind == "file" and request.source != "chat"):
            return f"{kind} by URL", "chat accepts only inline files"
        if kind == "image" and not options.dialect.image_urls and not media.url.startswith("data:"):
            return f"{kind} by URL", "this upstream accepts only inline images"
        return None
    if media.file_id is None:
        return kind, "it has no content that chat can send"
    if kind == "file" and request.source in ("chat", "responses"):
        return None
    return f"{kind} by id", "it is stored at another provider"


def _url(media: Media, default: str) -> str:
    if media.data is None:
        return media.url or ""
    return f"data:{media.media_type or default};base64,{media.data}"


def has_extras(text: Text) -> bool:
    """Whether a text of a chat client has a cache hint or unknown fields."""
    return bool(text.cache or text.extras)


def join_texts(texts: Sequence[Text | Refusal]) -> str:
    """Return the texts of an assistant as one text."""
    if len(texts) == 1 and not _is_apart(texts[0]):
        return texts[0].text
    return "".join([TEXT_SEPARATOR + part.text if _is_apart(part) else part.text for part in texts])


def _is_apart(part: Text | Refusal) -> bool:
    return isinstance(part, Text) and part.apart
