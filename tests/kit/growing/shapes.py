"""Types and values that the protocols share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
Grow = Callable[[int], Fields]
GrowStream = Callable[[int], list[bytes]]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA: Fields = {"type": "object", "properties": {"a": {"type": "string"}}}
URL = "https://a.example/"
CUSTOM_TOOL = "patch"
"""A tool that the client declares as custom, where its protocol has such tools."""


def compose(outer: Callable[[Any], Any], inner: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return the function that applies `inner`, then `outer`."""
    return lambda n: outer(inner(n))
