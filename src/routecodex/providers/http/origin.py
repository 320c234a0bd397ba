"""The origin of a provider: address, TLS, proxy and host header, computed once from its base URL.

TLS contexts: one per set of options; certificates are verified unless `verify` is false.

Proxies: chosen from the environment by the conventions of curl. The variable for the scheme (`http_proxy`,
`https_proxy`) comes before `all_proxy`, lower case before upper; the first that is set decides, and an empty
value means no proxy. Upper-case `HTTP_PROXY` is ignored when `REQUEST_METHOD` is set, because a CGI client
can set it with a header (CVE-2016-5385, httpoxy). Loopback hosts are never proxied.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from routecodex.canon.errors import ConfigError

_DEFAULT_PORT = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")


class TlsOptions(msgspec.Struct, frozen=True):
    """Checks of the peer's certificate (`verify`, `ca_file`), and the client certificate to present."""

    verify: bool = True
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Proxy(msgspec.Struct, frozen=True):
    """A proxy, with its credentials as the value of a proxy-authorization header."""

    scheme: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None
    authorization: bytes | None = None

    def __repr__(self) -> str:
        return f"Proxy({self.scheme}://{self.host}:{self.port})"


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
    scheme, host, port = _split_url(base_url)
    return Origin(
        scheme=scheme,
        host=host,
        port=port,
        tls=context_for(tls) if scheme == "https" else None,
        proxy=proxy_for(scheme, host, port=port, environ=environ),
        host_header=_host_header(scheme, host, port=port),
    )


def _split_url(base_url: str) -> tuple[str, str, int]:
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


def context_for(options: TlsOptions | None) -> ssl.SSLContext:
    """Return the client context for these options; equal options over unchanged files share one."""
    options = options or TlsOptions()
    files = (options.ca_file, options.cert_file, options.key_file)
    return _context(options, tuple(_modified(path) for path in files if path))


def _modified(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError as exc:
        raise ConfigError(f"TLS file {path!r} cannot be read: {exc.strerror}") from exc


@lru_cache(maxsize=64)
def _context(options: TlsOptions, modified: tuple[int, ...]) -> ssl.SSLContext:
    del modified  # part of the cache key only: a renewed certificate file needs a new context
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as exc:
        raise ConfigError(f"TLS options cannot be used ({_describe_files(options)}): {exc}") from exc
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe_files(options: TlsOptions) -> str:
    fields = ("ca_file", "cert_file", "key_file")
    return ", ".join(f"{field}={getattr(options, field)!r}" for field in fields if getattr(options, field))


def proxy_for(scheme: str, host: str, *, port: int, environ: Mapping[str, str]) -> Proxy | None:
    """Return the proxy for an origin, or None for a direct connection."""
    if is_loopback(host):
        return None
    found = _proxy_setting(scheme, environ)
    if found is None or _excluded(host, port, no_proxy=_first(environ, "no_proxy", "NO_PROXY")):
        return None
    variable, value = found
    return _parse_proxy(value, variable)


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _proxy_setting(scheme: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
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
    return any(_matches_rule(rule, host, port=port) for rule in rules if rule)


def _matches_rule(rule: str, host: str, *, port: int) -> bool:
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


def _parse_proxy(value: str, variable: str) -> Proxy:
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
        authorization=_basic_authorization(url),
    )


def _basic_authorization(url: SplitResult) -> bytes | None:
    if url.username is None:
        return None
    userinfo = f"{unquote(url.username)}:{unquote(url.password or '')}"
    return b"Basic " + base64.b64encode(userinfo.encode())
