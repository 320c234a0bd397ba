"""The health of one key as an operator sees it."""

from __future__ import annotations

from msgspec import Struct

from routecodex.routing.health import CooldownCause, KeyCondition


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
