"""Parses ISO 8601 times with an offset; formats times in UTC or a local zone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from msgspec import Struct

from routecodex.server_tools.clock.task import LATEST_MS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?P<offset>Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d+)?(?:E[+-]?\d+)?", re.ASCII)
_FORMAT_HINT = "use ISO 8601 with an offset, like 2026-01-21T20:30:00-08:00 or 2026-01-22T04:30:00Z"


class BadTimestamp(Exception):
    """A text is not a valid time; `code` is the error code of the tool."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Zone(Struct, frozen=True):
    """A time zone and its name."""

    name: str
    rule: tzinfo


def parse_timestamp(text: str) -> int:
    """Return the time in milliseconds since the epoch."""
    normalized = text.strip().upper()
    shown = repr(text[:80])
    if _NUMBER.fullmatch(normalized):
        raise BadTimestamp("due_at_is_a_number", f"{shown} is a bare number, not a time; {_FORMAT_HINT}")
    match = _TIME.fullmatch(normalized)
    if (match is not None and match["offset"] is None) or _DATE.fullmatch(normalized):
        raise BadTimestamp("due_at_without_offset", f"{shown} has no offset from UTC; {_FORMAT_HINT}")
    if match is None:
        raise BadTimestamp("due_at_invalid", f"{shown} is not a time; {_FORMAT_HINT}")
    try:
        since = datetime.fromisoformat(normalized) - EPOCH
    except ValueError as exc:
        raise BadTimestamp("due_at_invalid", f"{shown} is not a time that exists: {exc}") from exc
    moment = since // timedelta(milliseconds=1)
    if not 0 <= moment <= LATEST_MS:
        raise BadTimestamp("due_at_invalid", f"{shown} lies outside the years 1970 to 9998")
    return moment


def utc_text(moment_ms: int) -> str:
    """Format the time in UTC, to the millisecond."""
    return _iso(moment_ms, UTC).removesuffix("+00:00") + "Z"


def local_text(moment_ms: int, zone: Zone) -> str:
    """Format the time in the zone, with its offset."""
    return _iso(moment_ms, zone.rule)


def time_zone(environ: Mapping[str, str], *, localtime: str = "/etc/localtime") -> Zone:
    """Return the zone of `TZ`, else of the machine, else UTC."""
    named = environ.get("TZ", "").removeprefix(":")
    for name in (named, _zone_of_link(localtime)):
        if name:
            try:
                return Zone(name, ZoneInfo(name))
            except (ValueError, OSError, KeyError):
                continue
    return Zone("UTC", UTC)


def _zone_of_link(link: str) -> str:
    _, found, name = os.path.realpath(link).partition("/zoneinfo/")
    return name if found else ""


def _iso(moment_ms: int, rule: tzinfo) -> str:
    moment = EPOCH + timedelta(milliseconds=moment_ms)
    return moment.astimezone(rule).isoformat(timespec="milliseconds")
