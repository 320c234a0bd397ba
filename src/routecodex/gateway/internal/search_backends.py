"""Runs web searches over HTTP or a route, and knows which targets search themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import convert
from msgspec.structs import replace

from routecodex.canon.errors import UpstreamError, UpstreamFailed
from routecodex.canon.parts import Json, Text
from routecodex.canon.request import Message, ProtocolName, Request, Tool
from routecodex.config import Config
from routecodex.config.server_tools import WebSearchConfig, WebSearchHttpConfig
from routecodex.gateway.answer.prepared_target import AnyTarget, PreparedTarget
from routecodex.gateway.internal.internal_calls import InternalCall, InternalCalls
from routecodex.gateway.internal.tool_turn import GatewayTurn
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect, hosts_search
from routecodex.protocols.responses.schema import declared_tools
from routecodex.providers.http import HttpClient, Timeouts, origin_of
from routecodex.server_tools.framework import TurnContext
from routecodex.server_tools.web_search import (
    CHAT_OPTIONS,
    TASK,
    Search,
    SearchHit,
    SearchResults,
    cited_sources,
    may_declare_search,
)
from routecodex.wire import json
from routecodex.wire.json import ABSENT

ROUTE = "web_search"
_ANSWER_LIMIT = 4 * 1024 * 1024
_MAX_TOKENS = 4000

_NATIVE: dict[ProtocolName, Tool] = {
    "responses": Tool("web_search", "hosted", hosted={"type": "web_search"}),
    "messages": Tool("web_search", "hosted", hosted={"type": "web_search_20250305", "name": "web_search"}),
    "gemini": Tool("google_search", "hosted", hosted={"googleSearch": {}}),
}
"""Declaration of the upstream's own search by protocol; chat has an option instead of a tool."""

_PLAIN = frozenset({None, "function", "custom"})
"""Types of tools that run at the client."""


def may_declare(request: WireRequest) -> bool:
    """Return whether the request may declare a search: not if all its tools run at the client.

    Called for every request, so the body is scanned only if a tool is of another kind.
    """
    return _HOSTS[request.protocol](request.view) and may_declare_search(request.body)


def _hosts(tools: Sequence[Any] | None) -> bool:
    """Return whether one of the tools does not run at the client."""
    return tools is not None and not _PLAIN.issuperset([tool.type for tool in tools])


def _hosts_google(view: Any) -> bool:
    tools = view.body.tools
    if tools is None:
        return False
    listed = tools if isinstance(tools, list) else [tools]
    return any(
        tool.google_search is not ABSENT or tool.google_search_retrieval is not ABSENT for tool in listed
    )


_HOSTS: dict[ProtocolName, Callable[[Any], bool]] = {
    "chat": lambda view: view.fields.web_search_options is not ABSENT or _hosts(view.decoded_tools()),
    "responses": lambda view: _hosts(declared_tools(view.typed)),
    "messages": lambda view: _hosts(view.tools),
    "gemini": _hosts_google,
}
"""By protocol: whether the typed view of a request declares tools that run at the provider."""


def lacking(config: Config, *, trusting: bool) -> frozenset[ProtocolName]:
    """Return the protocols in which a search may be declared that one of the providers does not run."""
    rows = [row for row in config.providers.values() if row.protocol in CODECS]
    return frozenset(
        source
        for source in _HOSTS
        if not all(
            _runs(source, row.protocol, dialect=convert(row.dialect, Dialect), trusting=trusting)
            for row in rows
        )
    )


def searches(target: AnyTarget, source: ProtocolName | None = None, *, trusting: bool = False) -> bool:
    """Return whether a target searches itself; with `source`, a search declared in that protocol.

    A built-in provider never gets the gateway's search: it does not call tools for it.
    """
    if not isinstance(target, PreparedTarget):
        return source is not None
    name = target.codec.name
    return _runs(source or name, name, dialect=target.options.dialect, trusting=trusting)


def _runs(source: ProtocolName, protocol: str, *, dialect: Dialect, trusting: bool) -> bool:
    """Return whether an upstream protocol runs a search declared in `source`; Responses takes all forms.

    Some chat providers have a search and some have none. `trusting` passes the client's declaration on: no
    other search is configured, so the upstream is the only one that may run it.
    """
    if trusting and source == protocol == "chat" and dialect.web_search is None:
        return True
    return protocol in (source, "responses") and hosts_search(dialect, protocol)


def search_of(
    row: WebSearchConfig,
    calls: InternalCalls,
    *,
    client: HttpClient,
    environ: Mapping[str, str],
    targets: Iterable[AnyTarget],
) -> Search | None:
    """Return the configured search, None without one; `targets` are those of the route."""
    if not row.enabled:
        return None
    if row.provider != "route" and row.http.url is not None:
        return HttpSearch(row.http, client, environ)
    if row.provider != "http" and any(map(searches, targets)):
        return RouteSearch(calls, seconds=row.route_timeout_ms / 1000)
    return None


