"""Checks requests of web pages: refuses pages of other origins, and gives allowed ones their CORS headers.

A gateway on loopback is reachable from every page that the user opens. Browsers send `Origin` with each
request that a page makes to another origin, and with each POST; current ones send `Sec-Fetch-Site` as well
(Fetch standard; W3C Fetch Metadata). SDKs and agents send neither, except Node's fetch, which sends only
`Sec-Fetch-Mode`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from routecodex.canon.errors import ClientError
from routecodex.config import Config
from routecodex.server import paths
from routecodex.server.http import HttpRequest

COOKIE_PREFIX: Final = "routecodex_admin_"
"""Name of the console's cookie, before the port."""

_LINKABLE: Final = frozenset({"root", "ui"})
"""Endpoints that a link on any page may open: they show no data and change nothing."""

_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for the gateway's own pages, and for an address that the user typed."""

_AUTHORITY = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?\Z")
"""Host and port of an origin; whatever else the text holds, such as a user before an `@`, is not a port."""

_JSON: Final = "application/json"
_JSON_TYPE = re.compile(r"application/(?:[\w!#$&^.+-]+\+)?json\Z")

_EXPOSED = ", ".join(
    (
        "*",
        "x-request-id",
        *(f"x-routecodex-{name}" for name in ("route", "target", "reason", "notice", "cost", "budget")),
        *("retry-after", "x-should-retry"),
    )
)
"""Response headers that pages may read; old browsers do not know the `*`."""

_PREFLIGHT_METHODS = "GET, HEAD, POST, DELETE"
_PREFLIGHT_HEADERS = (
    "authorization, content-type, x-api-key, x-goog-api-key, x-goog-api-client, anthropic-version, "
    "anthropic-beta, anthropic-dangerous-direct-browser-access, openai-beta, openai-organization, "
    "openai-project, x-session-id, x-request-id"
)
"""Request headers named in the answer to a preflight that does not list any."""
_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*\Z")
_PREFLIGHT_SECONDS = 7200
"""Chrome keeps the answer to a preflight no longer than this."""


class OriginAccess:
    """Decides which web pages may call the gateway."""

    def __init__(self, config: Config) -> None:
        listed = config.server.allowed_origins
        self._allows_all = "*" in listed
        self._allowed = frozenset(origin.lower() for origin in listed)
        self._public = config.console.origin

    def check(self, request: HttpRequest) -> bytes:
        """Reject a page of a foreign origin; return the CORS header lines for an allowed one, else b""."""
        headers = request.headers
        lines = b""
        if ("origin" in headers or "sec-fetch-site" in headers) and not _is_login_call(request):
            lines = self._check_page(request)
        if request.method == "POST" and headers.get("content-type") != _JSON:
            _check_content_type(headers)
        return lines

    def headers_of(self, request: HttpRequest | None) -> bytes:
        """Return the CORS header lines of a request that is refused for another reason; b"" for most."""
        origin = request.headers.get("origin") if request is not None else None
        return _cors_lines(origin) if origin is not None and self._allows(origin) else b""

    def _check_page(self, request: HttpRequest) -> bytes:
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none").lower()
        if origin is not None and self._allows(origin):
            return _cors_lines(origin)
        is_own = origin is None or self._is_own(headers.get("host", ""), origin)
        if not (is_own and (site in _OWN_SITES or _is_link(request))):
            raise _foreign(origin, site)
        return b""

    def _is_own(self, host: str, origin: str) -> bool:
        return is_origin_of(host, origin) or (self._public != "" and origin.lower() == self._public)

    def _allows(self, origin: str) -> bool:
        if self._allows_all:
            return True
        if not self._allowed:
            return False
        origin = origin.lower()
        scheme, _, authority = origin.partition("://")
        if origin in self._allowed or f"{scheme}://*" in self._allowed:
            return True
        found = _AUTHORITY.match(authority)
        return found is not None and f"{scheme}://{found[1]}:*" in self._allowed


def preflight_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of the answer to a CORS preflight of an allowed origin, besides the CORS lines.

    Every header that the page asks for is allowed: the page is trusted, and SDKs have many of their own
    (x-stainless-*, anthropic-*, x-goog-*).
    """
    asked = headers.get("access-control-request-headers", "")
    names = asked if _HEADER_NAMES.match(asked) else _PREFLIGHT_HEADERS
    answer = [
        (b"access-control-allow-methods", _PREFLIGHT_METHODS.encode()),
        (b"access-control-allow-headers", names.encode()),
        (b"access-control-max-age", b"%d" % _PREFLIGHT_SECONDS),
    ]
    # Chrome asks before a public page reaches a private address (WICG Private Network Access).
    if headers.get("access-control-request-private-network") == "true":
        answer.append((b"access-control-allow-private-network", b"true"))
    return answer


def _cors_lines(origin: str) -> bytes:
    fields = (
        f"access-control-allow-origin: {origin}",
        f"access-control-expose-headers: {_EXPOSED}",
        "vary: origin",
    )
    return "".join(f"{field}\r\n" for field in fields).encode("latin-1")


def _is_login_call(request: HttpRequest) -> bool:
    """Return whether the call logs in or out, or carries a login; then the admin API checks its page.

    A page that may call the gateway may not use the login of the console.
    """
    if not request.path.startswith("/admin/") or request.method == "OPTIONS":
        return False
    if "authorization" in request.headers:
        return False
    return request.path in _LOGIN_PATHS or COOKIE_PREFIX in request.headers.get("cookie", "")


_LOGIN_PATHS: Final = frozenset({"/admin/login", "/admin/logout"})


def is_origin_of(host: str, origin: str) -> bool:
    """Return whether the origin is that of the gateway, at the name by which the request reached it."""
    origin, host = origin.lower(), host.strip().lower()
    return bool(host) and any(
        origin == f"{scheme}://{host.removesuffix(port)}"
        for scheme, port in (("http", ":80"), ("https", ":443"))
    )


def _is_link(request: HttpRequest) -> bool:
    """Return whether the request opens a linkable path in a tab, where the linking page cannot read it."""
    endpoint, headers = paths.find(request.path), request.headers
    return (
        endpoint is not None
        and endpoint.name in _LINKABLE
        and request.method in ("GET", "HEAD")
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _foreign(origin: str | None, site: str) -> ClientError:
    page = f"a web page of {origin[:200]!r}" if origin is not None else f"a {site[:20]} web page"
    return ClientError(
        f"{page} may not call this gateway; if you trust it, add its origin to server.allowed_origins",
        status=403,
        code="origin_not_allowed",
    )


def _check_content_type(headers: Mapping[str, str]) -> None:
    """Require JSON from browsers.

    A page may send the types of HTML forms, or none, to any address without a preflight (Fetch standard).
    Others may leave the type as it is: `curl -d` and Python's urllib send that of a form.
    """
    if is_json(headers):
        return
    content_type = _content_type(headers)
    if _looks_like_browser(headers):
        named = (
            f"content type {content_type[:80]!r} is" if content_type else "a body without a content type is"
        )
        raise ClientError(
            f"{named} not accepted; send content-type: application/json",
            status=415,
            code="unsupported_content_type",
        )


def is_json(headers: Mapping[str, str]) -> bool:
    """Return whether the body is said to be JSON."""
    return _JSON_TYPE.match(_content_type(headers)) is not None


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _looks_like_browser(headers: Mapping[str, str]) -> bool:
    """Return whether a browser may have sent the request; an old one shows itself by its user agent only."""
    return (
        "origin" in headers
        or headers.get("user-agent", "").startswith("Mozilla/")
        or any(name.startswith("sec-fetch-") for name in headers)
    )
