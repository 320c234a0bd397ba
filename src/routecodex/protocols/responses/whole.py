"""Whole answers: the fold of what the stream would have told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Event
from routecodex.canon.parts import Media, Opaque
from routecodex.canon.response import Response, unfold
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.responses.decode_stream import StreamDecoder
from routecodex.protocols.responses.encode_stream import StreamEncoder
from routecodex.protocols.responses.errors import answer_error
from routecodex.protocols.responses.schema import CALLS, NAME, decode_usage, finish_word
from routecodex.wire import json


def decode_response(body: bytes) -> Sequence[Event]:
    """The events of an upstream's answer; an error inside it is raised."""
    return StreamDecoder().whole(_answer(body))


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """The answer as the client's response object: the one its stream would have ended with."""
    encoder = StreamEncoder(reply)
    for event in unfold(response):
        encoder.encode(event)
    assert encoder.final is not None
    return encoder.final


def image_part(media: Media) -> Opaque | None:
    """An image as the item that OpenAI's own image tool leaves behind."""
    if media.kind != "image" or media.data is None:
        return None
    return Opaque(NAME, {"type": "image_generation_call", "status": "completed", "result": media.data})


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """The same-protocol answer as it came, and what it came to."""
    return body, read_outcome(_answer(body), body)


def read_outcome(response: dict[str, Any], body: bytes, kind: str = "") -> AnswerOutcome:
    """What a final response object says."""
    said = finish_word(response, kind)
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    calls = [item for item in items if str(item.get("type")) in CALLS]
    signatures = [item.get("encrypted_content") for item in items if item.get("type") == "reasoning"]
    return AnswerOutcome(
        model=str(response.get("model") or ""),
        response_id=str(response.get("id") or ""),
        finish=finish.infer(NAME, said, has_calls=bool(calls), calls_whole=not calls or _is_whole(calls[-1])),
        sent_finish=said,
        usage=decode_usage(response.get("usage")),
        signatures=[signature for signature in signatures if isinstance(signature, str)],
        body=body,
        empty=all(map(is_empty_item, items)),
    )


def is_empty_item(item: dict[str, Any]) -> bool:
    """Whether an item says and does nothing; thoughts alone are no answer."""
    if item.get("type") == "message":
        content = item.get("content")
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        return not any(part.get("text") or part.get("refusal") for part in parts)
    return item.get("type") == "reasoning"


def _is_whole(call: dict[str, Any]) -> bool:
    arguments = call.get("arguments")
    return not isinstance(arguments, str) or not arguments.strip() or json.is_whole(arguments)


def _answer(body: bytes) -> dict[str, Any]:
    """A final response object; UpstreamFailed when it is none, its own error when it holds one."""
    try:
        value = json.decode(body)
    except ValueError as exc:
        raise UpstreamFailed("the upstream's answer is not JSON", code="upstream_unparsable") from exc
    if isinstance(value, dict):
        if value.get("error") or value.get("status") in ("failed", "cancelled"):
            raise answer_error(value.get("error"))
        if isinstance(value.get("output"), list) and value.get("status") not in ("in_progress", "queued"):
            return value
    raise UpstreamFailed("the upstream's answer is no finished response", code="upstream_unparsable")
