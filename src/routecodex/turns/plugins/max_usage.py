"""`MaxUsage`: limits the tokens or the cost of a conversation.

The usage of a request is known only afterwards, so the last request may exceed the limit; the next one is not
sent. Requests without a usage report are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.errors import TurnError

MILLION = 1_000_000


class UsageLimitReached(TurnError):
    """The limit on tokens or cost is reached; the request was not sent."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices per million tokens; `cached` is for cached input and defaults to `input`."""

    input: float
    output: float
    cached: float | None = None

    def of(self, usage: Mapping[str, Any]) -> float:
        """Return the cost of a request with this usage."""
        details = usage.get("prompt_tokens_details")
        reported = _count(details, "cached_tokens") if isinstance(details, Mapping) else 0
        cached = min(reported, _count(usage, "prompt_tokens"))
        uncached = _count(usage, "prompt_tokens") - cached
        cached_price = self.input if self.cached is None else self.cached
        output = _count(usage, "completion_tokens") * self.output
        return (uncached * self.input + cached * cached_price + output) / MILLION


class MaxUsage:
    """Ends a turn with `UsageLimitReached` before a request when a limit is reached.

    Limits apply to all turns of all conversations that use this plugin, or with `per_turn` to each turn.
    `prices` is one price or a price per model; with a limit on cost, a model without a price is rejected.
    """

    def __init__(
        self,
        tokens: int | None = None,
        *,
        cost: float | None = None,
        prices: Price | Mapping[str, Price] | None = None,
        per_turn: bool = False,
    ) -> None:
        if tokens is None and cost is None:
            raise ValueError("MaxUsage needs a limit: tokens, cost or both")
        if cost is not None and prices is None:
            raise ValueError("a limit on cost needs prices")
        self._max_tokens = tokens
        self._max_cost = cost
        self._prices = prices
        self._per_turn = per_turn
        self.tokens = 0
        self.cost = 0.0

    def on_turn_start(self, turn: ChatTurn) -> Callable[[], None]:
        return lambda: self._add_usage(turn)

    def on_before_request(self, turn: ChatTurn) -> None:
        self._add_usage(turn)
        model = str(turn.request_body.get("model"))
        if self._max_cost is not None:
            self._price(model)
        turn.plugin_data["model"] = model
        tokens, cost = self._spent(turn)
        if self._max_tokens is not None and tokens >= self._max_tokens:
            raise UsageLimitReached(f"{tokens} of {self._max_tokens} tokens are used; {self._advice()}")
        if self._max_cost is not None and cost >= self._max_cost:
            raise UsageLimitReached(f"{cost:.4f} of {self._max_cost:g} are spent; {self._advice()}")

    def on_stream_data(self, turn: ChatTurn) -> None:
        usage = turn.data.get("usage")
        if usage:
            # Some providers report a running total, others only the final one: the last report counts.
            turn.plugin_data["usage"] = usage

    def _add_usage(self, turn: ChatTurn) -> None:
        """Add the usage of the last request to the totals."""
        data = turn.plugin_data
        usage = data.pop("usage", None)
        if usage is None:
            return
        tokens = _tokens(usage)
        price = self._price(data["model"]) if self._prices is not None else None
        cost = price.of(usage) if price is not None else 0.0
        self.tokens += tokens
        self.cost += cost
        data["tokens"] = data.get("tokens", 0) + tokens
        data["cost"] = data.get("cost", 0.0) + cost

    def _price(self, model: str) -> Price | None:
        if self._prices is None or isinstance(self._prices, Price):
            return self._prices
        price = self._prices.get(model)
        if price is None and self._max_cost is not None:
            raise UsageLimitReached(
                f"MaxUsage limits the cost, but prices has no entry for the model {model!r}"
            )
        return price

    def _spent(self, turn: ChatTurn) -> tuple[int, float]:
        if self._per_turn:
            return turn.plugin_data.get("tokens", 0), turn.plugin_data.get("cost", 0.0)
        return self.tokens, self.cost

    def _advice(self) -> str:
        whose = "this turn" if self._per_turn else "this conversation"
        return f"the limit of {whose} is reached, raise it to go on"


def _tokens(usage: Mapping[str, Any]) -> int:
    return _count(usage, "total_tokens") or _count(usage, "prompt_tokens") + _count(
        usage, "completion_tokens"
    )


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0
