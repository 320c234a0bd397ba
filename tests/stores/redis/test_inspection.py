"""What a server says of itself, and what is said against it."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.stores.redis.inspection import described, server_facts

GOOD = {"redis_version": "7.0.15", "role": "master", "aof_enabled": 1, "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("more", "saves", "version", "persistence", "warned"),
    [
        ({}, "", "redis 7.0.15", "aof", []),
        ({"aof_enabled": 0}, "3600 1", "redis 7.0.15", "rdb", []),
        ({"aof_enabled": 0}, None, "redis 7.0.15", "unknown", []),
        ({"aof_enabled": 0}, "", "redis 7.0.15", "none", ["the server keeps nothing on disk"]),
        (
            {"maxmemory_policy": "volatile-ttl"},
            "",
            "redis 7.0.15",
            "aof",
            ["maxmemory-policy is volatile-ttl"],
        ),
        ({"redis_version": "6.2.0"}, "", "redis 6.2.0", "aof", []),
        ({"redis_version": "6.0.16"}, "", "redis 6.0.16", "aof", ["redis 6.0.16 is too old: 6.2 or newer"]),
        ({"valkey_version": "8.0.1"}, "", "valkey 8.0.1", "aof", []),
        ({"valkey_version": "7.1.0"}, "", "valkey 7.1.0", "aof", ["valkey 7.1.0 is too old: 7.2 or newer"]),
    ],
)
def test_weaknesses_of_a_server_are_named(
    more: dict[str, Any], saves: str | None, version: str, persistence: str, warned: list[str]
) -> None:
    found = described({"redis://h:6379": server_facts({**GOOD, **more}, saves)})
    assert (found["version"], found["persistence"]) == (version, persistence)
    assert len(found["warnings"]) == len(warned)
    assert all(map(str.startswith, found["warnings"], warned))
