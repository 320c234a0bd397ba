"""Checks the settings of captures: each alone is valid, together they must keep something."""

from __future__ import annotations

from collections.abc import Iterator

from routecodex.config.model import Config
from routecodex.config.problems import Problem, warning


def check_capture(config: Config) -> Iterator[Problem]:
    """Check `[capture]`."""
    capture = config.capture
    if capture.mode == "sample" and not capture.sample:
        message = "is 0, so that no request is captured"
        yield warning(("capture", "sample"), message, 'set a share above 0, or mode = "off"')
    if capture.is_on and capture.max_body_kb > capture.max_mb * 1024:
        message = (
            f"is more than all captures may take: {capture.max_body_kb} KB, with max_mb = {capture.max_mb}"
        )
        yield Problem(("capture", "max_body_kb"), message, "lower it, or raise max_mb")
