"""Chooses the proxy for a host from the environment, by the conventions of curl.

The variable for the scheme (`http_proxy`, `https_proxy`) comes before `all_proxy`, lower case before upper;
the first that is set decides, and an empty value means no proxy. Upper-case `HTTP_PROXY` is ignored when
`REQUEST_METHOD` is set, because a CGI client can set it with a header (CVE-2016-5385, httpoxy). Loopback
hosts are never proxied.
"""

from __future__ import annotations

import base64
import ipaddress
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from routecodex.canon.errors import ConfigError
from routecodex.providers.http.tls import context_for

__all__ = ["Proxy", "is_loopback", "proxy_for"]

_DEFAULT_PORT = {"http": 80, "https": 443}


class Proxy(msgspec.Struct, frozen=True):
    """A proxy, with its credentials as the value of a proxy-authorization header."""

    scheme: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    authorization: bytes | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.scheme}://{self.host}:{self.port})"


def proxy_for(scheme: str, host: str, *, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for an origin, or None for a direct connection."""
    if is_loopback(host):
        return None
    found = _setting(scheme, environ)
    if found is None or _excluded(host, port, no_proxy=_first(environ, "no_proxy", "NO_PROXY")):
        return None
    variable, value = found
    return _parse(value, variable)


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _setting(scheme: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"):
        if name == "HTTP_PROXY" and "REQUEST_METHOD" in environ:
            continue
        if name in environ:
            value = environ[name].strip()
            return (name, value) if value else None
    return None


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name] for name in names if name in environ), "")


def _excluded(host: str, port: int, *, no_proxy: str) -> bool:
    rules = (rule.strip().lower() for rule in no_proxy.split(","))
    return any(_matches(rule, host, port=port) for rule in rules if rule)


def _matches(rule: str, host: str, *, port: int) -> bool:
    if rule == "*":
        return True
    address = _address(host)
    if address is not None:
        return _matches_address(rule, address, port=port)
    name, _, rule_port = rule.partition(":")
    if rule_port and rule_port != str(port):
        return False
    name = name.removeprefix("*").lstrip(".")
    return host == name or host.endswith("." + name)


def _matches_address(rule: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address, *, port: int) -> bool:
    network, rule_port = rule, ""
    if rule.startswith("["):
        network, _, rule_port = rule[1:].partition("]")
    elif rule.count(":") == 1:
        network, _, rule_port = rule.partition(":")
    if rule_port.lstrip(":") not in ("", str(port)):
        return False
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _parse(value: str, variable: str) -> Proxy:
    try:
        url = urlsplit(value if "://" in value else f"http://{value}")
        port = url.port
    except ValueError as exc:
        raise ConfigError(f"{variable} is not a valid proxy URL: {exc}") from exc
    if url.scheme not in _DEFAULT_PORT or not url.hostname:
        raise ConfigError(
            f"{variable} names a {url.scheme!r} proxy; use http://host:port or https://host:port, "
            "or exclude the host with NO_PROXY"
        )
    return Proxy(
        scheme=url.scheme,
        host=url.hostname,
        port=port or _DEFAULT_PORT[url.scheme],
        tls=context_for(None) if url.scheme == "https" else None,
        authorization=_basic(url),
    )


def _basic(url: SplitResult) -> bytes | None:
    if url.username is None:
        return None
    userinfo = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return b"Basic " + base64.b64encode(userinfo.encode())
