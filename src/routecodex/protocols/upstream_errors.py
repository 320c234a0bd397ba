"""Maps a provider's error response to a typed error.

Each codec reads message, type and code from its envelope; this module classifies them for all protocols.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping

from routecodex.canon.errors import (
    UpstreamError,
    UpstreamFailed,
    UpstreamLimited,
    UpstreamOverloaded,
    UpstreamRefusedKey,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnknownModel,
)

_QUOTA_CODES = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "quota_exceeded", "exceeded_current_quota_error"}
)

_QUOTA = re.compile(r"credit balance is too low|insufficient (?:account )?balance|余额不足", re.IGNORECASE)
"""Messages of exhausted credit without a known code: Anthropic (with status 400), DeepSeek, Zhipu."""
_OVERLOAD_CODES = frozenset(
    {"overloaded_error", "overloaded", "server_overloaded", "engine_overloaded_error", "UNAVAILABLE"}
)
_BAD_KEY_CODES = frozenset({"invalid_api_key", "authentication_error", "API_KEY_INVALID"})
_UNKNOWN_MODEL_CODE = "model_not_found"
"""OpenAI, Groq and Alibaba, with status 404 or 400."""
_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "model_context_window_exceeded", "string_above_max_length"}
)
_OVERFLOW = re.compile(
    r"context[ _](?:length|window|size)|maximum (?:context|input|prompt)|prompt is too long"
    r"|too many (?:input )?tokens|input token count .{0,40}exceeds|reduce the length of",
    re.IGNORECASE,
)
_MASKED_KEY = re.compile(r"\S*\*{2,}[^\s.,;]*")
"""A key that a provider masked in its message, as OpenAI does: its ends are still part of a secret."""
_MAX_TEXT = 2000


def retry_after(headers: Mapping[str, str], *, now: float | None = None) -> float | None:
    """Return the seconds to wait, from `retry-after-ms` (OpenAI), or `retry-after` as seconds or a date."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if value.replace(".", "", 1).isdecimal():
            return float(value) * scale
    try:
        when = email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, when - (time.time() if now is None else now))


def upstream_error(
    status: int,
    message: str,
    *,
    provider: str,
    code: str | None = None,
    type: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> UpstreamError:
    """Return the typed error for a status, code, type and message (table: docs/protocols.md, errors)."""
    codes = {code, type}
    text = message.strip()[:_MAX_TEXT] or f"HTTP {status} without a message"
    wait = retry_after(headers or {})
    if status in (401, 403) or codes & _BAD_KEY_CODES:
        return UpstreamRefusedKey(
            f"provider {provider!r} rejected the gateway's key (HTTP {status}); check its configured keys",
            provider=provider,
            upstream_status=status,
            provider_message=_MASKED_KEY.sub("***", message.strip()[:_MAX_TEXT]),
        )
    if status == 402 or codes & _QUOTA_CODES or (400 <= status < 500 and _QUOTA.search(text)):
        return UpstreamLimited(
            text, provider=provider, upstream_status=status, code="insufficient_quota", retry_after=wait
        )
    if status == 429:
        return UpstreamLimited(text, provider=provider, upstream_status=status, code=code, retry_after=wait)
    if status == 529 or codes & _OVERLOAD_CODES:
        return UpstreamOverloaded(text, provider=provider, upstream_status=status, retry_after=wait)
    if status in (408, 504):
        return UpstreamTimeout(text, provider=provider, upstream_status=status)
    if status in (400, 404) and _UNKNOWN_MODEL_CODE in codes:
        return UpstreamUnknownModel(text, provider=provider, upstream_status=status)
    if 400 <= status < 500:
        return UpstreamRejected(
            text, provider=provider, upstream_status=status, status=status, code=code, param=param
        )
    return UpstreamFailed(text, provider=provider, upstream_status=status, retry_after=wait)


def is_context_overflow(error: UpstreamRejected) -> bool:
    """Whether the provider rejected the request as longer than the model's context."""
    return error.code in _OVERFLOW_CODES or error.status == 413 or _OVERFLOW.search(error.message) is not None


def names_unknown_model(error: UpstreamRejected, model: str) -> bool:
    """Whether a 404 is about the model: Anthropic, Google, Ollama and Moonshot name it and send no code."""
    name = rf"(?<![\w.-]){re.escape(model)}(?![\w-]|[.:/]\w)"
    return error.upstream_status == 404 and re.search(name, error.message, re.IGNORECASE) is not None


def plain_text(body: bytes) -> str:
    """Return a body that is not JSON as a short text; HTML pages are not passed on."""
    text = body[:_MAX_TEXT].decode("utf-8", "replace").strip()
    return "" if text[:1] == "<" else text


def stream_broken(reason: str | None) -> UpstreamFailed:
    """Return the error of an answer whose finish reason reports a failure."""
    return UpstreamFailed(f"the upstream broke the answer off: {reason}", code="upstream_truncated")


def stream_truncated(source: str = "the upstream stream") -> UpstreamFailed:
    """Return the error of a stream that ended before its answer."""
    return UpstreamFailed(f"{source} ended before the answer was complete", code="upstream_truncated")
