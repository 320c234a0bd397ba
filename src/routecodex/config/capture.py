"""[capture]: which requests are kept whole, for how long, and in how much space."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from routecodex.config.values import YEAR_HOURS

CaptureMode = Literal["off", "errors", "sample", "all"]


class CaptureConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Captures of whole requests, for the Inspector of the console."""

    mode: Annotated[
        CaptureMode,
        Meta(
            description="Requests to capture, with their bodies: none (`off`), those that failed (`errors`), "
            "a share of all (`sample`), or `all`. Keys and cookies are removed; prompts and answers are kept."
        ),
    ] = "off"
    sample: Annotated[float, Meta(description='Share of requests with `mode = "sample"`.', ge=0, le=1)] = 0.01
    keep_hours: Annotated[
        float, Meta(description="Hours after which a capture is deleted.", gt=0, le=YEAR_HOURS)
    ] = 24
    max_mb: Annotated[
        int,
        Meta(
            description="Size of all captures of this server; the oldest are deleted first.",
            ge=1,
            le=1024 * 1024,
        ),
    ] = 256
    max_body_kb: Annotated[
        int,
        Meta(
            description="Most that is kept of one body or stream; of a longer one the middle is left out.",
            ge=1,
            le=16 * 1024,
        ),
    ] = 512

    @property
    def is_on(self) -> bool:
        """Whether any request may be captured."""
        return self.mode != "off"
