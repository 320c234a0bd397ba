"""Answers as Google's Gemini API sends them: frames end with CRLF, calls come whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.said import Call, Counts, No, Piece, Said, Thought, dump, made_id, morsels

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
        case Thought():
            return {"text": piece.text, "thought": True}
        case Call():
            call: dict[str, Any] = {"name": piece.name, "args": piece.object}
            return {"functionCall": call if piece.id is None else call | {"id": piece.id}}
        case _:
            return {"text": piece.text}


def _parts(said: Said) -> list[dict[str, Any]]:
    """All parts; a thought's signature sits on the part that follows the thought."""
    parts: list[dict[str, Any]] = []
    signature = None
    for piece in said.pieces:
        if isinstance(piece, No):
            continue
        part = _part(piece)
        if signature is not None and not isinstance(piece, Thought):
            part["thoughtSignature"] = signature
            signature = None
        if isinstance(piece, Thought):
            signature = piece.signature
        parts.append(part)
    return parts


def _answer(said: Said, candidate: dict[str, Any]) -> dict[str, Any]:
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(said.counts),
        "modelVersion": said.model or "gemini-3-pro",
        "responseId": made_id("r", said.number, size=22),
    }


def _end(said: Said) -> dict[str, Any]:
    if said.end == "refusal":
        return {"finishReason": "SAFETY", "safetyRatings": _SAFETY}
    return {"finishReason": "MAX_TOKENS" if said.end == "length" else "STOP"}


def whole(said: Said) -> dict[str, Any]:
    """The answer as one body."""
    parts = _parts(said)
    content = {"content": {"parts": parts, "role": "model"}} if parts else {}
    return _answer(said, {**content, **_end(said), "index": 0})


def stream(said: Said) -> list[bytes]:
    """The answer as frames."""
    parts = [morsel for part in _parts(said) for morsel in _split(part)]
    candidates = [{"content": {"parts": [part], "role": "model"}, "index": 0} for part in parts]
    if not candidates:
        candidates = [{"index": 0}]
    candidates[-1] |= _end(said)
    return [b"data: " + dump(_answer(said, candidate)) + b"\r\n\r\n" for candidate in candidates]


def _split(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("text")
    if not text:
        yield part
        return
    first, *rest = morsels(text, 12)
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
    """An error body."""
    word = _STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": word}}


def error_frame(status: int, message: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + dump(error(status, message)) + b"\r\n\r\n"