class HttpSearch:
    """A search API over HTTP with a JSON response; templates build its requests."""

    def __init__(self, row: WebSearchHttpConfig, client: HttpClient, environ: Mapping[str, str]) -> None:
        assert row.url is not None
        self._row = row
        self._client = client
        self._key = row.key.reveal() if row.key is not None else ""
        parts = urlsplit(row.url)
        self._origin = origin_of(f"{parts.scheme}://{parts.netloc}", environ=environ)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        seconds = row.timeout_ms / 1000
        self._timeouts = Timeouts(connect=seconds, first_byte=seconds, idle=seconds)

    async def __call__(self, turn: TurnContext, query: str) -> SearchResults:
        """Return the results; GatewayError if the search fails."""
        assert isinstance(turn, GatewayTurn)
        try:
            value = json.decode(await self._request(query, trace=turn.trace_lines()))
        except UpstreamError as error:
            error.message = error.message.replace(self._key, "***") if self._key else error.message
            raise
        except ValueError as exc:
            raise UpstreamFailed(
                "the search provider's answer is not JSON", code="upstream_unparsable"
            ) from exc
        results = _at(value, self._row.results)
        if not isinstance(results, list):
            raise UpstreamFailed(
                f"the search provider's answer has no list at {self._row.results!r}",
                code="upstream_unparsable",
            )
        return SearchResults(tuple(self._hits(results)))

    async def _request(self, query: str, *, trace: bytes) -> bytes:
        row = self._row
        path = _filled(self._path, quote(query, safe=""), quote(self._key, safe=""))
        body = b""
        if row.body is not None:
            body = _filled(row.body, _inside(query), _inside(self._key)).encode()
        headers = {"accept": "application/json", "user-agent": "routecodex"}
        headers |= {"content-type": "application/json"} if body else {}
        headers |= {name.lower(): _filled(value, "", self._key) for name, value in row.headers.items()}
        response = await self._client.send(
            self._origin,
            method=b"POST" if body else b"GET",
            path=path.encode("ascii", "ignore"),
            headers=trace
            + b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()),
            body=body,
            timeouts=self._timeouts,
        )
        try:
            if response.status != 200:
                raise UpstreamFailed(
                    f"the search provider answered HTTP {response.status}", upstream_status=response.status
                )
            return await response.read(_ANSWER_LIMIT)
        finally:
            response.close()

    def _hits(self, results: list[Json]) -> Iterator[SearchHit]:
        row = self._row
        for one in results:
            url = _at(one, row.link)
            if isinstance(url, str) and url.startswith(("http://", "https://")):
                yield SearchHit(str(_at(one, row.title) or ""), url, str(_at(one, row.text) or ""))


class RouteSearch:
    """A search by a model of the route `web_search` that searches itself."""

    def __init__(self, calls: InternalCalls, *, seconds: float) -> None:
        self._calls = calls
        self._seconds = seconds

    async def __call__(self, turn: TurnContext, query: str) -> SearchResults:
        """Return the text that the model wrote, and the sources it cites."""
        assert isinstance(turn, GatewayTurn)
        call = InternalCall(
            id=f"{turn.id}:web_search",
            route=ROUTE,
            request_for=lambda target: _search_request(query, target),
            able=searches,
            seconds=self._seconds,
            headers=turn.headers,
        )
        response = await self._calls.send(call, turn.context, turn.record)
        text = "".join(part.text for part in response.parts if isinstance(part, Text)).strip()
        return SearchResults(tuple(cited_sources(response)), text)


def _search_request(query: str, target: AnyTarget) -> Request:
    """Return the search as a client of the target's own protocol would request it."""
    assert isinstance(target, PreparedTarget)
    name = target.codec.name
    message = Message("user", (Text(TASK.format(query=query)),))
    request = Request(model="", source=name, messages=(message,), max_tokens=_MAX_TOKENS)
    native = _NATIVE.get(name)
    return replace(request, tools=(native,)) if native else replace(request, extras={CHAT_OPTIONS: {}})


def _filled(template: str, query: str, key: str) -> str:
    return template.replace("{key}", key).replace("{query}", query)


def _inside(text: str) -> str:
    """Return text escaped for the inside of a JSON string."""
    return json.encode(text).decode()[1:-1]


def _at(value: Json, path: str) -> Json:
    """Return the value at a dotted path; the value itself at an empty one."""
    for step in filter(None, path.split(".")):
        value = value.get(step) if isinstance(value, dict) else None
    return value
