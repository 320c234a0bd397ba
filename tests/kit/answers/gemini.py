"""Encode answers as Google's Gemini API sends them: frames end with CRLF, a call is never split."""

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
    dump,
    provider_id,
    split_text,
)

_SAFETY = [{"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "probability": "HIGH", "blocked": True}]


def _usage(counts: Counts) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "promptTokenCount": counts.input,
        "candidatesTokenCount": counts.output - counts.reasoning,
        "totalTokenCount": counts.input + counts.output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": counts.input}],
    }
    if counts.cached:
        usage["cachedContentTokenCount"] = counts.cached
        usage["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": counts.cached}]
    if counts.reasoning:
        usage["thoughtsTokenCount"] = counts.reasoning
    return usage


def _part(piece: Piece) -> dict[str, Any]:
    match piece:
        case ReasoningPiece():
            return {"text": piece.text, "thought": True}
        case Call():
            call: dict[str, Any] = {"name": piece.name, "args": piece.object}
            return {"functionCall": call if piece.id is None else call | {"id": piece.id}}
        case _:
            return {"text": piece.text}


def _parts(answer: ModelAnswer) -> list[dict[str, Any]]:
    """Return all parts; the signature of reasoning is on the part that follows it."""
    parts: list[dict[str, Any]] = []
    signature = None
    for piece in answer.pieces:
        if isinstance(piece, RefusalPiece):
            continue
        part = _part(piece)
        if signature is not None and not isinstance(piece, ReasoningPiece):
            part["thoughtSignature"] = signature
            signature = None
        if isinstance(piece, ReasoningPiece):
            signature = piece.signature
        parts.append(part)
    return parts


def _answer(answer: ModelAnswer, candidate: dict[str, Any]) -> dict[str, Any]:
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(answer.counts),
        "modelVersion": answer.model or "gemini-3-pro",
        "responseId": provider_id("r", answer.number, size=22),
    }


def _end(answer: ModelAnswer) -> dict[str, Any]:
    if answer.end == "refusal":
        return {"finishReason": "SAFETY", "safetyRatings": _SAFETY}
    return {"finishReason": "MAX_TOKENS" if answer.end == "length" else "STOP"}


def whole(answer: ModelAnswer) -> dict[str, Any]:
    """Return the answer as one body."""
    parts = _parts(answer)
    content = {"content": {"parts": parts, "role": "model"}} if parts else {}
    return _answer(answer, {**content, **_end(answer), "index": 0})


def stream(answer: ModelAnswer) -> list[bytes]:
    """Return the answer as SSE frames."""
    parts = [delta for part in _parts(answer) for delta in _split(part)]
    candidates = [{"content": {"parts": [part], "role": "model"}, "index": 0} for part in parts]
    if not candidates:
        candidates = [{"index": 0}]
    candidates[-1] |= _end(answer)
    return [b"data: " + dump(_answer(answer, candidate)) + b"\r\n\r\n" for candidate in candidates]


def _split(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text")
    if not text:
        yield part
        return
    first, *rest = split_text(text, 12)
    yield part | {"text": first}
    yield from ({key: value for key, value in part.items() if key == "thought"} | {"text": t} for t in rest)


_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error(status: int, message: str) -> dict[str, Any]:
    """Return an error body."""
    name = _STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def error_frame(status: int, message: str) -> bytes:
    """Return an error in the middle of a stream."""
    return b"data: " + dump(error(status, message)) + b"\r\n\r\n"
