"""Addresses as they stand in the file: what is a URL, a time server, this machine."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

__all__ = ["is_loopback", "is_time_server", "split_url"]

_VISIBLE = re.compile(r"[!-~]+\Z")
_HOST = re.compile(r"[A-Za-z0-9._-]+\Z|[0-9A-Fa-f:.]+\Z")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_url(url: str) -> SplitResult | None:
    """The parts of an http(s) URL that can be asked as it stands, or None if it is none."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        usable = parts.scheme in {"http", "https"} and _HOST.match(host) and parts.port != 0
    except ValueError:
        return None
    # Line breaks are taken out by urlsplit in silence, and what is not ASCII cannot stand in a request.
    below = url.partition("://")[2].partition("/")[2]
    return parts if usable and (not below or _VISIBLE.match(below)) and url.isprintable() else None


def is_time_server(text: str) -> bool:
    """Whether the text is `host`, `host:port` or `[v6]:port`."""
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    try:
        parts = urlsplit(f"//{text}")
        return bool(parts.hostname) and parts.netloc == text and parts.port != 0 and not text.endswith(":")
    except ValueError:
        return False
