"""Decodes, encodes and relays whole messages answers."""

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
from routecodex.protocols.messages.decode_stream import (
    UsageCounter,
    note_calls,
    read_usage_loosely,
    usage_object,
)
from routecodex.protocols.messages.encode_messages import input_of
from routecodex.protocols.messages.encode_stream import (
    BlockEncoder,
    Fields,
    citation_of,
    message_head,
    relayed_stop_reason,
    stop_fields,
)
from routecodex.protocols.messages.schema import WirePart, WireUsage
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json
from routecodex.wire.json import ABSENT, decode_raw, is_present

_TEXT_FIELDS = {"text": "text", "thinking": "thinking", "redacted_thinking": "data", "tool_use": "name"}
"""Blocks that every protocol has a part for, each with its text field."""


class _SignedBlock(Struct):
    """The fields of a block that the relay reads."""

    type: str = ""
    signature: str | None = None
    data: str | None = None
    text: Raw = ABSENT
    caller: Any = None
    tool_use_id: Any = None

    @property
    def is_empty(self) -> bool:
        """Whether it is without text and call; thinking alone is not an answer."""
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


def decode_response(body: bytes) -> Sequence[Event]:
    """Decode an answer into the events of an equal stream."""
    answer = _read(body, provider="")
    parts = tuple(_answer_part(raw) for raw in answer.content)
    counter = UsageCounter()
    counter.add(answer.usage)
    details = decode_raw(answer.stop_details)
    response = Response(
        id=answer.id or "",
        model=answer.model or "",
        parts=parts,
        finish=_finish_of(answer, _signed_blocks(answer)),
        usage=counter.usage(),
        extras={"stop_details": details} if details is not None else None,
    )
    return tuple(unfold(response))


def _read(body: bytes, *, provider: str) -> _Answer:
    answer = json.try_read(body, _answer) or _read_loosely(body)
    if answer is not None:
        return answer
    failure = json.try_read(body, _failure)
    if failure is not None and is_present(failure.error):
        raise errors.typed_error(decode_raw(failure.error), provider=provider)
    raise errors.unparsable()


def _read_loosely(body: bytes) -> _Answer | None:
    """Read an answer whose usage has counts that are not whole numbers; an answer must not fail by them."""
    try:
        fields = json.answer_fields(body)
    except ValueError:
        return None
    usage = fields.pop("usage", ABSENT)
    answer = json.try_read(json.encode(fields), _answer)
    if answer is not None:
        answer.usage = read_usage_loosely(json.decode_answer(usage))
    return answer


def _signed_blocks(answer: _Answer) -> list[_SignedBlock]:
    return [json.try_read(bytes(raw), _signed) or _SignedBlock() for raw in answer.content]


def _finish_of(answer: _Answer, blocks: Sequence[_SignedBlock]) -> Finish:
    callers: set[str] = set()
    for block in blocks:
        if block.type not in ("text", "thinking"):
            fields = {"type": block.type, "caller": block.caller, "tool_use_id": block.tool_use_id}
            note_calls(callers, fields)
    # The input of a call is an object here, so no call can be cut off.
    return finish.infer(NAME, answer.stop_reason, has_calls=bool(callers), sequence=answer.stop_sequence)


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
    """Replace a null text by an empty one, as in a stream; raise TypeError for any other type."""
    name = _TEXT_FIELDS[block["type"]]
    if name in block and block[name] is None:
        block[name] = ""
    if not isinstance(block.get(name, ""), str):
        raise TypeError(name)


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """Encode the answer for a messages client."""
    encoder = BlockEncoder(reply)
    content = [block for part in response.parts for block in _blocks(part, encoder)]
    usage = response.usage or estimated_usage(reply.input_tokens, response.written)
    message = message_head(reply, model=response.model, usage=usage)
    message["content"] = content
    message.update(stop_fields(reply, response.finish, extras=response.extras))
    return json.encode(message)


def _blocks(part: AnswerPart, encoder: BlockEncoder) -> list[Fields]:
    match part:
        case Text() | Refusal():
            return _text(part)
        case ToolCall():
            block = encoder.call(part)
            carrier = encoder.carrier(block["id"], part.signature)
            block["input"] = input_of(part)
            return [block] if carrier is None else [carrier, block]
        case Reasoning():
            reasoning = encoder.reasoning(part)
            return [reasoning] if reasoning is not None else []
        case Opaque():
            return [part.value] if part.protocol == NAME else []


def _text(part: Text | Refusal) -> list[Fields]:
    annotations = part.annotations if isinstance(part, Text) else ()
    encoded = (citation_of(annotation, part.text) for annotation in annotations)
    citations = [citation for citation in encoded if citation is not None]
    if not part.text and not citations:
        return []
    block: Fields = {"type": "text", "text": part.text}
    if citations:
        block["citations"] = citations
    return [block]


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """Return the provider's answer, with a wrong stop reason corrected and missing usage estimated."""
    answer = _read(body, provider=reply.provider)
    blocks = _signed_blocks(answer)
    finished = _finish_of(answer, blocks)
    reason = relayed_stop_reason(reply, finished)
    counter = UsageCounter()
    counter.add(answer.usage)
    outcome = AnswerOutcome(
        model=answer.model or "",
        response_id=answer.id or "",
        finish=finished,
        sent_finish=reason,
        usage=counter.usage(),
        signatures=[signature for block in blocks if (signature := block.signature or block.data)],
        empty=all(block.is_empty for block in blocks),
    )
    changes: dict[str, Any] = {}
    if reason != answer.stop_reason:
        changes = {"stop_reason": reason, "stop_sequence": None}
    if outcome.usage is None:
        outcome.usage = estimated_usage(reply.input_tokens, len(body))
        changes["usage"] = usage_object(outcome.usage)
    if not changes:
        return body, outcome
    fields = json.answer_fields(body)
    fields.update({name: Raw(json.encode(value)) for name, value in changes.items()})
    return json.encode(fields), outcome
