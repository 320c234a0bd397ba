"""Maps, infers and traces finish reasons, for all protocols.

Canonical reasons, and the value of each protocol:

    canonical       chat            messages                    responses                       gemini
    stop            stop            end_turn / stop_sequence    completed                       STOP
    length          length          max_tokens                  incomplete: max_output_tokens   MAX_TOKENS
    tool_calls      tool_calls      tool_use                    completed (with calls)          STOP (calls)
    content_filter  content_filter  refusal, or stop_sequence   incomplete: content_filter      SAFETY, …
    refusal         content_filter  refusal, or stop_sequence   completed (a refusal part), or  SAFETY
                                                                incomplete: content_filter
    pause           stop            pause_turn                  completed                       STOP
    error           stop            stop_sequence               failed                          OTHER

Rules of inference, strongest first: tool calls in the answer win over an ordinary finish, and if they are
complete over any reason of the upstream (a client must not run a call that a token limit or filter cut off);
an error counts as `error`; a missing reason is `stop`.
"""

from __future__ import annotations

import logging
from typing import Literal

from msgspec import Struct

Reason = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error"]

trace_log = logging.getLogger("routecodex.finish")


class Finish(Struct, frozen=True):
    """The reason an answer ended; `sequence` is the stop sequence that was met."""

    reason: Reason
    sequence: str | None = None
    upstream_reason: str | None = None


_DECODED: dict[str, dict[str, Reason]] = {
    "chat": {
        "stop": "stop",
        "length": "length",
        "tool_calls": "tool_calls",
        "function_call": "tool_calls",
        "content_filter": "content_filter",
        # Values of Anthropic, which some providers of both protocols pass on.
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "tool_use": "tool_calls",
        "refusal": "refusal",
        "eos": "stop",  # Together AI
        "model_length": "length",  # Mistral
        "error": "error",  # Mistral, OpenRouter
        "sensitive": "content_filter",  # Zhipu
        "network_error": "error",  # Zhipu
        "insufficient_system_resource": "error",  # DeepSeek
        "abort": "error",  # vLLM, SGLang
    },
    "messages": {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "tool_calls",
        "pause_turn": "pause",
        "compaction": "stop",
        "refusal": "refusal",
    },
    "responses": {
        "completed": "stop",
        "max_output_tokens": "length",
        "max_tokens": "length",
        "content_filter": "content_filter",
        "failed": "error",
        "cancelled": "error",
    },
    "gemini": {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "RECITATION": "content_filter",
        "LANGUAGE": "content_filter",
        "BLOCKLIST": "content_filter",
        "PROHIBITED_CONTENT": "content_filter",
        "SPII": "content_filter",
        "MODEL_ARMOR": "content_filter",  # Vertex AI
        "IMAGE_SAFETY": "content_filter",
        "IMAGE_PROHIBITED_CONTENT": "content_filter",
        "IMAGE_RECITATION": "content_filter",
        "MALFORMED_FUNCTION_CALL": "error",
        "MALFORMED_RESPONSE": "error",
        "MISSING_THOUGHT_SIGNATURE": "error",
        "NO_IMAGE": "error",
        "IMAGE_OTHER": "error",
        "UNEXPECTED_TOOL_CALL": "error",
        "TOO_MANY_TOOL_CALLS": "error",
        "OTHER": "error",
    },
}

_ORDINARY: frozenset[Reason] = frozenset({"stop", "tool_calls", "pause"})
"""Reasons by which a model ends an answer itself."""

_ENCODED: dict[str, dict[Reason, str]] = {
    "chat": {
        "stop": "stop",
        "length": "length",
        "tool_calls": "tool_calls",
        "content_filter": "content_filter",
        "refusal": "content_filter",
        "pause": "stop",
        "error": "stop",
    },
    "messages": {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
        "refusal": "refusal",
        "pause": "pause_turn",
        "error": "stop_sequence",
    },
    "responses": {
        "stop": "completed",
        "length": "max_output_tokens",
        "tool_calls": "completed",
        "content_filter": "content_filter",
        "refusal": "completed",
        "pause": "completed",
        "error": "failed",
    },
    "gemini": {
        "stop": "STOP",
        "length": "MAX_TOKENS",
        "tool_calls": "STOP",
        "content_filter": "SAFETY",
        "refusal": "SAFETY",
        "pause": "STOP",
        "error": "OTHER",
    },
}

_MESSAGES_ONLY = frozenset({"model_context_window_exceeded", "compaction"})
"""Values of messages that say more than the canonical reason: messages clients get them unchanged."""


def infer(
    protocol: str,
    upstream_reason: str | None,
    *,
    has_calls: bool,
    calls_whole: bool = True,
    sequence: str | None = None,
    failed: bool = False,
) -> Finish:
    """Infer the canonical finish of an answer; `upstream_reason` is None if the upstream gave none.

    `calls_whole` is False if the arguments of the last call are not complete JSON.
    """
    reason = _DECODED[protocol].get(upstream_reason, "stop") if upstream_reason is not None else "stop"
    if has_calls and (calls_whole or reason in _ORDINARY):
        return Finish("tool_calls", upstream_reason=upstream_reason)
    if failed:
        return Finish("error", upstream_reason=upstream_reason)
    if reason == "refusal" and has_calls:
        # A refusal in the middle of a call leaves the answer incomplete, unlike a refusal in text.
        reason = "content_filter"
    if reason == "tool_calls":
        # The upstream announced calls but sent none: a client that expects calls would wait for ever.
        reason = "stop"
    return Finish(reason, sequence=sequence, upstream_reason=upstream_reason)


def encode(protocol: str, finish: Finish, *, knows_refusal: bool = True) -> str:
    """Return the protocol's value for the finish; old messages clients do not know `refusal`."""
    if protocol == "messages":
        upstream_reason = finish.upstream_reason
        if (
            upstream_reason is not None
            and upstream_reason in _MESSAGES_ONLY
            and _DECODED[protocol][upstream_reason] == finish.reason
        ):
            return upstream_reason
        if finish.reason == "stop" and finish.sequence is not None:
            return "stop_sequence"
        if finish.reason in ("content_filter", "refusal") and not knows_refusal:
            return "stop_sequence"
    return _ENCODED[protocol][finish.reason]


def tracing() -> bool:
    """Return whether the trace is switched on."""
    return trace_log.isEnabledFor(logging.DEBUG)


def trace(request_id: str, finish: Finish, sent: str, *, end: str = "") -> None:
    """Log how the finish reason was inferred, if the trace is on; `end` describes the end of the stream."""
    if tracing():
        trace_log.debug(
            "request=%s upstream=%s inferred=%s sent=%s%s",
            request_id,
            finish.upstream_reason,
            finish.reason,
            sent,
            f" {end}" if end else "",
        )
