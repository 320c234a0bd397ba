"""The most output that a request asks for, read from the typed view of its codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.usage import MOST_TOKENS, mode_of

_MOST_CHOICES: Final = 128
"""The most that OpenAI takes for `n`; no other provider takes more."""


def _chat(view: Any) -> int | None:
    fields = view.fields
    limit: int | None = fields.max_completion_tokens or fields.max_tokens
    return limit


def _gemini(view: Any) -> int | None:
    config = view.body.generation_config
    return config.max_output_tokens if config is not None else None


def _candidates(view: Any) -> int | None:
    config = view.body.generation_config
    return config.candidate_count if config is not None else None


_LIMITS: dict[ProtocolName, Callable[[Any], int | None]] = {
    "chat": _chat,
    "messages": lambda view: view.max_tokens,
    "responses": lambda view: view.typed.max_output_tokens,
    "gemini": _gemini,
}
_CHOICES: dict[ProtocolName, Callable[[Any], int | None]] = {
    "chat": lambda view: view.fields.n,
    "gemini": _candidates,
}
_TIERS: dict[ProtocolName, Callable[[Any], str | None]] = {
    "chat": lambda view: view.fields.service_tier,
    "messages": lambda view: view.service_tier,
    "responses": lambda view: view.typed.service_tier,
    "gemini": lambda view: view.body.service_tier,
}


def requested_output(wire: WireRequest) -> int | None:
    """Return the most tokens of each choice; None if the request sets no limit."""
    limit = _LIMITS[wire.protocol](wire.view)
    return min(limit, MOST_TOKENS) if limit else None


def requested_choices(wire: WireRequest) -> int:
    """Return how many answers the request asks for at once."""
    read = _CHOICES.get(wire.protocol)
    return 1 if read is None else min(read(wire.view) or 1, _MOST_CHOICES)


def requested_mode(wire: WireRequest) -> str:
    """Return the mode of processing that the request asks for, which may have prices of its own."""
    tier = _TIERS[wire.protocol](wire.view)
    return mode_of(tier) if tier else ""
