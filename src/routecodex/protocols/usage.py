"""Usage as providers report it: token counts, and the figures that some of them bill.

Providers are read tolerantly. A negative count is 0; one that is not a number, or larger than any answer, is
absent; a cost that makes no sense is unknown. Typed readers check the bounds, and what they refuse is read
field by field with the functions here.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from routecodex.canon.events import Usage
from routecodex.canon.parts import Json

MOST_TOKENS: Final = 10**12
"""More than any answer has: a sum of many still fits the 64 bits of a database."""
_MOST_DIGITS: Final = 19
"""Digits of a number that a provider writes as a text; int() fails at thousands of them."""
_MOST_USD: Final = 10**6
_NANOS: Final = 10**9
_TICKS_PER_NANO: Final = 10

Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]

_MODES: Final = {name: name for name in ("batch", "fast", "flex", "priority")}


class BilledUsage(Struct, gc=False):
    """Figures of a provider beside its counts, in any shape.

    OpenRouter: `cost` in USD; with `is_byok` that is its fee, and `cost_details.upstream_inference_cost`
    comes on top. xAI: `cost_in_usd_ticks`, in 10⁻¹⁰ USD.
    """

    cost: Json = None
    cost_details: Json = None
    is_byok: Json = None
    cost_in_usd_ticks: Json = None


def billed_cost(usage: BilledUsage) -> int | None:
    """Return the cost that the provider reports, in 10⁻⁹ USD; None if it reports none."""
    ticks = _amount(usage.cost_in_usd_ticks, most=_MOST_USD * _NANOS * _TICKS_PER_NANO)
    if ticks is not None:
        return round(ticks / _TICKS_PER_NANO)
    fee = _amount(usage.cost, most=_MOST_USD)
    if usage.is_byok is not True:
        return None if fee is None else round(fee * _NANOS)
    details = usage.cost_details
    upstream = _amount(details.get("upstream_inference_cost") if isinstance(details, dict) else None)
    # The fee alone is not the cost: the account at the other provider is charged too.
    return None if upstream is None else round((fee or 0.0) * _NANOS + upstream * _NANOS)


def _amount(value: Json, *, most: float = _MOST_USD) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= most else None


def counted(usage: Usage) -> Usage | None:
    """Return the usage of an answer; None if the provider has counted nothing.

    No answer is without tokens: an empty usage object, or zeros in it, must not make the answer free.
    """
    return usage if usage.input or usage.output or usage.cost is not None else None


def mode_of(tier: Json) -> str:
    """Return a mode of processing that has its own prices, from a provider's `service_tier` or `speed`."""
    return _MODES.get(tier, "") if isinstance(tier, str) else ""


def loose_tokens(value: Json) -> int | None:
    """Return a count that is a number or a text of digits; None if it makes no sense."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str) and len(value) < _MOST_DIGITS and value.isdecimal():
        value = int(value)
    if not isinstance(value, int | float) or not value <= MOST_TOKENS:
        return None
    return int(value) if value > 0 else 0
