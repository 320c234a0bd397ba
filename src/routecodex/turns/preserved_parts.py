"""Keeps parts that chat cannot express for the next request.

What of an answer the chat shape has no place for: kept with the message, put back in the next request.

Signed thoughts, signatures of calls and texts, items that only one protocol has, and the order of them all.
They travel on the message as one opaque text in the field `wire_parts`, tagged with the endpoint that made
them: nobody else is sent them, and a conversation that was saved has them when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from routecodex.canon.events import AnswerPart
from routecodex.canon.parts import Json, Opaque, Part, Reasoning, Text, ToolCall
from routecodex.canon.request import Message, Request

FIELD = "wire_parts"

_TAKES_UNSIGNED = frozenset({"messages"})
"""Protocols whose providers take back thoughts that nobody signed."""


class AnswerSource(Struct, frozen=True):
    """Who answers: its address, its protocol, and how the codecs are told that a signature is its own.

    `origin` is the maker's name on thoughts and calls. A text has no field for it: `seal` writes it into the
    signature.
    """

    address: str
    protocol: str
    origin: str
    seal: Callable[[str], str]

    @property
    def maker(self) -> str:
        return f"{self.protocol} {self.address}"


class PartPosition(Struct, frozen=True, omit_defaults=True):
    """One part in its place: a thought or an item as it is, a text by its length, a call by its id."""

    kind: Literal["thought", "text", "call", "item"]
    id: str | None = None
    text: str = ""
    length: int = 0
    signature: str | None = None
    redacted: bool = False
    namespace: str | None = None
    value: Json = None


class Kept(Struct, frozen=True):
    """The places of an answer, and the endpoint that gave it."""

    maker: str
    places: list[PartPosition]


_kept = Decoder(Kept)
_encoder = Encoder()


def keep(parts: Sequence[AnswerPart], endpoint: AnswerSource) -> str | None:
    """The value of the field for an answer; None when its chat shape says it all."""
    places = [place for part in parts if (place := _place(part, endpoint.protocol)) is not None]
    if not any(map(_matters, places)):
        return None
    # A line each: an answer that goes on in a second response has two, merged as texts are.
    return _encoder.encode(Kept(endpoint.maker, places)).decode() + "\n"


def _place(part: AnswerPart, protocol: str) -> PartPosition | None:
    match part:
        case Text():
            return PartPosition("text", length=len(part.text), signature=part.signature)
        case ToolCall():
            return PartPosition("call", id=part.id, signature=part.signature, namespace=part.namespace)
        case Reasoning() if part.signature is not None or protocol in _TAKES_UNSIGNED:
            return PartPosition(
                "thought", id=part.id, text=part.text, signature=part.signature, redacted=part.redacted
            )
        case Opaque():
            return PartPosition("item", value=part.value)
    return None


def _matters(place: PartPosition) -> bool:
    return place.kind in ("thought", "item") or place.signature is not None or place.namespace is not None


def put_back(request: Request, sent: Sequence[Mapping[str, Any]], endpoint: AnswerSource) -> Request:
    """The request for this endpoint, with what it is owed in each of the messages as they were sent."""
    # Leading system messages have become the request's system text.
    later = sent[len(sent) - len(request.messages) :]
    messages = tuple(
        message if (places := _kept_of(raw, endpoint)) is None else _restored(message, places, endpoint)
        for message, raw in zip(request.messages, later, strict=True)
    )
    return replace(request, messages=messages)


def _kept_of(message: Mapping[str, Any], endpoint: AnswerSource) -> list[PartPosition] | None:
    value = message.get(FIELD)
    if message.get("role") != "assistant" or not isinstance(value, str):
        return None
    try:
        lines = _kept.decode_lines(value)
    except DecodeError:
        return None
    if any(kept.maker != endpoint.maker for kept in lines):
        return None
    return [place for kept in lines for place in kept.places]


def _restored(message: Message, places: list[PartPosition], endpoint: AnswerSource) -> Message:
    """The message in its old order; what was changed since in texts and calls stays as it is now."""
    calls = {part.id: part for part in message.parts if isinstance(part, ToolCall)}
    others: list[Part] = [part for part in message.parts if not isinstance(part, ToolCall | Reasoning)]
    texts = _Texts(others, [place for place in places if place.kind == "text"], endpoint.seal)
    parts: list[Part] = []
    for place in places:
        match place.kind:
            case "thought":
                parts.append(_thought(place, endpoint.origin))
            case "text":
                parts += texts.next(place)
            case "item":
                parts.append(Opaque(endpoint.protocol, place.value))
            case "call":
                call = calls.pop(place.id or "", None)
                parts += [] if call is None else [_signed(call, place, endpoint.origin)]
    return replace(message, parts=(*parts, *texts.rest(), *calls.values()))


def _thought(place: PartPosition, origin: str) -> Reasoning:
    return Reasoning(place.text, place.signature, redacted=place.redacted, id=place.id, origin=origin)


def _signed(call: ToolCall, place: PartPosition, origin: str) -> ToolCall:
    return replace(
        call, signature=place.signature, origin=origin, namespace=place.namespace or call.namespace
    )


class _Texts:
    """The texts of a message given out by their old lengths; all at once when they have changed."""

    def __init__(self, now: list[Part], places: list[PartPosition], seal: Callable[[str], str]) -> None:
        only = now[0] if len(now) == 1 else None
        self._whole = only.text if isinstance(only, Text) else ""
        unchanged = not now or isinstance(only, Text)
        self._same = unchanged and len(self._whole) == sum(place.length for place in places)
        self._left = now
        self._at = 0
        self._seal = seal

    def next(self, place: PartPosition) -> list[Part]:
        if not self._same:
            return self.rest()
        self._left = []
        begun, self._at = self._at, self._at + place.length
        signature = None if place.signature is None else self._seal(place.signature)
        return [Text(self._whole[begun : self._at], signature=signature)]

    def rest(self) -> list[Part]:
        """What was not given out yet."""
        rest, self._left = self._left, []
        return rest
