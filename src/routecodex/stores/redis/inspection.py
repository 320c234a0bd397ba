"""Facts about a Redis server that decide whether it is fit to hold state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

SAFE_EVICTION = "noeviction"


class ServerFacts(Struct, frozen=True):
    """Name and version of the server, how it keeps its data, and what it deletes when memory is short."""

    name: str
    version: str
    role: str
    persistence: str
    eviction: str

    @property
    def warnings(self) -> list[str]:
        """Settings that may lose state, with the way out."""
        found: list[str] = []
        if self.eviction and self.eviction != SAFE_EVICTION:
            found.append(
                f"maxmemory-policy is {self.eviction}: the server may delete state when memory is short; "
                f"set it to {SAFE_EVICTION}"
            )
        if self.persistence == "none":
            found.append("the server keeps nothing on disk: a restart loses all state; set appendonly yes")
        return found


def server_facts(info: Mapping[str, Any], saves: str | None) -> ServerFacts:
    """Read the answer to INFO; that of a cluster has an entry for each server, of which the first counts.

    `saves` is the setting `save` of the server; None if it may not be read.
    """
    values = list(info.values())
    if values and all(isinstance(value, Mapping) for value in values) and "redis_version" not in info:
        info = values[0]
    valkey = info.get("valkey_version")
    return ServerFacts(
        name="valkey" if valkey else "redis",
        version=str(valkey or info.get("redis_version", "")),
        role=str(info.get("role", "")),
        persistence=_persistence(info, saves),
        eviction=str(info.get("maxmemory_policy", "")),
    )


def _persistence(info: Mapping[str, Any], saves: str | None) -> str:
    if info.get("aof_enabled"):
        return "aof"
    if saves is None:
        return "unknown"
    return "rdb" if saves else "none"
