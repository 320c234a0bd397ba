"""Encode answers as OpenAI's chat completions API sends them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.model_answer import (
    CREATED,
    Call,
    Counts,
    ModelAnswer,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
    frame,
    provider_id,
    split_text,
)


def _head(answer: ModelAnswer, kind: str) -> dict[str, Any]:
    return {
        "id": provider_id("chatcmpl-", answer.number, size=29),
        "object": kind,
        "created": CREATED,
        "model": answer.model or "gpt-5.2-2026-09-01",
    }


_TAIL = {"service_tier": "default", "system_fingerprint": "fp_4c2851f862"}


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": counts.input,
        "completion_tokens": counts.output,
        "total_tokens": counts.input + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _reason(answer: ModelAnswer) -> str:
    if answer.end == "length":
        return "length"
    return "tool_calls" if answer.calls else "stop"


def _body(call: Call, text: str) -> dict[str, Any]:
    if call.custom:
        return {"type": "custom", "custom": {"name": call.name, "input": text}}
    return {"type": "function", "function": {"name": call.name, "arguments": text}}


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """Return the answer as one body."""
    text = "".join(piece.text for piece in answer.pieces if isinstance(piece, TextPiece))
    reasoning = "".join(piece.text for piece in answer.pieces if isinstance(piece, ReasoningPiece))
    refusal = "".join(piece.text for piece in answer.pieces if isinstance(piece, RefusalPiece))
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": refusal or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": answer.call_id(call, "call_"), **_body(call, call.text)} for call in answer.calls
        ]
    message["annotations"] = []
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(answer)}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer.counts), **_TAIL}


def stream(answer: ModelAnswer) -> list[bytes]:
    """Return the answer as SSE frames."""
    head = _head(answer, "chat.completion.chunk") | _TAIL
    # OpenAI API reference, stream_options: with include_usage every chunk has the field, null until the last.
    no_usage: dict[str, Any] = {"usage": None} if answer.include_usage else {}
    frames = [frame({**head, "choices": [choice], **no_usage}) for choice in _choices(answer)]
    if answer.include_usage:
        frames.append(frame({**head, "choices": [], "usage": _usage(answer.counts)}))
    return [*frames, b"data: [DONE]\n\n"]


def _choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _choices(answer: ModelAnswer) -> Iterator[dict[str, Any]]:
    content = None if answer.calls and answer.pieces[0] is answer.calls[0] else ""
    yield _choice({"role": "assistant", "content": content, "refusal": None})
    calls = 0
    for piece in answer.pieces:
        if isinstance(piece, Call):
            yield from _call(answer, piece, calls)
            calls += 1
            continue
        key = {TextPiece: "content", ReasoningPiece: "reasoning_content", RefusalPiece: "refusal"}[
            type(piece)
        ]
        yield from (_choice({key: text}) for text in split_text(piece.text))
    yield _choice({}, _reason(answer))


def _call(answer: ModelAnswer, call: Call, index: int) -> Iterator[dict[str, Any]]:
    first = {"index": index, "id": answer.call_id(call, "call_"), **_body(call, "")}
    yield _choice({"tool_calls": [first]})
    kind, name = ("custom", "input") if call.custom else ("function", "arguments")
    for text in split_text(call.text):
        yield _choice({"tool_calls": [{"index": index, kind: {name: text}}]})


def error(status: int, message: str) -> dict[str, Any]:
    """Return an error body."""
    kinds = {401: "authentication_error", 429: "rate_limit_error", 400: "invalid_request_error"}
    codes = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": codes.get(status)}}


def error_frame(status: int, message: str) -> bytes:
    """Return an error in the middle of a stream."""
    return frame(error(status, message))
