"""Keeps the parts of an answer that chat cannot express, and restores them in the next request.

These are signed reasoning, signatures of calls and texts, items of one protocol only, and the order of all
parts. The message carries them as an opaque text in the field `wire_parts`, tagged with the endpoint that
sent them: they are returned to that endpoint only, also after the conversation was saved and loaded.
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
"""Protocols whose providers accept unsigned reasoning in a request."""


class AnswerSource(Struct, frozen=True):
    """The endpoint of an answer: address, protocol, and the marks that tie a signature to it.

    `origin` is the provider name in reasoning and calls. A text has no such field: `seal` writes the name
    into its signature.
    """

    address: str
    protocol: str
    origin: str
    seal: Callable[[str], str]

    @property
    def tag(self) -> str:
        return f"{self.protocol} {self.address}"


class PartPosition(Struct, frozen=True, omit_defaults=True):
    """One part of an answer: reasoning and items in full, a text by its length, a call by its id."""

    kind: Literal["thought", "text", "call", "item"]
    id: str | None = None
    text: str = ""
    length: int = 0
    signature: str | None = None
    redacted: bool = False
    namespace: str | None = None
    value: Json = None


class PreservedAnswer(Struct, frozen=True):
    """The parts of an answer, and the tag of its endpoint. The field names are stored in conversations."""

    maker: str
    places: list[PartPosition]


_decoder = Decoder(PreservedAnswer)
_encoder = Encoder()


def preserve(parts: Sequence[AnswerPart], endpoint: AnswerSource) -> str | None:
    """Return the field's value for an answer; None when chat expresses all of it."""
    positions = [found for part in parts if (found := _position(part, endpoint.protocol)) is not None]
    if not any(map(_exceeds_chat, positions)):
        return None
    # One line per response: a continued answer has several, because merging concatenates strings.
    return _encoder.encode(PreservedAnswer(endpoint.tag, positions)).decode() + "\n"


def _position(part: AnswerPart, protocol: str) -> PartPosition | None:
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


def _exceeds_chat(position: PartPosition) -> bool:
    return (
        position.kind in ("thought", "item")
        or position.signature is not None
        or position.namespace is not None
    )


def restore(request: Request, sent: Sequence[Mapping[str, Any]], endpoint: AnswerSource) -> Request:
    """Return the request with the preserved parts of this endpoint; `sent` are its chat-shaped messages."""
    # Leading system messages have become the request's system text.
    later = sent[len(sent) - len(request.messages) :]
    messages = tuple(
        message
        if (positions := _preserved(raw, endpoint)) is None
        else _restored(message, positions, endpoint)
        for message, raw in zip(request.messages, later, strict=True)
    )
    return replace(request, messages=messages)


def _preserved(message: Mapping[str, Any], endpoint: AnswerSource) -> list[PartPosition] | None:
    value = message.get(FIELD)
    if message.get("role") != "assistant" or not isinstance(value, str):
        return None
    try:
        answers = _decoder.decode_lines(value)
    except DecodeError:
        return None
    if any(answer.maker != endpoint.tag for answer in answers):
        return None
    return [position for answer in answers for position in answer.places]


def _restored(message: Message, positions: list[PartPosition], endpoint: AnswerSource) -> Message:
    """Return the message in its original order; later changes of texts and calls stay."""
    calls = {part.id: part for part in message.parts if isinstance(part, ToolCall)}
    others: list[Part] = [part for part in message.parts if not isinstance(part, ToolCall | Reasoning)]
    texts = _TextSplitter(others, [found for found in positions if found.kind == "text"], endpoint.seal)
    parts: list[Part] = []
    for position in positions:
        match position.kind:
            case "thought":
                parts.append(_reasoning(position, endpoint.origin))
            case "text":
                parts += texts.next(position)
            case "item":
                parts.append(Opaque(endpoint.protocol, position.value))
            case "call":
                call = calls.pop(position.id or "", None)
                parts += [] if call is None else [_signed(call, position, endpoint.origin)]
    return replace(message, parts=(*parts, *texts.rest(), *calls.values()))


def _reasoning(position: PartPosition, origin: str) -> Reasoning:
    return Reasoning(
        position.text, position.signature, redacted=position.redacted, id=position.id, origin=origin
    )


def _signed(call: ToolCall, position: PartPosition, origin: str) -> ToolCall:
    return replace(
        call, signature=position.signature, origin=origin, namespace=position.namespace or call.namespace
    )


class _TextSplitter:
    """Splits the text of a message at its original lengths; a changed text stays in one piece."""

    def __init__(self, parts: list[Part], positions: list[PartPosition], seal: Callable[[str], str]) -> None:
        only = parts[0] if len(parts) == 1 else None
        self._whole = only.text if isinstance(only, Text) else ""
        is_text = not parts or isinstance(only, Text)
        self._unchanged = is_text and len(self._whole) == sum(found.length for found in positions)
        self._rest = parts
        self._offset = 0
        self._seal = seal

    def next(self, position: PartPosition) -> list[Part]:
        if not self._unchanged:
            return self.rest()
        self._rest = []
        start, self._offset = self._offset, self._offset + position.length
        signature = None if position.signature is None else self._seal(position.signature)
        return [Text(self._whole[start : self._offset], signature=signature)]

    def rest(self) -> list[Part]:
        """Return the parts that `next` has not returned yet."""
        rest, self._rest = self._rest, []
        return rest
