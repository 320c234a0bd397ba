"""Content parts: what messages are made of, in no protocol's shape.

`extras` holds fields of a part that have no home here, as they came; they are written back only to the
protocol they came from. Signatures are opaque: kept byte for byte, tagged with the provider that made them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

Json: TypeAlias = Any
"""A JSON value as the reader gave it."""

MediaKind = Literal["image", "file", "audio", "video"]


class Text(Struct, frozen=True):
    """Words; `cache` is a cache hint (`cache_control`) and `signature` an opaque provider mark.

    One that stands `apart` is a message of its own, though the same turn has said something before it.
    """

    text: str
    annotations: tuple[Json, ...] = ()
    cache: Json = None
    signature: str | None = None
    extras: dict[str, Json] | None = None
    apart: bool = False


class Media(Struct, frozen=True):
    """An image, document, sound or film: inline (`data`, base64), by `url`, `file_id` or as plain `text`."""

    kind: MediaKind
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    text: str | None = None
    name: str | None = None
    detail: str | None = None
    cache: Json = None
    extras: dict[str, Json] | None = None


class ToolCall(Struct, frozen=True):
    """The model calls a tool; `arguments` is JSON text, or free text for a `custom` tool."""

    id: str
    name: str
    arguments: str = ""
    custom: bool = False
    namespace: str | None = None
    signature: str | None = None
    origin: str | None = None
    cache: Json = None
    extras: dict[str, Json] | None = None


class ToolResult(Struct, frozen=True):
    """What a tool gave back for the call `call_id`."""

    call_id: str
    parts: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    name: str | None = None
    custom: bool = False
    cache: Json = None
    extras: dict[str, Json] | None = None


class Reasoning(Struct, frozen=True):
    """Thoughts of a model; `signature` is what its maker (`origin`) needs to take them back.

    A `redacted` one has no text: its signature is the sealed thought itself.
    """

    text: str = ""
    signature: str | None = None
    redacted: bool = False
    id: str | None = None
    origin: str | None = None
    extras: dict[str, Json] | None = None


class Refusal(Struct, frozen=True):
    """The model says that it will not."""

    extras: ClassVar[None] = None
    text: str


class Opaque(Struct, frozen=True):
    """A part that only `protocol` has; it travels to that protocol untouched and nowhere else.

    In an answer, `instead` is what clients of other protocols can be told in its place.
    """

    extras: ClassVar[None] = None
    protocol: str
    value: Json
    instead: Text | Media | None = None


Part: TypeAlias = Text | Media | ToolCall | ToolResult | Reasoning | Refusal | Opaque
