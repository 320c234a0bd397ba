"""Settings of a Redis store."""

from __future__ import annotations

from msgspec import Struct

from routecodex.canon.store_url import RedisAddress

POOL_SIZE = 16
"""Connections of one process for calls; the subscription has its own."""


class RedisOptions(Struct, frozen=True, kw_only=True):
    """Address and settings of a Redis store; `timeout` is in seconds."""

    address: RedisAddress
    prefix: str = "routecodex"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    timeout: float = 0.25
    wait_replicas: int = 0
