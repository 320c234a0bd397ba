"""Canned answers as real providers send them, in all four protocols, streamed (`Sse`) or not (`Json`).

text, tool_call, tool_calls, thinking, refusal, length, counted    complete answers
say                                                                any mix of pieces (see said.py)
error, stream_error, cut_off                                       answers that go wrong
smart                                                              a script: a model in a tool loop
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.kit.answers import chat, gemini, messages, responses
from tests.kit.answers.said import Call, Counts, No, Piece, Said, Thought, Words
from tests.kit.answers.smart import smart_with, wants_stream
from tests.kit.steps import CutOff, Json, Sse
from tests.kit.upstream import Request

__all__ = [
    "PROTOCOLS",
    "Call",
    "Counts",
    "No",
    "Piece",
    "Said",
    "Thought",
    "Words",
    "counted",
    "cut_off",
    "error",
    "length",
    "put",
    "refusal",
    "say",
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


def put(protocol: str, said: Said, stream: bool) -> Json | Sse:
    """What was said, on the protocol's wire."""
    wire = _WIRES[protocol]
    return Sse(wire.stream(said)) if stream else Json(200, wire.whole(said))


def say(protocol: str, *pieces: Piece, stream: bool, **more: Any) -> Json | Sse:
    """Any pieces; `more` are fields of Said (end, counts, model, include_usage)."""
    return put(protocol, Said(pieces, **more), stream)


def text(protocol: str, words: str, stream: bool, **more: Any) -> Json | Sse:
    """Plain text."""
    return say(protocol, Words(words), stream=stream, **more)


def tool_call(
    protocol: str,
    name: str,
    arguments: dict[str, Any] | str,
    call_id: str | None = None,
    stream: bool = False,
    **more: Any,
) -> Json | Sse:
    """One tool call; without an id the provider makes one (Gemini: none)."""
    return say(protocol, Call(name, arguments, call_id), stream=stream, **more)


def tool_calls(protocol: str, *calls: Call, stream: bool, words: str = "", **more: Any) -> Json | Sse:
    """Several tool calls, after some words if there are any."""
    before = (Words(words),) if words else ()
    return say(protocol, *before, *calls, stream=stream, **more)


def thinking(protocol: str, thought: str, words: str, stream: bool, **more: Any) -> Json | Sse:
    """A signed thought, then text."""
    counts = more.pop("counts", Counts(output=40, reasoning=31))
    return say(protocol, Thought(thought), Words(words), stream=stream, counts=counts, **more)


def refusal(protocol: str, words: str, stream: bool, **more: Any) -> Json | Sse:
    """A refusal, in the way each provider refuses."""
    return say(protocol, No(words), stream=stream, end="refusal", **more)


def length(protocol: str, words: str, stream: bool, **more: Any) -> Json | Sse:
    """Text cut off by the token limit."""
    return say(protocol, Words(words), stream=stream, end="length", **more)


def counted(protocol: str, words: str, stream: bool, **more: Any) -> Json | Sse:
    """Text whose usage has cached and reasoning tokens."""
    counts = Counts(input=1200, output=60, cached=1000, cache_write=100, reasoning=32)
    return say(protocol, Words(words), stream=stream, counts=counts, **more)


def error(protocol: str, status: int, message: str = "it went wrong", **headers: str) -> Json:
    """An HTTP error in the provider's envelope; `retry_after="2"` becomes the header."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Json(status, _WIRES[protocol].error(status, message), named)


def _first_half(protocol: str, words: str) -> list[bytes]:
    frames: list[bytes] = _WIRES[protocol].stream(Said((Words(words),)))
    return frames[: max(1, len(frames) // 2)]


def stream_error(protocol: str, words: str, status: int = 529, message: str = "Overloaded") -> Sse:
    """A stream that begins well and then reports an error."""
    last: bytes = _WIRES[protocol].error_frame(status, message)
    return Sse([*_first_half(protocol, words), last])


def cut_off(protocol: str, words: str) -> Sse:
    """A stream whose connection breaks in the middle."""
    return Sse(_first_half(protocol, words), end=CutOff())


def smart(protocol: str) -> Callable[[Request], Json | Sse]:
    """A script for `Upstream`: calls an offered tool for a user's text, quotes the results after it."""
    return smart_with(protocol, put)
