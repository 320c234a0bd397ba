"""Token counts between messages and canon.

Messages counts only the tokens that the cache had nothing to do with as `input_tokens`; canon's `input` is
the whole prompt.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routecodex.canon.usage import Usage


class OutputDetails(Struct):
    thinking_tokens: int | None = None


class WireUsage(Struct):
    """What a provider counted; a field it left out or nulled is unknown."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class UsageCounter:
    """Usage reports of one stream, each cumulative: what is not said again still holds."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, usage: WireUsage | None) -> None:
        if usage is None:
            return
        details = usage.output_tokens_details
        said = {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cache_write": usage.cache_creation_input_tokens,
            "cache_read": usage.cache_read_input_tokens,
            "reasoning": details.thinking_tokens if details is not None else None,
        }
        self._counts.update({name: count for name, count in said.items() if count is not None})

    def usage(self) -> Usage | None:
        """The counts so far; None when the provider has not counted its output."""
        counts = self._counts
        if "output" not in counts:
            return None
        cached = counts.get("cache_read", 0), counts.get("cache_write", 0)
        return Usage(
            input=counts.get("input", 0) + sum(cached),
            output=counts["output"],
            cache_read=cached[0],
            cache_write=cached[1],
            reasoning=counts.get("reasoning", 0),
        )


def usage_object(usage: Usage) -> dict[str, Any]:
    """The counts as messages writes them."""
    counts: dict[str, Any] = {
        "input_tokens": max(usage.input - usage.cache_read - usage.cache_write, 0),
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return counts
