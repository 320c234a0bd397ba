"""Content parts of Responses messages and tool outputs, both ways, and sealed `encrypted_content`.

Two keys in `extras` belong to this codec: `ITEM` holds the fields of an item other than its content (None:
the text continues the item before it). An Opaque `{PART: …}` is a content part; any other Opaque is an item.

Clients echo the `encrypted_content` of a reasoning item and little else. Data without a field of its own
therefore travels there under the seal: the provider of unsigned reasoning, a flag for redacted reasoning,
and the signature of a tool call (Gemini signs calls).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Part, Refusal, Text
from routecodex.protocols import sealed_signatures
from routecodex.protocols.responses.schema import NAME

ITEM = "responses.item"
DECLARATION = "responses.declaration"
"""Key in `extras`: a tool that an input item declares (Codex's `additional_tools`), and the item itself."""
PART = "responses.part"

_AUDIO_TYPES = {"mp3": "audio/mpeg", "wav": "audio/wav"}
_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}
_TEXT_FIELDS = frozenset({"type", "text", "annotations"})
_IMAGE_FIELDS = frozenset({"type", "image_url", "file_id", "detail"})
_FILE_FIELDS = frozenset({"type", "file_id", "file_url", "file_data", "filename"})
_TEXT_TYPES = frozenset({"input_text", "output_text", "text"})
_REDACTED = "redacted:"
_CALL = "call:"
_LENGTH_DIGITS = 10


def decode_parts(content: Json) -> list[Text | Media | Refusal | Opaque]:
    """Return the canonical parts of a message's content or a tool's output."""
    if isinstance(content, str):
        return [Text(content)]
    return [decode_part(value) for value in content or ()]


def decode_part(value: dict[str, Json]) -> Text | Media | Refusal | Opaque:
    """Return one content part; a part of unknown type becomes Opaque."""
    kind = value["type"]
    if kind in _TEXT_TYPES and isinstance(value.get("text"), str):
        annotations = tuple(value.get("annotations") or ())
        return Text(value["text"], annotations=annotations, extras=extra_fields(value, _TEXT_FIELDS))
    if kind == "refusal" and isinstance(value.get("refusal"), str):
        return Refusal(value["refusal"])
    if kind == "input_image":
        return _image(value)
    if kind == "input_file":
        return _file(value)
    if kind == "input_audio" and isinstance(value.get("input_audio"), dict):
        audio = value["input_audio"]
        form = audio.get("format")
        return Media("audio", media_type=_AUDIO_TYPES.get(form, f"audio/{form}"), data=audio.get("data"))
    return Opaque(NAME, {PART: value})


def _image(value: dict[str, Json]) -> Media | Opaque:
    url = value.get("image_url")
    # Some clients send the nested form of chat (`{"url": …}`), and providers accept it.
    if isinstance(url, dict):
        url = url.get("url")
    detail, extras = value.get("detail"), extra_fields(value, _IMAGE_FIELDS)
    if isinstance(url, str):
        media_type, data = split_data_url(url)
        if data is not None:
            return Media("image", media_type=media_type, data=data, detail=detail, extras=extras)
        return Media("image", url=url, detail=detail, extras=extras)
    if isinstance(value.get("file_id"), str):
        return Media("image", file_id=value["file_id"], detail=detail, extras=extras)
    return Opaque(NAME, {PART: value})


def _file(value: dict[str, Json]) -> Media:
    media_type, data, url = None, value.get("file_data"), value.get("file_url")
    if data is not None and data.startswith(("https://", "http://")):
        # OpenRouter accepts a URL in `file_data`, and clients send the same field to every provider.
        data, url = None, url or data
    if data is not None:
        media_type, inner = split_data_url(data)
        data = inner if inner is not None else data
    return Media(
        "file",
        media_type=media_type,
        data=data,
        url=url,
        file_id=value.get("file_id"),
        name=value.get("filename"),
        extras=extra_fields(value, _FILE_FIELDS),
    )


def split_data_url(url: str) -> tuple[str | None, str | None]:
    """Return (media type, base64 data) of a data URL; the data is None for any other URL."""
    if not url.startswith("data:"):
        return None, None
    head, comma, data = url[5:].partition(",")
    if not comma or not head.endswith(";base64"):
        return None, None
    return head[: -len(";base64")].partition(";")[0] or None, data


def extra_fields(value: dict[str, Json], known: Iterable[str]) -> dict[str, Json] | None:
    """Return the fields of a value that canon has no field for."""
    extras = {key: item for key, item in value.items() if key not in known}
    return extras or None


