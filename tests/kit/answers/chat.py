"""Answers as OpenAI's chat completions send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.said import CREATED, Call, Counts, No, Said, Thought, Words, frame, made_id, morsels


def _head(said: Said, kind: str) -> dict[str, Any]:
    return {
        "id": made_id("chatcmpl-", said.number, size=29),
        "object": kind,
        "created": CREATED,
        "model": said.model or "gpt-5.2-2026-09-01",
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


def _reason(said: Said) -> str:
    if said.end == "length":
        return "length"
    return "tool_calls" if said.calls else "stop"


def _body(call: Call, text: str) -> dict[str, Any]:
    if call.custom:
        return {"type": "custom", "custom": {"name": call.name, "input": text}}
    return {"type": "function", "function": {"name": call.name, "arguments": text}}


def whole(said: Said) -> dict[str, Any]:
    """The answer as one body."""
    text = "".join(piece.text for piece in said.pieces if isinstance(piece, Words))
    thought = "".join(piece.text for piece in said.pieces if isinstance(piece, Thought))
    refusal = "".join(piece.text for piece in said.pieces if isinstance(piece, No))
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": refusal or None}
    if thought:
        message["reasoning_content"] = thought
    if said.calls:
        message["tool_calls"] = [
            {"id": said.call_id(call, "call_"), **_body(call, call.text)} for call in said.calls
        ]
    message["annotations"] = []
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _reason(said)}
    return {**_head(said, "chat.completion"), "choices": [choice], "usage": _usage(said.counts), **_TAIL}


def stream(said: Said) -> list[bytes]:
    """The answer as frames."""
    head = _head(said, "chat.completion.chunk") | _TAIL
    # With include_usage every chunk has the field, empty until the last.
    nothing: dict[str, Any] = {"usage": None} if said.include_usage else {}
    frames = [frame({**head, "choices": [choice], **nothing}) for choice in _choices(said)]
    if said.include_usage:
        frames.append(frame({**head, "choices": [], "usage": _usage(said.counts)}))
    return [*frames, b"data: [DONE]\n\n"]


def _choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _choices(said: Said) -> Iterator[dict[str, Any]]:
    content = None if said.calls and said.pieces[0] is said.calls[0] else ""
    yield _choice({"role": "assistant", "content": content, "refusal": None})
    calls = 0
    for piece in said.pieces:
        if isinstance(piece, Call):
            yield from _call(said, piece, calls)
            calls += 1
            continue
        key = {Words: "content", Thought: "reasoning_content", No: "refusal"}[type(piece)]
        yield from (_choice({key: morsel}) for morsel in morsels(piece.text))
    yield _choice({}, _reason(said))


def _call(said: Said, call: Call, index: int) -> Iterator[dict[str, Any]]:
    first = {"index": index, "id": said.call_id(call, "call_"), **_body(call, "")}
    yield _choice({"tool_calls": [first]})
    kind, name = ("custom", "input") if call.custom else ("function", "arguments")
    for morsel in morsels(call.text):
        yield _choice({"tool_calls": [{"index": index, kind: {name: morsel}}]})


def error(status: int, message: str) -> dict[str, Any]:
    """An error body."""
    kinds = {401: "authentication_error", 429: "rate_limit_error", 400: "invalid_request_error"}
    codes = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": codes.get(status)}}


def error_frame(status: int, message: str) -> bytes:
    """An error in the middle of a stream."""
    return frame(error(status, message))
