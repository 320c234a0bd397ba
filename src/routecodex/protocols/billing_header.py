"""Removes Claude Code's billing header from system text.

Claude Code begins its system text with a block `x-anthropic-billing-header: cc_version=…; cch=…;`. Only
Anthropic knows it. At every other provider its end, which changes with each request, spoils the prompt cache
(anthropics/claude-code issues 68900 and 50085).
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from routecodex.canon.parts import Text
from routecodex.canon.request import Request

_HEADER = re.compile(r"\s*x-anthropic-billing-header:[^\n]*(?:\n|$)")

HEADER_REACH = 64
"""Characters at the beginning of a text that show whether it begins with the header."""


def begins_with_header(text: str) -> bool:
    """Return whether a text begins with the billing header."""
    return _HEADER.match(text) is not None


def without_header(text: str) -> str:
    """Return the text behind the billing header; empty if it holds nothing else."""
    match = _HEADER.match(text)
    return text if match is None else text[match.end() :]


def strip_billing_header(request: Request) -> Request:
    """Return the request with the billing header removed from its system text."""
    if not any(begins_with_header(part.text) for part in request.system):
        return request
    left = (part if not begins_with_header(part.text) else _stripped(part) for part in request.system)
    return replace(request, system=tuple(part for part in left if part is not None))


def _stripped(part: Text) -> Text | None:
    text = without_header(part.text)
    return replace(part, text=text) if text else None
