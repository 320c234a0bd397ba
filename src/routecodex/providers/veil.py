"""What is never told of a provider: its keys, and the values of its configuration that may be as secret.

Providers quote what they were sent, in any field of an error; some by way of a proxy, with its password.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote_plus

from routecodex.canon.errors import GatewayError
from routecodex.providers.http import Origin

_HIDDEN = "***"

_LEAST_SECRET = 6
"""A shorter one keeps nothing secret, and hiding it would spoil every message it happens to occur in."""
_LEAST_UNNAMED = 8
_CREDENTIAL = re.compile(r"auth|key|token|secret|password|credential|cookie", re.IGNORECASE)

_PUBLIC = re.compile(
    r"version|beta|title|referer|origin|agent|accept|content-type|region|location|deployment|model",
    re.IGNORECASE,
)
"""Names of values that are no secret, however long, and that people must be able to read in an error."""
_SCHEME = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)


def secrets_of(
    keys: Iterable[str], *, headers: Mapping[str, str], query: Mapping[str, str], origin: Origin
) -> Iterator[str]:
    """Whatever a provider was configured with that must not be told."""
    yield from keys
    for name, value in (*headers.items(), *query.items()):
        if _CREDENTIAL.search(name) or (len(value) >= _LEAST_UNNAMED and not _PUBLIC.search(name)):
            yield _SCHEME.sub("", value, count=1)
    if origin.proxy is not None and origin.proxy.authorization is not None:
        yield from _of_basic(origin.proxy.authorization)


def _of_basic(authorization: bytes) -> Iterator[str]:
    sent = authorization.decode("ascii").removeprefix("Basic ")
    yield sent
    yield base64.b64decode(sent).decode().partition(":")[2]


class SecretRedactor:
    """Hides secrets in whatever is told."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _LEAST_SECRET}
        spelled = known | {quote_plus(secret) for secret in known}
        # The longest first: what is part of another must not break that up.
        self._texts = sorted(spelled, key=len, reverse=True)
        self._bytes = [text.encode() for text in self._texts]

    def data(self, data: bytes) -> bytes:
        """The bytes without secrets."""
        for secret in self._bytes:
            data = data.replace(secret, _HIDDEN.encode())
        return data

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._texts:
            text = text.replace(secret, _HIDDEN)
        return text

    def error(self, error: GatewayError) -> None:
        """Hides secrets in every field of the error that a client or a log is told."""
        error.message = self.text(error.message)
        error.code = self._value(error.code)
        error.param = self._value(error.param)
        error.details = self._value(error.details)
        error.args = (error.message,)

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {name: self._value(inner) for name, inner in value.items()}
            case list() | tuple():
                return [self._value(inner) for inner in value]
            case _:
                return value
