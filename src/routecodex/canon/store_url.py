"""Addresses of stores, read from a URL; pure functions.

    file:, file:/path, file:///path                       files below the session dir, or below a directory
    redis://[user[:password]@]host[:6379][/db]            one server
    redis+sentinel://h1:26379,h2:26379/<master>[/db]      the master that sentinels name
    redis+cluster://h1:6379,h2:6379                       a cluster

`rediss` in place of `redis` uses TLS. Upper and lower case of a scheme are the same. No message quotes the
URL: it may hold a password.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

from msgspec import Struct

RedisMode = Literal["single", "sentinel", "cluster"]

_MODES: dict[str, tuple[RedisMode, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
REDIS_SCHEMES = tuple(_MODES)
REDIS_FORM = "redis://[user[:password]@]host[:6379][/db]"

_PORTS: dict[RedisMode, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z")
_HOST_AND_COMMA = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?,"
_LATER_LOGIN = re.compile(f"@{_HOST_AND_COMMA}")
"""A host and a comma before the last @: another login follows."""
_LOGIN_AFTER_HOST = re.compile(f"(?:^|@){_HOST_AND_COMMA}")
_MASTER = re.compile(r"[A-Za-z0-9._-]+\Z")
_MOST_DATABASES = 100_000


class StoreUrlError(ValueError):
    """The URL of a store is not valid; `fix` says what to write."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class HostPort(NamedTuple):
    """One server of a store."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisAddress(Struct, frozen=True, kw_only=True):
    """Address of a Redis or Valkey store; `hosts` are its servers, or the sentinels that know its `master`.

    Sentinels may have a login of their own, which no URL holds.
    """

    mode: RedisMode
    tls: bool
    hosts: tuple[HostPort, ...]
    master: str = ""
    db: int = 0
    username: str = ""
    password: str = ""
    sentinel_username: str = ""
    sentinel_password: str = ""

    def __repr__(self) -> str:
        return f"RedisAddress({self.shown!r})"

    @property
    def shown(self) -> str:
        """The address for people and logs, without user and password."""
        scheme = next(scheme for scheme, row in _MODES.items() if row == (self.mode, self.tls))
        path = f"/{self.master}" if self.master else ""
        path += f"/{self.db}" if self.db else ""
        return f"{scheme}://{','.join(map(str, self.hosts))}{path}"


def is_redis_url(url: str) -> bool:
    """Return whether the URL has a scheme of a Redis store, valid or not."""
    scheme, colon, _ = url.partition(":")
    return bool(colon) and scheme.lower() in _MODES


def file_path(url: str) -> str:
    """Return the path in a `file:` URL, empty for the session dir; StoreUrlError if it is not absolute."""
    _, _, rest = url.partition(":")
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if path and (path.startswith("//") or not path.startswith(("/", "~/"))):
        raise StoreUrlError("is not an absolute path", 'use "file:/path", or "file:" for the session dir')
    return path


def parse_redis_url(url: str) -> RedisAddress:
    """Read the URL of a Redis store; StoreUrlError says what is wrong with it."""
    scheme, _, rest = url.partition(":")
    mode, tls = _MODES[scheme.lower()]
    if not rest.startswith("//"):
        raise StoreUrlError("has no host", f"write {REDIS_FORM}")
    # A password is often written as it is, with characters that belong to the rest of a URL.
    user, _, place = rest[2:].rpartition("@")
    if (_LATER_LOGIN if mode == "single" else _LOGIN_AFTER_HOST).search(user):
        fix = "write user:password@ once, before the first host; in a password, @ is %40 and a comma %2C"
        raise StoreUrlError("has a login behind its first host", fix)
    if "?" in place or "#" in place:
        raise StoreUrlError("has parameters, which are keys of [store] here", "remove everything from ? or #")
    hosts, _, path = place.partition("/")
    if mode == "single" and "," in hosts:
        kinds = f"{scheme}+sentinel://…/<master> or {scheme}+cluster://…"
        raise StoreUrlError("names several hosts, and one server has one", f"write {kinds}, or one host")
    username, _, password = user.partition(":")
    master, db = _split_path(mode, path)
    return RedisAddress(
        mode=mode,
        tls=tls,
        hosts=tuple(_host(text, mode) for text in hosts.split(",")),
        master=master,
        db=db,
        username=unquote(username),
        password=unquote(password),
    )


def _host(text: str, mode: RedisMode) -> HostPort:
    if not text:
        raise StoreUrlError("has no host", f"write {REDIS_FORM}")
    found = _HOST.match(text)
    if found is None:
        raise StoreUrlError("has an invalid host", "write host:port, an IPv6 address in [ ]")
    port = int(found["port"]) if found["port"] else _PORTS[mode]
    if not 0 < port < 65536:
        raise StoreUrlError(f"has the port {port}", "use a port from 1 to 65535")
    return HostPort(found["ipv6"] or found["name"], port)


def _split_path(mode: RedisMode, path: str) -> tuple[str, int]:
    """Return the name of the master and the number of the database."""
    steps = path.split("/") if path else []
    master = ""
    if mode == "sentinel":
        master = steps.pop(0) if steps else ""
        if not _MASTER.match(master):
            form = "write redis+sentinel://host:26379,host:26379/<master>, such as …/mymaster"
            raise StoreUrlError("names no master", form)
    if steps == [""]:
        steps = []
    if mode == "cluster" and steps:
        raise StoreUrlError("names a database, and a cluster has only one", "remove the path")
    if len(steps) > 1 or not all(step.isdecimal() and int(step) < _MOST_DATABASES for step in steps):
        raise StoreUrlError("has a path that is not the number of a database", f"write {REDIS_FORM}")
    return master, int(steps[0]) if steps else 0
