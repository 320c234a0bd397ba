"""Media parts both ways, citations from grounding, and substitutes for parts that only Gemini has."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from routecodex.canon.parts import Json, Media, MediaKind, Text
from routecodex.protocols.gemini.schema import WireAnswerPart

_DATA_URL = re.compile(r"^data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_FILES_API = re.compile(r"^https://generativelanguage\.googleapis\.com/.*files/")
_KINDS: dict[str, MediaKind] = {"image": "image", "audio": "audio", "video": "video"}
_DEFAULT_TYPES: dict[MediaKind, str] = {
    "image": "image/jpeg",
    "audio": "audio/mpeg",
    "video": "video/mp4",
    "file": "application/pdf",
}
_MEDIA_FIELDS = frozenset({"inlineData", "fileData"})
_STANDARD = str.maketrans("-_", "+/")
_FENCE = "```"
_BACKTICKS = re.compile("`+")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_BLOCK = 1024


def decode_media(part: dict[str, Json]) -> Media | None:
    """Return the media of a part, or None if it has none."""
    extras = {name: value for name, value in part.items() if name not in _MEDIA_FIELDS} or None
    blob = part.get("inlineData")
    if blob is not None:
        media_type = blob.get("mimeType")
        return Media(
            _kind(media_type),
            media_type=media_type,
            data=standard_base64(blob.get("data") or ""),
            name=blob.get("displayName"),
            extras=extras,
        )
    file = part.get("fileData")
    if file is None:
        return None
    uri = file.get("fileUri") or ""
    media_type = file.get("mimeType") or _type_of(uri)
    name = file.get("displayName")
    kind = _kind(media_type)
    if not uri.startswith(("http://", "https://")) or _FILES_API.match(uri):
        return Media(kind, media_type=media_type, file_id=uri, name=name, extras=extras)
    return Media(kind, media_type=media_type, url=uri, name=name, extras=extras)


def encode_media(media: Media, *, same_protocol: bool) -> dict[str, Json] | None:
    """Return a part for the media, or None if this protocol has none."""
    part = _encode(media, same_protocol=same_protocol)
    if part is not None and same_protocol and media.extras:
        part.update(media.extras)
    return part


def _encode(media: Media, *, same_protocol: bool) -> dict[str, Json] | None:
    # The Gemini API rejects `displayName`, Vertex AI takes it: only a Gemini client's own name is passed on.
    name = media.name if same_protocol else None
    if media.data is not None:
        return _blob(media.media_type or _DEFAULT_TYPES[media.kind], media.data, name=name)
    if media.url is not None:
        inline = _DATA_URL.match(media.url)
        if inline:
            media_type = inline[1] or media.media_type or _DEFAULT_TYPES[media.kind]
            return _blob(media_type, media.url[inline.end() :], name=name)
        return None if media.url.startswith("data:") else _file(media.url, media, name=name)
    if media.text is not None:
        return {"text": media.text}
    if media.file_id is not None and (same_protocol or media.file_id.startswith(("https://", "gs://"))):
        return _file(media.file_id, media, name=name)
    return None


def _blob(media_type: str, data: str, *, name: str | None) -> dict[str, Json]:
    blob: dict[str, Json] = {"mimeType": media_type, "data": data}
    if name is not None:
        blob["displayName"] = name
    return {"inlineData": blob}


def _file(uri: str, media: Media, *, name: str | None) -> dict[str, Json]:
    media_type = media.media_type or _type_of(uri) or _DEFAULT_TYPES[media.kind]
    file: dict[str, Json] = {"mimeType": media_type, "fileUri": uri}
    if name is not None:
        file["displayName"] = name
    return {"fileData": file}


def _type_of(uri: str) -> str | None:
    return mimetypes.guess_type(urlsplit(uri).path)[0] if uri else None


def _kind(media_type: str | None) -> MediaKind:
    return _KINDS.get((media_type or "").partition("/")[0], "file")


def standard_base64(data: str) -> str:
    """Return the data in the standard alphabet; Google's Python SDK writes the URL-safe one."""
    data = data.translate(_STANDARD) if "-" in data or "_" in data else data
    return data + "=" * (-len(data) % 4)


