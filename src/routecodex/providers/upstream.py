"""One configured provider: address, keys, dialect, redaction.

Providers quote request headers in any field of an error, OpenAI parts of the key for example, and a proxy may
quote its password. `SecretRedactor` removes keys and every configured value that may be as secret.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote_plus, urlencode, urlsplit

from routecodex.canon.errors import GatewayError, UpstreamError, UpstreamFailed
from routecodex.protocols.codec import Codec, CodexItems
from routecodex.protocols.dialect import Dialect
from routecodex.providers.http import HttpClient, HttpResponse, Origin, Timeouts

_AUTH_STYLES = {
    "chat": "bearer",
    "responses": "bearer",
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
}
_FORWARDED_HEADERS = {
    "messages": ("anthropic-version", "anthropic-beta"),
    "chat": ("openai-beta",),
    "responses": ("openai-beta",),
    "gemini": ("x-goog-api-client",),
}
_FORWARDED_QUERY = {"messages": ("beta",)}
_DEFAULT_HEADERS = {"messages": {"anthropic-version": "2023-06-01"}}
ANSWER_LIMIT = 256 * 1024 * 1024
_ERROR_LIMIT = 1024 * 1024
_MAX_HEADER_BLOCKS = 256
LONGEST_CACHED_BLOCK = 4096
"""Bytes; clients choose the values of forwarded headers."""
_HTML_PAGE = re.compile(r"\s*<(?:!doctype|html)", re.IGNORECASE)


def auth_headers(style: str, secret: str) -> dict[str, str]:
    """Return the header that carries a key."""
    if style == "none" or not secret:
        return {}
    return {"authorization": f"Bearer {secret}"} if style == "bearer" else {style: secret}


def can_be_sent(value: str) -> bool:
    """Return whether a trace header can have the value: other control characters than tabs could end it."""
    return value.isascii() and value.replace("\t", " ").isprintable()


def trace_headers(headers: Mapping[str, str]) -> bytes:
    """Return the client's trace context as header lines; empty without a `traceparent` that can be sent.

    W3C Trace Context: `tracestate` has no meaning without `traceparent`, and one that is faulty must not
    affect it (3.3.1, 4.3).
    """
    parent = headers.get("traceparent")
    if parent is None or not can_be_sent(parent):
        return b""
    lines = b"traceparent: %b\r\n" % parent.encode("ascii")
    state = headers.get("tracestate")
    if state is None or not can_be_sent(state):
        return lines
    return lines + b"tracestate: %b\r\n" % state.encode("ascii")


class Upstream:
    """One configured provider, ready to send to; shared by all requests."""

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
        billing_header: bool = False,
        codex_items: CodexItems = "native",
    ) -> None:
        self.billing_header = billing_header
        self.codex_items: CodexItems = codex_items
        """Becomes `plain` when the provider has rejected the other form."""
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
        self._fixed_headers = {
            key: {**defaults, **auth_headers(style, secret), **(headers or {})}
            for key, secret in secrets.items()
        }
        self._redactor = SecretRedactor(
            configured_secrets(secrets.values(), headers=headers or {}, query=query or {}, origin=origin)
        )
        self._forwarded = _FORWARDED_HEADERS[codec.name]
        self._none_forwarded = (None,) * len(self._forwarded)
        self._header_blocks: dict[tuple[str, bool, tuple[str | None, ...]], bytes] = {}

    def path(self, model: str, *, stream: bool) -> bytes:
        """Return the request path for a model."""
        return self._full_path(self.dialect.path or self.codec.path(model, stream))

    def _full_path(self, path: str) -> bytes:
        full = f"{self._base}{path}"
        if self._query:
            full += ("&" if "?" in full else "?") + self._query
        return full.encode("ascii")

    def with_query(self, path: bytes, query: str) -> bytes:
        """Add the client's query parameters that its protocol defines to the path."""
        forwarded = [
            pair for pair in parse_qsl(query) if pair[0] in _FORWARDED_QUERY.get(self.codec.name, ())
        ]
        if not forwarded:
            return path
        return path + (b"&" if b"?" in path else b"?") + urlencode(forwarded).encode("ascii")

    def forwards_any(self, headers: Mapping[str, str]) -> bool:
        """Whether any of a client's headers is sent upstream."""
        return any(name in headers for name in self._forwarded)

    def header_block(self, key: str, *, stream: bool, headers: Mapping[str, str] | None) -> bytes:
        """Return the headers of a request; of the client's headers only those of its protocol are added."""
        values = tuple(map(headers.get, self._forwarded)) if headers is not None else self._none_forwarded
        cache_key = (key, stream, values)
        block = self._header_blocks.get(cache_key)
        if block is None:
            forwarded = dict(zip(self._forwarded, values, strict=True))
            block = _encode_headers(self._fixed_headers[key], stream=stream, forwarded=forwarded)
            if len(self._header_blocks) < _MAX_HEADER_BLOCKS and len(block) <= LONGEST_CACHED_BLOCK:
                self._header_blocks[cache_key] = block
        return block

    def open(
        self, body: bytes, headers: bytes, path: bytes, *, trace: bytes = b""
    ) -> Awaitable[HttpResponse]:
        """Send the body; the response is returned with its head, whatever its status."""
        return self._client.send(
            self._origin,
            method=b"POST",
            path=path,
            headers=headers,
            body=body,
            timeouts=self._timeouts,
            added=trace,
        )

    async def error_of(self, response: HttpResponse) -> UpstreamError:
        """Read a response whose status is not 2xx as a typed error."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        try:
            body = await response.read(_ERROR_LIMIT)
        except UpstreamError as error:
            error.detached()  # the connection keeps it
            body = b""
        if 300 <= response.status < 400:
            return UpstreamFailed(
                f"provider {self.name!r} sent a redirect (HTTP {response.status}); check its base_url",
                provider=self.name,
                upstream_status=response.status,
            )
        return self.sanitize(self.codec.decode_error(response.status, headers, body, self.name))

    def sanitize(self, error: UpstreamError) -> UpstreamError:
        """Remove keys and pages of HTML from an error before a client sees it."""
        if _HTML_PAGE.match(error.message):
            status = error.upstream_status
            error.message = f"provider {self.name!r} answered HTTP {status} with a page of HTML"
        if _HTML_PAGE.match(error.provider_message):
            error.provider_message = "a page of HTML"
        self._redactor.error(error)
        return error

    def redact_error(self, error: GatewayError) -> None:
        """Remove keys from an error that came inside an answer stream."""
        self._redactor.error(error)

    def redact(self, data: bytes) -> bytes:
        """Return the bytes of a failed answer without keys, which some providers quote."""
        return self._redactor.data(data)

    async def call(
        self,
        body: bytes,
        *,
        key: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        trace: bytes = b"",
    ) -> bytes:
        """Make a JSON call below the base URL (token counts, embeddings) and return the response body."""
        block = self.header_block(key, stream=False, headers=headers)
        response = await self.open(body, block, self._full_path(path), trace=trace)
        try:
            if not 200 <= response.status < 300:
                raise await self.error_of(response)
            return await response.read(ANSWER_LIMIT)
        finally:
            response.close()

    async def get(self, path: str, *, key: str, limit: int) -> bytes:
        """Return the body of a GET below the base URL; `limit` is its longest in bytes."""
        response = await self._client.send(
            self._origin,
            method=b"GET",
            path=self._full_path(path),
            headers=self.header_block(key, stream=False, headers=None),
            body=b"",
            timeouts=self._timeouts,
        )
        try:
            if not 200 <= response.status < 300:
                raise await self.error_of(response)
            return await response.read(limit)
        finally:
            response.close()


def _encode_headers(fixed: Mapping[str, str], *, stream: bool, forwarded: Mapping[str, str | None]) -> bytes:
    headers = {"content-type": "application/json", "user-agent": "routecodex"}
    headers["accept"] = "text/event-stream" if stream else "application/json"
    headers.update((name.lower(), value) for name, value in fixed.items())
    for name, value in forwarded.items():
        if value is not None:
            # anthropic-beta and openai-beta are lists: features of the configuration and the client add up.
            both = name.endswith("-beta") and name in headers
            headers[name] = f"{headers[name]},{value}" if both else value
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items())


_REDACTED = "***"

_MIN_SECRET = 6
"""Characters of the shortest secret: a shorter one is not secret, and occurs in messages by chance."""
_MIN_UNNAMED_SECRET = 8
_CREDENTIAL_NAME = re.compile(r"auth|key|token|secret|password|credential|cookie", re.IGNORECASE)

_PUBLIC_NAME = re.compile(
    r"version|beta|title|referer|origin|agent|accept|content-type|region|location|deployment|model",
    re.IGNORECASE,
)
"""Names of values that are not secret, however long, and that people must be able to read in an error."""
_AUTH_SCHEME = re.compile(r"(?:bearer|basic|token)\s+", re.IGNORECASE)


def configured_secrets(
    keys: Iterable[str], *, headers: Mapping[str, str], query: Mapping[str, str], origin: Origin
) -> Iterator[str]:
    """Yield every configured value of a provider that may be secret."""
    yield from keys
    for name, value in (*headers.items(), *query.items()):
        unnamed = len(value) >= _MIN_UNNAMED_SECRET and not _PUBLIC_NAME.search(name)
        if unnamed or _CREDENTIAL_NAME.search(name):
            yield _AUTH_SCHEME.sub("", value, count=1)
    if origin.proxy is not None and origin.proxy.authorization is not None:
        credentials = origin.proxy.authorization.decode("ascii").removeprefix("Basic ")
        yield credentials
        yield base64.b64decode(credentials).decode().partition(":")[2]


class SecretRedactor:
    """Removes keys from provider messages."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _MIN_SECRET}
        spellings = known | {quote_plus(secret) for secret in known}
        # The longest first: a secret that is part of another must not break that up.
        self._texts = sorted(spellings, key=len, reverse=True)
        self._bytes = [text.encode() for text in self._texts]

    def data(self, data: bytes) -> bytes:
        """Return the bytes without secrets."""
        for secret in self._bytes:
            data = data.replace(secret, _REDACTED.encode())
        return data

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._texts:
            text = text.replace(secret, _REDACTED)
        return text

    def error(self, error: GatewayError) -> None:
        """Remove secrets from every field of the error that reaches a client or a log."""
        error.message = self.text(error.message)
        error.code = self._value(error.code)
        error.param = self._value(error.param)
        error.details = self._value(error.details)
        error.args = (error.message,)
        if isinstance(error, UpstreamError):
            error.provider_message = self.text(error.provider_message)

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
