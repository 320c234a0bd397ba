"""Facts about a Redis server that decide whether it is fit to hold state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

SAFE_EVICTION = "noeviction"
_OLDEST = {"redis": (6, 2), "valkey": (7, 2)}


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
        oldest = _OLDEST[self.name]
        if _numbers(self.version) < oldest:
            needed = ".".join(map(str, oldest))
            found.append(f"{self.name} {self.version} is too old: {needed} or newer is needed")
        if self.eviction and self.eviction != SAFE_EVICTION:
            found.append(
                f"maxmemory-policy is {self.eviction}: the server may delete state when memory is short; "
                f"set it to {SAFE_EVICTION}"
            )
        if self.persistence == "none":
            found.append("the server keeps nothing on disk: a restart loses all state; set appendonly yes")
        return found


def server_facts(info: Mapping[str, Any], saves: str | None) -> ServerFacts:
    """Read the answer of a server to INFO; `saves` is its setting `save`, None if it may not be read."""
    valkey = info.get("valkey_version")
    return ServerFacts(
        name="valkey" if valkey else "redis",
        version=str(valkey or info.get("redis_version", "")),
        role=str(info.get("role", "")),
        persistence=_persistence(info, saves),
        eviction=str(info.get("maxmemory_policy", "")),
    )


def described(servers: Mapping[str, ServerFacts]) -> dict[str, Any]:
    """Return what `store check` shows of one server, or of those of a cluster by address."""
    every = list(servers.values())
    return {
        "version": _listed(f"{one.name} {one.version}" for one in every),
        "persistence": _listed(one.persistence for one in every),
        "eviction": _listed(one.eviction for one in every),
        "warnings": [
            f"{address}: {text}" if len(every) > 1 else text
            for address, one in servers.items()
            for text in one.warnings
        ],
    }


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _persistence(info: Mapping[str, Any], saves: str | None) -> str:
    if info.get("aof_enabled"):
        return "aof"
    if saves is None:
        return "unknown"
    return "rdb" if saves else "none"
