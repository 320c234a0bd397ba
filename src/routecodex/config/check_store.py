"""Checks the tables of the store and of the node: [store], server.id, server.advertise_url."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from routecodex.canon.store_url import (
    RedisAddress,
    StoreUrlError,
    file_path,
    is_redis_url,
    parse_redis_url,
)
from routecodex.config.model import Config, StoreConfig
from routecodex.config.problems import ConfigPath, Hidden, Problem, display

_URL: ConfigPath = ("store", "url")
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z")
_EXTRA = "pip install 'routecodex[redis]'"
_TLS_KEYS = ("ca_file", "cert_file", "key_file")
PREFIX_FIX = "use up to 64 letters, digits, _ . : and -"
STORE_FIX = 'use "file:", "file:/path", "memory:" or "redis://host:6379/0"'


def is_valid_prefix(text: str) -> bool:
    """Return whether keys in Redis may begin with this text."""
    return _PREFIX.match(text) is not None


def check_store(config: Config, hidden: Hidden) -> Iterator[Problem]:
    """Yield what is wrong with the table of the store; no message shows a password."""
    store = config.store
    if is_redis_url(store.url):
        yield from _check_redis(store)
        return
    scheme, colon, rest = store.url.partition(":")
    shown = display(store.url, _URL, hidden)
    if not colon or scheme.lower() not in {"file", "memory"} or (scheme.lower() == "memory" and rest):
        yield Problem(_URL, f"{shown} is not a store of this version", STORE_FIX)
    elif scheme.lower() == "file":
        try:
            file_path(store.url)
        except StoreUrlError as exc:
            yield Problem(_URL, f"{shown} {exc.message}", exc.fix)


def _check_redis(store: StoreConfig) -> Iterator[Problem]:
    if not _is_installed():
        yield Problem(_URL, "needs the package redis, which is not installed", _EXTRA)
    if not is_valid_prefix(store.prefix):
        yield Problem(("store", "prefix"), "is not a valid prefix", PREFIX_FIX)
    try:
        address = parse_redis_url(store.url)
    except StoreUrlError as exc:
        yield Problem(_URL, exc.message, exc.fix)
        return
    yield from _check_login(store, address)
    yield from _check_tls(store, address)


def _is_installed() -> bool:
    return importlib.util.find_spec("redis") is not None


def _check_login(store: StoreConfig, address: RedisAddress) -> Iterator[Problem]:
    for name, in_url, given in (
        ("username", address.username, store.username),
        ("password", address.password, store.password),
    ):
        if in_url and given:
            yield Problem(("store", name), f"is also in store.url: two values for the {name}", "remove one")
    for name in ("sentinel_username", "sentinel_password"):
        if getattr(store, name) and address.mode != "sentinel":
            fix = "write redis+sentinel://… in store.url, or remove it"
            yield Problem(("store", name), "has no effect without sentinels", fix)
    if store.sentinel_username and store.sentinel_password is None and address.mode == "sentinel":
        place: ConfigPath = ("store", "sentinel_username")
        yield Problem(place, "has no password beside it", "set sentinel_password too")


def _check_tls(store: StoreConfig, address: RedisAddress) -> Iterator[Problem]:
    given = [name for name in _TLS_KEYS if getattr(store, name) is not None]
    if given and not address.tls:
        place: ConfigPath = ("store", given[0])
        yield Problem(place, "has no effect without TLS", "write rediss in place of redis in store.url")
    if store.key_file is not None and store.cert_file is None:
        yield Problem(("store", "key_file"), "has no certificate beside it", "set cert_file too")
