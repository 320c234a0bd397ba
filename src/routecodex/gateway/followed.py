"""What is remembered of the rounds after the first."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class FollowUpRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A further round of one request: what a server tool had a model asked, and what came of it."""

    request: str
    metadata: Mapping[str, bool]
    target: str = ""
    finish: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
