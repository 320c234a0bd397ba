"""One configured provider: address, keys, dialect, redaction.

What is never told of a provider: its keys, and the values of its configuration that may be as secret.

Providers quote what they were sent, in any field of an error; some by way of a proxy, with its password.

One configured provider, ready to send to: where it is, how it authenticates, which dialect it speaks.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

from routecodex.canon.errors import GatewayError, UpstreamError, UpstreamFailed
from routecodex.protocols.codec import Codec
from routecodex.protocols.dialect import Dialect
from routecodex.providers.http import HttpClient, HttpResponse, Origin, Timeouts

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


_AUTH_STYLES = {
    "chat": "bearer",
    "responses": "bearer",
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
}
_PASSED_HEADERS = {
    "messages": ("anthropic-version", "anthropic-beta"),
    "chat": ("openai-beta",),
    "responses": ("openai-beta",),
    "gemini": ("x-goog-api-client",),
}
_PASSED_QUERY = {"messages": ("beta",)}
_DEFAULT_HEADERS = {"messages": {"anthropic-version": "2023-06-01"}}
ANSWER_LIMIT = 256 * 1024 * 1024
_ERROR_LIMIT = 1024 * 1024
_MAX_HEADS = 256
_PAGE = re.compile(r"\s*<(?:!doctype|html)", re.IGNORECASE)


def auth_headers(style: str, secret: str) -> dict[str, str]:
    """The header that carries a key."""
    if style == "none" or not secret:
        return {}
    return {"authorization": f"Bearer {secret}"} if style == "bearer" else {style: secret}


class Upstream:
    """A provider to send to; one per configured provider, shared by all requests."""

    def __init__(
        self,
        name: str,
        *,
        codec: Codec,
        base_url: str,
        origin: Origin,
        client: HttpClient,
        secrets: Mapping[str, str],
        auth_style: str | None = None,
        timeouts: Timeouts | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        self.name = name
        self.codec = codec
        self.dialect = dialect or Dialect()
        self._origin = origin
        self._client = client
        self._timeouts = timeouts or Timeouts()
        self._base = urlsplit(base_url).path.rstrip("/")
        self._query = urlencode(query or {})
        style = auth_style or _AUTH_STYLES[codec.name]
        defaults = _DEFAULT_HEADERS.get(codec.name, {})
        self._fixed = {
            key: {**defaults, **auth_headers(style, secret), **(headers or {})}
            for key, secret in secrets.items()
        }
        told = secrets_of(secrets.values(), headers=headers or {}, query=query or {}, origin=origin)
        self._veil = SecretRedactor(told)
        self._passed = _PASSED_HEADERS[codec.name]
        self._nothing = (None,) * len(self._passed)
        self._heads: dict[tuple[str, bool, tuple[str | None, ...]], bytes] = {}

    def path(self, model: str, *, stream: bool) -> bytes:
        """Where requests for this model go."""
        return self._full_path(self.dialect.path or self.codec.path(model, stream))

    def _full_path(self, below: str) -> bytes:
        path = f"{self._base}{below}"
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        return path.encode("ascii")

    def with_query(self, path: bytes, query: str) -> bytes:
        """The path with those of the client's query parameters that its protocol gives a meaning."""
        kept = [pair for pair in parse_qsl(query) if pair[0] in _PASSED_QUERY.get(self.codec.name, ())]
        if not kept:
            return path
        return path + (b"&" if b"?" in path else b"?") + urlencode(kept).encode("ascii")

    def passes_on(self, headers: Mapping[str, str]) -> bool:
        """Whether any of a client's headers travels on."""
        return any(name in headers for name in self._passed)

    def head(self, key: str, *, stream: bool, headers: Mapping[str, str] | None) -> bytes:
        """The header block of a request; of the client's own headers only those of its protocol travel on."""
        given = tuple(map(headers.get, self._passed)) if headers is not None else self._nothing
        wanted = (key, stream, given)
        block = self._heads.get(wanted)
        if block is None:
            block = _head(self._fixed[key], stream=stream, passed=dict(zip(self._passed, given, strict=True)))
            if len(self._heads) < _MAX_HEADS:
                self._heads[wanted] = block
        return block

    def open(self, body: bytes, head: bytes, path: bytes) -> Awaitable[HttpResponse]:
        """The response head for this body, whatever its status."""
        return self._client.send(
            self._origin, method=b"POST", path=path, headers=head, body=body, timeouts=self._timeouts
        )

    async def refusal(self, response: HttpResponse) -> UpstreamError:
        """The typed error that an answer with another status than 2xx stands for."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        try:
            body = await response.read(_ERROR_LIMIT)
        except UpstreamError as error:
            error.detached()  # the connection keeps it
            body = b""
        if 300 <= response.status < 400:
            return UpstreamFailed(
                f"provider {self.name!r} answered with a redirect (HTTP {response.status}); see base_url",
                provider=self.name,
                upstream_status=response.status,
            )
        return self.discreet(self.codec.decode_error(response.status, headers, body, self.name))

    def discreet(self, error: UpstreamError) -> UpstreamError:
        """The error without what is no business of a client's: our keys, pages of HTML."""
        if _PAGE.match(error.message):
            status = error.upstream_status
            error.message = f"provider {self.name!r} answered HTTP {status} with a page of HTML"
        self._veil.error(error)
        return error

    def hide(self, error: GatewayError) -> None:
        """Hides our keys in an error that the middle of an answer told."""
        self._veil.error(error)

    def redacted(self, data: bytes) -> bytes:
        """Bytes that tell of a failure, without our keys: some providers quote them."""
        return self._veil.data(data)

    async def call(
        self, body: bytes, *, key: str, below: str, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """A plain JSON call below the base URL (counters, embeddings): the answer's body."""
        head = self.head(key, stream=False, headers=headers)
        response = await self.open(body, head, self._full_path(below))
        try:
            if not 200 <= response.status < 300:
                raise await self.refusal(response)
            return await response.read(ANSWER_LIMIT)
        finally:
            response.close()


def _head(fixed: Mapping[str, str], *, stream: bool, passed: Mapping[str, str | None]) -> bytes:
    named = {"content-type": "application/json", "user-agent": "routecodex"}
    named["accept"] = "text/event-stream" if stream else "application/json"
    named.update((name.lower(), value) for name, value in fixed.items())
    for name, value in passed.items():
        if value is not None:
            # What the configuration asks for is asked for beside what the client does.
            both = name.endswith("-beta") and name in named
            named[name] = f"{named[name]},{value}" if both else value
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in named.items())