class PartWriter(Struct):
    """Writes canonical parts as content of a request; `notices` name the parts that have no place there."""

    same_protocol: bool
    vision: bool
    image_urls: bool
    openai_files: bool
    notices: Notices

    def write(self, part: Part, *, assistant: bool = False) -> dict[str, Json] | None:
        """Return one content part of a message (of the assistant or not), or None if it has no such part."""
        match part:
            case Text():
                return self._text(part, assistant)
            case Refusal():
                return {"type": "refusal", "refusal": part.text}
            case Media():
                if assistant:
                    self.notices.dropped(part.kind, "an assistant message cannot hold one")
                    return None
                return self._media(part)
            case Opaque(protocol="responses", value=dict() as value) if PART in value:
                inner: dict[str, Json] = value[PART]
                return inner
            case Opaque():
                self.notices.dropped(f"a {part.protocol} part", "responses has no such part")
                return None
            case _:
                return None

    def _extras(self, part: Text | Media) -> dict[str, Json]:
        if not self.same_protocol or not part.extras:
            return {}
        return {key: value for key, value in part.extras.items() if key != ITEM}

    def drop_cache(self, cache: Json) -> None:
        """Add a notice for a cache hint of another protocol."""
        if cache is not None:
            self.notices.dropped("cache_control", "responses upstreams cache by prefix")

    def _text(self, part: Text, assistant: bool) -> dict[str, Json]:
        self.drop_cache(part.cache)
        value: dict[str, Json] = {"type": "output_text" if assistant else "input_text", "text": part.text}
        if part.annotations and assistant and self.same_protocol:
            value["annotations"] = list(part.annotations)
        return value | self._extras(part)

    def _media(self, part: Media) -> dict[str, Json] | None:
        self.drop_cache(part.cache)
        writer = {"image": self._image, "file": self._file, "audio": self._audio}.get(part.kind)
        if writer is None:
            self.notices.dropped(part.kind, "responses takes images, files and audio")
            return None
        value = writer(part)
        return value | self._extras(part) if value is not None else None

    def _file_id(self, part: Media) -> str | None:
        if part.file_id is not None and not self.openai_files:
            self.notices.dropped(part.kind, "its file id belongs to another provider")
            return None
        return part.file_id

    def _image(self, part: Media) -> dict[str, Json] | None:
        if not self.vision:
            self.notices.dropped("image", "the model does not take images")
            return None
        value: dict[str, Json] = {"type": "input_image"}
        if part.data is not None:
            value["image_url"] = f"data:{part.media_type or 'image/png'};base64,{part.data}"
        elif part.url is not None:
            if not self.image_urls:
                self.notices.dropped("image", "the upstream takes no image URLs")
                return None
            value["image_url"] = part.url
        else:
            file_id = self._file_id(part)
            if file_id is None:
                return None
            value["file_id"] = file_id
        if part.detail is not None:
            value["detail"] = part.detail
        return value

    def _file(self, part: Media) -> dict[str, Json] | None:
        if part.text is not None:
            return {"type": "input_text", "text": part.text}
        value: dict[str, Json] = {"type": "input_file"}
        if part.data is not None:
            value["filename"] = part.name or "document.pdf"
            # A Responses client may send bare base64; it goes out as it came.
            typed = part.media_type is not None or not self.same_protocol
            prefix = f"data:{part.media_type or 'application/pdf'};base64," if typed else ""
            value["file_data"] = prefix + part.data
        elif part.url is not None:
            value["file_url"] = part.url
        else:
            file_id = self._file_id(part)
            if file_id is None:
                return None
            value["file_id"] = file_id
        if part.name is not None:
            value["filename"] = part.name
        return value

    def _audio(self, part: Media) -> dict[str, Json] | None:
        if part.data is None:
            self.notices.dropped("audio", "responses takes it inline only")
            return None
        media_type = part.media_type or "audio/wav"
        form = _AUDIO_FORMATS.get(media_type, media_type.partition("/")[2])
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": form}}


def seal_reasoning(provider: str, signature: str, *, redacted: bool) -> str | None:
    """Return the `encrypted_content` for the client; without a provider the signature stays as it is.

    Unsigned reasoning is sealed too, with the provider's name alone.
    """
    if not provider:
        return signature or None
    return sealed_signatures.seal(provider, f"{_REDACTED if redacted else ''}{signature}")


def seal_call_signature(provider: str, call_id: str, signature: str) -> str:
    """Return the signature of a call as `encrypted_content` of a reasoning item that follows it."""
    return sealed_signatures.seal(provider, f"{_CALL}{len(call_id)}:{call_id}{signature}")


def unseal_content(value: str | None) -> tuple[str | None, str, str | None]:
    """Return (owner, mark, signature); the mark is "", "redacted" or "call.<call id>"."""
    if value is None:
        return None, "", None
    origin, signature = sealed_signatures.unseal(value)
    if origin is None:
        return None, "", value
    if signature.startswith(_REDACTED):
        return origin, "redacted", signature[len(_REDACTED) :]
    length, colon, tail = signature.removeprefix(_CALL).partition(":")
    # The client returns the seal: `²` is a digit too, and no id has a length of ten digits.
    if signature.startswith(_CALL) and colon and length.isdecimal() and len(length) < _LENGTH_DIGITS:
        return origin, f"call.{tail[: int(length)]}", tail[int(length) :]
    return origin, "", signature or None
