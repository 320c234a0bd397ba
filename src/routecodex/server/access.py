"""Who may call: client keys, the operator's token, and the Host names we answer to."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from routecodex.canon.errors import ClientError, Unauthorized
from routecodex.config import Config, is_loopback
from routecodex.server.http import HttpRequest

_SEEN = 256
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class ClientAccess:
    """The door: keys are compared by their digests, in constant time."""

    def __init__(self, config: Config) -> None:
        server = config.server
        self._keys = {_digest(row.key.reveal()): row.name for row in server.client_keys}
        self._hosts: frozenset[str] | None = None
        self._seen: set[str] = set()
        if is_loopback(server.host) and "*" not in server.allowed_hosts:
            names = (*_LOOPBACK_NAMES, server.host, *server.allowed_hosts)
            self._hosts = frozenset(map(_bare, names))

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuses names that are not ours: a web page must not reach a local gateway under its own name."""
        given = headers.get("host", "")
        if self._hosts is None or given in self._seen:
            return
        name = _without_port(given.strip())
        if _bare(name) not in self._hosts:
            raise ClientError(
                f"this gateway does not answer to the name {name[:100]!r}; add it to server.allowed_hosts",
                status=403,
                code="host_not_allowed",
            )
        if len(self._seen) < _SEEN:
            self._seen.add(given)

    def client_name(self, request: HttpRequest) -> str:
        """Whose key the request carries; "" when no keys are configured."""
        if not self._keys:
            return ""
        given = _presented(request)
        if not given:
            raise Unauthorized(
                "no key was sent; use Authorization: Bearer, x-api-key, x-goog-api-key or ?key="
            )
        digest = _digest(given)
        for known, name in self._keys.items():
            if hmac.compare_digest(known, digest):
                return name
        raise Unauthorized("the key is not one of this gateway's client keys")


class AdminAccess:
    """The door of the admin API: this machine only, and whoever knows the token."""

    def __init__(self, token: str, *, host: str) -> None:
        self._token = _digest(token)
        self._host = _bare(host)

    def check(self, request: HttpRequest) -> None:
        """Refuses whoever calls from elsewhere or without the token."""
        if not self._is_from_here(request.client):
            raise ClientError(
                "the admin API answers to this machine only", status=403, code="admin_not_local"
            )
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(self._token, _digest(given.strip())):
            raise Unauthorized(
                "the admin token is missing or wrong; send Authorization: Bearer and the token",
                code="invalid_admin_token",
            )

    def _is_from_here(self, peer: tuple[str, int] | None) -> bool:
        if peer is None:
            return False
        address = peer[0].lower().removeprefix("::ffff:").partition("%")[0]
        # Who calls the one address we listen on from that very address is on this machine.
        return is_loopback(address) or address == self._host


def _without_port(host: str) -> str:
    if host.endswith("]") or (host.count(":") > 1 and "]" not in host):
        return host
    return host.rpartition(":")[0] or host


def _bare(host: str) -> str:
    """A host as names are compared: in lower case, an IPv6 address without its brackets."""
    return host.lower().removeprefix("[").removesuffix("]")


def _presented(request: HttpRequest) -> str:
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
