"""Removes secrets from captures before they are written.

Credentials are known in three ways: by the name of the header, query parameter or JSON field that holds them,
by the configuration, and by the request itself: the key that a client sent is removed wherever else it
occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from json import dumps
from urllib.parse import parse_qsl, quote, quote_plus, unquote

REDACTED = "***"
_REDACTED = REDACTED.encode()
_MIN_SECRET = 6
"""Characters of the shortest secret: a shorter one occurs in texts by chance."""
_SHORTEST_PART = 4
"""Characters of a secret that say nothing of it."""
_CREDENTIAL_NAME = re.compile(r"auth|key|token|secret|passw|credential|cookie|csrf|signature", re.IGNORECASE)
_PUBLIC_NAMES = frozenset({"idempotency-key", "x-idempotency-key"})
"""Names that look like those of credentials and are not."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)\s+(\S.*)", re.DOTALL)
_FIELD = re.compile(
    rb'("(?:authorization|authorization_token|api[_-]?key|x-api-key|access_token|refresh_token|client_secret)"'
    rb'\s*:\s*)"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)',
    re.IGNORECASE | re.DOTALL,
)
"""JSON fields in which clients hand credentials to a provider, such as those of remote MCP servers."""


def is_credential(name: str) -> bool:
    """Return whether a header or parameter of this name holds a credential."""
    return bool(_CREDENTIAL_NAME.search(name)) and name.lower() not in _PUBLIC_NAMES


def redact_header(name: str, value: str) -> str:
    """Return the value of a header as it may be written; of credentials only the scheme is left."""
    if not is_credential(name):
        return value
    found = _SCHEME.fullmatch(value)
    return f"{found[1]} {REDACTED}" if found and name.lower().endswith("authorization") else REDACTED


def redact_target(target: str) -> str:
    """Return a request target with the credentials in its query removed."""
    path, mark, query = target.partition("?")
    if not mark:
        return target
    pairs = (pair.partition("=") for pair in query.split("&"))
    shown = (f"{name}={REDACTED}" if mark and is_credential(unquote(name)) else f"{name}{mark}{value}"
             for name, mark, value in pairs)  # fmt: skip
    return f"{path}?{'&'.join(shown)}"


def sent_credentials(headers: Mapping[str, str], target: str) -> set[str]:
    """Return the credentials that a request holds in its headers and its query."""
    found: set[str] = set()
    for name, value in headers.items():
        if is_credential(name):
            scheme = _SCHEME.fullmatch(value.strip())
            found |= {value.strip(), scheme[2].strip() if scheme else ""}
        if name.lower() == "cookie":
            found |= {crumb.partition("=")[2].strip() for crumb in value.split(";")}
    query = parse_qsl(target.partition("?")[2])
    return found | {value for name, value in query if is_credential(name)}


class CaptureRedactor:
    """Removes a set of secrets from bytes, in every spelling in which they may stand there."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _MIN_SECRET}
        # The longest first: a secret that is part of another must not break that up.
        self._secrets = sorted({one for secret in known for one in _spellings(secret)}, key=len, reverse=True)

    def body(self, data: bytes) -> bytes:
        """Return bytes of a body without secrets."""
        return _FIELD.sub(rb'\1"' + _REDACTED + b'"', self.data(data)) if b'"' in data else self.data(data)

    def data(self, data: bytes) -> bytes:
        """Return bytes without secrets."""
        for secret in self._secrets:
            data = data.replace(secret, _REDACTED)
        return data

    def text(self, text: str) -> str:
        """Return text without secrets."""
        return self.data(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def before_gap(self, data: bytes) -> bytes:
        """Return bytes that were cut off behind, without the start of a secret at their end."""
        return data[: len(data) - max((_overlap(data, secret) for secret in self._secrets), default=0)]

    def after_gap(self, data: bytes) -> bytes:
        """Return bytes that were cut off before, without the end of a secret at their start."""
        return data[max((_overlap(secret, data) for secret in self._secrets), default=0) :]


def _spellings(secret: str) -> set[bytes]:
    """Return a secret as it may stand in a header, in JSON or in a URL."""
    escaped = dumps(secret)[1:-1]
    texts = {secret, escaped, escaped.replace("/", "\\/"), quote_plus(secret), quote(secret, safe="")}
    return {text.encode("utf-8", "surrogateescape") for text in texts}


def _overlap(before: bytes, after: bytes) -> int:
    """Return the length of the longest end of `before` that `after` begins with."""
    sizes = range(min(len(before), len(after)), _SHORTEST_PART - 1, -1)
    return next((size for size in sizes if before.endswith(after[:size])), 0)
