"""Checks the prices of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import structs

from routecodex.config.problems import ConfigPath, Problem, quoted, warning
from routecodex.config.providers import PriceConfig, PriceTierConfig, ProviderConfig


def check_prices(provider: ProviderConfig, place: ConfigPath) -> Iterator[Problem]:
    """Check the prices of a provider's models."""
    for name, model in provider.models.items():
        if isinstance(model.price, PriceConfig):
            yield from _check_price(model.price, (*place, "models", name, "price"))


def _check_price(price: PriceConfig, place: ConfigPath) -> Iterator[Problem]:
    if price == PriceConfig():
        fix = f"set input and output in USD per million tokens, or price = {quoted('free')}"
        yield Problem(place, "is empty", fix)
        return
    for name in ("input", "output"):
        if getattr(price, name) is None:
            message = f"is missing, so this model's {name} costs nothing"
            yield warning((*place, name), message, f"add {name}; {name} = 0 if it is free", absent=True)
    yield from _check_tiers(price, (*place, "tiers"))


def _check_tiers(price: PriceConfig, place: ConfigPath) -> Iterator[Problem]:
    counts = Counter(tier.above for tier in price.tiers)
    for index, tier in enumerate(price.tiers):
        if counts[tier.above] > 1:
            message = f"{tier.above} is the size of more than one tier"
            yield Problem((*place, index, "above"), message, "give each tier its own size")
        if structs.replace(tier, above=1) == PriceTierConfig(above=1):
            yield Problem((*place, index), "has no price", "set input and output, or remove the tier")
