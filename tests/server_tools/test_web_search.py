"""web_search as a tool: declared searches, the function that replaces them, and results."""

from __future__ import annotations

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.parts import Json, Text, ToolCall
from routecodex.canon.request import ProtocolName, Request, Tool, ToolChoice
from routecodex.canon.response import Response
from routecodex.protocols.codecs import CODECS
from routecodex.server_tools.framework import TurnContext
from routecodex.server_tools.web_search import (
    NO_PROVIDER,
    SearchHit,
    SearchLimits,
    SearchResults,
    WebSearchOptions,
    WebSearchTool,
    cited_sources,
    declares_search,
    is_search,
    may_declare_search,
    results_text,
    search_limits,
)
from routecodex.wire import json
from tests.kit import asking

FUNCTION = Tool("read", parameters={"type": "object"})
HOSTED = Tool("web_search", "hosted", hosted={"type": "web_search_20250305", "name": "web_search"})

DECLARED: list[tuple[ProtocolName, dict[str, Json], bool]] = [
    ("chat", {"web_search_options": {}}, True),
    ("chat", {"tools": [{"type": "web_search", "web_search": {"enable": True}}]}, True),
    ("chat", {"tools": [{"type": "openrouter:web_search"}]}, True),
    ("chat", {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]}, True),
    ("chat", {"tools": [{"type": "function", "function": {"name": "web_search"}}]}, False),
    ("responses", {"tools": [{"type": "web_search"}]}, True),
    ("responses", {"tools": [{"type": "web_search_preview"}]}, True),
    ("responses", {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, False),
    ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, True),
    ("messages", {"tools": [{"type": "tool_search_tool_bm25_20251119", "name": "tool_search"}]}, False),
    ("messages", {"tools": [{"name": "web_search", "input_schema": {"type": "object"}}]}, False),
    ("gemini", {"tools": [{"googleSearch": {}}]}, True),
    ("gemini", {"tools": [{"google_search": {}}]}, True),
    ("gemini", {"tools": [{"googleSearchRetrieval": {}}]}, True),
    ("gemini", {"tools": [{"codeExecution": {}}]}, False),
]


def read(protocol: ProtocolName, fields: dict[str, Json]) -> tuple[bytes, Request]:
    body = json.encode(asking.body(protocol, stream=False) | fields)
    codec = CODECS[protocol]
    inbound = codec.validate(body, model="m", stream=False) if protocol == "gemini" else codec.validate(body)
    return body, codec.decode_request(inbound)


@pytest.mark.parametrize(("protocol", "fields", "expected"), DECLARED)
def test_a_search_is_recognised_in_every_protocol(
    protocol: ProtocolName, fields: dict[str, Json], expected: bool
) -> None:
    body, request = read(protocol, fields)
    assert declares_search(request) is expected
    assert may_declare_search(body) or not expected


def asked(*tools: Tool, choice: ToolChoice | None = None, extras: Json = None) -> Request:
    return Request(model="m", source="chat", messages=(), tools=tools, tool_choice=choice, extras=extras)


def situation(request: Request) -> TurnContext:
    return TurnContext(id="r1", session=None, captured=request, now=lambda: 0.0)


class Searcher:
    """Finds the same hits every time."""

    def __init__(self, *hits: SearchHit, words: str = "", fails: bool = False) -> None:
        self.queries: list[str] = []
        self._found = SearchResults(hits, words)
        self._fails = fails

    async def __call__(self, _situation: TurnContext, query: str) -> SearchResults:
        self.queries.append(query)
        if self._fails:
            raise UpstreamFailed("it is down")
        return self._found


def tool(searcher: Searcher | None, **options: int) -> WebSearchTool:
    return WebSearchTool(searcher, options=WebSearchOptions(**options))


def test_a_function_of_ours_stands_where_the_search_was_declared() -> None:
    request = asked(FUNCTION, HOSTED, extras={"web_search_options": {}, "odd": 1})
    turn = situation(request)
    fitted = tool(Searcher()).replace_search(turn, request)
    assert [(one.name, one.kind) for one in fitted.tools] == [
        ("read", "function"),
        ("web_search", "function"),
    ]
    assert fitted.tools[1].parameters["required"] == ["query"]
    assert fitted.extras == {"odd": 1}
    assert turn.names == {"web_search"}
    assert not any(map(is_search, fitted.tools))


def test_a_request_that_declares_none_is_the_same_object() -> None:
    request = asked(FUNCTION)
    assert tool(Searcher()).replace_search(situation(request), request) is request


CHOICES = [
    (None, None, None),
    (ToolChoice("auto"), ToolChoice("auto"), ToolChoice("auto")),
    (ToolChoice("none"), ToolChoice("none"), ToolChoice("none")),
    (ToolChoice("tool", ("web_search",)), ToolChoice("tool", ("routecodex_web_search",)), ToolChoice("auto")),
    (ToolChoice("tool", ("read",)), ToolChoice("tool", ("read",)), ToolChoice("tool", ("read",))),
    (ToolChoice("required"), ToolChoice("required"), ToolChoice("required")),
]


@pytest.mark.parametrize(("choice", "first", "later"), CHOICES)
def test_a_forced_search_is_forced_in_the_first_round_only(
    choice: ToolChoice | None, first: ToolChoice | None, later: ToolChoice | None
) -> None:
    taken = Tool("web_search", namespace="mine", parameters={"type": "object"})
    request = asked(FUNCTION, taken, HOSTED, choice=choice)
    turn, ours = situation(request), tool(Searcher())
    assert ours.replace_search(turn, request).tool_choice == first
    turn.round = 2
    assert ours.replace_search(turn, request).tool_choice == later


