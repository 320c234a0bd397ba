"""Runs web searches over HTTP or a route.

web_search in this gateway: which upstreams have a search of their own, and how ours is done.
"""

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
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.internal.internal_calls import AnyTarget, InternalCall, InternalCalls
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect, hosts_search
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
"""How a search of the upstream's own is declared; chat has an option instead of a tool."""

_PLAIN = frozenset({None, "function", "custom"})
"""The types of tools that run at the client."""


def may_declare(inbound: WireRequest) -> bool:
    """Whether a declared search is worth looking for: not where all tools run at the client.

    Asked of every request, so the body is looked through only where a tool is of another kind.
    """
    return _HOSTS[inbound.protocol](inbound.wire) and may_declare_search(inbound.body)


def _hosts(tools: Sequence[Any] | None) -> bool:
    """Whether one of the tools does not run at the client."""
    return tools is not None and not _PLAIN.issuperset([tool.type for tool in tools])


def _hosts_google(wire: Any) -> bool:
    tools = wire.body.tools
    if tools is None:
        return False
    listed = tools if isinstance(tools, list) else [tools]
    return any(
        tool.google_search is not ABSENT or tool.google_search_retrieval is not ABSENT for tool in listed
    )


_HOSTS: dict[ProtocolName, Callable[[Any], bool]] = {
    "chat": lambda wire: wire.fields.web_search_options is not ABSENT or _hosts(wire.decoded_tools()),
    "responses": lambda wire: _hosts(wire.typed.tools),
    "messages": lambda wire: _hosts(wire.tools),
    "gemini": _hosts_google,
}
"""Whether a request declares tools that run at the provider, by what its codec saw of it."""


def lacking(config: Config, *, trusting: bool) -> frozenset[ProtocolName]:
    """The protocols in which a search may be declared that one of the providers does not run."""
    rows = [row for row in config.providers.values() if row.protocol in CODECS]
    return frozenset(
        source
        for source in _HOSTS
        if not all(
            _runs(source, row.protocol, dialect=convert(row.dialect, Dialect), trusting=trusting)
            for row in rows
        )
    )


def searches(lane: AnyTarget, source: ProtocolName | None = None, *, trusting: bool = False) -> bool:
    """Whether a target searches by itself; with `source`, when the search is declared as that protocol does.

    A built-in provider is left alone: it has nothing to search and nothing to offer.
    """
    if not isinstance(lane, PreparedTarget):
        return source is not None
    name = lane.codec.name
    return _runs(source or name, name, dialect=lane.aim.dialect, trusting=trusting)


def _runs(source: ProtocolName, spoken: str, *, dialect: Dialect, trusting: bool) -> bool:
    """Whether who speaks so runs a search declared like that; only Responses has a form for others'.

    Some that speak chat have a search and some have none. `trusting` takes the client's word for it: where
    nobody else could search, what it wrote for that very upstream is the best there is.
    """
    if trusting and source == spoken == "chat" and dialect.web_search is None:
        return True
    return spoken in (source, "responses") and hosts_search(dialect, spoken)


def search_of(
    row: WebSearchConfig,
    calls: InternalCalls,
    *,
    client: HttpClient,
    environ: Mapping[str, str],
    lanes: Iterable[AnyTarget],
) -> Search | None:
    """Who searches, as the configuration has it, None when nobody; `lanes` are the targets of the route."""
    if not row.enabled:
        return None
    if row.provider != "route" and row.http.url is not None:
        return HttpSearch(row.http, client, environ)
    if row.provider != "http" and any(map(searches, lanes)):
        return RouteSearch(calls, seconds=row.route_timeout_ms / 1000)
    return None


class HttpSearch:
    """A search API over HTTP that answers in JSON, asked by templates."""

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

    async def __call__(self, _situation: TurnContext, query: str) -> SearchResults:
        """The results; GatewayError when there are none to be had."""
        try:
            value = json.decode(await self._asked(query))
        except UpstreamError as error:
            error.message = error.message.replace(self._key, "***") if self._key else error.message
            raise
        except ValueError as exc:
            raise UpstreamFailed("the search provider's answer is not JSON") from exc
        results = _at(value, self._row.results)
        if not isinstance(results, list):
            raise UpstreamFailed(f"the search provider's answer has no list at {self._row.results!r}")
        return SearchResults(tuple(self._hits(results)))

    async def _asked(self, query: str) -> bytes:
        row = self._row
        path = _filled(self._path, quote(query, safe=""), quote(self._key, safe=""))
        body = b""
        if row.body is not None:
            body = _filled(row.body, _inside(query), _inside(self._key)).encode()
        named = {"accept": "application/json", "user-agent": "routecodex"}
        named |= {"content-type": "application/json"} if body else {}
        named |= {name.lower(): _filled(value, "", self._key) for name, value in row.headers.items()}
        response = await self._client.send(
            self._origin,
            method=b"POST" if body else b"GET",
            path=path.encode("ascii", "ignore"),
            headers=b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in named.items()),
            body=body,
            timeouts=self._timeouts,
        )
        try:
            if response.status != 200:
                raise UpstreamFailed(f"the search provider answered HTTP {response.status}")
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
    """A search by a model of the route `web_search` that searches by itself."""

    def __init__(self, calls: InternalCalls, *, seconds: float) -> None:
        self._calls = calls
        self._seconds = seconds

    async def __call__(self, situation: TurnContext, query: str) -> SearchResults:
        """What the model found, and what it cites."""
        course: RoutingContext = situation.data["course"]
        errand = InternalCall(
            id=f"{situation.id}:web_search",
            route=ROUTE,
            wording=lambda lane: _wording(query, lane),
            able=searches,
            seconds=self._seconds,
        )
        response = await self._calls.ask(errand, course)
        words = "".join(part.text for part in response.parts if isinstance(part, Text)).strip()
        return SearchResults(tuple(cited_sources(response)), words)


def _wording(query: str, lane: AnyTarget) -> Request:
    """The search in the words of the target's own protocol, as a client of that protocol would ask."""
    assert isinstance(lane, PreparedTarget)
    name = lane.codec.name
    message = Message("user", (Text(TASK.format(query=query)),))
    asked = Request(model="", source=name, messages=(message,), max_tokens=_MAX_TOKENS)
    native = _NATIVE.get(name)
    return replace(asked, tools=(native,)) if native else replace(asked, extras={CHAT_OPTIONS: {}})


def _filled(template: str, query: str, key: str) -> str:
    return template.replace("{key}", key).replace("{query}", query)


def _inside(text: str) -> str:
    """Text as it stands between the quotes of a JSON string."""
    return json.encode(text).decode()[1:-1]


def _at(value: Json, path: str) -> Json:
    """What stands at a dotted path; the value itself at an empty one."""
    for step in filter(None, path.split(".")):
        value = value.get(step) if isinstance(value, dict) else None
    return value
