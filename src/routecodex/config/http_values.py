"""URLs and header fields, as far as a request can be sent with them."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from routecodex.config.problems import quoted

_VISIBLE = re.compile(r"[!-~]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+\Z")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]*\Z")
_GATEWAY_HEADERS = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that follow from the URL and the body; the gateway sets them itself."""


def split_url(url: str) -> SplitResult | None:
    """Return the parts of an http(s) URL that can be requested unchanged, or None if it is not one."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        usable = parts.scheme in {"http", "https"} and is_host(host) and parts.port != 0
    except ValueError:
        return None
    # urlsplit silently removes line breaks, and a request line must be ASCII.
    below = url.partition("://")[2][len(parts.netloc) :]
    return parts if usable and (not below or _VISIBLE.match(below)) and url.isprintable() else None


def is_host(text: str) -> bool:
    """Return whether the text is the name or address of a host."""
    return _HOST.match(text) is not None


def is_header_value(value: str) -> bool:
    """Return whether a header may have the value: no line breaks, no control characters."""
    return _HEADER_VALUE.match(value) is not None


def header_fault(name: str, value: str) -> tuple[str, str] | None:
    """Return why a header cannot be sent, and what to do about it; None if it can."""
    if not _HEADER_NAME.match(name):
        return f"{quoted(name)} is not a valid header name", "use letters, digits and -"
    if name.lower() in _GATEWAY_HEADERS:
        return "is set by the gateway itself", "remove it"
    if not is_header_value(value):
        return (
            "contains a character that is not allowed in a header",
            "remove line breaks and other control characters",
        )
    return None
