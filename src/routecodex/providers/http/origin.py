"""The origin of a provider: address, TLS, proxy and host header, computed once from its base URL."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from routecodex.canon.errors import ConfigError
from routecodex.providers.http.proxy import Proxy, proxy_for
from routecodex.providers.http.tls import TlsOptions, context_for

__all__ = ["Origin", "origin_of"]

_DEFAULT_PORT = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


class Origin(msgspec.Struct, frozen=True, cache_hash=True):
    """Address, TLS and proxy of a provider; equal origins share their kept-alive connections."""

    scheme: str
    host: str
    port: int
    tls: ssl.SSLContext | None
    proxy: Proxy | None
    host_header: bytes


def origin_of(
    base_url: str, *, tls: TlsOptions | None = None, environ: Mapping[str, str] = os.environ
) -> Origin:
    """Return the origin of a provider's base URL, with the proxy that the environment sets for it."""
    scheme, host, port = _split(base_url)
    return Origin(
        scheme=scheme,
        host=host,
        port=port,
        tls=context_for(tls) if scheme == "https" else None,
        proxy=proxy_for(scheme, host, port=port, environ=environ),
        host_header=_host_header(scheme, host, port=port),
    )


def _split(base_url: str) -> tuple[str, str, int]:
    shown = re.sub(r"//[^/]*@", "//", base_url)
    try:
        url = urlsplit(base_url)
        port = url.port
        host = (url.hostname or "").encode("idna").decode()
    except ValueError as exc:
        raise ConfigError(f"base URL {shown!r} is not a valid URL: {exc}") from exc
    if url.scheme not in _DEFAULT_PORT or not _HOST.fullmatch(host):
        raise ConfigError(f"base URL {shown!r} must look like https://host[:port][/path]")
    if url.username is not None:
        raise ConfigError(f"base URL {shown!r} contains a user name; set the key in the provider's auth")
    return url.scheme, host, port or _DEFAULT_PORT[url.scheme]


def _host_header(scheme: str, host: str, *, port: int) -> bytes:
    name = f"[{host}]" if ":" in host else host
    return (name if port == _DEFAULT_PORT[scheme] else f"{name}:{port}").encode()
