"""One configured provider, ready to send to: where it is, how it authenticates, which dialect it speaks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from urllib.parse import quote, urlencode, urlsplit

from routecodex.canon.errors import UpstreamFailed
from routecodex.protocols.codec import Codec
from routecodex.protocols.dialect import Dialect
from routecodex.providers.http import HttpClient, HttpResponse, Origin, Timeouts

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
_DEFAULT_HEADERS = {"messages": {"anthropic-version": "2023-06-01"}}
ANSWER_LIMIT = 256 * 1024 * 1024
_ERROR_LIMIT = 1024 * 1024


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
        self._paths: dict[tuple[str, bool], bytes] = {}
        self._passed = self.passed({})
        style = auth_style or _AUTH_STYLES[codec.name]
        self._heads = {
            key: _head({**auth_headers(style, secret), **(headers or {})}) for key, secret in secrets.items()
        }

    def path(self, model: str, *, stream: bool) -> bytes:
        """Where requests for this model go."""
        known = self._paths.get((model, stream))
        if known is None:
            known = self._paths[(model, stream)] = self._path(model, stream=stream)
        return known

    def _path(self, model: str, *, stream: bool) -> bytes:
        return self._full_path(self.dialect.path or self.codec.path(quote(model, safe="/:@-._~"), stream))

    def passed(self, headers: Mapping[str, str]) -> bytes:
        """The client's own headers that travel on to an upstream of the same protocol, such as betas."""
        names = _PASSED_HEADERS[self.codec.name]
        return _passed_block(self.codec.name, tuple(map(headers.get, names)))

    def _full_path(self, below: str) -> bytes:
        path = f"{self._base}{below}"
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        return path.encode("ascii")

    async def send(
        self, body: bytes, *, key: str, path: bytes, accept: bytes, passed: bytes = b""
    ) -> HttpResponse:
        """The response head for this body; a refusal is raised as the typed error it stands for."""
        response = await self._client.send(
            self._origin,
            method=b"POST",
            path=path,
            headers=self._heads[key] + b"accept: " + accept + b"\r\n" + (passed or self._passed),
            body=body,
            timeouts=self._timeouts,
        )
        if 200 <= response.status < 300:
            return response
        try:
            raise await self._refusal(response)
        finally:
            response.close()

    async def _refusal(self, response: HttpResponse) -> Exception:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        try:
            body = await response.read(_ERROR_LIMIT)
        except UpstreamFailed:
            body = b""
        if 300 <= response.status < 400:
            return UpstreamFailed(
                f"provider {self.name!r} answered with a redirect (HTTP {response.status}); see base_url",
                provider=self.name,
                upstream_status=response.status,
            )
        return self.codec.decode_error(response.status, headers, body, self.name)

    async def call(self, body: bytes, *, key: str, below: str) -> bytes:
        """A plain JSON call below the base URL (counters, embeddings): the answer's body."""
        response = await self.send(body, key=key, path=self._full_path(below), accept=b"application/json")
        try:
            return await response.read(ANSWER_LIMIT)
        finally:
            response.close()


@functools.lru_cache(maxsize=256)
def _passed_block(protocol: str, given: tuple[str | None, ...]) -> bytes:
    values = dict(_DEFAULT_HEADERS.get(protocol, ()))
    named = zip(_PASSED_HEADERS[protocol], given, strict=True)
    values.update((name, value) for name, value in named if value is not None)
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in values.items())


def _head(headers: Mapping[str, str]) -> bytes:
    named = {name.lower(): value for name, value in headers.items()}
    named.setdefault("user-agent", "routecodex")
    lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in named.items()]
    return b"content-type: application/json\r\n" + b"".join(lines)
