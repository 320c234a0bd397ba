"""Finds the limits of clients and teams, prepared once for each owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from routecodex.accounting.clients import Client, ClientTable
from routecodex.accounting.cost import NANOS
from routecodex.accounting.counters import CountersUnavailable, LimitCounters, LimitFigures
from routecodex.accounting.figures import show_usd
from routecodex.accounting.limits import Limit, make_limits
from routecodex.accounting.timestamps import iso_time
from routecodex.accounting.windows import MICROS
from routecodex.canon.errors import Overloaded
from routecodex.config import TEAM_PREFIX, Config, LimitConfig

CLIENT_PREFIX = "client:"


def limits_path(config: Config, home: Path) -> Path:
    """Return the file in which a server counts limits, in the user dir `home`."""
    return home / "usage" / f"{config.server.identity}.limits"


class LimitTable:
    """The limits of all owners; calendar windows without a time zone of their own have `timezone`."""

    def __init__(self, timezone: str = "UTC") -> None:
        self._timezone = timezone
        self._owners: dict[str, tuple[tuple[LimitConfig, ...], int | None, tuple[Limit, ...]]] = {}

    def of_client(self, client: Client, table: ClientTable) -> tuple[Limit, ...]:
        """Return the limits that hold for a client: its own, then those of its team."""
        own = self._limits(f"{CLIENT_PREFIX}{client.name}", client.limits, client.concurrent)
        team = table.teams.get(client.team)
        return own if team is None else (*own, *self.of_team(team.name, table))

    def of_team(self, name: str, table: ClientTable) -> tuple[Limit, ...]:
        """Return the limits of a team; none if it is not configured."""
        team = table.teams.get(name)
        return () if team is None else self._limits(f"{TEAM_PREFIX}{name}", team.limits, None)

    def find(self, owner: str, row: LimitConfig, table: ClientTable) -> Limit | None:
        """Return the limit of an owner that is configured by this row."""
        if owner.startswith(TEAM_PREFIX):
            limits = self.of_team(owner.removeprefix(TEAM_PREFIX), table)
        else:
            client = table.clients.get(owner.removeprefix(CLIENT_PREFIX))
            limits = () if client is None else self.of_client(client, table)
        return next((limit for limit in limits if limit.owner == owner and limit.row == row), None)

    def _limits(self, owner: str, rows: tuple[LimitConfig, ...], concurrent: int | None) -> tuple[Limit, ...]:
        known = self._owners.get(owner)
        if known is not None and known[0] == rows and known[1] == concurrent:
            return known[2]
        limits = make_limits(owner, rows, concurrent=concurrent, timezone=self._timezone)
        self._owners[owner] = (rows, concurrent, limits)
        return limits


class CountedUse:
    """Use of limits by the counters, for the rows of clients and teams."""

    def __init__(
        self,
        counters: LimitCounters,
        limits: LimitTable,
        *,
        table: Callable[[], ClientTable],
        clock: Callable[[], float],
    ) -> None:
        self._counters = counters
        self._limits = limits
        self._table = table
        self._clock = clock

    def figures(self, owner: str, limit: LimitConfig) -> Mapping[str, Any]:
        """Return `used`, `reserved`, `remaining` and `resets_at` of a limit; nulls if they are not known."""
        found = self._limits.find(owner, limit, self._table())
        rows = [] if found is None else self._read([found])
        return limit_use(rows[0]) if rows else dict.fromkeys(_FIELDS)

    def _read(self, limits: Sequence[Limit]) -> list[LimitFigures]:
        try:
            return self._counters.figures(limits, int(self._clock() * MICROS))
        except CountersUnavailable:
            return []

    def of_client(self, client: Client) -> list[LimitFigures]:
        """Return the state of all limits of a client, except that of requests at the same time."""
        limits = self._limits.of_client(client, self._table())
        return self._read([limit for limit in limits if limit.unit != "concurrent"])

    async def refresh(self) -> None:
        """Read what processes on other machines have counted."""
        await self._counters.refresh()

    async def reset(self, client: str) -> None:
        """Set the windows of a client's own limits to 0."""
        found = self._table().clients.get(client)
        if found is None:
            return
        owner = f"{CLIENT_PREFIX}{client}"
        limits = [limit for limit in self._limits.of_client(found, self._table()) if limit.owner == owner]
        try:
            self._counters.reset(limits, int(self._clock() * MICROS))
        except CountersUnavailable as exc:
            raise Overloaded(f"nothing was reset: {exc}", code="store_unavailable") from exc


_FIELDS = ("used", "reserved", "remaining", "resets_at")


def limit_use(figures: LimitFigures) -> dict[str, Any]:
    """Return the state of a limit for JSON."""
    limit, resets_at = figures.limit, figures.resets_at
    return {
        "used": limit.show(figures.taken),
        "reserved": limit.show(figures.reserved),
        "remaining": limit.show(figures.remaining),
        "resets_at": None if resets_at is None else iso_time(resets_at / MICROS),
    }


def limit_line(figures: LimitFigures) -> str:
    """Return the state of a limit as a line for people."""
    limit = figures.limit
    reset = "" if figures.resets_at is None else f", resets {iso_time(figures.resets_at / MICROS)}"
    used, left = (_rounded(limit, amount) for amount in (figures.taken, figures.remaining))
    return f"{limit.name}: {used} used, {left} left{reset}"


def _rounded(limit: Limit, amount: int) -> str:
    """Return an amount as the command line shows it."""
    return show_usd(amount / NANOS) if limit.unit == "usd" else str(amount)
