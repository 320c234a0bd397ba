"""Parts of an answer that only its provider's protocol has, for clients of another one."""

from __future__ import annotations

from msgspec.structs import replace

from routecodex.canon.events import AnswerPart, PartStarted
from routecodex.canon.parts import Media, Opaque, Text
from routecodex.canon.response import Response
from routecodex.protocols.codec import Codec
from routecodex.protocols.notices import Notices


def replace_foreign_part(event: PartStarted, client: Codec) -> PartStarted:
    """The event with a part that this client's protocol has."""
    part = _replaced(event.part, client)
    return event if part is event.part else PartStarted(event.index, part)


def replace_foreign_parts(response: Response, client: Codec) -> tuple[Response, tuple[str, ...]]:
    """The answer in parts that this client's protocol has, and what is lost of it."""
    if not any(_is_foreign(part, client) for part in response.parts):
        return response, ()
    parts = tuple(_replaced(part, client) for part in response.parts)
    notices = Notices()
    for before, after in zip(response.parts, parts, strict=True):
        if isinstance(before, Opaque) and _is_lost(before, after, client):
            notices.dropped(_name(before), f"answers of {client.name} have no place for it")
    return replace(response, parts=parts), notices.lines()


def _is_foreign(part: AnswerPart, client: Codec) -> bool:
    return isinstance(part, Opaque) and part.protocol != client.name


def _replaced(part: AnswerPart, client: Codec) -> AnswerPart:
    if not isinstance(part, Opaque) or part.protocol == client.name or part.instead is None:
        return part
    if isinstance(part.instead, Text):
        return part.instead
    return client.show(part.instead) or Text(_omitted(part.instead))


def _is_lost(before: Opaque, after: AnswerPart, client: Codec) -> bool:
    return _is_foreign(after, client) or (isinstance(after, Text) and isinstance(before.instead, Media))


def _omitted(media: Media) -> str:
    size = f", {(len(media.data) * 3 // 4 + 1023) // 1024} KB" if media.data else ""
    return f"[{media.kind} omitted: {media.url or media.media_type or 'of no known type'}{size}]"


def _name(part: Opaque) -> str:
    """What the part's own protocol calls it."""
    if not isinstance(part.value, dict):
        return "part"
    kind = part.value.get("type")
    named = (name for name, value in part.value.items() if isinstance(value, dict))
    return kind if isinstance(kind, str) else next(named, "part")
