"""One configured provider, ready to send to: where it is, how it authenticates, which dialect it speaks."""

from __future__ import annotations

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
_MAX_HEADS = 256


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
        self._passed = _PASSED_HEADERS[codec.name]
        self._nothing = (None,) * len(self._passed)
        self._heads: dict[tuple[str, bool, tuple[str | None, ...]], bytes] = {}

    def path(self, model: str, *, stream: bool) -> bytes:
        """Where requests for this model go."""
        return self._full_path(self.dialect.path or self.codec.path(quote(model, safe="/:@-._~"), stream))

    def _full_path(self, below: str) -> bytes:
        path = f"{self._base}{below}"
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        return path.encode("ascii")

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

    async def send(self, body: bytes, *, head: bytes, path: bytes) -> HttpResponse:
        """The response head for this body; a refusal is raised as the typed error it stands for."""
        response = await self._client.send(
            self._origin, method=b"POST", path=path, headers=head, body=body, timeouts=self._timeouts
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
        head = self.head(key, stream=False, headers=None)
        response = await self.send(body, head=head, path=self._full_path(below))
        try:
            return await response.read(ANSWER_LIMIT)
        finally:
            response.close()


def _head(fixed: Mapping[str, str], *, stream: bool, passed: Mapping[str, str | None]) -> bytes:
    named = {"content-type": "application/json", "user-agent": "routecodex"}
    named["accept"] = "text/event-stream" if stream else "application/json"
    named.update((name.lower(), value) for name, value in fixed.items())
    named.update((name, value) for name, value in passed.items() if value is not None)
    return b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in named.items())
