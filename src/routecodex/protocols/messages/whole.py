"""Whole messages answers: read as events, written from a response, or passed on as they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import Decoder

from routecodex.canon import finish
from routecodex.canon.events import AnswerPart, Event
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response, unfold
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.messages import errors
from routecodex.protocols.messages.content import NAME, part_of
from routecodex.protocols.messages.decode_stream import UsageCounter, usage_object
from routecodex.protocols.messages.encode_messages import input_of
from routecodex.protocols.messages.encode_stream import (
    BlockEncoder,
    Fields,
    is_citation,
    message_head,
    relayed_stop_reason,
    stop_fields,
)
from routecodex.protocols.messages.schema import WirePart, WireUsage
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json
from routecodex.wire.json import ABSENT, decode_raw, is_present

_TEXT_FIELDS = {"text": "text", "thinking": "thinking", "redacted_thinking": "data", "tool_use": "name"}
"""The blocks that every protocol has a part for, each with the field of its words."""


class _SignedBlock(Struct):
    """A block of an answer, as far as passing it on needs it."""

    type: str = ""
    signature: str | None = None
    data: str | None = None
    text: Raw = ABSENT

    @property
    def is_silent(self) -> bool:
        """Whether it says and does nothing; thoughts alone are no answer."""
        if self.type == "text":
            return len(self.text) <= len('""')
        return self.type in ("thinking", "redacted_thinking")


class _Answer(Struct):
    content: list[Raw]
    id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: Raw = ABSENT
    usage: WireUsage | None = None


class _Failure(Struct):
    error: Raw


_answer: Decoder[_Answer] = Decoder(_Answer)
_failure: Decoder[_Failure] = Decoder(_Failure)
_signed: Decoder[_SignedBlock] = Decoder(_SignedBlock)
_block: Decoder[WirePart] = Decoder(WirePart)


def _read(body: bytes, *, provider: str) -> _Answer:
    answer = json.try_read(body, _answer)
    if answer is not None:
        return answer
    failure = json.try_read(body, _failure)
    if failure is not None and is_present(failure.error):
        raise errors.from_object(decode_raw(failure.error), provider=provider)
    raise errors.unparsable()


def _finish_of(answer: _Answer, *, has_calls: bool) -> Finish:
    # The input of a whole answer is parsed JSON already: no call in it is cut off.
    return finish.infer(NAME, answer.stop_reason, has_calls=has_calls, sequence=answer.stop_sequence)


def decode_response(body: bytes) -> Sequence[Event]:
    """The events that tell a provider's whole answer."""
    answer = _read(body, provider="")
    parts = tuple(_answer_part(raw) for raw in answer.content)
    counter = UsageCounter()
    counter.add(answer.usage)
    details = decode_raw(answer.stop_details)
    response = Response(
        id=answer.id or "",
        model=answer.model or "",
        parts=parts,
        finish=_finish_of(answer, has_calls=any(isinstance(part, ToolCall) for part in parts)),
        usage=counter.usage(),
        extras={"stop_details": details} if details is not None else None,
    )
    return tuple(unfold(response))


def _answer_part(raw: Raw) -> AnswerPart:
    if json.try_read(bytes(raw), _block) is None:
        raise errors.unparsable("a block of the upstream's answer")
    block = decode_raw(raw)
    if block["type"] not in _TEXT_FIELDS:
        return Opaque(NAME, block)
    try:
        _check_text(block)
        part = part_of(block)
    except (KeyError, TypeError) as exc:
        raise errors.unparsable("a block of the upstream's answer") from exc
    return cast(AnswerPart, part)


def _check_text(block: Fields) -> None:
    """Nothing is made of words that are none, as in a stream; anything else there is no answer."""
    name = _TEXT_FIELDS[block["type"]]
    if name in block and block[name] is None:
        block[name] = ""
    if not isinstance(block.get(name, ""), str):
        raise TypeError(name)


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """The answer as a messages client expects it."""
    speaker = BlockEncoder(reply)
    content = [block for part in response.parts for block in _blocks(part, speaker)]
    written = sum(len(part.text) for part in response.parts if isinstance(part, Text | Reasoning | Refusal))
    written += sum(len(part.arguments) for part in response.parts if isinstance(part, ToolCall))
    usage = response.usage or estimated_usage(reply.input_tokens, written)
    message = message_head(reply, model=response.model, usage=usage)
    message["content"] = content
    message.update(stop_fields(reply, response.finish, extras=response.extras))
    return json.encode(message)


def _blocks(part: AnswerPart, speaker: BlockEncoder) -> list[Fields]:
    match part:
        case Text() | Refusal():
            return _text(part)
        case ToolCall():
            block = speaker.call(part)
            carrier = speaker.carrier(block["id"], part.signature)
            block["input"] = input_of(part)
            return [block] if carrier is None else [carrier, block]
        case Reasoning():
            thought = speaker.thought(part)
            return [thought] if thought is not None else []
        case Opaque():
            return [part.value] if part.protocol == NAME else []


def _text(part: Text | Refusal) -> list[Fields]:
    citations = [a for a in part.annotations if is_citation(a)] if isinstance(part, Text) else []
    if not part.text and not citations:
        return []
    block: Fields = {"type": "text", "text": part.text}
    if citations:
        block["citations"] = citations
    return [block]


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """A provider's answer for a client of the same protocol, with its stop reason put right if it lied."""
    answer = _read(body, provider=reply.provider)
    blocks = [json.try_read(bytes(raw), _signed) or _SignedBlock() for raw in answer.content]
    ending = _finish_of(answer, has_calls=any(block.type == "tool_use" for block in blocks))
    word = relayed_stop_reason(reply, ending)
    counter = UsageCounter()
    counter.add(answer.usage)
    outcome = AnswerOutcome(
        model=answer.model or "",
        response_id=answer.id or "",
        finish=ending,
        sent_finish=word,
        usage=counter.usage(),
        signatures=[mark for block in blocks if (mark := block.signature or block.data)],
        empty=all(block.is_silent for block in blocks),
    )
    changes: dict[str, Any] = {}
    if word != answer.stop_reason:
        changes = {"stop_reason": word, "stop_sequence": None}
    if outcome.usage is None:
        outcome.usage = estimated_usage(reply.input_tokens, len(body))
        changes["usage"] = usage_object(outcome.usage)
    if not changes:
        return body, outcome
    fields = json.read_fields(body)
    fields.update({name: Raw(json.encode(value)) for name, value in changes.items()})
    return json.encode(fields), outcome
