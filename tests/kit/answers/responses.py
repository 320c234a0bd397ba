"""Encode answers as OpenAI's responses API sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.model_answer import (
    CREATED,
    Call,
    Counts,
    ModelAnswer,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    frame,
    provider_id,
    split_text,
)


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.input,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.cache_write},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.input + counts.output,
    }


def _response(answer: ModelAnswer, status: str, output: list[Any]) -> dict[str, Any]:
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": provider_id("resp_", answer.number, size=48),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "completed_at": CREATED + 2 if status == "completed" else None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": details,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": answer.model or "gpt-5.2-2026-09-01",
        "output": output,
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": "medium", "summary": "detailed"},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else _usage(answer.counts),
        "user": None,
        "metadata": {},
    }


def _item_id(answer: ModelAnswer, piece: Piece, prefix: str) -> str:
    return provider_id(prefix, answer.number * 100 + answer.index_of(piece), size=48)


def _part(piece: Piece, text: str) -> dict[str, Any]:
    if isinstance(piece, RefusalPiece):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _item(answer: ModelAnswer, piece: Piece, *, done: bool) -> dict[str, Any]:
    """Return the output item for a piece, empty when it is added and whole when it is done."""
    status = _status(answer, piece) if done else "in_progress"
    match piece:
        case ReasoningPiece():
            summary = [{"type": "summary_text", "text": piece.text}] if done and piece.text else []
            return {
                "id": _item_id(answer, piece, "rs_"),
                "type": "reasoning",
                "encrypted_content": piece.signature if done else "",
                "summary": summary,
            }
        case Call(custom=True):
            return {
                "id": _item_id(answer, piece, "ctc_"),
                "type": "custom_tool_call",
                "status": status,
                "call_id": answer.call_id(piece, "call_"),
                "input": piece.text if done else "",
                "name": piece.name,
            }
        case Call():
            return {
                "id": _item_id(answer, piece, "fc_"),
                "type": "function_call",
                "status": status,
                "arguments": piece.text if done else "",
                "call_id": answer.call_id(piece, "call_"),
                "name": piece.name,
            }
        case _:
            return {
                "id": _item_id(answer, piece, "msg_"),
                "type": "message",
                "status": status,
                "content": [_part(piece, piece.text)] if done else [],
                "role": "assistant",
            }


def _status(answer: ModelAnswer, piece: Piece) -> str:
    cut = answer.end == "length" and piece is answer.pieces[-1]
    return "incomplete" if cut else "completed"


def _end(answer: ModelAnswer) -> str:
    return "incomplete" if answer.end == "length" else "completed"


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """Return the answer as one body."""
    return _response(answer, _end(answer), [_item(answer, piece, done=True) for piece in answer.pieces])


def stream(answer: ModelAnswer) -> list[bytes]:
    """Return the answer as SSE frames."""
    numbered = (event | {"sequence_number": number} for number, event in enumerate(_events(answer)))
    return [frame(event, event=event["type"]) for event in numbered]


def _events(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(answer, "in_progress", [])}
    for index, piece in enumerate(answer.pieces):
        yield from _item_events(answer, piece, index)
    yield {"type": f"response.{_end(answer)}", "response": whole(answer)}


def _item_events(answer: ModelAnswer, piece: Piece, index: int) -> Iterator[dict[str, Any]]:
    item = _item(answer, piece, done=False)
    yield {"type": "response.output_item.added", "output_index": index, "item": item}
    position = {"item_id": item["id"], "output_index": index}
    content_events = _CONTENT_EVENTS.get(type(piece), _text_events)
    yield from (event | position for event in content_events(piece))
    done = _item(answer, piece, done=True)
    yield {"type": "response.output_item.done", "output_index": index, "item": done}


def _text_events(piece: Piece) -> Iterator[dict[str, Any]]:
    at = {"content_index": 0}
    refused = isinstance(piece, RefusalPiece)
    stem, name = ("response.refusal", "refusal") if refused else ("response.output_text", "text")
    more: dict[str, Any] = at if refused else {**at, "logprobs": []}
    yield {"type": "response.content_part.added", **at, "part": _part(piece, "")}
    for text in split_text(piece.text):
        yield {"type": f"{stem}.delta", **more, "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}.done", **more, name: piece.text}
    yield {"type": "response.content_part.done", **at, "part": _part(piece, piece.text)}


def _reasoning_events(piece: Piece) -> Iterator[dict[str, Any]]:
    if not piece.text:
        return
    at, stem = {"summary_index": 0}, "response.reasoning_summary"
    yield {"type": f"{stem}_part.added", **at, "part": {"type": "summary_text", "text": ""}}
    for text in split_text(piece.text):
        yield {"type": f"{stem}_text.delta", **at, "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}_text.done", **at, "text": piece.text}
    yield {"type": f"{stem}_part.done", **at, "part": {"type": "summary_text", "text": piece.text}}


def _call_events(piece: Piece) -> Iterator[dict[str, Any]]:
    custom = isinstance(piece, Call) and piece.custom
    stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
    for text in split_text(piece.text):
        yield {"type": f"{stem}.delta", "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}.done", "input" if custom else "arguments": piece.text}


_CONTENT_EVENTS = {ReasoningPiece: _reasoning_events, Call: _call_events}


def error(status: int, message: str) -> dict[str, Any]:
    """Return an error body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_frame(status: int, message: str) -> bytes:
    """Return an error in the middle of a stream."""
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 4}
    return frame(event, event="error")
