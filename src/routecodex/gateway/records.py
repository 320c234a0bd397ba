"""Records kept out of compiled modules, because mypyc cannot build classes with keywords."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from routecodex.routing.cooldown import CooldownCause, KeyCondition


class FollowUpRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round after the first: the request that a server tool made, and its result, for the log."""

    request: str
    metadata: Mapping[str, bool]
    target: str = ""
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""


class KeyHealthRow(Struct, frozen=True, kw_only=True):
    """One cooldown of a key as operators see it; `seconds` are left of it."""

    name: str
    state: KeyCondition
    seconds: float
    until: float
    reason: CooldownCause
    strikes: int
    error: str
    status: int | None


class AnthropicUser(Struct):
    """The JSON form of `metadata.user_id` that Claude Code sends."""

    session_id: str | None = None
