"""Checks the variables that send requests of the gateway and of agents through a proxy."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from routecodex.canon.errors import ConfigError
from routecodex.cli.checks.result import CheckResult, failed, passed, warned
from routecodex.config import Config
from routecodex.providers.http import Proxy
from routecodex.providers.http.origin import proxy_for

_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_SOMEWHERE = "host.invalid"
"""A host that no rule of NO_PROXY names."""
_EXCLUDE = "set NO_PROXY=127.0.0.1,localhost beside what it has already"


def check_proxy(config: Config | None, environ: Mapping[str, str]) -> CheckResult:
    """Check that proxies can be used, and that agents do not reach the gateway through one."""
    set_here = [name for lower in _VARIABLES for name in (lower, lower.upper()) if environ.get(name)]
    if not set_here:
        return passed("proxy", "no proxy variable is set")
    try:
        proxies = [proxy_for(scheme, _SOMEWHERE, port=443, environ=environ) for scheme in ("http", "https")]
        through = _providers_through_proxies(config, environ)
    except ConfigError as exc:
        return failed("proxy", exc.message, f"correct or unset {', '.join(set_here)}")
    differing = [name for name in _VARIABLES if _differ(environ, name)]
    if differing:
        names = ", ".join(f"{name} and {name.upper()}" for name in differing)
        message = f"{names} have different values; programs choose differently between them"
        return warned("proxy", message, "set both to the same value")
    if not _excludes_loopback(environ):
        message = (
            f"{', '.join(set_here)}: agents would send requests for the gateway on 127.0.0.1 to the proxy"
        )
        return warned("proxy", message, _EXCLUDE)
    used = ", ".join(sorted({_shown(proxy) for proxy in proxies if proxy is not None}))
    listed = f"; providers behind it: {', '.join(through)}" if through else "; no provider is behind it"
    return passed("proxy", f"the proxy of {', '.join(set_here)} is {used or 'not for HTTP'}{listed}")


def _shown(proxy: Proxy) -> str:
    return f"{proxy.host}:{proxy.port}"


def _providers_through_proxies(config: Config | None, environ: Mapping[str, str]) -> list[str]:
    rows = config.providers.items() if config is not None else ()
    return [name for name, row in rows if row.base_url and _proxy_of(row.base_url, environ) is not None]


def _proxy_of(base_url: str, environ: Mapping[str, str]) -> Proxy | None:
    url = urlsplit(base_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    return proxy_for(url.scheme, url.hostname or "", port=port, environ=environ)


def _differ(environ: Mapping[str, str], name: str) -> bool:
    both = environ.get(name), environ.get(name.upper())
    return None not in both and both[0] != both[1]


def _excludes_loopback(environ: Mapping[str, str]) -> bool:
    rules = [environ.get(name, "") for name in ("no_proxy", "NO_PROXY") if name in environ]
    # Some agents read only one spelling: each that is set must exclude loopback.
    return bool(rules) and all(any(map(_covers_loopback, rule.split(","))) for rule in rules)


def _covers_loopback(rule: str) -> bool:
    rule = rule.strip()
    if rule in ("*", "127.*"):
        return True
    try:
        return ipaddress.ip_address("127.0.0.1") in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return False
