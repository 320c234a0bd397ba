"""Installs references in place of C: the sources then take the paths that otherwise only a build takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from routecodex import IS_COMPILED
from routecodex.protocols.chat import validate
from routecodex.providers.http import connection
from routecodex.wire import outline as outline_module
from routecodex.wire import plain_heads as plain_heads_module
from tests.reference import fast_validate, outline, plain_heads

WAYS = ("compiled",) if IS_COMPILED else ("sources", "references")
"""Ways to test these paths; a build always takes them, and cannot be patched."""


@contextmanager
def using(way: str) -> Iterator[None]:
    """Run with one of the WAYS."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "references":
            patch.setattr(plain_heads_module, "parse_request", plain_heads.parse_request)
            patch.setattr(plain_heads_module, "parse_response", plain_heads.parse_response)
            patch.setattr(connection, "_BYPASSES", True)
            patch.setattr(outline_module, "cut", outline.cut)
            patch.setattr(validate, "fast_validate", fast_validate.fast_validate)
        yield
