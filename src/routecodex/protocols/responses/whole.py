"""Non-streaming answers; they share the mapping of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routecodex.canon import finish
from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Event, Usage
from routecodex.canon.parts import Media, Opaque
from routecodex.canon.response import Response, unfold
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.responses.decode_stream import StreamDecoder
from routecodex.protocols.responses.encode_items import missing_fields, usage_object
from routecodex.protocols.responses.encode_stream import StreamEncoder
from routecodex.protocols.responses.errors import answer_error
from routecodex.protocols.responses.schema import CALLS, NAME, decode_usage, finish_reason, objects
from routecodex.protocols.translation import estimated_usage
from routecodex.wire import json

_WRITTEN = ("text", "refusal", "arguments", "input")
"""Fields of items and parts that the model writes."""


def decode_response(body: bytes) -> Sequence[Event]:
    """Return the events of an upstream's answer; raise the error inside it, if any."""
    return StreamDecoder().whole(_answer(body))


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """Return the client's response object: the one that ends the stream of this answer."""
    encoder = StreamEncoder(reply)
    for event in unfold(response):
        encoder.encode(event)
    assert encoder.final_body is not None
    return encoder.final_body


def image_part(media: Media) -> Opaque | None:
    """Return an image as the item that OpenAI's image generation tool returns."""
    if media.kind != "image" or media.data is None:
        return None
    return Opaque(NAME, {"type": "image_generation_call", "status": "completed", "result": media.data})


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """Return the same-protocol answer, with missing fields and estimated usage, and its outcome."""
    answer = _answer(body)
    outcome = read_outcome(answer, body)
    changes = missing_fields(answer, reply)
    if outcome.usage is None:
        outcome.usage = estimate_usage(answer, reply)
        changes["usage"] = usage_object(outcome.usage)
    if changes or "headers" in answer:
        fields = {**json.answer_fields(body), **changes}
        # OpenAI's servers may repeat HTTP headers here, and Codex acts on some of them.
        fields.pop("headers", None)
        body = outcome.body = json.encode(fields)
    return body, outcome


def estimate_usage(response: dict[str, Any], reply: ReplyContext) -> Usage:
    """Return the usage of a response object from an upstream that reports none."""
    return estimated_usage(reply.input_tokens, _written(response.get("output")))


def _written(output: Any) -> int:
    """Return the number of characters that the model wrote."""
    if isinstance(output, dict):
        texts = sum(len(output[name]) for name in _WRITTEN if isinstance(output.get(name), str))
        return texts + sum(map(_written, (output.get("content"), output.get("summary"))))
    return sum(map(_written, output)) if isinstance(output, list) else 0


def read_outcome(response: dict[str, Any], body: bytes, kind: str = "") -> AnswerOutcome:
    """Return the outcome of a final response object."""
    reason = finish_reason(response, kind)
    items = objects(response.get("output"))
    calls = [item for item in items if str(item.get("type")) in CALLS]
    signatures = [item.get("encrypted_content") for item in items if item.get("type") == "reasoning"]
    return AnswerOutcome(
        model=str(response.get("model") or ""),
        response_id=str(response.get("id") or ""),
        finish=finish.infer(
            NAME, reason, has_calls=bool(calls), calls_whole=not calls or _is_whole(calls[-1])
        ),
        sent_finish=reason,
        usage=decode_usage(response.get("usage"), response.get("service_tier")),
        signatures=[signature for signature in signatures if isinstance(signature, str)],
        body=body,
        empty=all(map(is_empty_item, items)),
    )


def is_empty_item(item: dict[str, Any]) -> bool:
    """Return whether an item has neither text nor a call; reasoning alone does not count as an answer."""
    if item.get("type") == "message":
        return not any(part.get("text") or part.get("refusal") for part in objects(item.get("content")))
    return item.get("type") == "reasoning"


def _is_whole(call: dict[str, Any]) -> bool:
    arguments = call.get("arguments")
    return not isinstance(arguments, str) or not arguments.strip() or json.is_whole(arguments)


def _answer(body: bytes) -> dict[str, Any]:
    """Return a final response object; raise its error if it holds one, UpstreamFailed if it is not final."""
    try:
        value = json.decode(body)
    except ValueError as exc:
        raise UpstreamFailed("the upstream's answer is not JSON", code="upstream_unparsable") from exc
    if isinstance(value, dict):
        if value.get("error") or value.get("status") in ("failed", "cancelled"):
            raise answer_error(value.get("error"))
        if isinstance(value.get("output"), list) and value.get("status") not in ("in_progress", "queued"):
            return value
    raise UpstreamFailed("the upstream's answer is not a finished response", code="upstream_unparsable")
