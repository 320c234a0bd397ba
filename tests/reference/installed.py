"""Installs references in place of C: the sources then take the paths that otherwise only a build takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from routecodex import IS_COMPILED
from tests.reference import fast_validate, limit_steps, outline, plain_heads

WAYS = ("compiled",) if IS_COMPILED else ("sources", "references")
"""Ways to test these paths; a build always takes them, and cannot be patched."""

SWITCHES = (
    "accounting.shared_counters._PREPARES",
    "providers.http.connection._BYPASSES",
    "protocols.messages.validate._SCANS",
)
"""Names that hold `scan.IN_C`: the branches of the sources that only a build takes."""

_REPLACED = {
    "accounting.limit_steps.reserve": limit_steps.reserve,
    "accounting.limit_steps.settle": limit_steps.settle,
    "accounting.limit_steps.header_lines": limit_steps.header_lines,
    "wire.plain_heads.parse_request": plain_heads.parse_request,
    "wire.plain_heads.parse_response": plain_heads.parse_response,
    "wire.outline.cut": outline.cut,
    "protocols.chat.validate.fast_validate": fast_validate.fast_validate,
}


@contextmanager
def using(way: str) -> Iterator[None]:
    """Run with one of the WAYS."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "references":
            for name, replacement in _REPLACED.items():
                patch.setattr(f"routecodex.{name}", replacement)
            for name in SWITCHES:
                patch.setattr(f"routecodex.{name}", True)
        yield
