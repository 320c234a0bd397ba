"""Encode answers as Anthropic's messages API sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.model_answer import (
    Call,
    Counts,
    ModelAnswer,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
    frame,
    provider_id,
    split_text,
)


def _input_usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.input - counts.cached - counts.cache_write,
        "cache_creation_input_tokens": counts.cache_write,
        "cache_read_input_tokens": counts.cached,
    }


def _usage(counts: Counts, output: int) -> dict[str, Any]:
    written = {"ephemeral_5m_input_tokens": counts.cache_write, "ephemeral_1h_input_tokens": 0}
    return {
        **_input_usage(counts),
        "cache_creation": written,
        "output_tokens": output,
        "service_tier": "standard",
        "inference_geo": "not_available",
    }


def _details(counts: Counts) -> dict[str, Any]:
    return {"output_tokens_details": {"thinking_tokens": counts.reasoning}} if counts.reasoning else {}


def _message(answer: ModelAnswer, content: list[Any], *, reason: str | None, output: int) -> dict[str, Any]:
    return {
        "model": answer.model or "claude-sonnet-5-20260901",
        "id": provider_id("msg_01", answer.number, size=22),
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": _usage(answer.counts, output),
    }


def _reason(answer: ModelAnswer) -> str:
    if answer.end == "refusal":
        return "refusal"
    if answer.end == "length":
        return "max_tokens"
    return "tool_use" if answer.calls else "end_turn"


def _block(answer: ModelAnswer, piece: Piece) -> dict[str, Any]:
    match piece:
        case ReasoningPiece():
            return {"type": "thinking", "thinking": piece.text, "signature": piece.signature}
        case Call():
            call_id = answer.call_id(piece, "toolu_01")
            return {"type": "tool_use", "id": call_id, "name": piece.name, "input": piece.object}
        case _:
            return {"type": "text", "text": piece.text}


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """Return the answer as one body."""
    # Anthropic refuses by its stop reason, without a text block.
    content = [_block(answer, piece) for piece in answer.pieces if not isinstance(piece, RefusalPiece)]
    message = _message(answer, content, reason=_reason(answer), output=answer.counts.output)
    message["usage"] |= _details(answer.counts)
    return message | {"stop_details": _stop_details(answer)}


def _stop_details(answer: ModelAnswer) -> dict[str, Any] | None:
    if answer.end != "refusal":
        return None
    explanation = "".join(piece.text for piece in answer.pieces if isinstance(piece, RefusalPiece))
    return {"type": "refusal", "category": "cyber", "explanation": explanation or None}


def stream(answer: ModelAnswer) -> list[bytes]:
    """Return the answer as SSE frames."""
    return [frame(event, event=event["type"]) for event in _events(answer)]


def _events(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _message(answer, [], reason=None, output=1)}
    pieces = [piece for piece in answer.pieces if not isinstance(piece, RefusalPiece)]
    for index, piece in enumerate(pieces):
        yield from _block_events(answer, piece, index)
        if index == 0:
            yield {"type": "ping"}
    usage = {**_input_usage(answer.counts), "output_tokens": answer.counts.output, **_details(answer.counts)}
    delta = {"stop_reason": _reason(answer), "stop_sequence": None, "stop_details": _stop_details(answer)}
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(answer: ModelAnswer, piece: Piece, index: int) -> Iterator[dict[str, Any]]:
    block = _block(answer, piece) | _EMPTY[type(piece)]
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in _deltas(piece):
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


_EMPTY: dict[type, dict[str, Any]] = {
    TextPiece: {"text": ""},
    ReasoningPiece: {"thinking": "", "signature": ""},
    Call: {"input": {}},
}


def _deltas(piece: Piece) -> Iterator[dict[str, Any]]:
    match piece:
        case ReasoningPiece():
            yield from ({"type": "thinking_delta", "thinking": text} for text in split_text(piece.text))
            yield {"type": "signature_delta", "signature": piece.signature}
        case Call():
            yield {"type": "input_json_delta", "partial_json": ""}
            if piece.object:
                text = Call(piece.name, piece.object).text if piece.custom else piece.text
                yield from ({"type": "input_json_delta", "partial_json": part} for part in split_text(text))
        case _:
            yield from ({"type": "text_delta", "text": text} for text in split_text(piece.text))


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def error(status: int, message: str) -> dict[str, Any]:
    """Return an error body."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": provider_id("req_011C", status, size=16),
    }


def error_frame(status: int, message: str) -> bytes:
    """Return an error in the middle of a stream."""
    return frame(error(status, message), event="error")
