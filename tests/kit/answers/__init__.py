"""Canned answers as real providers send them, in all four protocols, streamed (`Sse`) or not (`Json`).

text, tool_call, tool_calls, thinking, refusal, length, counted    complete answers
compose                                                            any mix of pieces (see model_answer.py)
error, stream_error, cut_off                                       answers that fail
smart                                                              a script: a model in a tool loop
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.kit.answers import chat, gemini, messages, responses
from tests.kit.answers.model_answer import (
    Call,
    Counts,
    ModelAnswer,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from tests.kit.answers.smart import smart_with, wants_stream
from tests.kit.steps import CutOff, Json, Sse
from tests.kit.upstream import Request

__all__ = [
    "PROTOCOLS",
    "Call",
    "Counts",
    "ModelAnswer",
    "Piece",
    "ReasoningPiece",
    "RefusalPiece",
    "TextPiece",
    "compose",
    "counted",
    "cut_off",
    "encode",
    "error",
    "length",
    "refusal",
    "smart",
    "stream_error",
    "text",
    "thinking",
    "tool_call",
    "tool_calls",
    "wants_stream",
]

PROTOCOLS = ("chat", "responses", "messages", "gemini")
_WIRES: dict[str, ModuleType] = {
    "chat": chat,
    "responses": responses,
    "messages": messages,
    "gemini": gemini,
}


def encode(protocol: str, answer: ModelAnswer, stream: bool) -> Json | Sse:
    """Encode the answer for the protocol, streamed or whole."""
    wire = _WIRES[protocol]
    return Sse(wire.stream(answer)) if stream else Json(200, wire.whole(answer))


def compose(protocol: str, *pieces: Piece, stream: bool, **more: Any) -> Json | Sse:
    """Answer with any pieces; `more` are fields of ModelAnswer (end, counts, model, include_usage)."""
    return encode(protocol, ModelAnswer(pieces, **more), stream)


def text(protocol: str, text: str, stream: bool, **more: Any) -> Json | Sse:
    """Answer with plain text."""
    return compose(protocol, TextPiece(text), stream=stream, **more)


def tool_call(
    protocol: str,
    name: str,
    arguments: dict[str, Any] | str,
    call_id: str | None = None,
    stream: bool = False,
    **more: Any,
) -> Json | Sse:
    """Answer with one tool call; without an id the provider generates one (Gemini: none)."""
    return compose(protocol, Call(name, arguments, call_id), stream=stream, **more)


def tool_calls(protocol: str, *calls: Call, stream: bool, text: str = "", **more: Any) -> Json | Sse:
    """Answer with several tool calls, after `text` if there is any."""
    before = (TextPiece(text),) if text else ()
    return compose(protocol, *before, *calls, stream=stream, **more)


def thinking(protocol: str, reasoning: str, text: str, stream: bool, **more: Any) -> Json | Sse:
    """Answer with signed reasoning, then text."""
    counts = more.pop("counts", Counts(output=40, reasoning=31))
    return compose(protocol, ReasoningPiece(reasoning), TextPiece(text), stream=stream, counts=counts, **more)


def refusal(protocol: str, text: str, stream: bool, **more: Any) -> Json | Sse:
    """Refuse, in the form of each provider."""
    return compose(protocol, RefusalPiece(text), stream=stream, end="refusal", **more)


def length(protocol: str, text: str, stream: bool, **more: Any) -> Json | Sse:
    """Answer with text cut off by the token limit."""
    return compose(protocol, TextPiece(text), stream=stream, end="length", **more)


def counted(protocol: str, text: str, stream: bool, **more: Any) -> Json | Sse:
    """Answer with text whose usage has cached and reasoning tokens."""
    counts = Counts(input=1200, output=60, cached=1000, cache_write=100, reasoning=32)
    return compose(protocol, TextPiece(text), stream=stream, counts=counts, **more)


def error(protocol: str, status: int, message: str = "it went wrong", **headers: str) -> Json:
    """Answer with an HTTP error in the provider's envelope; `retry_after="2"` becomes a header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Json(status, _WIRES[protocol].error(status, message), named)


def _first_half(protocol: str, text: str) -> list[bytes]:
    frames: list[bytes] = _WIRES[protocol].stream(ModelAnswer((TextPiece(text),)))
    return frames[: max(1, len(frames) // 2)]


def stream_error(protocol: str, text: str, status: int = 529, message: str = "Overloaded") -> Sse:
    """Stream half of the text, then report an error."""
    last: bytes = _WIRES[protocol].error_frame(status, message)
    return Sse([*_first_half(protocol, text), last])


def cut_off(protocol: str, text: str) -> Sse:
    """Stream half of the text, then break the connection."""
    return Sse(_first_half(protocol, text), end=CutOff())


def smart(protocol: str) -> Callable[[Request], Json | Sse]:
    """Return a script for `Upstream`: it calls an offered tool, then quotes the results of the call."""
    return smart_with(protocol, encode)
