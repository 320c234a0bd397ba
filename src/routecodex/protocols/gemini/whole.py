from __future__ import annotations

from collections.abc import Sequence

from routecodex.canon.events import Event, Failed
from routecodex.canon.parts import Json, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.gemini.decode_stream import (
    ChunkDecoder,
    StreamDecoder,
    encode_logprobs,
    encode_usage,
    read_answer,
)
from routecodex.protocols.gemini.encode_stream import PartEncoder
from routecodex.protocols.gemini.relay import OutcomeReader, is_silent
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json


def encode_total(tokens: int) -> bytes:
    """The answer to a countTokens request."""
    return json.encode({"totalTokens": tokens})


def decode_total(body: bytes) -> int | None:
    """The count a provider gave, or None when its answer holds none."""
    try:
        value = json.decode(body)
    except ValueError:
        return None
    total = value.get("totalTokens") if isinstance(value, dict) else None
    return total if isinstance(total, int) else None


def _object(body: bytes) -> list[Event]:
    chunk = read_answer(body)
    answering = ChunkDecoder()
    return answering.take(chunk, body) + answering.finish()


def _array(body: bytes) -> list[Event]:
    decoder = StreamDecoder()
    return [*decoder.feed(body), *decoder.close()]


def decode_response(body: bytes) -> Sequence[Event]:
    """The events that a whole answer tells; raises what is wrong with it.

    It may be a stream that came as one JSON array: a provider that does not know `alt=sse` answers so.
    """
    events = _array(body) if body.lstrip()[:1] == b"[" and b"{" in body else _object(body)
    if isinstance(events[-1], Failed):
        raise events[-1].error
    return events


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """A whole answer."""
    speech = PartEncoder(reply)
    parts = [wire for part in response.parts if (wire := speech.part(part)) is not None]
    cited = tuple(
        annotation for part in response.parts if isinstance(part, Text) for annotation in part.annotations
    )
    candidate: dict[str, Json] = {"content": {"parts": parts or [{"text": ""}], "role": "model"}}
    candidate.update(speech.ending(response.finish, response.extras, cited=cited))
    if response.logprobs:
        candidate["logprobsResult"] = encode_logprobs(response.logprobs)
    written = sum(len(part.text) for part in response.parts if isinstance(part, Text | Reasoning | Refusal))
    written += sum(len(part.arguments) for part in response.parts if isinstance(part, ToolCall))
    usage = response.usage or estimated_usage(reply.input_tokens, written)
    return json.encode({**speech.answer(candidate), "usageMetadata": encode_usage(usage)})


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """A whole answer as it came, its finish put right if it denied its calls."""
    watch = OutcomeReader()
    answer = read_answer(body)
    watch.note(answer)
    watch.conclude(reply)
    parts = answer.candidate.parts if answer.candidate else ()
    watch.outcome.empty = all(part.thought or is_silent(part) for part in parts)
    return (watch.corrected(body) if watch.lied else body), watch.outcome
