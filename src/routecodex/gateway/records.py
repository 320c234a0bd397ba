"""Records kept out of compiled modules, because mypyc cannot build classes with keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from routecodex.routing.cooldown import AttemptOutcome, CooldownCause, KeyCondition
from routecodex.routing.registry import Target


class FailedAttempt(NamedTuple):
    """An attempt that failed before the client got a byte, and its line for the log.

    `began` and `ended` are on the monotonic clock; `status` is that of the provider, if it answered.
    """

    target: Target
    outcome: AttemptOutcome
    text: str
    began: float = 0.0
    ended: float = 0.0
    status: int | None = None


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
