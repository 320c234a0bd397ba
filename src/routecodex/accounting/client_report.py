"""Clients and teams as the admin API and the command line show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from routecodex.accounting.clients import AllowRules, Client, ClientKey, ClientTable
from routecodex.accounting.timestamps import iso_time
from routecodex.config import LimitConfig, LimitText, parse_limit


class LimitUse(Protocol):
    """Use of limits, as far as this process can tell."""

    def figures(self, owner: str, limit: LimitConfig) -> Mapping[str, Any]:
        """Return `used`, `reserved`, `remaining`, `resets_at`; the owner is `client:NAME` or `team:NAME`."""
        ...

    async def refresh(self) -> None:
        """Read what processes on other machines have counted."""
        ...

    async def reset(self, client: str) -> None:
        """Set the windows of a client to 0."""
        ...


class UnknownUse:
    """The use of limits that nothing counts."""

    def figures(self, owner: str, limit: LimitConfig) -> Mapping[str, Any]:
        return {"used": None, "reserved": None, "remaining": None, "resets_at": None}

    async def refresh(self) -> None:
        """There is nothing to read."""

    async def reset(self, client: str) -> None:
        """There is no window to set."""


def client_row(
    client: Client,
    table: ClientTable,
    *,
    use: LimitUse,
    now: float,
    last_used_at: float | None,
    in_flight: int,
) -> dict[str, Any]:
    """Return a client with its limits, those of its team included."""
    return {
        "name": client.name,
        "team": client.team or None,
        "source": client.source,
        "keys": [_key_row(client, key) for key in client.keys if not _is_over(key, now)],
        "created_at": _time(client.created_at),
        "expires_at": _time(client.expires_at),
        "last_used_at": _time(last_used_at),
        "blocked": client.blocked,
        "allow": AllowRules((client.allow,)).as_dict(),
        "instructions": client.instructions,
        "role": client.role,
        "mcp": client.mcp,
        "concurrent": client.concurrent,
        "in_flight": in_flight,
        "limits": limit_figures(table.limits_of(client), use),
    }


def team_row(name: str, table: ClientTable, *, use: LimitUse) -> dict[str, Any]:
    """Return a team with its members and limits."""
    team = table.teams[name]
    return {
        "name": name,
        "members": team.members,
        "limits": limit_figures([(f"team:{name}", limit) for limit in team.limits], use),
        "allow": AllowRules((team.allow,)).as_dict(),
    }


def limit_figures(limits: Sequence[tuple[str, LimitConfig]], use: LimitUse) -> list[dict[str, Any]]:
    """Return each limit with its owner and use."""
    return [_limit_row(owner, limit, use.figures(owner, limit)) for owner, limit in limits]


def _limit_row(owner: str, limit: LimitConfig, figures: Mapping[str, Any]) -> dict[str, Any]:
    parsed = parse_limit(limit.limit)
    known = parsed if isinstance(parsed, LimitText) else None
    return {
        "limit": limit.limit,
        "owner": owner,
        "unit": known.unit if known is not None else None,
        "max": known.maximum if known is not None else None,
        **{name: figures.get(name) for name in ("used", "reserved", "remaining", "resets_at")},
        "mode": limit.mode,
        "models": limit.models,
    }


def _key_row(client: Client, key: ClientKey) -> dict[str, Any]:
    return {
        "prefix": key.prefix,
        "created_at": _time(key.created_at),
        "expires_at": _time(client.expiry_of(key)),
    }


def _is_over(key: ClientKey, now: float) -> bool:
    """Return whether another key has taken the place of this one, and its overlap has ended."""
    return key.expires_at is not None and key.expires_at <= now


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else iso_time(seconds)
