"""State that outlives a request: one interface, several implementations.

store        Store, Stored, StoreError, Conflict: the interface
cell         Cell: cached, stamped access to one kind of stored value
background_trim  BackgroundTrim: deletes old values beside the requests that write
monitored    MonitoredStore: a store that times its calls and knows whether it can be used
memory       MemoryStore: values that end with the process
file         FileStore: readable JSON files, safe with several processes
folder       Folder: one space of a FileStore on disk, its lock and its damaged files
file_format  file names for arbitrary keys, time stamps, and the contents of a file
redis        RedisStore: values in Redis or Valkey, shared by several machines
uptime       SystemUptime: a clock that nobody can set

`open_store` opens the store of a URL: `file:` (the session directory), `file:/path`, `memory:`, or one of the
URLs of Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from routecodex.canon.errors import ConfigError
from routecodex.canon.store_url import StoreUrlError, file_path, is_redis_url, parse_redis_url
from routecodex.stores.file import FileStore
from routecodex.stores.file_format import KeyOf
from routecodex.stores.memory import MemoryStore
from routecodex.stores.redis.options import RedisOptions
from routecodex.stores.store import Store

Bare = Mapping[str, KeyOf]


def open_store(
    url: str, *, session_dir: Path, bare: Bare | None = None, redis: RedisOptions | None = None
) -> Store:
    """Open the store at a URL without touching disk or network; in `bare` spaces a file is the value alone.

    `redis` has the settings of a Redis store; without them the URL is enough.
    """
    if is_redis_url(url):
        return _open_redis(url, redis)
    scheme, colon, _ = url.partition(":")
    opener = _OPENERS.get(scheme.lower()) if colon else None
    if opener is None:
        # The message quotes only the scheme: the rest of a URL may contain a password.
        problem = f"unknown scheme {scheme!r}" if colon else "the URL has no scheme"
        raise ConfigError(f"store.url: {problem}; use file:, file:/path, memory: or redis://host")
    return opener(url, session_dir, bare or {})


def _open_redis(url: str, options: RedisOptions | None) -> Store:
    try:
        if options is None:
            options = RedisOptions(address=parse_redis_url(url))
        from routecodex.stores.redis.store import RedisStore
    except StoreUrlError as exc:
        raise ConfigError(f"store.url: {exc.message}; {exc.fix}") from exc
    except ImportError as exc:
        raise ConfigError(
            "store.url: needs the package redis, which is not installed; pip install 'routecodex[redis]'"
        ) from exc
    return RedisStore(options)


def _open_file(url: str, session_dir: Path, bare: Bare) -> Store:
    try:
        path = file_path(url)
    except StoreUrlError as exc:
        raise ConfigError(f"store.url: {url!r} {exc.message}; {exc.fix}") from exc
    return FileStore(Path(path).expanduser() if path else session_dir, bare=bare)


def _open_memory(url: str, session_dir: Path, bare: Bare) -> Store:
    rest = url.partition(":")[2]
    if rest:
        raise ConfigError(f"store.url: memory: does not take a path, but has {rest!r}")
    return MemoryStore()


_OPENERS: dict[str, Callable[[str, Path, Bare], Store]] = {"file": _open_file, "memory": _open_memory}
