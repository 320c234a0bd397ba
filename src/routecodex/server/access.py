"""Access checks: client keys, the accepted Host names, and whether a caller is on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Final

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.clients import Client, ClientTable
from routecodex.canon.errors import ClientError
from routecodex.config import Config, is_loopback
from routecodex.server.http import HttpRequest

_MAX_CACHED_HOSTS = 256
_LONGEST_CACHED_HOST = 256
_MAX_CACHED_KEYS = 1024
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class _AcceptedKey:
    """A key that was accepted: by which table, for which client, and until when."""

    __slots__ = ("client", "table", "until")

    def __init__(self, table: ClientTable, client: Client, until: float) -> None:
        self.table: Final = table
        self.client: Final = client
        self.until: Final = until


class ClientAccess:
    """Checks Host names and client keys; a key that was accepted is looked up without its digest."""

    def __init__(self, config: Config, clients: ClientDirectory) -> None:
        server = config.server
        self._clients = clients
        self._hosts: frozenset[str] | None = None
        self._cached_hosts: set[str] = set()
        self._accepted: dict[str, _AcceptedKey] = {}
        if is_loopback(server.host) and "*" not in server.allowed_hosts:
            names = (*_LOOPBACK_NAMES, server.host, *server.allowed_hosts, *_public_hosts(config))
            self._hosts = frozenset(map(_normalized, names))

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Reject foreign Host names, so that a web page cannot reach a local gateway by DNS rebinding."""
        host = headers.get("host", "")
        if self._hosts is None or host in self._cached_hosts:
            return
        name = _without_port(host.strip())
        if _normalized(name) not in self._hosts:
            raise ClientError(
                f"Host {name[:100]!r} is not allowed; add it to server.allowed_hosts",
                status=403,
                code="host_not_allowed",
            )
        if len(self._cached_hosts) < _MAX_CACHED_HOSTS and len(host) <= _LONGEST_CACHED_HOST:
            self._cached_hosts.add(host)

    def client_of(self, request: HttpRequest) -> Client | None:
        """Return the client of the request's key; None while there are no clients."""
        table = self._clients.table
        if table.is_open:
            return None
        key, now = _sent_key(request), time()
        accepted = self._accepted.get(key)
        if accepted is not None and accepted.table is table and now < accepted.until:
            return accepted.client
        client = table.authenticate(key, now)
        if client is not None and key:
            self._accept(key, _AcceptedKey(table, client, table.usable_until(key)))
        return client

    def _accept(self, key: str, accepted: _AcceptedKey) -> None:
        if len(self._accepted) >= _MAX_CACHED_KEYS:
            self._accepted.clear()
        self._accepted[key] = accepted


def _public_hosts(config: Config) -> tuple[str, ...]:
    """Return the name at which a TLS proxy in front is reached, which it may pass on as Host."""
    origin = config.console.origin if config.console.remote else ""
    return (_without_port(origin.partition("://")[2]),) if origin else ()


def is_local(peer: tuple[str, int] | None, host: str) -> bool:
    """Return whether the peer is on this machine: its address is loopback, or the one that is listened on."""
    if peer is None:
        return False
    address = peer[0].lower().removeprefix("::ffff:").partition("%")[0]
    return is_loopback(address) or address == _normalized(host)


def _without_port(host: str) -> str:
    if host.endswith("]") or (host.count(":") > 1 and "]" not in host):
        return host
    return host.rpartition(":")[0] or host


def _normalized(host: str) -> str:
    """Return a host for comparison: in lower case, an IPv6 address without its brackets."""
    return host.lower().removeprefix("[").removesuffix("]")


def _sent_key(request: HttpRequest) -> str:
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return (
        headers.get("x-api-key")
        or headers.get("x-goog-api-key")
        or headers.get("api-key")
        or request.query_param("key")
        or ""
    ).strip()