async def test_a_call_gives_titles_and_addresses_to_cite() -> None:
    searcher = Searcher(
        SearchHit("T", "https://a.example/", "some\n text"), SearchHit("", "https://b.example/")
    )
    turn = situation(asked(HOSTED))
    result = await tool(searcher).call(turn, ToolCall("c", "web_search", '{"query": " cats "}'))
    assert result == (
        "Web search results for 'cats':\n\n[1] T\nhttps://a.example/\nsome text\n\n"
        "[2] https://b.example/\nhttps://b.example/\n\n"
        "Use these results and cite each source you rely on as a Markdown link: [title](address)."
    )
    assert searcher.queries == ["cats"]


@pytest.mark.parametrize(
    "arguments", ["", "{", "[]", '"cats"', "{}", '{"query": 3}', '{"query": "  "}', "\ud800"]
)
async def test_arguments_that_hold_no_query_are_explained(arguments: str) -> None:
    searcher = Searcher()
    result = await tool(searcher).call(situation(asked(HOSTED)), ToolCall("c", "web_search", arguments))
    assert "Nothing was searched." in result
    assert searcher.queries == []


async def test_without_a_provider_the_result_says_so_loudly() -> None:
    request = asked(HOSTED)
    turn = situation(request)
    tool(None).replace_search(turn, request)
    result = await tool(None).call(turn, ToolCall("c", "web_search", '{"query": "cats"}'))
    assert result == NO_PROVIDER
    assert list(turn.notices.lines()) == ["web search requested, but no search provider is configured"]


async def test_a_search_that_fails_is_a_result_too() -> None:
    turn = situation(asked(HOSTED))
    result = await tool(Searcher(fails=True)).call(turn, ToolCall("c", "web_search", '{"query": "cats"}'))
    assert result == "THE WEB SEARCH FAILED: it is down. Nothing was found; tell the user so."
    assert list(turn.notices.lines()) == ["web search failed: it is down"]


async def test_searches_and_results_are_limited() -> None:
    searcher = Searcher(*(SearchHit(str(at), f"https://a.example/{at}") for at in range(9)))
    turn, ours = situation(asked(HOSTED)), tool(searcher, max_uses=1, max_results=2)
    call = ToolCall("c", "web_search", '{"query": "cats"}')
    assert (await ours.call(turn, call)).count("https://") == 2
    assert (await ours.call(turn, call)).startswith("No more searches: 1 are allowed")
    assert searcher.queries == ["cats"]


def test_nothing_found_is_said() -> None:
    assert (
        results_text("cats", [])
        == "The web search for 'cats' found nothing. Try other words, or tell the user."
    )


LIMITS = [
    ({"type": "web_search"}, SearchLimits(uses=5)),
    ({"type": "web_search_1", "max_uses": 2}, SearchLimits(uses=2)),
    ({"type": "web_search_1", "max_uses": 9}, SearchLimits(uses=5)),
    ({"type": "web_search_1", "max_uses": "9"}, SearchLimits(uses=5)),
    (
        {"type": "web_search", "filters": {"allowed_domains": ["A.example"]}},
        SearchLimits(uses=5, allowed=("a.example",)),
    ),
    (
        {"type": "web_search_1", "blocked_domains": ["b.example/x/", 3]},
        SearchLimits(uses=5, blocked=("b.example/x",)),
    ),
]


@pytest.mark.parametrize(("hosted", "expected"), LIMITS)
def test_what_the_client_allows_is_read_in_any_protocol(hosted: Json, expected: SearchLimits) -> None:
    assert search_limits(asked(Tool("web_search", "hosted", hosted=hosted)), max_uses=5) == expected


@pytest.mark.parametrize(
    ("limits", "url", "expected"),
    [
        (SearchLimits(uses=1), "https://any.example/", True),
        (SearchLimits(uses=1, allowed=("a.example",)), "https://www.a.example/x", True),
        (SearchLimits(uses=1, allowed=("a.example",)), "https://aa.example/x", False),
        (SearchLimits(uses=1, allowed=("a.example/docs",)), "https://a.example/docs/1", True),
        (SearchLimits(uses=1, allowed=("a.example/docs",)), "https://a.example/blog", False),
        (SearchLimits(uses=1, blocked=("a.example",)), "https://a.example/", False),
        (SearchLimits(uses=1, allowed=("a.example",)), "https://[bad", False),
    ],
)
def test_domains_are_kept_to(limits: SearchLimits, url: str, expected: bool) -> None:
    assert limits.admit(url) is expected


def test_sources_are_found_in_every_shape_and_told_once() -> None:
    marks = (
        {"type": "url_citation", "url": "https://a.example/", "title": "A"},
        {"type": "url_citation", "url_citation": {"url": "https://b.example/", "title": "B"}},
        {"type": "web_search_result_location", "url": "https://a.example/", "title": "again"},
        {"uri": "https://c.example/"},
        {"type": "file_citation", "file_id": "f"},
        "odd",
    )
    found = list(cited_sources(Response(parts=(Text("words", annotations=marks),))))
    assert found == [
        SearchHit("A", "https://a.example/"),
        SearchHit("B", "https://b.example/"),
        SearchHit("", "https://c.example/"),
    ]
