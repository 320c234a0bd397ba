"""Answers as Anthropic's messages send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.said import Call, Counts, No, Piece, Said, Thought, Words, frame, made_id, morsels


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


def _message(said: Said, content: list[Any], *, reason: str | None, output: int) -> dict[str, Any]:
    return {
        "model": said.model or "claude-sonnet-5-20260901",
        "id": made_id("msg_01", said.number, size=22),
        "type": "message",
        "role": "assistant",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "stop_details": None,
        "usage": _usage(said.counts, output),
    }


def _reason(said: Said) -> str:
    if said.end == "refusal":
        return "refusal"
    if said.end == "length":
        return "max_tokens"
    return "tool_use" if said.calls else "end_turn"


def _block(said: Said, piece: Piece) -> dict[str, Any]:
    match piece:
        case Thought():
            return {"type": "thinking", "thinking": piece.text, "signature": piece.signature}
        case Call():
            call_id = said.call_id(piece, "toolu_01")
            return {"type": "tool_use", "id": call_id, "name": piece.name, "input": piece.object}
        case _:
            return {"type": "text", "text": piece.text}


def whole(said: Said) -> dict[str, Any]:
    """The answer as one body."""
    # Anthropic refuses by its stop reason, not by words.
    content = [_block(said, piece) for piece in said.pieces if not isinstance(piece, No)]
    message = _message(said, content, reason=_reason(said), output=said.counts.output)
    message["usage"] |= _details(said.counts)
    return message | {"stop_details": _stop_details(said)}


def _stop_details(said: Said) -> dict[str, Any] | None:
    if said.end != "refusal":
        return None
    words = "".join(piece.text for piece in said.pieces if isinstance(piece, No))
    return {"type": "refusal", "category": "cyber", "explanation": words or None}


def stream(said: Said) -> list[bytes]:
    """The answer as frames."""
    return [frame(event, event=event["type"]) for event in _events(said)]


def _events(said: Said) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _message(said, [], reason=None, output=1)}
    pieces = [piece for piece in said.pieces if not isinstance(piece, No)]
    for index, piece in enumerate(pieces):
        yield from _block_events(said, piece, index)
        if index == 0:
            yield {"type": "ping"}
    usage = {**_input_usage(said.counts), "output_tokens": said.counts.output, **_details(said.counts)}
    delta = {"stop_reason": _reason(said), "stop_sequence": None, "stop_details": _stop_details(said)}
    yield {"type": "message_delta", "delta": delta, "usage": usage}
    yield {"type": "message_stop"}


def _block_events(said: Said, piece: Piece, index: int) -> Iterator[dict[str, Any]]:
    block = _block(said, piece) | _EMPTY[type(piece)]
    yield {"type": "content_block_start", "index": index, "content_block": block}
    for delta in _deltas(piece):
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


_EMPTY: dict[type, dict[str, Any]] = {
    Words: {"text": ""},
    Thought: {"thinking": "", "signature": ""},
    Call: {"input": {}},
}


def _deltas(piece: Piece) -> Iterator[dict[str, Any]]:
    match piece:
        case Thought():
            yield from ({"type": "thinking_delta", "thinking": text} for text in morsels(piece.text))
            yield {"type": "signature_delta", "signature": piece.signature}
        case Call():
            yield {"type": "input_json_delta", "partial_json": ""}
            if piece.object:
                text = Call(piece.name, piece.object).text if piece.custom else piece.text
                yield from ({"type": "input_json_delta", "partial_json": part} for part in morsels(text))
        case _:
            yield from ({"type": "text_delta", "text": text} for text in morsels(piece.text))


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
    """An error body."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": made_id("req_011C", status, size=16),
    }


def error_frame(status: int, message: str) -> bytes:
    """An error in the middle of a stream."""
    return frame(error(status, message), event="error")
