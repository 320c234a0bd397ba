"""Times and durations as people and the admin API write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from routecodex.config import parse_time

_DURATION = re.compile(r"(?P<count>[0-9]{1,9})(?P<letter>[smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def iso_time(seconds: float) -> str:
    """Return seconds since the epoch in ISO 8601, in UTC with `Z`, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_millis(milliseconds: int) -> str:
    """Return milliseconds since the epoch in ISO 8601, in UTC with `Z`, to the millisecond."""
    return f"{iso_time(milliseconds // 1000)[:-1]}.{milliseconds % 1000:03d}Z"


def parse_duration(text: str) -> int | None:
    """Return the seconds of `90s`, `15m`, `24h`, `30d` or `2w`; None if the text is not a duration."""
    found = _DURATION.match(text.strip())
    return int(found["count"]) * _SECONDS[found["letter"]] if found is not None else None


def parse_moment(text: str, now: float) -> float | None:
    """Return the time of a duration from now, or of an ISO 8601 time; None if the text is neither."""
    duration = parse_duration(text)
    moment = parse_time(text) if duration is None else now + duration
    return moment if moment is not None and moment < _LATEST else None
