"""Grammars of the streams, bodies and errors that the gateway serves, one per protocol.

check_chat, check_messages, check_responses, check_gemini    a complete SSE stream
check_broken_chat … check_broken_gemini                      a stream that broke off and ends with an error
check_stream, check_broken                                   the same, by protocol name
check_json                                                   a whole answer that was not streamed
check_error                                                  an error envelope

Each raises GrammarViolation with the frame and the rule that was broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from routecodex.protocols.grammar.bodies import check_error, check_json
from routecodex.protocols.grammar.chat import check_broken_chat, check_chat
from routecodex.protocols.grammar.frames import GrammarViolation
from routecodex.protocols.grammar.gemini import check_broken_gemini, check_gemini
from routecodex.protocols.grammar.messages import check_broken_messages, check_messages
from routecodex.protocols.grammar.responses import check_broken_responses, check_responses

__all__ = [
    "GrammarViolation",
    "check_broken",
    "check_broken_chat",
    "check_broken_gemini",
    "check_broken_messages",
    "check_broken_responses",
    "check_chat",
    "check_error",
    "check_gemini",
    "check_json",
    "check_messages",
    "check_responses",
    "check_stream",
]

_COMPLETE: dict[str, Callable[..., None]] = {
    "chat": check_chat,
    "messages": check_messages,
    "responses": check_responses,
    "gemini": check_gemini,
}
_BROKEN = {
    "chat": check_broken_chat,
    "messages": check_broken_messages,
    "responses": check_broken_responses,
    "gemini": check_broken_gemini,
}


def check_stream(protocol: str, body: bytes, **options: Any) -> None:
    """Check that the stream is complete and well formed; `options` are those of the protocol's own check."""
    _COMPLETE[protocol](body, **options)


def check_broken(protocol: str, body: bytes, *, aborted: bool = False) -> None:
    """Check a stream that broke off: a valid prefix, then the error event (none if `aborted`), no finish."""
    _BROKEN[protocol](body, aborted=aborted)