def placeholder(part: WireAnswerPart) -> Text | Media | None:
    """Return a substitute for clients of other protocols: code and its output as text, media as media."""
    if part.thought:
        # Image models send drafts as thought parts; the final image follows.
        return None
    if part.executable_code is not None:
        language = (part.executable_code.language or "").lower()
        return _fenced(part.executable_code.code, language)
    if part.code_execution_result is not None:
        result = part.code_execution_result
        return _fenced(result.output or result.outcome, "")
    if part.inline_data is not None:
        blob = part.inline_data
        return decode_media({"inlineData": {"mimeType": blob.mime_type, "data": blob.data}})
    if part.file_data is not None:
        file = part.file_data
        return decode_media({"fileData": {"mimeType": file.mime_type, "fileUri": file.file_uri}})
    return None


def _fenced(code: str | None, language: str) -> Text | None:
    """Return the code as a fenced block; the fence does not occur in the code."""
    if not code:
        return None
    longest = max(map(len, _BACKTICKS.findall(code)), default=0)
    fence = _FENCE if longest < len(_FENCE) else "`" * (longest + 1)
    return Text(f"\n{fence}{language}\n{code.rstrip()}\n{fence}\n")


class GroundedText:
    """The text of an answer while it grows; finds characters by their offset in UTF-8 bytes.

    Google counts bytes (API reference, `Segment`). Thousands of citations may refer to a long text, so the
    characters are counted once, by blocks.
    """

    __slots__ = ("_added", "_before", "_data")

    def __init__(self, text: str = "") -> None:
        self._added = [text]
        self._data = bytearray()
        self._before = [0]
        """Characters that begin before each block."""

    def add(self, text: str) -> None:
        self._added.append(text)

    def char_offset(self, offset: Json) -> int:
        """Return a byte offset as one in characters; one inside a character is that of the character."""
        if not isinstance(offset, int) or offset <= 0:
            return 0
        self._encode_added()
        data = self._data
        offset = min(offset, len(data))
        block = min(offset // _BLOCK, len(self._before) - 1)
        begun: int = self._before[block] + _count_chars(data[block * _BLOCK : offset])
        return begun - 1 if offset < len(data) and 0x80 <= data[offset] < 0xC0 else begun

    def _encode_added(self) -> None:
        if not self._added:
            return
        self._data += "".join(self._added).encode("utf-8", "replace")
        self._added = []
        while len(self._data) >= len(self._before) * _BLOCK:
            end = len(self._before) * _BLOCK
            self._before.append(self._before[-1] + _count_chars(self._data[end - _BLOCK : end]))


def _count_chars(data: bytearray) -> int:
    """Return how many characters begin in these bytes."""
    return len(data.translate(None, _CONTINUATION_BYTES))


def citations(grounding: Json, text: GroundedText) -> list[Json]:
    """Return the grounding of this text as `url_citation`s; malformed entries are skipped."""
    pages = [_object_field(chunk, "web") for chunk in list_field(grounding, "groundingChunks")]
    cited = []
    for support in list_field(grounding, "groundingSupports"):
        segment = _object_field(support, "segment")
        position = {
            "start_index": text.char_offset(segment.get("startIndex")),
            "end_index": text.char_offset(segment.get("endIndex")),
        }
        cited += [{"type": "url_citation", **page, **position} for page in _cited_pages(support, pages)]
    return cited


def _cited_pages(support: Json, pages: list[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    for at in list_field(support, "groundingChunkIndices"):
        page = pages[at] if isinstance(at, int) and 0 <= at < len(pages) else {}
        uri, title = page.get("uri"), page.get("title")
        if isinstance(uri, str) and uri:
            yield {"url": uri, "title": title if isinstance(title, str) else ""}


def _object_field(value: Json, field: str) -> dict[str, Json]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def list_field(value: Json, field: str) -> list[Json]:
    """Return a field that is a list; empty if the value or the field has another type."""
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
