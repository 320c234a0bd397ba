"""Tokens and cost of the conversation of `routecodex chat`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from routecodex.cli.tables import UNKNOWN, dollars
from routecodex.turns import Message

COST_HEADER = "x-routecodex-cost"


class ChatUsage(Struct):
    """Sums over the requests of a conversation; `cost` is that of the requests with a reported one."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    priced_requests: int = 0

    def add(self, answer: Message) -> None:
        """Count the request of an answer."""
        usage = answer.metadata.get("usage") or {}
        self.requests += 1
        self.input_tokens += _count(usage, "prompt_tokens")
        self.output_tokens += _count(usage, "completion_tokens")
        self.cached_tokens += _count(usage.get("prompt_tokens_details"), "cached_tokens")
        self.reasoning_tokens += _count(usage.get("completion_tokens_details"), "reasoning_tokens")
        cost = reported_cost(answer.metadata)
        if cost is not None:
            self.cost += cost
            self.priced_requests += 1

    def tokens_text(self) -> str:
        """Return the tokens as a line for people."""
        cached = f" ({self.cached_tokens:,} from cache)" if self.cached_tokens else ""
        reasoning = f" ({self.reasoning_tokens:,} reasoning)" if self.reasoning_tokens else ""
        requests = "1 request" if self.requests == 1 else f"{self.requests} requests"
        tokens = f"{self.input_tokens:,} input{cached} + {self.output_tokens:,} output{reasoning} tokens"
        return f"{requests}, {tokens}"

    def cost_text(self) -> str:
        """Return the cost as a line for people; never 0 for one that is unknown."""
        if not self.priced_requests:
            return f"cost {UNKNOWN} (the server did not report it)"
        text = f"cost {dollars(self.cost)}"
        if self.priced_requests == self.requests:
            return text
        return f"{text} for {self.priced_requests} of {self.requests} requests; the others were not reported"


def reported_cost(metadata: Mapping[str, Any]) -> float | None:
    """Return the cost in USD that the server reported for an answer: in its header, else in its usage."""
    header = (metadata.get("headers") or {}).get(COST_HEADER)
    if header is not None:
        return _amount(header)
    usage = metadata.get("usage") or {}
    cost = _amount(usage.get("cost"))
    if cost is not None and usage.get("is_byok") is True:
        # OpenRouter: with a key of one's own `cost` is its fee alone.
        upstream = _amount((usage.get("cost_details") or {}).get("upstream_inference_cost"))
        return None if upstream is None else cost + upstream
    return cost


def _count(usage: Any, name: str) -> int:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = float(value)
    except ValueError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None
