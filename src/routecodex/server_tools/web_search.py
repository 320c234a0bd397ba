"""web_search: a web search for upstreams without one.

A client declares a search that its provider runs, and the request is routed to a provider without it. The
model then gets a function of the gateway instead, whose calls go to the gateway's search provider; the
results have titles and addresses to cite. Without a configured search provider, the tool result says so.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.parts import Json, Text, ToolCall
from routecodex.canon.request import Request, Tool, ToolChoice
from routecodex.canon.response import Response
from routecodex.server_tools.framework import ServerTool, TurnContext

NAME = "web_search"
OTHER_NAME = "routecodex_web_search"

CHAT_OPTIONS = "web_search_options"
"""Field of chat that requests a search without a tool (OpenAI API reference, search models)."""
NO_PROVIDER = (
    "WEB SEARCH IS NOT AVAILABLE: this gateway has no search provider configured. Nothing was searched. Tell "
    "the user so, and that the operator can set one under [server_tools.web_search]; do not invent results."
)
CITE = "Use these results and cite each source you rely on as a Markdown link: [title](address)."
TASK = (
    "Search the web for the following and report what you find: the facts, with dates and figures, and every "
    "source with its title and full address.\n\n{query}"
)
_DECLARED = re.compile(r"\$?(openrouter:)?(web_?search|google_?search|browser_search)", re.IGNORECASE)
_MARKS = (b"web_search", b"oogle_search", b"oogleSearch", b"browser_search")
_MAX_QUERY = 1000
_MAX_TEXT = 1500


class SearchHit(Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    text: str = ""


class SearchResults(Struct, frozen=True):
    """The results of a search, or the text of a model that searched itself."""

    hits: tuple[SearchHit, ...] = ()
    text: str = ""


Search = Callable[[TurnContext, str], Awaitable[SearchResults]]
"""Searches the web; raises GatewayError if it fails."""


class SearchLimits(Struct, frozen=True, kw_only=True):
    """The client's limits: the number of searches, and the domains of results."""

    uses: int
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def admit(self, url: str) -> bool:
        """Return whether the limits allow a result from this address."""
        return not _is_in(url, self.blocked) and (not self.allowed or _is_in(url, self.allowed))


class WebSearchOptions(Struct, frozen=True, kw_only=True):
    """Options of web_search."""

    max_uses: int = 5
    max_results: int = 8


class _TurnState:
    """The name of the function in this turn, and how often it was called."""

    name = ""
    searches = 0


class WebSearchTool(ServerTool):
    """A function `web_search` in place of a hosted search that the upstream lacks."""

    name = NAME

    def __init__(self, search: Search | None, *, options: WebSearchOptions) -> None:
        self._search = search
        self._options = options

    def wants(self, turn: TurnContext) -> bool:
        """Return whether a search is declared that a target lacks."""
        return turn.lacks_search

    def replace_search(self, turn: TurnContext, request: Request) -> Request:
        """Return the request for a target without a search: a function replaces the declared search."""
        if not declares_search(request):
            return request
        state = turn.state(self, _TurnState)
        name = state.name = state.name or _function_name(request)
        turn.tool_names.add(name)
        if self._search is None:
            turn.note("web search requested, but no search provider is configured")
        others = tuple(tool for tool in request.tools if not is_search(tool))
        # Once the limit is exceeded, the function is no longer offered.
        exhausted = state.searches > self._limits(turn).uses
        offered = () if exhausted else (_function(name),)
        extras = {key: value for key, value in (request.extras or {}).items() if key != CHAT_OPTIONS}
        return replace(
            request,
            tools=(*others, *offered),
            tool_choice=_choice(turn.captured, name, again=turn.round > 1),
            extras=extras or None,
        )

    def _limits(self, turn: TurnContext) -> SearchLimits:
        return search_limits(turn.captured, max_uses=self._options.max_uses)

    def answers(self, turn: TurnContext, name: str) -> bool:
        return name == turn.state(self, _TurnState).name

    async def call(self, turn: TurnContext, call: ToolCall) -> str:
        limits = self._limits(turn)
        state = turn.state(self, _TurnState)
        used = state.searches = state.searches + 1
        if used > limits.uses:
            turn.fail_call("limit_reached")
            return f"No more searches: {limits.uses} are allowed in one answer. Go on with what you have."
        query = _query(call.arguments)
        if not query:
            turn.fail_call("bad_arguments")
            return 'The search needs its words as JSON: {"query": "what to look for"}. Nothing was searched.'
        if self._search is None:
            turn.fail_call("no_search_provider")
            return NO_PROVIDER
        try:
            found = await self._search(turn, query)
        except GatewayError as error:
            turn.note(f"web search failed: {error.message}")
            turn.fail_call(error)
            return f"THE WEB SEARCH FAILED: {error.message}. Nothing was found; tell the user so."
        hits = [hit for hit in found.hits if limits.admit(hit.url)][: self._options.max_results]
        return results_text(query, hits, text=found.text)


