"""Settings of a run-time client, as the admin API and the command line pass them: checks and applies them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from routecodex.accounting.clients import AllowedInstructions, StoredClient
from routecodex.accounting.timestamps import parse_moment
from routecodex.canon.errors import BadRequest
from routecodex.config import (
    AllowConfig,
    Config,
    ConsoleRole,
    LimitConfig,
    limit_problems,
    limit_rows,
    name_problem,
)

_MOST_LIMITS = 64
_LARGEST = 1_000_000_000
_COUNTS = ("rpm", "tpm", "concurrent")
_LIMITS_TYPE = tuple[str | LimitConfig, ...]


class ClientSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to make or to change; those that are absent stay, None removes one.

    `expires` is a duration from now (`30d`) or a time. Counts and limits are checked apart from the rest,
    because their error has a code of its own.
    """

    team: str | UnsetType | None = UNSET
    limits: Any = UNSET
    rpm: Any = UNSET
    tpm: Any = UNSET
    concurrent: Any = UNSET
    allow: AllowConfig | UnsetType | None = UNSET
    instructions: AllowedInstructions | UnsetType | None = UNSET
    role: ConsoleRole | UnsetType | None = UNSET
    mcp: tuple[str, ...] | UnsetType | None = UNSET
    expires: str | UnsetType | None = UNSET
    blocked: bool | UnsetType = UNSET


def check_name(name: str) -> None:
    """Reject a name that no client can have."""
    found = name_problem(name)
    if found is not None:
        message, fix = found
        raise BadRequest(f"name: {message}; {fix}", param="name", code="invalid_name")


def apply_settings(
    client: StoredClient, settings: ClientSettings, *, config: Config, now: float
) -> StoredClient:
    """Return the client with these settings; a wrong one raises BadRequest."""
    changes: dict[str, Any] = {name: _count(name, settings) for name in _COUNTS if _is_set(settings, name)}
    if settings.limits is not UNSET:
        changes["limits"] = _limits(settings.limits, config)
    if settings.team is not UNSET:
        changes["team"] = _team(settings.team or "", config)
    if settings.expires is not UNSET:
        changes["expires_at"] = _expiry(settings.expires, now)
    for name in ("allow", "instructions", "role", "mcp", "blocked"):
        value = getattr(settings, name)
        if value is not UNSET:
            changes[name] = _DEFAULTS[name] if value is None else value
    return replace(client, **changes)


_DEFAULTS: dict[str, Any] = {"allow": AllowConfig(), "instructions": "all", "role": "", "mcp": ("*",)}


def _is_set(settings: ClientSettings, name: str) -> bool:
    return getattr(settings, name) is not UNSET


def _invalid_limit(message: str, param: str) -> BadRequest:
    return BadRequest(message, param=param, code="invalid_limit")


def _count(name: str, settings: ClientSettings) -> int | None:
    value = getattr(settings, name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST:
        raise _invalid_limit(f"{name}: must be a whole number from 1 to {_LARGEST}", name)
    return value


def _limits(value: Any, config: Config) -> tuple[LimitConfig, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid_limit('limits: must be a list, as in ["$20/day", "60 requests/60s"]', "limits")
    try:
        limits = msgspec.convert(value, _LIMITS_TYPE)
    except msgspec.ValidationError as exc:
        raise _invalid_limit(f"limits: {exc}", "limits") from exc
    if len(limits) > _MOST_LIMITS:
        raise _invalid_limit(f"limits: {len(limits)} are more than the {_MOST_LIMITS} allowed", "limits")
    problem = next(iter(limit_problems(config, limits, ("limits",))), None)
    if problem is not None:
        raise _invalid_limit(f"{problem.path}: {problem.message}; {problem.fix}", "limits")
    return limit_rows(limits)


def _team(name: str, config: Config) -> str:
    if name and name not in config.teams:
        known = ", ".join(config.teams) or "none; add [teams.NAME] to the configuration"
        message = f"team: {name[:80]!r} is not configured; teams: {known}"
        raise BadRequest(message, param="team", code="unknown_team")
    return name


def _expiry(text: str | None, now: float) -> float | None:
    if not text:
        return None
    moment = parse_moment(text, now)
    if moment is None:
        message = f"expires: {text[:80]!r} is neither a duration (30d) nor a time (2027-01-31T00:00:00Z)"
        raise BadRequest(message, param="expires", code="invalid_expires")
    if moment <= now:
        raise BadRequest(f"expires: {text[:80]!r} has passed", param="expires", code="invalid_expires")
    return moment
