"""The health of one key as an operator sees it."""

from __future__ import annotations

from msgspec import Struct

from routecodex.routing.health import Condition, Reason


class Row(Struct, frozen=True, kw_only=True):
    """One ailment as an operator sees it; `seconds` is what is left of it."""

    name: str
    state: Condition
    seconds: float
    until: float
    reason: Reason
    strikes: int
    error: str
    status: int | None
