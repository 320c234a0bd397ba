"""Converts LiteLLM's list of virtual keys, so that people keep the keys they have.

LiteLLM stores a key as its SHA-256, as this gateway does (`token` of `GET /key/list?return_full_object=true`,
`key` of `/key/info`). Spend is not taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from routecodex.accounting.timestamps import iso_time
from routecodex.config import key_digest, parse_time

_DIGEST = re.compile(r"[0-9A-Fa-f]{64}\Z")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_DURATION = re.compile(r"(?P<count>[0-9]{1,6})(?P<unit>mo|[smhdw])\Z")
_PERIODS = {"1d": "day", "24h": "day", "7d": "week", "1w": "week", "30d": "month", "1mo": "month"}
"""Durations that LiteLLM resets by the calendar, as its users know them."""
_DAYS = {"w": 7, "mo": 30}
_ALL_MODELS = frozenset({"all-team-models", "all-proxy-models", "*"})
_LONGEST_NAME = 64
_FIELDS = {
    "team_id": "team",
    "rpm_limit": "rpm",
    "tpm_limit": "tpm",
    "max_parallel_requests": "concurrent",
}


class LiteLlmKeysError(Exception):
    """The file is not a list of LiteLLM's keys."""


class SkippedKey(Exception):
    """A key cannot be taken over; the message says why."""


class LiteLlmKey(msgspec.Struct, frozen=True):
    """One row of the file: its name, and the body of the call that makes its client, or why there is none."""

    name: str
    body: dict[str, Any] | None = None
    reason: str = ""


def convert_keys(data: bytes, now: float) -> list[LiteLlmKey]:
    """Return every key of the file, with the client to make of it."""
    return [_convert(row, number, now) for number, row in enumerate(_rows(data), start=1)]


def _rows(data: bytes) -> Iterator[Any]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise LiteLlmKeysError(f"is not JSON: {exc}") from exc
    if isinstance(value, dict) and isinstance(value.get("keys"), list):
        value = value["keys"]
    for row in value if isinstance(value, list) else [value]:
        if isinstance(row, dict) and isinstance(row.get("info"), dict):
            yield {**row["info"], "key": row.get("key")}
        else:
            yield row


def _convert(row: Any, number: int, now: float) -> LiteLlmKey:
    if not isinstance(row, dict):
        reason = "has no fields; export with /key/list?return_full_object=true"
        return LiteLlmKey(str(row)[:_LONGEST_NAME] if isinstance(row, str) else f"key {number}", None, reason)
    name = _name(row, number)
    try:
        return LiteLlmKey(name, _body(row, name, now))
    except SkippedKey as exc:
        return LiteLlmKey(name, None, str(exc))


def _name(row: dict[str, Any], number: int) -> str:
    found = row.get("key_alias") or row.get("key_name")
    text = found if isinstance(found, str) and found.strip() else f"litellm-{number}"
    return _NOT_IN_NAME.sub("-", text.strip())[:_LONGEST_NAME]


def _body(row: dict[str, Any], name: str, now: float) -> dict[str, Any]:
    body: dict[str, Any] = {"name": name, "key_sha256": _digest(row)}
    body.update({to: row[of] for of, to in _FIELDS.items() if row.get(of) is not None})
    budget = _budget(row)
    if budget is not None:
        body["limits"] = [budget]
    models = [model for model in row.get("models") or () if isinstance(model, str)]
    if models and not _ALL_MODELS & set(models):
        body["allow"] = {"models": models}
    expires = _expiry(row.get("expires"), now)
    if expires is not None:
        body["expires"] = expires
    if row.get("blocked") is True:
        body["blocked"] = True
    return body


def _digest(row: dict[str, Any]) -> str:
    key = row.get("token") or row.get("key")
    if not isinstance(key, str) or not key:
        raise SkippedKey("has no token")
    if _DIGEST.match(key):
        return key.lower()
    if key.startswith("sk-") and "..." not in key:
        return key_digest(key)
    raise SkippedKey("its token is neither a SHA-256 nor a key")


def _budget(row: dict[str, Any]) -> str | None:
    budget, duration = row.get("max_budget"), row.get("budget_duration")
    if budget is None:
        return None
    if not isinstance(budget, int | float) or isinstance(budget, bool):
        raise SkippedKey(f"its max_budget is not a number: {budget!r}")
    if not duration:
        raise SkippedKey("its max_budget has no budget_duration; a budget needs a window, such as 30d")
    return f"${budget:.9f}".rstrip("0").rstrip(".") + f"/{_window(duration)}"


def _window(duration: Any) -> str:
    found = _DURATION.match(duration) if isinstance(duration, str) else None
    if found is None:
        raise SkippedKey(f"its budget_duration is not a duration: {duration!r}")
    if duration in _PERIODS:
        return _PERIODS[duration]
    days = _DAYS.get(found["unit"])
    return duration if days is None else f"{int(found['count']) * days}d"


def _expiry(value: Any, now: float) -> str | None:
    if not value:
        return None
    moment = parse_time(value) if isinstance(value, str) else None
    if moment is None and isinstance(value, str):
        moment = _without_zone(value)
    if moment is None:
        raise SkippedKey(f"its expires is not a time: {value!r}")
    if moment <= now:
        raise SkippedKey(f"it expired at {iso_time(moment)}")
    return iso_time(moment)


def _without_zone(text: str) -> float | None:
    """Return a time without a zone as UTC, as LiteLLM's database has it."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
