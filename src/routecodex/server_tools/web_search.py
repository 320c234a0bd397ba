"""web_search: a search for models whose upstream has none.

A client declares a search that runs at its provider, and the request goes to another one. The model is then
offered a function of ours instead; its calls are answered by a search provider of the gateway's, with titles
and addresses to cite. With none configured the result says so, loudly.
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
"""Chat's way of asking for a search without declaring a tool."""
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
_LONGEST_QUERY = 1000
_LONGEST_TEXT = 1500


class SearchHit(Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    text: str = ""


class SearchResults(Struct, frozen=True):
    """What a search gave: results, or the words of a model that searched by itself."""

    hits: tuple[SearchHit, ...] = ()
    words: str = ""


Search = Callable[[TurnContext, str], Awaitable[SearchResults]]
"""Searches the web; raises GatewayError when it cannot."""


class SearchLimits(Struct, frozen=True, kw_only=True):
    """What the client allows: how many searches, and where results may come from."""

    uses: int
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def admit(self, url: str) -> bool:
        """Whether a result from there may be told."""
        return not _among(url, self.blocked) and (not self.allowed or _among(url, self.allowed))


class WebSearchOptions(Struct, frozen=True, kw_only=True):
    """How web_search is set up."""

    max_uses: int = 5
    max_results: int = 8


class WebSearchTool(ServerTool):
    """A function `web_search` in the place of a search that the upstream does not have."""

    name = NAME

    def __init__(self, search: Search | None, *, options: WebSearchOptions) -> None:
        self._search = search
        self._options = options

    def wants(self, situation: TurnContext) -> bool:
        """Only where a search is declared and a target lacks it."""
        return bool(situation.data.get("lacks_search"))

    def fitted(self, situation: TurnContext, request: Request) -> Request:
        """The request for a target without a search: our function stands where the search was declared."""
        if not declares_search(request):
            return request
        name = situation.data.setdefault(self.name, _free_name(request))
        situation.names.add(name)
        if self._search is None:
            self._note_once(situation, "web search asked for, but no search provider is configured")
        kept = tuple(tool for tool in request.tools if not is_search(tool))
        # A model that may search no more is not tempted to.
        spent = situation.data.get("searches", 0) > self._limits(situation).uses
        offered = () if spent else (_function(name),)
        extras = {key: value for key, value in (request.extras or {}).items() if key != CHAT_OPTIONS}
        return replace(
            request,
            tools=(*kept, *offered),
            tool_choice=_choice(situation.captured, name, again=situation.round > 1),
            extras=extras or None,
        )

    def _limits(self, situation: TurnContext) -> SearchLimits:
        return search_limits(situation.captured, most=self._options.max_uses)

    def answers(self, situation: TurnContext, name: str) -> bool:
        return bool(name == situation.data.get(self.name))

    async def call(self, situation: TurnContext, call: ToolCall) -> str:
        limits = self._limits(situation)
        used = situation.data["searches"] = situation.data.get("searches", 0) + 1
        if used > limits.uses:
            return f"No more searches: {limits.uses} are allowed in one answer. Go on with what you have."
        query = _query(call.arguments)
        if not query:
            return 'The search needs its words as JSON: {"query": "what to look for"}. Nothing was searched.'
        if self._search is None:
            return NO_PROVIDER
        try:
            found = await self._search(situation, query)
        except GatewayError as error:
            self._note_once(situation, f"web search failed: {error.message}")
            return f"THE WEB SEARCH FAILED: {error.message}. Nothing was found; tell the user so."
        hits = [hit for hit in found.hits if limits.admit(hit.url)][: self._options.max_results]
        return results_text(query, hits, words=found.words)

    def _note_once(self, situation: TurnContext, reason: str) -> None:
        if reason not in situation.notes:
            situation.note(reason)


def may_declare_search(body: bytes) -> bool:
    """Whether it is worth looking for a declared search in this body."""
    return any(mark in body for mark in _MARKS)


def declares_search(request: Request) -> bool:
    """Whether the client declared a search that runs at its provider."""
    return any(map(is_search, request.tools)) or bool(request.extras and CHAT_OPTIONS in request.extras)


def is_search(tool: Tool) -> bool:
    """Whether a tool is a web search that runs at the provider."""
    return tool.kind == "hosted" and any(_DECLARED.match(word) for word in _words_of(tool))


def _words_of(tool: Tool) -> Iterator[str]:
    """What a hosted tool calls itself: its name, its type, its only field (Gemini), its function (Kimi)."""
    yield tool.name
    if not isinstance(tool.hosted, dict):
        return
    yield str(tool.hosted.get("type", ""))
    if "type" not in tool.hosted:
        yield from tool.hosted
    function = tool.hosted.get("function")
    if isinstance(function, dict):
        yield str(function.get("name", ""))


def search_limits(request: Request, *, most: int) -> SearchLimits:
    """What the declared search allows, in the words of any protocol."""
    declared = [tool.hosted for tool in request.tools if is_search(tool) and isinstance(tool.hosted, dict)]
    said = declared[0] if declared else {}
    inner = said.get("filters")
    filters = inner if isinstance(inner, dict) else said
    uses = said.get("max_uses")
    return SearchLimits(
        uses=min(uses, most) if isinstance(uses, int) and uses > 0 else most,
        allowed=_domains(filters.get("allowed_domains")),
        blocked=_domains(filters.get("blocked_domains")),
    )


def results_text(query: str, hits: Iterable[SearchHit], *, words: str = "") -> str:
    """What the model hears of a search."""
    lines = [f"[{at}] {_told(hit)}" for at, hit in enumerate(hits, 1)]
    if words:
        sources = "\n\nSources:\n" + "\n".join(lines) if lines else ""
        return f"A web search for {query!r} gave:\n\n{words}{sources}\n\n{CITE}"
    if not lines:
        return f"The web search for {query!r} found nothing. Try other words, or tell the user."
    return "\n\n".join([f"Web search results for {query!r}:", *lines, CITE])


def _told(hit: SearchHit) -> str:
    return f"{hit.title or hit.url}\n{hit.url}\n{_short(hit.text)}".rstrip()


def cited_sources(response: Response) -> Iterator[SearchHit]:
    """What an answer cites, whatever shape its protocol gives to citations; each address once."""
    seen: set[str] = set()
    cited = (mark for part in response.parts if isinstance(part, Text) for mark in part.annotations)
    for hit in (hit for mark in cited for hit in _cited(mark)):
        if hit.url not in seen:
            seen.add(hit.url)
            yield hit


def _cited(mark: Json) -> Iterator[SearchHit]:
    if not isinstance(mark, dict):
        return
    url = mark.get("url") or mark.get("uri")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        yield SearchHit(str(mark.get("title") or ""), url)
    for inner in mark.values():
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


def _free_name(request: Request) -> str:
    taken = {tool.name for tool in request.tools if not is_search(tool)}
    return OTHER_NAME if NAME in taken else NAME


def _choice(captured: Request, name: str, *, again: bool) -> ToolChoice | None:
    """The client's choice in terms of our function; a search that was forced is forced once."""
    choice = captured.tool_choice
    if choice is None:
        return None
    replaced = {tool.name for tool in captured.tools if is_search(tool)}
    names = tuple(dict.fromkeys(name if one in replaced else one for one in choice.names))
    only_ours = names == (name,) or (not names and len(replaced) == len(captured.tools))
    if again and choice.mode in ("tool", "required") and only_ours:
        return ToolChoice("auto")
    return replace(choice, names=names)


def _query(arguments: str) -> str:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ""
    query = value.get("query") if isinstance(value, dict) else None
    return query.strip()[:_LONGEST_QUERY] if isinstance(query, str) else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}…"


def _domains(value: Json) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(one.lower().removeprefix("https://").strip("/") for one in found if isinstance(one, str))


def _among(url: str, domains: Iterable[str]) -> bool:
    """Whether an address lies in one of the domains, or below a path that one of them names."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = (parts.hostname or "").lower()
    return any(_is_below(host, parts.path, domain) for domain in domains)


def _is_below(host: str, path: str, domain: str) -> bool:
    name, _, below = domain.partition("/")
    return (host == name or host.endswith(f".{name}")) and path.lstrip("/").startswith(below)
