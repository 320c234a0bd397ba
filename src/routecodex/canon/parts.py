"""Content parts of messages, independent of any protocol.

`extras` holds the fields of a part that have no counterpart here; they are written back, unchanged, only to
the protocol they came from. Signatures are opaque: kept byte for byte, with the provider that issued them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

Json: TypeAlias = Any
"""A decoded JSON value."""

MediaKind = Literal["image", "file", "audio", "video"]


class Text(Struct, frozen=True):
    """Text; `cache` is a cache hint (`cache_control`), `signature` an opaque value of the provider.

    A text that is `apart` starts a message of its own, although an earlier text belongs to the same turn.
    """

    text: str
    annotations: tuple[Json, ...] = ()
    cache: Json = None
    signature: str | None = None
    extras: dict[str, Json] | None = None
    apart: bool = False


class Media(Struct, frozen=True):
    """An image, file, audio or video: inline (`data`, base64), by `url` or `file_id`, or as plain `text`."""

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
    """A tool call of the model; `arguments` is JSON text, or free text for a `custom` tool."""

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
    """The result of the tool call `call_id`."""

    call_id: str
    parts: tuple[Text | Media | Opaque, ...] = ()
    is_error: bool = False
    name: str | None = None
    custom: bool = False
    cache: Json = None
    extras: dict[str, Json] | None = None


class Reasoning(Struct, frozen=True):
    """Thinking of a model; its provider (`origin`) accepts it back only with the `signature`.

    A `redacted` one has no text: the signature is the encrypted thinking itself.
    """

    text: str = ""
    signature: str | None = None
    redacted: bool = False
    id: str | None = None
    origin: str | None = None
    extras: dict[str, Json] | None = None


class Refusal(Struct, frozen=True):
    """The model refuses to answer."""

    extras: ClassVar[None] = None
    text: str


class Opaque(Struct, frozen=True):
    """A part that only `protocol` has; it is sent unchanged to that protocol and to no other.

    In an answer, clients of other protocols get `instead` in its place.
    """

    extras: ClassVar[None] = None
    protocol: str
    value: Json
    instead: Text | Media | None = None


Part: TypeAlias = Text | Media | ToolCall | ToolResult | Reasoning | Refusal | Opaque
