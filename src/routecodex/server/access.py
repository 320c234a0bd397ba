"""Access checks: client keys, the admin token, and the accepted Host names."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from time import time

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.clients import Client
from routecodex.canon.errors import ClientError, Unauthorized
from routecodex.config import Config, is_loopback
from routecodex.server.http import HttpRequest

_MAX_CACHED_HOSTS = 256
_LONGEST_CACHED_HOST = 256
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class ClientAccess:
    """Checks Host names and client keys."""

    def __init__(self, config: Config, clients: ClientDirectory) -> None:
        server = config.server
        self._clients = clients
        self._hosts: frozenset[str] | None = None
        self._cached_hosts: set[str] = set()
        if is_loopback(server.host) and "*" not in server.allowed_hosts:
            names = (*_LOOPBACK_NAMES, server.host, *server.allowed_hosts)
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
        return table.authenticate(_sent_key(request), time())


class AdminAccess:
    """Admits callers on this machine that send the admin token."""

    def __init__(self, token: str, *, host: str) -> None:
        self._token = _digest(token)
        self._host = _normalized(host)

    def check(self, request: HttpRequest) -> None:
        """Reject calls from other machines or without the token."""
        if not self._is_local(request.client):
            raise ClientError(
                "the admin API is available on this machine only", status=403, code="admin_not_local"
            )
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(self._token, _digest(token.strip())):
            raise Unauthorized(
                "the admin token is missing or wrong; send Authorization: Bearer and the token",
                code="invalid_admin_token",
            )

    def _is_local(self, peer: tuple[str, int] | None) -> bool:
        if peer is None:
            return False
        address = peer[0].lower().removeprefix("::ffff:").partition("%")[0]
        # A caller whose address is the one this server listens on is on this machine.
        return is_loopback(address) or address == self._host


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


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
