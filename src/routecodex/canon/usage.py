"""Token counts of one answer."""

from __future__ import annotations

from msgspec import Struct


class Usage(Struct, frozen=True):
    """`input` counts all prompt tokens, cached ones too; `output` all generated ones, thoughts too."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated or other.estimated,
        )
