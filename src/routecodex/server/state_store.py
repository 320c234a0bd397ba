"""Opens the store of a configuration."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from routecodex.canon.errors import ConfigError
from routecodex.canon.store_url import RedisAddress, StoreUrlError, is_redis_url, parse_redis_url
from routecodex.config import StoreConfig, StoreSecret
from routecodex.stores import Bare, open_store
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.store import Store


def open_configured_store(config: StoreConfig, *, session_dir: Path, bare: Bare | None = None) -> Store:
    """Open the store without touching disk or network; ConfigError if the settings cannot be used."""
    options = redis_options(config) if is_redis_url(config.url) else None
    return open_store(config.url, session_dir=session_dir, bare=bare, redis=options)


def redis_options(config: StoreConfig) -> RedisOptions:
    """Return the settings of a Redis store."""
    try:
        address = parse_redis_url(config.url)
    except StoreUrlError as exc:
        raise ConfigError(f"store.url: {exc.message}; {exc.fix}") from exc
    return RedisOptions(
        address=_with_login(address, config),
        prefix=config.prefix,
        ca_file=config.ca_file,
        cert_file=config.cert_file,
        key_file=config.key_file,
        verify=config.verify,
        timeout=config.timeout_ms / 1000,
        wait_replicas=config.wait_replicas,
    )


def _with_login(address: RedisAddress, config: StoreConfig) -> RedisAddress:
    return replace(
        address,
        username=config.username or address.username,
        password=_revealed(config.password) or address.password,
        sentinel_username=config.sentinel_username,
        sentinel_password=_revealed(config.sentinel_password),
    )


def _revealed(password: StoreSecret | None) -> str:
    return "" if password is None or password.value is None else password.value.reveal()
