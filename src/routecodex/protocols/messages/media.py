"""Images and documents as messages blocks."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from routecodex.canon.parts import Media
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.messages.names import NAME
from routecodex.protocols.notices import Notices

Fields = dict[str, Any]

_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_MAGIC = (("/9j/", "image/jpeg"), ("iVBOR", "image/png"), ("R0lG", "image/gif"), ("UklGR", "image/webp"))
_SPELLED = {"image/jpg": "image/jpeg"}
_PDF = "application/pdf"
_TEXTUAL = frozenset({"application/json", "application/xml", "application/yaml", "application/javascript"})


def media_block(media: Media, aim: EncodeOptions, *, source: str, notices: Notices) -> Fields:
    """The block for an image or document; what cannot be shown is named in its place."""
    media = _unpacked(media)
    if media.kind == "image":
        found = _image_source(media, aim, source=source, notices=notices)
        block: Fields = {"type": "image", "source": found}
    else:
        found = _document_source(media, source=source, notices=notices)
        block = {"type": "document", "source": found}
        if media.name:
            block["title"] = media.name
    if found is None:
        return {"type": "text", "text": _placeholder(media)}
    if source == NAME:
        block.update(media.extras or {})
    return block


def _placeholder(media: Media) -> str:
    what = media.name or (media.url if media.url and len(media.url) < 2000 else None)
    return f"[{media.kind} not shown: {what}]" if what else f"[{media.kind} not shown]"


def _unpacked(media: Media) -> Media:
    """A `data:` URL as the inline data it is."""
    if media.url is None or not media.url.startswith("data:"):
        return media
    head, _, data = media.url[5:].partition(",")
    media_type, *flags = head.split(";")
    if "base64" not in flags:
        return media
    return Media(media.kind, media_type or media.media_type, data, name=media.name, cache=media.cache)


def _image_source(media: Media, aim: EncodeOptions, *, source: str, notices: Notices) -> Fields | None:
    if not aim.vision:
        notices.dropped("image", "this model takes no images")
        return None
    if media.data is not None:
        media_type = _image_type(media)
        if media_type is not None:
            return {"type": "base64", "media_type": media_type, "data": media.data}
        notices.dropped("image", f"{media.media_type} is not taken")
        return None
    if media.url is not None:
        if aim.dialect.image_urls:
            return {"type": "url", "url": media.url}
        notices.dropped("image by URL", "this provider takes images inline only")
        return None
    return _file_source(media, source=source, notices=notices)


def _image_type(media: Media) -> str | None:
    said = (media.media_type or "").lower().partition(";")[0].strip()
    said = _SPELLED.get(said, said)
    if said in _IMAGES:
        return said
    return next((kind for magic, kind in _MAGIC if (media.data or "").startswith(magic)), None)


def _document_source(media: Media, *, source: str, notices: Notices) -> Fields | None:
    if media.kind != "file":
        notices.dropped(media.kind, "messages has no such content")
        return None
    if media.text is not None:
        return {"type": "text", "media_type": "text/plain", "data": media.text}
    if media.data is not None:
        return _inline_document(media, notices)
    if media.url is not None:
        return {"type": "url", "url": media.url}
    return _file_source(media, source=source, notices=notices)


def _inline_document(media: Media, notices: Notices) -> Fields | None:
    said = (media.media_type or "").lower().partition(";")[0].strip()
    data = media.data or ""
    if said == _PDF or data.startswith("JVBERi") or (not said and (media.name or "").endswith(".pdf")):
        return {"type": "base64", "media_type": _PDF, "data": data}
    if said.startswith("text/") or said in _TEXTUAL:
        try:
            text = base64.b64decode(data).decode()
        except (binascii.Error, UnicodeDecodeError):
            text = ""
        if text:
            return {"type": "text", "media_type": "text/plain", "data": text}
    notices.dropped("file", f"{said or 'its type'} is not taken")
    return None


def _file_source(media: Media, *, source: str, notices: Notices) -> Fields | None:
    """A file stored at the provider: only a client of this protocol can have put it there."""
    if media.file_id is not None and source == NAME:
        return {"type": "file", "file_id": media.file_id}
    notices.dropped(f"{media.kind} by id", "it is stored at another provider")
    return None
