"""Decodes, encodes and relays whole chat completions."""

from __future__ import annotations

from typing import Any, Final

from routecodex.canon import finish
from routecodex.canon.events import Event, Failed
from routecodex.canon.parts import Media, Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.response import Response
from routecodex.protocols.chat.chunks import has_error, lacks_answer, read_chunk, settle_finish, usage_of
from routecodex.protocols.chat.decode_stream import ChunkDecoder, unparsable
from routecodex.protocols.chat.encode_messages import join_texts
from routecodex.protocols.chat.encode_stream import annotations_of, answer_id, usage_object
from routecodex.protocols.chat.errors import typed_error
from routecodex.protocols.chat.schema import StreamChunk, WireChoice, WireDelta
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.text_batches import StreamItem, unbatched
from routecodex.protocols.tool_mapping import ToolNames, unwrap_input
from routecodex.protocols.translation import estimated_usage, used_tier
from routecodex.protocols.upstream_errors import stream_broken
from routecodex.wire import json
from routecodex.wire.json import decode_raw

_EMPTY_DELTA: Final = WireDelta()


def decode_response(body: bytes) -> list[Event]:
    """Decode a completion into the events of an equal stream."""
    out: list[StreamItem] = []
    answer = _read(body)
    for choice in answer.choices or ():
        # Perplexity sends a delta beside the message, too.
        choice.delta = choice.delta if choice.message is None else None
    decoder = ChunkDecoder()
    decoder.chunk(answer, out)
    if not any(isinstance(event, Failed) for event in out):
        decoder.finish(out)
    return unbatched(out)


def _read(body: bytes, provider: str = "") -> StreamChunk:
    answer = read_chunk(body)
    if answer is None:
        raise unparsable()
    if has_error(answer):
        raise typed_error(200, decode_raw(answer.error), provider=provider)
    if not answer.choices:
        raise unparsable()
    return answer


def encode_response(response: Response, reply: ReplyContext) -> bytes:
    """Encode the answer as one chat completion."""
    reason = finish.encode("chat", response.finish)
    choice = {
        "index": 0,
        "message": _message(response, reply),
        "logprobs": {"content": list(response.logprobs), "refusal": None} if response.logprobs else None,
        "finish_reason": reason,
    }
    body: dict[str, Any] = {
        "id": answer_id(reply),
        "object": "chat.completion",
        "created": reply.created,
        "model": response.model or reply.model,
        "choices": [choice],
        "usage": usage_object(response.usage or estimated_usage(reply.input_tokens, response.written)),
    }
    tier = used_tier(response.extras)
    if tier is not None:
        body["service_tier"] = tier
    return json.encode(body)


def _message(response: Response, reply: ReplyContext) -> dict[str, Any]:
    texts = [part for part in response.parts if isinstance(part, Text)]
    refusals = [part.text for part in response.parts if isinstance(part, Refusal)]
    reasoning = [part.text for part in response.parts if isinstance(part, Reasoning) and part.text]
    names = ToolNames(reply.request.tools if reply.request is not None else ())
    empty = "{}" if response.finish.reason == "tool_calls" else ""
    calls = [_call(part, names, empty=empty) for part in response.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": join_texts(texts) if texts else None,
        "refusal": "".join(refusals) if refusals else None,
    }
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    images = [part.value for part in response.parts if isinstance(part, Opaque) and part.protocol == "chat"]
    if images:
        message["images"] = images
    annotations = annotations_of(texts)
    if annotations:
        message["annotations"] = annotations
    return message


def _call(call: ToolCall, names: ToolNames, *, empty: str) -> dict[str, Any]:
    name, _, custom = names.resolve(call.name)
    if custom or call.custom:
        text = call.arguments if call.custom else unwrap_input(call.arguments)
        return {"id": call.id, "type": "custom", "custom": {"name": name, "input": text}}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": name, "arguments": call.arguments or empty},
    }


def relay_response(body: bytes, reply: ReplyContext) -> tuple[bytes, AnswerOutcome]:
    """Return the upstream's answer, with finish reasons corrected that are wrong or not one of chat's."""
    answer = _read(body, reply.provider)
    usage = answer.counts
    outcome = AnswerOutcome(model=answer.model or "", response_id=answer.id or "")
    outcome.usage = usage_of(usage, answer.service_tier) if usage is not None else None
    corrections: dict[int, str] = {}
    for at, choice in enumerate(answer.choices or []):
        message, reason = choice.message or choice.delta or _EMPTY_DELTA, choice.finish_reason
        end, corrected = settle_finish(
            reason, calls=bool(message.tool_calls), legacy=message.legacy_call is not None
        )
        if end.reason == "error":
            raise stream_broken(reason)
        outcome.finish, outcome.sent_finish = end, corrected
        outcome.empty = at == 0 and lacks_answer(message)
        if corrected != reason or choice.message is None:
            corrections[at] = corrected
    if outcome.usage is None:
        outcome.usage = estimated_usage(reply.input_tokens, sum(map(_written_chars, answer.choices or ())))
    return (_corrected(body, corrections) if corrections else body), outcome


def _written_chars(choice: WireChoice) -> int:
    """Return the number of characters that the model wrote in a choice."""
    message = choice.message or choice.delta or _EMPTY_DELTA
    texts = (message.content, message.reasoning_content or message.reasoning, message.refusal)
    calls = sum(len(call.text or "") for call in message.tool_calls or ())
    return calls + sum(len(text) for text in texts if text)


def _corrected(body: bytes, corrections: dict[int, str]) -> bytes:
    """Return the completion with these finish reasons, and its message where a server calls it `delta`."""
    try:
        value = json.decode(body)
    except ValueError as exc:
        raise unparsable() from exc
    # What is not an object is not counted as a choice.
    choices = [choice for choice in value["choices"] if isinstance(choice, dict)]
    for at, reason in corrections.items():
        choice = choices[at]
        choice["finish_reason"] = reason
        if choice.get("message") is None and choice.get("delta") is not None:
            choice["message"] = choice.pop("delta")
    return json.encode(value)


def image_part(media: Media) -> Opaque | None:
    """Return an image in OpenRouter's field `images`; OpenAI's chat API has no place for one."""
    if media.kind != "image":
        return None
    url = media.url if media.data is None else f"data:{media.media_type or 'image/png'};base64,{media.data}"
    return Opaque("chat", {"type": "image_url", "image_url": {"url": url}}) if url else None
