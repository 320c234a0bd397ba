"""Figures of usage: sums of requests, tokens and costs, as the command line and the admin API show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct

from routecodex.accounting.cost import UNKNOWN

_DECIMALS = 9


class Figures(Struct, frozen=True, gc=False):
    """Sums over some requests or calls; costs are in USD.

    `cost` is what is known, `cost_unknown` counts those without a price, and `cost_estimated` is the part of
    the cost that no provider has reported.
    """

    requests: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    cost_unknown: int = 0
    cost_estimated: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost=self.cost + other.cost,
            cost_unknown=self.cost_unknown + other.cost_unknown,
            cost_estimated=self.cost_estimated + other.cost_estimated,
        )

    @property
    def cache_hit_rate(self) -> float | None:
        """Share of the input that was read from the provider's cache; None without input."""
        return round(self.cache_read_tokens / self.input_tokens, 6) if self.input_tokens else None

    def as_dict(self, label: Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
        """Return the figures by name, after the names and values of a label.

        An answer has tens of thousands of rows: one dict is made for each, and zeros are not rounded.
        """
        estimated, tokens, cached = self.cost_estimated, self.input_tokens, self.cache_read_tokens
        return {
            **dict(label),
            "requests": self.requests,
            "errors": self.errors,
            "input_tokens": tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": cached,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "cost": round(self.cost, _DECIMALS),
            "cost_unknown": self.cost_unknown,
            "cost_estimated": round(estimated, _DECIMALS) if estimated else 0.0,
            "cache_hit_rate": round(cached / tokens, 6) if tokens else None,
        }


FIGURE_NAMES = tuple(Figures().as_dict())
_values = attrgetter(*Figures.__struct_fields__)


def figures_of(row: Mapping[str, Any]) -> Figures:
    """Return the figures of a row, as `as_dict` has them."""
    return Figures(**{name: row[name] for name in Figures.__struct_fields__})


def total(rows: Iterable[Figures]) -> Figures:
    """Return the sum of figures."""
    columns = tuple(zip(*map(_values, rows), strict=True))
    return Figures(*map(sum, columns))


def show_usd(usd: float) -> str:
    """Return an amount for people: `$3.21`, `$0.1234`, `$0.00012`, `<$0.00001`, `$0.00`."""
    decimals = 2 if usd >= 1 or not usd else 4 if usd >= 0.01 else 5
    text = f"{usd:.{decimals}f}"
    return f"${text}" if float(text) or not usd else f"<$0.{'0' * (decimals - 1)}1"


def usage_line(figures: Figures) -> str:
    """Return the line of `<**status**>`: `12 requests, 34567 in (81% cached), 2345 out, $0.1234`."""
    plural = "" if figures.requests == 1 else "s"
    cached = f" ({figures.cache_hit_rate:.0%} cached)" if figures.cache_hit_rate is not None else ""
    is_unknown = 0 < figures.requests == figures.cost_unknown
    cost = UNKNOWN if is_unknown else show_usd(figures.cost)
    line = f"{figures.requests} request{plural}, {figures.input_tokens} in{cached}, "
    line += f"{figures.output_tokens} out, {cost}"
    if 0 < figures.cost_unknown < figures.requests:
        line += f" ({figures.cost_unknown} without a price)"
    return line
