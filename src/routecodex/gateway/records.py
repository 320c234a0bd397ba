"""Records kept out of compiled modules, because mypyc cannot build classes with keywords.

What is remembered of the rounds after the first.

The health of one key as an operator sees it.

What a client says of its user.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from routecodex.routing.cooldown import CooldownCause, KeyCondition


class FollowUpRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A further round of one request: what a server tool had a model asked, and what came of it."""

    request: str
    metadata: Mapping[str, bool]
    target: str = ""
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


class KeyHealthRow(Struct, frozen=True, kw_only=True):
    """One ailment as an operator sees it; `seconds` is what is left of it."""

    name: str
    state: KeyCondition
    seconds: float
    until: float
    reason: CooldownCause
    strikes: int
    error: str
    status: int | None


class AnthropicUser(Struct):
    """What an Anthropic client may say of its user."""

    session_id: str | None = None