def may_declare_search(body: bytes) -> bool:
    """Return whether the body may declare a search."""
    return any(mark in body for mark in _MARKS)


def declares_search(request: Request) -> bool:
    """Return whether the request declares a search that the provider runs."""
    return any(map(is_search, request.tools)) or bool(request.extras and CHAT_OPTIONS in request.extras)


def is_search(tool: Tool) -> bool:
    """Return whether a tool is a web search that the provider runs."""
    return tool.kind == "hosted" and any(map(_DECLARED.match, _names_of(tool)))


def _names_of(tool: Tool) -> Iterator[str]:
    """Yield the names of a hosted tool: name, type, only field (Gemini), function name (Kimi)."""
    yield tool.name
    if not isinstance(tool.hosted, dict):
        return
    yield str(tool.hosted.get("type", ""))
    if "type" not in tool.hosted:
        yield from tool.hosted
    function = tool.hosted.get("function")
    if isinstance(function, dict):
        yield str(function.get("name", ""))


def search_limits(request: Request, *, max_uses: int) -> SearchLimits:
    """Read the limits of the declared search, in the form of any protocol."""
    declared = [tool.hosted for tool in request.tools if is_search(tool) and isinstance(tool.hosted, dict)]
    search = declared[0] if declared else {}
    nested = search.get("filters")
    filters = nested if isinstance(nested, dict) else search
    uses = search.get("max_uses")
    return SearchLimits(
        uses=min(uses, max_uses) if isinstance(uses, int) and uses > 0 else max_uses,
        allowed=_domains(filters.get("allowed_domains")),
        blocked=_domains(filters.get("blocked_domains")),
    )


def results_text(query: str, hits: Iterable[SearchHit], *, text: str = "") -> str:
    """Return the tool result of a search."""
    lines = [f"[{at}] {_hit_text(hit)}" for at, hit in enumerate(hits, 1)]
    if text:
        sources = "\n\nSources:\n" + "\n".join(lines) if lines else ""
        return f"A web search for {query!r} gave:\n\n{text}{sources}\n\n{CITE}"
    if not lines:
        return f"The web search for {query!r} found nothing. Try other words, or tell the user."
    return "\n\n".join([f"Web search results for {query!r}:", *lines, CITE])


def _hit_text(hit: SearchHit) -> str:
    return f"{hit.title or hit.url}\n{hit.url}\n{_short(hit.text)}".rstrip()


def cited_sources(response: Response) -> Iterator[SearchHit]:
    """Yield the sources an answer cites, in the annotations of any protocol; each address once."""
    urls: set[str] = set()
    annotations = (found for part in response.parts if isinstance(part, Text) for found in part.annotations)
    for hit in (hit for annotation in annotations for hit in _cited(annotation)):
        if hit.url not in urls:
            urls.add(hit.url)
            yield hit


def _cited(annotation: Json) -> Iterator[SearchHit]:
    if not isinstance(annotation, dict):
        return
    url = annotation.get("url") or annotation.get("uri")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        yield SearchHit(str(annotation.get("title") or ""), url)
    for inner in annotation.values():
        yield from _cited(inner)


def _function(name: str) -> Tool:
    return Tool(
        name,
        description="Searches the web and gives titles, addresses and excerpts of what it finds. Use it for "
        "anything recent or that you are not sure of, and cite the sources you use.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    )


def _function_name(request: Request) -> str:
    taken = {tool.name for tool in request.tools if not is_search(tool)}
    return OTHER_NAME if NAME in taken else NAME


def _choice(captured: Request, name: str, *, again: bool) -> ToolChoice | None:
    """Return the client's tool choice with the function's name; a forced search is forced only once."""
    choice = captured.tool_choice
    if choice is None:
        return None
    replaced = {tool.name for tool in captured.tools if is_search(tool)}
    names = tuple(dict.fromkeys(name if chosen in replaced else chosen for chosen in choice.names))
    only_search = names == (name,) or (not names and len(replaced) == len(captured.tools))
    if again and choice.mode in ("tool", "required") and only_search:
        return ToolChoice("auto")
    return replace(choice, names=names)


def _query(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ""
    query = value.get("query") if isinstance(value, dict) else None
    return query.strip()[:_MAX_QUERY] if isinstance(query, str) else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}…"


def _domains(value: Json) -> tuple[str, ...]:
    domains = value if isinstance(value, list) else []
    return tuple(
        domain.lower().removeprefix("https://").strip("/") for domain in domains if isinstance(domain, str)
    )


def _is_in(url: str, domains: Iterable[str]) -> bool:
    """Return whether an address is in one of the domains, or below the path of one."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = (parts.hostname or "").lower()
    return any(_is_below(host, parts.path, domain) for domain in domains)


def _is_below(host: str, path: str, domain: str) -> bool:
    name, _, below = domain.partition("/")
    return (host == name or host.endswith(f".{name}")) and path.lstrip("/").startswith(below)
