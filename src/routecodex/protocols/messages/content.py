"""Decodes content blocks of requests and answers into canonical parts, and makes valid tool-call ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from msgspec.structs import replace

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.protocols import sealed_signatures
from routecodex.wire import json

NAME: Final = "messages"
MADE_CITATION: Final = f"{sealed_signatures.SEAL}citation"
"""The `encrypted_index` of citations that the gateway made of those of another protocol."""
ID_LIMIT = 64

_LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")
Fields = dict[str, Any]

_KNOWN_FIELDS: dict[str, frozenset[str]] = {
    "text": frozenset({"type", "text", "citations", "cache_control"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "document": frozenset({"type", "source", "title", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
}

_PIECE_EXTRAS: dict[str, Json] = {"type": None}
"""Extras of a piece of a document whose block is in the extras of another piece."""

_PLAIN_TEXT_FIELDS = ("type", "text")
"""Fields of a text block without cache hint, citations or extras, as most are."""


def part_of(block: Fields) -> Part:
    """Decode a block; blocks that only messages has become Opaque."""
    decode = _BLOCK_DECODERS.get(block["type"])
    return decode(block) if decode is not None else Opaque(NAME, block)


def parts_of(block: Fields) -> tuple[Part, ...]:
    """Decode a block into its parts: several for a document with images, else one."""
    pieces = _pieces(block) if block["type"] == "document" else []
    if not any(piece.kind == "image" for piece in pieces):
        return (part_of(block),)
    whole = next((number for number, piece in enumerate(pieces) if piece.text is not None), 0)
    return tuple(
        _with_block(piece, block) if number == whole else replace(piece, extras=_PIECE_EXTRAS)
        for number, piece in enumerate(pieces)
    )


def holds_block(part: Text | Media) -> bool:
    """Whether the extras of a part hold a whole block, or mark it as a piece of one."""
    return part.extras is not None and "type" in part.extras


def original_block(part: Text | Media) -> Fields | None:
    """Return the block in the extras of a part, without its cache hint; None if another part holds it."""
    extras = part.extras or {}
    return dict(extras) if extras.get("type") is not None else None


def extras_of(block: Fields) -> dict[str, Json] | None:
    """Return the fields of a block without a place in its part."""
    known = _KNOWN_FIELDS[block["type"]]
    if block.keys() <= known:
        return None
    return {name: value for name, value in block.items() if name not in known}


def citations_of(block: Fields) -> tuple[Json, ...]:
    """Return the citations of a text block; empty if the field is not a list."""
    found = block.get("citations")
    return tuple(found) if isinstance(found, list) else ()


def returnable_citations(citations: Iterable[Json]) -> list[Json]:
    """Return the citations that may go to a provider: those that the gateway has not made."""
    return [citation for citation in citations if _is_own(citation)]


def _is_own(citation: Json) -> bool:
    return not isinstance(citation, dict) or citation.get("encrypted_index") != MADE_CITATION


def _text(block: Fields) -> Part:
    if len(block) == len(_PLAIN_TEXT_FIELDS):
        return Text(block["text"])
    return Text(
        text=block["text"],
        annotations=citations_of(block),
        cache=block.get("cache_control"),
        extras=extras_of(block),
    )


def _image(block: Fields) -> Part:
    found = _media_fields(block["source"])
    if found is None:
        return Opaque(NAME, block)
    return Media("image", **found, cache=block.get("cache_control"), extras=extras_of(block))


def _document(block: Fields) -> Part:
    source = block["source"]
    extras = extras_of(block)
    found = _media_fields(source)
    if found is None:
        text = _flat_content(source)
        if text is None:
            return Opaque(NAME, block)
        # Citations refer to the blocks of such a document by index, so keep its source.
        found, extras = {"text": text}, {**(extras or {}), "source": source}
    found.setdefault("media_type", "text/plain" if "text" in found else "application/pdf")
    return Media("file", **found, name=block.get("title"), cache=block.get("cache_control"), extras=extras)


def _pieces(block: Fields) -> list[Media]:
    """Return the texts and images of a document, consecutive texts joined."""
    source = block["source"]
    content = source.get("content") if isinstance(source, dict) else None
    found: list[Media] = []
    texts: list[str] = []
    for inner in content if isinstance(content, list) else ():
        piece = _piece(inner, block.get("title"))
        if piece is None:
            continue
        if piece.text is None:
            _join_texts(found, texts)
            found.append(piece)
        else:
            if not texts:
                found.append(piece)
            texts.append(piece.text)
    _join_texts(found, texts)
    return found


def _join_texts(found: list[Media], texts: list[str]) -> None:
    """Give the last piece the texts that belong to it, once and not text by text."""
    if len(texts) > 1:
        found[-1] = replace(found[-1], text="\n\n".join(texts))
    texts.clear()


def _piece(inner: Json, title: Json) -> Media | None:
    match inner:
        case {"type": "text", "text": str(text)}:
            return Media("file", media_type="text/plain", text=text, name=title)
        case {"type": "image", "source": dict() as source}:
            found = _media_fields(source) or {}
            return Media("image", **found) if found and all(map(_is_text, found.values())) else None
        case _:
            return None


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _with_block(part: Any, block: Fields) -> Any:
    extras = {name: value for name, value in block.items() if name != "cache_control"}
    return replace(part, cache=block.get("cache_control"), extras=extras)


def _search_result(block: Fields) -> Part:
    texts = [piece["text"] for piece in _objects(block.get("content")) if _is_text(piece.get("text"))]
    if not any(map(str.strip, texts)):
        return Opaque(NAME, block)
    head = [block[name] for name in ("title", "source") if _is_text(block.get(name))]
    lines = ["\n".join(head), *texts] if head else texts
    return cast(Text, _with_block(Text("\n\n".join(lines)), block))


def _objects(value: Json) -> list[Fields]:
    return [inner for inner in value if isinstance(inner, dict)] if isinstance(value, list) else []


def _media_fields(source: Fields) -> dict[str, Any] | None:
    match source:
        case {"type": "base64", "data": data, "media_type": media_type}:
            return {"data": data, "media_type": media_type}
        case {"type": "url", "url": url}:
            return {"url": url}
        case {"type": "file", "file_id": file_id}:
            return {"file_id": file_id}
        case {"type": "text", "data": text}:
            return {"text": text}
        case _:
            return None


def _flat_content(source: Fields) -> str | None:
    content = source.get("content")
    if isinstance(content, str):
        return content
    if source.get("type") != "content" or not isinstance(content, list):
        return None
    texts = [piece.get("text") for piece in _objects(content)]
    return "\n\n".join(text for text in texts if isinstance(text, str)) or None


def _tool_use(block: Fields) -> Part:
    return ToolCall(
        id=block.get("id") or "",
        name=block["name"],
        arguments=json.encode(block.get("input") or {}).decode(),
        cache=block.get("cache_control"),
        extras=extras_of(block),
    )


def _tool_result(block: Fields) -> Part:
    content = block.get("content")
    parts: tuple[Any, ...] = ()
    if isinstance(content, str):
        parts = (Text(content),) if content else ()
    elif content:
        parts = tuple([part for inner in content for part in _result_parts(inner)])
    return ToolResult(
        call_id=block["tool_use_id"],
        parts=parts,
        is_error=bool(block.get("is_error")),
        cache=block.get("cache_control"),
        extras=extras_of(block),
    )


def _result_parts(block: Fields) -> tuple[Part, ...]:
    if block["type"] == "document":
        return parts_of(block)
    part = part_of(block)
    return (part if isinstance(part, Text | Media | Opaque) else Opaque(NAME, block),)


def _thinking(block: Fields) -> Part:
    owner, signature = sealed_signatures.unseal(block.get("signature") or "")
    return Reasoning(block.get("thinking") or "", signature or None, origin=owner, extras=extras_of(block))


def _redacted(block: Fields) -> Part:
    owner, signature = sealed_signatures.unseal(block["data"])
    return Reasoning(signature=signature, redacted=True, origin=owner, extras=extras_of(block))


_BLOCK_DECODERS: dict[str, Callable[[Fields], Part]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
}


def legal_id(value: str) -> str:
    """Return the id if the API accepts it (`^[a-zA-Z0-9_-]{1,64}$`), else a stable one derived from it."""
    if _LEGAL.fullmatch(value):
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    stem = _ILLEGAL.sub("_", value)[: ID_LIMIT - len(digest) - 1] or "toolu"
    return f"{stem}_{digest}"


class CallIds:
    """Valid, unique ids for the calls of one conversation; a repeated id gets a number.

    Anthropic's API rejects a repeated `tool_use` id; some chat upstreams number the calls of every turn anew.
    """

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """The number that was tried last, by id: a search for a free one goes on from there."""

    def fresh(self, value: str) -> str:
        """Return the id for one more call whose original id is `value`."""
        legal = legal_id(value)
        unique, number = legal, self._numbers.get(legal, 1)
        while unique in self._numbers:
            number += 1
            unique = legal_id(f"{legal}_{number}")
        self._numbers[legal] = number
        self._numbers.setdefault(unique, 1)
        return unique
