"""The content of one message for a chat upstream: text, images, files, sounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.canon.parts import Json, Media, Opaque, Part, Refusal, Text
from routecodex.canon.request import Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.notices import Notices

Item = dict[str, Any]
_AUDIO_FORMATS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "x-m4a": "m4a"}
_ITS_OWN = "chat has no place for them"

BETWEEN = "\n\n"
"""What stands between two messages where chat has room for one."""


def encode_content(parts: list[Part], request: Request, aim: EncodeOptions, notices: Notices) -> Json:
    """Plain text as a string, anything else as parts."""
    own = request.source == "chat"
    if len(parts) == 1 and isinstance(parts[0], Text) and not (own and is_marked(parts[0])):
        return parts[0].text
    if parts and not own and all(isinstance(part, Text) for part in parts):
        return "\n\n".join(part.text for part in parts if isinstance(part, Text))
    return [item for part in parts if (item := _part(part, request, aim, notices)) is not None]


def spoken(texts: Sequence[Text | Refusal]) -> str:
    """What an assistant said, as one text."""
    if len(texts) == 1 and not _is_apart(texts[0]):
        return texts[0].text
    return "".join([BETWEEN + part.text if _is_apart(part) else part.text for part in texts])


def _is_apart(part: Text | Refusal) -> bool:
    return isinstance(part, Text) and part.apart


def is_marked(text: Text) -> bool:
    """Whether a text of a chat client says more than its words."""
    return bool(text.cache or text.extras)


def _part(part: Part, request: Request, aim: EncodeOptions, notices: Notices) -> Item | None:
    match part:
        case Text() if request.source == "chat" and is_marked(part):
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
            notices.dropped("provider-specific parts", _ITS_OWN)
            return None


def _media(media: Media, request: Request, aim: EncodeOptions, notices: Notices) -> Item | None:
    if media.text is not None:
        text = f"<document name={media.name or 'document'!r}>\n{media.text}\n</document>"
        return {"type": "text", "text": text}
    refusal = _refusal(media, request, aim)
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


def _refusal(media: Media, request: Request, aim: EncodeOptions) -> tuple[str, str] | None:
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
