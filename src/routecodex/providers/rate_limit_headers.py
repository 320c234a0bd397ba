"""Rate-limit headers of providers: how much of a key's limits is left, and when there is more.

OpenAI, Groq, OpenRouter and Cerebras send `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, the reset
as a Go duration (`6m0s`, Groq `2m59.56s`). Anthropic sends `anthropic-ratelimit-requests-{limit,remaining,
reset}`, the same for tokens, the reset in RFC 3339; and for subscriptions `anthropic-ratelimit-unified-5h-
{status,utilization,reset}`, the reset in Unix seconds. Gemini sends none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

_OPENAI: Final = b"x-ratelimit-"
_ANTHROPIC: Final = b"anthropic-ratelimit-"
_UNIFIED: Final = b"unified-"
_PREFIXES: Final = (_OPENAI, _ANTHROPIC)
_DURATION = re.compile(rb"(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)(ms|s))?\Z")
_LONGEST: Final = 7 * 86_400.0
_PERCENT: Final = 100.0


class KeyAllowance(Struct, frozen=True):
    """Headroom of a key by the headers of its provider: the smallest share, and when that kind resets."""

    share: float
    resets_in: float
    kind: str


def rate_limit_headers(headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Return the rate-limit headers of a response; most have none."""
    for name, _ in headers:
        if name.startswith(_PREFIXES):
            return [row for row in headers if row[0].startswith(_PREFIXES)]
    return ()


def read_allowance(headers: Iterable[tuple[bytes, bytes]], now: float) -> KeyAllowance | None:
    """Return what is left of a key, by its scarcest limit; None if the headers do not say."""
    kinds = _by_kind(headers)
    found = [row for kind, fields in kinds.items() if (row := _allowance(kind, fields, now)) is not None]
    return min(found, key=lambda row: row.share, default=None)


class KeyQuota(Struct, frozen=True):
    """One limit of a key as its provider reports it; `resets_at` is in seconds, None if it does not say."""

    kind: str
    limit: float
    remaining: float
    resets_at: float | None


def read_quotas(headers: Iterable[tuple[bytes, bytes]], now: float) -> list[KeyQuota]:
    """Return every limit that the headers of an answer report; those of a subscription are percentages."""
    found = []
    for kind, fields in _by_kind(headers).items():
        allowance = _allowance(kind, fields, now)
        if allowance is None:
            continue
        limit = _number(fields.get(b"limit", b"")) or _PERCENT
        resets_at = now + allowance.resets_in if allowance.resets_in else None
        found.append(KeyQuota(allowance.kind, limit, round(allowance.share * limit, 6), resets_at))
    return found


def _by_kind(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, dict[bytes, bytes]]:
    kinds: dict[bytes, dict[bytes, bytes]] = {}
    for name, value in headers:
        kind, field = _split(name)
        if kind:
            kinds.setdefault(kind, {})[field] = value
    return kinds


def _split(name: bytes) -> tuple[bytes, bytes]:
    """Return what a header counts and which figure it has."""
    if name.startswith(_OPENAI):
        field, _, kind = name.removeprefix(_OPENAI).partition(b"-")
        return kind, field
    kind, _, field = name.removeprefix(_ANTHROPIC).rpartition(b"-")
    return kind, field


def _allowance(kind: bytes, fields: Mapping[bytes, bytes], now: float) -> KeyAllowance | None:
    resets_in = _seconds(fields.get(b"reset", b""), now)
    name = kind.decode("latin-1")
    if kind.startswith(_UNIFIED):
        used = _number(fields.get(b"utilization", b""))
        if fields.get(b"status") == b"rejected":
            used = 1.0
        return None if used is None else KeyAllowance(max(1.0 - used, 0.0), resets_in, name)
    limit, left = _number(fields.get(b"limit", b"")), _number(fields.get(b"remaining", b""))
    if left is None or not limit:
        return None
    return KeyAllowance(min(max(left / limit, 0.0), 1.0), resets_in, name)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e18 else None


def _seconds(text: bytes, now: float) -> float:
    """Return the seconds until a reset in any of the three forms; 0 if it is none of them."""
    found = _DURATION.match(text) if text else None
    if found is not None:
        hours, minutes, amount, unit = found.groups()
        seconds = float(amount or 0) / (1000 if unit == b"ms" else 1)
        return min(int(hours or 0) * 3600 + int(minutes or 0) * 60 + seconds, _LONGEST)
    number = _number(text)
    if number is not None:
        # Unix seconds, or seconds from now.
        return min(max(number - now if number > 1e9 else number, 0.0), _LONGEST)
    try:
        moment = datetime.fromisoformat(text.decode("latin-1"))
    except ValueError:
        return 0.0
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - now, 0.0), _LONGEST)
