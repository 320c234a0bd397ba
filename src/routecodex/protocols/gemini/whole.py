"""Non-streaming answers, and totals of countTokens; they share the mapping of the stream."""

from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.events import Event, Failed
from routecodex.canon.parts import Json, Media, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.gemini.content import encode_media
from routecodex.protocols.gemini.decode_stream import (
    ChunkDecoder,
    StreamDecoder,
    is_empty_part,
    read_answer,
)
from routecodex.protocols.gemini.encode_stream import PartEncoder, encode_logprobs, encode_usage
from routecodex.protocols.gemini.relay import OutcomeReader, add_usage, written_chars
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json


def decode_response(body: bytes) -> Sequence[Event]:
    """Return the events of a whole answer; raise the error in it, if any.

    The body may be a stream as one JSON array: providers that ignore `alt=sse` send that.
    """
    events = _array_events(body) if body.lstrip()[:1] == b"[" and b"{" in body else _object_events(body)
    if isinstance(events[-1], Failed):
        raise events[-1].error
    return events


def _array_events(body: bytes) -> list[Event]:
    decoder = StreamDecoder()
    return [*decoder.feed(body), *decoder.close()]


def _object_events(body: bytes) -> list[Event]:
    decoder = ChunkDecoder()
    return decoder.decode(read_answer(body), body) + decoder.finish()


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """Return a whole answer."""
    encoder = PartEncoder(reply)
    parts = [wire for part in response.parts if (wire := encoder.part(part)) is not None]
    citations = tuple(
        annotation for part in response.parts if isinstance(part, Text) for annotation in part.annotations
    )
    candidate: dict[str, Json] = {"content": {"parts": parts or [{"text": ""}], "role": "model"}}
    candidate.update(encoder.finish_fields(response.finish, response.extras, citations=citations))
    if response.logprobs:
        candidate["logprobsResult"] = encode_logprobs(response.logprobs)
    chars = sum(len(part.text) for part in response.parts if isinstance(part, Text | Reasoning | Refusal))
    chars += sum(len(part.arguments) for part in response.parts if isinstance(part, ToolCall))
    usage = response.usage or estimated_usage(reply.input_tokens, chars)
    return json.encode({**encoder.answer(candidate), "usageMetadata": encode_usage(usage)})


def image_part(media: Media) -> Opaque | None:
    """Return an image as a part of an answer."""
    if media.kind != "image" or media.data is None:
        return None
    return Opaque("gemini", encode_media(media, same_protocol=False))


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """Return a whole answer, with a wrong finish reason corrected and missing usage estimated."""
    reader = OutcomeReader()
    answer = read_answer(body)
    reader.note(answer)
    reader.conclude()
    parts = answer.candidate.parts if answer.candidate else ()
    reader.outcome.empty = all(part.thought or is_empty_part(part) for part in parts)
    body = reader.corrected(body) if reader.needs_correction else body
    if reader.outcome.usage is None:
        reader.outcome.usage = estimated_usage(reply.input_tokens, written_chars(answer))
        body = add_usage(body, reader.outcome.usage)
    return body, reader.outcome


def encode_total(tokens: int) -> bytes:
    """Return the answer to a countTokens request."""
    return json.encode({"totalTokens": tokens})


def decode_total(body: bytes) -> int | None:
    """Return the count in a provider's answer, or None if it has none."""
    try:
        value = json.decode(body)
    except ValueError:
        return None
    total = value.get("totalTokens") if isinstance(value, dict) else None
    return total if isinstance(total, int) else None
